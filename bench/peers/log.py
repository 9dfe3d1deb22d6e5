"""Headrace: durable appends, and a static group of one member that consumes."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace
from bench.peers.work import (
    BATCH_EVENTS,
    EVENTS,
    IN_FLIGHT,
    STRICT_EVENTS,
    SUBJECTS,
    VALUES,
    Way,
    Work,
    rate_of_batches,
)

SYSTEM = "Headrace"
STREAM, GROUP, MEMBER = "bench", "workers", "worker"
PARTITIONS = 4
SURVIVES_PUBLISH = "power failure"
SURVIVES_ACK = "process death; up to 1 s of acks lost on power failure, which repeats events"
EVENT_BY_EVENT = "async for, acks in passing"
STRICT_CONFIRMED = "max_pending=1, ack awaited"
STRICT_SOON = "max_pending=1, acks in passing"

Run = Callable[[headrace.Headrace], Awaitable[float]]


def ways(folder: Path) -> Iterator[Way]:
    count = iter(range(10_000))

    def way(work: Work, how: str, survives: str, run: Run, partitions: int = PARTITIONS) -> Way:
        def measure() -> float:
            place = folder / f"log-{next(count)}"
            try:
                return asyncio.run(_on_new_stream(place, run, partitions))
            finally:
                shutil.rmtree(place, ignore_errors=True)

        return Way(work, SYSTEM, how, survives, measure)

    for how, in_flight in (("Arrow batches", 1), ("Arrow batches, 4 in flight", IN_FLIGHT)):
        yield way(Work.PUBLISH, how, SURVIVES_PUBLISH, partial(publish, in_flight=in_flight))
    yield way(Work.CONSUME, EVENT_BY_EVENT, SURVIVES_ACK, consume)
    yield way(Work.CONSUME, "Arrow batches", SURVIVES_ACK, consume_batches)
    # One at a time is meant for the whole stream, so it has one partition.
    yield way(Work.STRICT, STRICT_CONFIRMED, SURVIVES_ACK, partial(strict, confirmed=True), 1)
    yield way(Work.STRICT, STRICT_SOON, SURVIVES_ACK, partial(strict, confirmed=False), 1)


async def _on_new_stream(place: Path, run: Run, partitions: int) -> float:
    async with headrace.open(place) as hr:
        await _create(hr, partitions)
        return await run(hr)


async def _create(hr: headrace.Headrace, partitions: int) -> None:
    await hr.create_stream(STREAM, subjects=["bench.>"], partitions=partitions)
    await hr.groups.create_static(STREAM, GROUP, max_members=partitions, members=[MEMBER])


def batch() -> pa.RecordBatch:
    return pa.record_batch({"subject": SUBJECTS, "value": pa.array(VALUES, pa.binary())})


async def publish(hr: headrace.Headrace, in_flight: int) -> float:
    """A batch is durable when its append returns."""
    data = batch()
    return await rate_of_batches(lambda: hr.append(STREAM, data), in_flight)


# --- consuming -----------------------------------------------------------------------------


async def _fill(hr: headrace.Headrace, events: int) -> None:
    data = batch()
    for _ in range(-(-events // BATCH_EVENTS)):
        await hr.append(STREAM, data)


def join(hr: headrace.Headrace, **options: Any) -> Any:
    return hr.join(STREAM, GROUP, member=MEMBER, **options)


async def consume(hr: headrace.Headrace) -> float:
    """From the first request, as for the others, until every ack is stored."""
    await _fill(hr, EVENTS)
    seen = total = 0
    async with join(hr) as member:
        await member.settled()
        began = time.perf_counter()
        async for delivery in member:
            total += len(delivery.value)
            delivery.ack_soon()
            seen += 1
            if seen == EVENTS:
                break
        await member.flush()
        return _rate(seen, total, began)


async def consume_batches(hr: headrace.Headrace) -> float:
    await _fill(hr, EVENTS)
    seen = 0
    async with join(hr) as member:
        await member.settled()
        began = time.perf_counter()
        async for found in member.batches():
            seen += found.data.num_rows
            await found.ack()
            if seen == EVENTS:
                break
        return seen / (time.perf_counter() - began)


async def strict(hr: headrace.Headrace, *, confirmed: bool) -> float:
    """The next event comes when the one before it is acked; confirmed means stored by then."""
    await _fill(hr, STRICT_EVENTS)
    seen = total = 0
    async with join(hr, max_pending=1) as member:
        await member.settled()
        began = time.perf_counter()
        async for delivery in member:
            total += len(delivery.value)
            if confirmed:
                await delivery.ack()
            else:
                delivery.ack_soon()
            seen += 1
            if seen == STRICT_EVENTS:
                break
        await member.flush()
        return _rate(seen, total, began)


def _rate(seen: int, total: int, began: float) -> float:
    rate = seen / (time.perf_counter() - began)
    if total != seen * len(VALUES[0]):
        raise RuntimeError(f"{total} bytes came, not {seen * len(VALUES[0])}")
    return rate


# --- latency -------------------------------------------------------------------------------


def create_group(folder: str) -> None:
    """A new log with the group, before anybody joins."""

    async def run() -> None:
        async with headrace.open(folder) as hr:
            await _create(hr, PARTITIONS)

    asyncio.run(run())
