"""Openings that are cancelled, at every turn of the event loop, leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import CatalogClosedError
from headrace.groups.partitioned.runtime.member import Member
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.runtime.spark_reader import SparkReader
from headrace.testing import DrivenClock, driven_clock
from headrace.testing import run as run_driven

TURNS_MAX = 200
SOON_S = 0.5
"""Long before any lease would run out."""

Make = Callable[[headrace.Headrace], Awaitable[Any]]


async def reader(hr: headrace.Headrace) -> Any:
    return (await hr.reader_groups.get("r")).reader("r1")


class SparkQuery:
    """A Spark query as a reader: opened when its first batch is planned."""

    def __init__(self, hr: headrace.Headrace, *, leaves_early: bool = False) -> None:
        settings = ReaderSettings(lease_ttl_ms=10_000, heartbeat_ms=3_000)
        self.reader = SparkReader(hr.host, "r", "r1", settings)
        self._leaves_early = leaves_early

    async def __aenter__(self) -> None:
        planning = asyncio.ensure_future(self.reader.plan(None, None))
        try:
            await asyncio.shield(planning)
        except asyncio.CancelledError:
            if not self._leaves_early:
                planning.cancel()
            await self.reader.leave()
            with suppress(asyncio.CancelledError, CatalogClosedError):
                await planning
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.reader.leave()


def plain(make: Callable[[headrace.Headrace], Any]) -> Make:
    async def made(hr: headrace.Headrace) -> Any:
        return make(hr)

    return made


KINDS: dict[str, Make] = {
    "member": plain(lambda hr: hr.join("p", "g", "m")),
    "session": plain(lambda hr: hr.session("worker")),
    "reader": reader,
    "spark reader": plain(SparkQuery),
    "spark reader that leaves meanwhile": plain(lambda hr: SparkQuery(hr, leaves_early=True)),
    "epoch publisher": plain(lambda hr: hr.epoch_publisher("e", "eu")),
    "epochs": plain(lambda hr: hr.epochs("e", name="report", start="earliest")),
    "live publisher": plain(lambda hr: hr.live_publisher("l", "eu")),
    "live epochs": plain(lambda hr: hr.live_epochs("l")),
}


async def prepare(hr: headrace.Headrace) -> None:
    await hr.create_stream("s", ["s.>"])
    await hr.create_stream("p", ["p.>"], partitions=2)
    await hr.create_stream("e", ["e.>"], epochs=headrace.Epochs())
    await hr.create_stream("l", ["l.>"], epochs=headrace.Epochs(stored=False))
    await hr.groups.create_static("p", "g", max_members=2, members=["m"])
    await hr.reader_groups.create("r", streams=["s"])
    async with hr.session("worker") as session:
        await session.subscribe("s.>")


def held(hr: headrace.Headrace) -> list[str]:
    """The leases that somebody holds."""
    return hr.log.catalog.read(
        lambda tx: [str(name) for (name,) in tx.rows("SELECT name FROM leases WHERE owner <> ''")]
    )


async def given_up(opening: Any, turns: int) -> bool:
    """Open something, and cancel that after so many turns of the loop; false if it was open."""
    task = asyncio.ensure_future(opening.__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.done():
        await task
        await opening.__aexit__(None, None, None)
        return False
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return True


async def opens_at_once(hr: headrace.Headrace, make: Make, clock: DrivenClock) -> None:
    before_s = clock.now_s()
    async with asyncio.timeout(60), await make(hr) as opened:
        if isinstance(opened, Member):
            await opened.settled()
    assert clock.now_s() - before_s < SOON_S


@pytest.mark.parametrize("kind", KINDS)
def test_an_opening_that_is_cancelled_at_any_turn_holds_nothing(tmp_path: Path, kind: str) -> None:
    make = KINDS[kind]

    async def main() -> None:
        clock = driven_clock()
        async with headrace.open(tmp_path / "d", housekeeping=False) as hr:
            await prepare(hr)
            await opens_at_once(hr, make, clock)  # whatever all of them share is there now
            await clock.settle()
            before = held(hr)
            for turns in range(TURNS_MAX):
                if not await given_up(await make(hr), turns):
                    break
                await clock.settle()
                assert held(hr) == before, f"after {turns} turns"
                await opens_at_once(hr, make, clock)
                await clock.settle()
            assert 0 < turns < TURNS_MAX - 1

    run_driven(main(), autojump=True)
