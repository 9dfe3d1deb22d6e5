"""Takeovers from readers that die when the wall clock is put forward or back."""

from __future__ import annotations

import asyncio

import pytest

import headrace
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
