"""Takeovers when the wall clock is put forward or back, and after a process was paused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import headrace
from headrace import testing
from headrace.catalog import leases
from headrace.groups.partitioned.core.messages import Phase
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import ownership
from headrace.testing import driven_clock

NAME = GroupName("s", "g")
TTL_MS = 5_000
STEPS_S = (-60.0, -3.0, 0.0, 3.0, 60.0)


def run(catalog_url: str, work: Callable[[headrace.Headrace], Awaitable[None]]) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url, housekeeping=False) as hr:
            await hr.create_stream("s", ["s.>"], partitions=1)
            await hr.groups.create_static("s", "g", max_members=1, members=["m"])
            await work(hr)

    testing.run(asyncio.wait_for(main(), 600), autojump=True)


def dies(hr: headrace.Headrace, ttl_ms: int = TTL_MS) -> None:
    """An instance takes the pin, and is never heard of again."""
    pin = NAME.pin("m")
    answer = hr.log.catalog.write(
        lambda tx: ownership.acquire_pin(tx, pin, "dead", ttl_ms), locks=[leases.lock(pin)]
    )
    assert answer.token is not None


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize("watched_s", [0.0, 0.2, 2.0])
def test_a_step_of_the_wall_clock_delays_no_takeover(
    catalog_url: str, step_s: float, watched_s: float
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        dies(hr)
        died_s = hr.host.now_s()
        async with hr.join("s", "g", "m", pin_ttl_ms=TTL_MS) as member:
            await hr.host.sleep(watched_s)
            driven_clock().step_wall(step_s)
            await member.settled()
            assert hr.host.now_s() - died_s <= TTL_MS / 1000 + 0.8

    run(catalog_url, work)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_whoever_renews_its_pin_keeps_it_when_the_wall_clock_is_put_back(
    catalog_url: str, step_s: float
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.join("s", "g", "m") as first, hr.join("s", "g", "m") as second:
            await first.settled()
            driven_clock().step_wall(step_s)
            await hr.host.sleep(30)
            phases = [first.status.phase, second.status.phase]
            assert sorted(p.value for p in phases) == [Phase.PINNED.value, Phase.STANDBY.value]
            assert step_s > 0 or phases[0] is Phase.PINNED

    run(catalog_url, work)


@pytest.mark.parametrize("way", ["events", "batches"])
def test_a_process_that_was_paused_hands_out_nothing_before_it_looked_at_its_pin(
    catalog_url: str, way: str
) -> None:
    """Another instance has taken over meanwhile, and may have acked what stands ready here."""

    async def work(hr: headrace.Headrace) -> None:
        for number in range(10):
            await hr.publish("s.x", b"%d" % number, key=str(number))
        async with hr.join("s", "g", "m", pin_ttl_ms=TTL_MS, batch_events_max=2) as member:
            source = aiter(member) if way == "events" else aiter(member.batches())
            first: Any = await anext(source)
            first.ack_soon()
            await member.flush()
            driven_clock().pause(TTL_MS / 1000 + 1)
            dies(hr, 3_600_000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await anext(source)
            assert member.status.phase is Phase.STANDBY

    run(catalog_url, work)


def test_a_process_that_was_paused_for_a_moment_goes_on(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        for number in range(3):
            await hr.publish("s.x", b"%d" % number, key=str(number))
        async with hr.join("s", "g", "m", pin_ttl_ms=TTL_MS) as member:
            for pause_s in (0.0, TTL_MS / 2000, 2 * TTL_MS / 1000):
                driven_clock().pause(pause_s)
                async with asyncio.timeout(2):
                    await (await anext(aiter(member))).ack()

    run(catalog_url, work)
