"""Takeovers from readers that die when the wall clock is put forward or back."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.catalog.base import Catalog
from headrace.testing import driven_clock
from tests.groups.readers.runtime.support import Taken, freeze, run, send
from tests.support import until

TTL_S = 10
STEPS_S = (-60.0, -3.0, 0.0, 3.0, 3600.0)


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("later_s", [0.0, 3.0, 8.0])
def test_a_step_of_the_wall_clock_delays_no_takeover_from_a_reader(
    catalog_url: str, step_s: float, later_s: float
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1:
            await until(lambda: r1.status.segments)
            async with group.reader("r2") as r2:
                await asyncio.sleep(20)
                freeze(r1)
                died_s = hr.host.now_s()
                await asyncio.sleep(later_s)
                driven_clock().step_wall(step_s)
                taken = Taken()
                taken.start(r2)
                await send(hr, 1)
                await until(lambda: taken.got)
                assert hr.host.now_s() - died_s <= TTL_S + 1
                for task in taken.tasks:
                    task.cancel()

    run(catalog_url, work)


@pytest.mark.parametrize("step_s", STEPS_S[:3])
def test_who_comes_after_the_clock_was_put_back_waits_for_the_time_to_live_and_no_more(
    catalog_url: str, step_s: float
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1:
            await until(lambda: r1.status.segments)
            freeze(r1)
            driven_clock().step_wall(step_s)
            async with group.reader("r2") as r2:
                came_s = hr.host.now_s()
                await until(lambda: r2.status.segments)
                assert hr.host.now_s() - came_s <= TTL_S + 1

    run(catalog_url, work)


@pytest.mark.parametrize("step_s", [-60.0, -3.0])
def test_readers_that_renew_are_left_alone_when_the_clock_is_put_back(
    catalog_url: str, step_s: float
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            await until(lambda: len(r1.status.segments) == len(r2.status.segments) == 1)
            lives = r1.running._life, r2.running._life
            driven_clock().step_wall(step_s)
            await asyncio.sleep(90)
            assert len(r1.status.segments) == len(r2.status.segments) == 1
            assert (r1.running._life, r2.running._life) == lives

    run(catalog_url, work)


@pytest.mark.parametrize("later_ms", [0, 20_000, 20_250, 20_500, 20_750])
def test_segments_of_a_dead_program_are_taken_when_its_lease_has_run_out(
    catalog_url: str, later_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever that is: readers that idle wake up at common moments, and sleep over none of it."""
    monkeypatch.setattr(Catalog, "heard", property(lambda catalog: catalog.notifier.heard))

    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=8)
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with (
            headrace.open(catalog_url, housekeeping=False) as other,
            group.reader("r1") as r1,
            group.reader("r2") as r2,
        ):
            theirs = await other.reader_groups.get("report")
            await asyncio.sleep(later_ms / 1000)
            async with theirs.reader("dies", lease_ttl_ms=2000) as dies:
                await until(lambda: len(dies.status.segments) >= 2)
                await asyncio.sleep(4.1)
                taken = Taken()
                taken.start(r1, r2)
                freeze(dies)
                died_s = hr.host.now_s()
                await send(hr, *range(100))
                await until(lambda: len(taken.got) == 100)
                assert hr.host.now_s() - died_s <= 2 + 0.2
                await until(lambda: len(r1.status.segments) + len(r2.status.segments) == 8)
                assert hr.host.now_s() - died_s <= 2 + 0.5
                for task in taken.tasks:
                    task.cancel()

    run(catalog_url, work)
