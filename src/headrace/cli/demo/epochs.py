"""The act of epochs: flights by day, and the publisher is killed in the middle of a day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace
from headrace.cli.demo.acts import STREAM, Stage
from headrace.cli.demo.crew import LOOK_S, PATIENCE_S, Crew, Orders, serve
from headrace.cli.failures import CheckFailedError
from headrace.epochs.runtime import status
from headrace.epochs.runtime.status import EpochStatus

DAYS_STREAM, PUBLISHER = "days", "airports"
DAYS_MAX = 31
FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)
LEASE_TTL_MS = 1000
"""Shorter than the default, so that nobody has to watch it run out."""
UNLUCKY, SUCCESSOR = "first", "second"


async def days_as_epochs(stage: Stage) -> None:
    """Every day is an epoch; one is begun by one program and finished by the next."""
    hr = stage.hr
    wanted = {day: part.num_rows for day, part in by_day(stage.flights).items()}
    fatal, last = _fatal(list(wanted)), max(wanted)
    await hr.create_stream(DAYS_STREAM, [f"{DAYS_STREAM}.>"], segments=4, epochs=headrace.Epochs())
    given: dict[int, int] = {}
    async with Crew(stage, __name__) as crew:
        await crew.start(UNLUCKY, UNLUCKY)
        reading = asyncio.ensure_future(_read(hr, last, given))
        await _until(hr, lambda found: found.frontier == (fatal,) and found.open_rows > 0)
        crew.kill(UNLUCKY)
        stage.say(f"  the publisher is killed (SIGKILL) in the middle of day {fatal}")
        # Once its lease has run out it is known to be lost.
        lost = await _until(hr, lambda found: not found.publishers[0].alive)
        explained = status.explained(lost)
        stage.say(f"  [dim]{explained[0]}[/dim]")
        stage.check(
            f"nothing of day {fatal} is seen, and explain names who holds it back",
            fatal not in given and f"held back by {PUBLISHER} ({fatal})" in explained[0],
        )
        await crew.start(SUCCESSOR, SUCCESSOR)
        await asyncio.wait_for(reading, PATIENCE_S)
    rows = sum(given.values())
    stage.say(f"  {len(given)} days with {rows:,} flights came whole, in order")
    stage.check(f"day {fatal} came once and whole, as did all others", given == wanted)
    stage.facts |= {"days": len(given), "flights_by_day": rows}


async def _read(hr: headrace.Headrace, last: int, given: dict[int, int]) -> None:
    async with hr.epochs(DAYS_STREAM, start="earliest", until=last + 1) as epochs:
        async for epoch in epochs:
            assert epoch.time not in given
            given[epoch.time] = (await epoch.table()).num_rows


async def _until(hr: headrace.Headrace, holds: Callable[[EpochStatus], bool]) -> EpochStatus:
    """Look at the days until something holds of them."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = await hr.epoch_status(DAYS_STREAM)
        if holds(found):
            return found
        await asyncio.sleep(LOOK_S)
    raise CheckFailedError(f"the days did not get on in {PATIENCE_S:.0f} s")


def by_day(flights: pa.Table) -> dict[int, pa.Table]:
    """The flights of the first days, by the number of the day, as rows of the epoch stream."""
    seconds = flights["timestamp"].cast(pa.int64()).to_numpy() // 1_000_000
    days = (seconds - int(FIRST_DAY.timestamp())) // 86_400
    subjects = pc.replace_substring(flights["subject"], STREAM, DAYS_STREAM, max_replacements=1)
    columns = {name: flights[name] for name in ("timestamp", "key", "value", "headers")}
    rows = pa.table({**columns, "subject": subjects})
    wanted = np.unique(days)[:DAYS_MAX].tolist()
    return {day: rows.filter(pa.array(days == day)) for day in wanted}


def _fatal(days: list[int]) -> int:
    """In the middle of which day the first publisher dies."""
    return days[len(days) // 2]


# --- a publisher ---------------------------------------------------------------------------


async def work(orders: Orders) -> None:
    """Publish day by day, from where the publisher is."""
    async with (
        orders.options.open_async() as hr,
        hr.epoch_publisher(DAYS_STREAM, PUBLISHER, lease_ttl_ms=LEASE_TTL_MS) as pub,
    ):
        source = by_day(pa.Table.from_batches([batch async for batch in hr.read(STREAM)]))
        fatal = _fatal(list(source))
        for day, rows in source.items():
            if day < pub.frontier:
                continue
            if orders.member == UNLUCKY and day == fatal:
                await pub.append(day, rows.slice(0, max(1, rows.num_rows // 2)))
                await asyncio.Event().wait()  # until it is killed
            await pub.append(day, rows, advance_to=day + 1)
        await asyncio.Event().wait()  # until the tour ends


def main() -> None:
    """A publisher, in a process of its own."""
    serve(work)
