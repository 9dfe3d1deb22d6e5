"""Takeovers of leaders and the life of sessions when the wall clock is put forward or back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog import leases
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.shared.runtime import state
from headrace.testing import driven_clock
from tests.groups.shared.runtime.support import QUICK_LEADER, Worker, open_log, publish, run
from tests.support import until

GROUP = "g:orders.>"
SHARED = "$share/g/orders.>"
TTL_S = QUICK_LEADER.lease_ttl_ms / 1000
STEPS_S = (-60.0, -2.0, 0.0, 2.0, 3600.0)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_step_of_the_wall_clock_delays_no_takeover_of_a_lease(
    catalog_url: str, step_s: float
) -> None:
    """The leader died before anybody else came."""

    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"])
            await hr.shared_groups.declare("g", "orders.>", settings=QUICK_LEADER)
            name, ttl_ms = state.lease_name(GROUP), QUICK_LEADER.lease_ttl_ms
            await hr.host.in_transaction(
                lambda tx: leases.acquire(tx, name, "dead", ttl_ms), [leases.lock(name)]
            )
            died_s = hr.host.now_s()
            driven_clock().step_wall(step_s)
            async with hr.session("a") as session:
                await session.subscribe(SHARED)
                await until(lambda: session.units, "its unit")
                assert hr.host.now_s() - died_s <= TTL_S + 1

    run(test())


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_step_of_the_wall_clock_delays_nobody_who_was_at_work(
    tmp_path: Path, step_s: float
) -> None:
    """The leader of a running group dies, and the clock is put forward or back just then."""

    async def test() -> None:
        async with open_log(tmp_path / "d") as first, open_log(tmp_path / "d") as second:
            await first.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(first, "a", SHARED) as a, Worker(second, "b", SHARED) as b:
                await until(lambda: len(a.session.units) == len(b.session.units) == 1, "one each")
                await asyncio.sleep(2)
                leading = (await first._shared.peer()).leaders[GROUP]
                # It does nothing any more, and gives nothing back.
                leading.core.deposed, leading.due_ms = True, 2**62
                died_s = first.host.now_s()
                driven_clock().step_wall(step_s)
                await until(lambda: len(b.session.units) == 2, "both")
                # A new leader, and then the time in which a borrower of the old one may come back.
                patience_s = QUICK_LEADER.borrower_timeout_ms / 1000
                assert first.host.now_s() - died_s <= TTL_S + 1 + patience_s

    run(test())


@pytest.mark.parametrize("step_s", [-60.0, 0.0])
@pytest.mark.parametrize("at_work_s", [1.0, 1.4, 2.1, 2.9])
def test_a_group_is_led_again_as_soon_as_the_lease_is_over(
    tmp_path: Path, step_s: float, at_work_s: float
) -> None:
    """Borrowers that look for a leader once a second are told when there is none any more."""

    async def test() -> None:
        async with (
            open_log(tmp_path / "d", quick=False) as first,
            open_log(tmp_path / "d", quick=False) as second,
        ):
            await first.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(first, "a", SHARED) as a, Worker(second, "b", SHARED) as b:
                await until(lambda: len(a.session.units) == len(b.session.units) == 1, "one each")
                await asyncio.sleep(at_work_s)
                leading = (await first._shared.peer()).leaders[GROUP]
                leading.core.deposed, leading.due_ms = True, 2**62
                left_s = (
                    first.log.catalog.read(
                        lambda tx: (
                            leases.not_released(tx, [leading.lease])[0].expires_us - tx.now_us()
                        )
                    )
                    / 1e6
                )
                over_s = first.host.now_s() + left_s
                driven_clock().step_wall(step_s)
                peer = await second._shared.peer()
                await until(lambda: GROUP in peer.leaders, "its leader", timeout_s=20)
                assert 0 <= first.host.now_s() - over_s <= 0.2

    run(test())


@pytest.mark.parametrize("step_s", [-60.0, 3600.0])
def test_who_is_at_work_goes_on_when_the_wall_clock_is_set(tmp_path: Path, step_s: float) -> None:
    """Neither its lease nor its session is taken for over, though others come and look."""

    async def test() -> None:
        async with (
            open_log(tmp_path / "d", quick=False) as first,
            open_log(tmp_path / "d", quick=False) as second,
        ):
            await first.create_stream("orders", ["orders.>"])
            async with first.session() as session:
                await session.subscribe(SHARED)
                await session.subscribe("orders.>")
                await until(lambda: session.units, "its unit")
                driven_clock().step_wall(step_s)
                async with second.session("late"):
                    await asyncio.sleep(25)
                    assert len(await second.sessions()) == 2
                await publish(first, "orders", 1)
                for _ in range(2):
                    await (await anext(aiter(session))).ack()
                assert (await first._shared.peer()).leaders[GROUP].token == 1

    run(test())


@pytest.mark.parametrize("way", ["events", "batches"])
def test_a_process_that_was_paused_hands_out_nothing_before_it_asked_its_leader(
    tmp_path: Path, way: str
) -> None:
    """Others may have been given its unit, and acked what stands ready here."""

    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            async with hr.session("a", options=ConsumerOptions(batch_events_max=2)) as session:
                await session.subscribe(SHARED, start="earliest")
                await publish(hr, "orders", 10)
                source = aiter(session) if way == "events" else aiter(session.batches())
                first: Any = await anext(source)
                await first.ack()
                driven_clock().pause(10)
                second: Any = await anext(source)
                assert session._borrowing.gone  # the borrower that had it before the pause
                await second.ack()

    run(test())
