"""Takeovers of epoch publishers and named subscriptions when the wall clock is put back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import headrace
from headrace import testing
from headrace.catalog import Tx, epoch_subscriptions, epochs, leases
from headrace.testing import driven_clock

TTL_S = 10
PATIENCE_S = 300


def run(url: str, work: Callable[[headrace.Headrace], Awaitable[None]]) -> None:
    async def main() -> None:
        async with headrace.open(url, housekeeping=False) as hr:
            await hr.create_stream("days", ["days.>"], epochs=headrace.Epochs())
            async with hr.epoch_publisher("days", "us") as pub:
                await pub.advance_to(1)
            await work(hr)

    testing.run(asyncio.wait_for(main(), PATIENCE_S), autojump=True)


def killed(hr: headrace.Headrace, name: str, ttl_ms: int = TTL_S * 1000) -> leases.Lease:
    """A lease of a program that is no more."""

    def take(tx: Tx) -> leases.Lease:
        return leases.seize(tx, name, "killed", ttl_ms)

    return hr.log.catalog.write(take, locks=(leases.lock(name),))


@pytest.mark.parametrize("step_s", [-60.0, 3600.0])
def test_who_comes_after_a_step_of_the_clock_waits_for_the_time_to_live_and_no_more(
    catalog_url: str, step_s: float
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        killed(hr, epochs.lease_name(hr.log.stream("days").id, "eu"))
        driven_clock().step_wall(step_s)
        came_s = hr.host.now_s()
        async with hr.epoch_publisher("days", "eu"):
            assert hr.host.now_s() - came_s <= TTL_S + 1
        killed(hr, epoch_subscriptions.lease_name("report"))
        driven_clock().step_wall(step_s)
        came_s = hr.host.now_s()
        async with hr.epochs("days", name="report", start="earliest"):
            assert hr.host.now_s() - came_s <= TTL_S + 1

    run(catalog_url, work)


def test_a_subscription_is_not_taken_from_a_program_with_a_longer_lease(tmp_path: Path) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epochs("days", name="report", start="earliest", lease_ms=60_000):
            waiting = hr.epochs("days", name="report", start="earliest", lease_ms=3_000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(50):
                    await waiting.__aenter__()

    run(str(tmp_path / "d"), work)


def test_the_leases_of_many_publishers_are_renewed_in_one_transaction(tmp_path: Path) -> None:
    count, minute_s = 60, 60

    async def work(hr: headrace.Headrace) -> None:
        async with AsyncExitStack() as stack:
            for number in range(count):
                pub = hr.epoch_publisher("days", f"p{number}", lease_ttl_ms=TTL_S * 1000)
                await stack.enter_async_context(pub)
            _, before = hr.log.catalog.mark()
            await hr.host.sleep(minute_s)
            _, after = hr.log.catalog.mark()
            assert minute_s / TTL_S <= after - before <= 4 * minute_s / TTL_S
            states = {one.state for one in (await hr.epoch_status("days")).publishers}
            assert states == {"active", "left"}  # "left" is who began the stream

    run(str(tmp_path / "data"), work)
