"""What ``headrace bench`` measures: one program that publishes, reads and consumes."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import headrace
from headrace.catalog.floor import commit_times
from headrace.cli.done_shapes import BenchLine
from headrace.cli.failures import UsageError
from headrace.cli.options import Options

ROWS = 1_000
SEGMENTS = 4
MEMBER = "worker"
MS = 1_000.0


class Load(NamedTuple):
    """What is published."""

    subject: str
    value: bytes
    batch: pa.RecordBatch
    seconds: float
    """How long each part is measured."""


async def measure(
    options: Options, value_bytes: int, seconds: float, note: Callable[[BenchLine], None]
) -> None:
    """Measure everything, and tell of each figure as it is there."""
    stream = f"bench-{secrets.token_hex(4)}"
    load = _load(stream, value_bytes, seconds)
    async with AsyncExitStack() as stack:
        if options.place.startswith(("postgresql:", "postgres:")):
            hr = await stack.enter_async_context(options.open_async())
        else:
            folder = Path(stack.enter_context(_beside(options.place)))
            times = commit_times(folder / "floor.db", load.value, seconds)
            note(_of_times("floor: SQLite alone, a synced commit of a row", times))
            hr = await stack.enter_async_context(headrace.open(folder / "catalog"))
        await stack.enter_async_context(_stream(hr, stream))
        note(await _publish_one_by_one(hr, load))
        note(await _append_batches(hr, stream, load))
        note(await _read(hr, stream, load))
        stored = sum(segment.head for segment in (await hr.stream(stream)).segments)
        note(await _consume_batches(hr, stream, load, stored))
        note(await _consume_events(hr, stream, load, stored))
        note(await _deliver(hr, stream, load))


def _load(stream: str, value_bytes: int, seconds: float) -> Load:
    values = [os.urandom(value_bytes) for _ in range(ROWS)]
    batch = pa.record_batch(
        {
            "subject": pa.array([f"{stream}.{row % 100}" for row in range(ROWS)]),
            "key": pa.array([f"key-{row}" for row in range(ROWS)]),
            "value": pa.array(values, pa.binary()),
        }
    )
    return Load(f"{stream}.0", values[0], batch, seconds)


@contextmanager
def _beside(place: str) -> Iterator[str]:
    """A folder on the disk of the catalog, removed afterwards."""
    above = Path(place).absolute().parent
    while not above.is_dir():
        above = above.parent
    try:
        made = tempfile.TemporaryDirectory(prefix=".headrace-bench-", dir=above)
    except OSError as error:
        raise UsageError(f"no folder can be made in {above}: {error.strerror}") from None
    with made as folder:
        yield folder


@asynccontextmanager
async def _stream(hr: headrace.Headrace, stream: str) -> AsyncIterator[None]:
    """A stream that is removed with its groups, also after Ctrl-C."""
    await hr.create_stream(stream, subjects=[f"{stream}.>"], partitions=SEGMENTS)
    try:
        yield
    finally:
        await hr.delete_stream(stream, force=True)


@asynccontextmanager
async def _member(
    hr: headrace.Headrace, stream: str, group: str, start: headrace.Start = "earliest"
) -> AsyncIterator[headrace.Member]:
    """The only member of a new group."""
    await hr.groups.create_static(
        stream, group, max_members=SEGMENTS, members=[MEMBER], start=start
    )
    async with hr.join(stream, group, member=MEMBER) as member:
        yield member


# --- what is measured --------------------------------------------------------------------------


async def _publish_one_by_one(hr: headrace.Headrace, load: Load) -> BenchLine:
    times = []
    end_s = time.perf_counter() + load.seconds
    while (began_s := time.perf_counter()) < end_s:
        await hr.publish(load.subject, load.value)
        times.append(time.perf_counter() - began_s)
    return _of_times("publish one by one, durable", times)


async def _append_batches(hr: headrace.Headrace, stream: str, load: Load) -> BenchLine:
    began_s, count = time.perf_counter(), 0
    async with hr.appender(stream) as appender:
        while time.perf_counter() - began_s < load.seconds:
            await appender.append(load.batch)
            count += ROWS
    return _of_rate(f"append batches of {ROWS:,}, durable", count, began_s, load)


async def _read(hr: headrace.Headrace, stream: str, load: Load) -> BenchLine:
    began_s, count = time.perf_counter(), 0
    async for batch in hr.read(stream):
        count += batch.num_rows
    return _of_rate("read Arrow batches", count, began_s, load)


async def _consume_batches(
    hr: headrace.Headrace, stream: str, load: Load, stored: int
) -> BenchLine:
    async with _member(hr, stream, "batches") as member:
        began_s, count = time.perf_counter(), 0
        async for batch in member.batches():
            await batch.ack()
            count += batch.data.num_rows
            if count == stored or time.perf_counter() - began_s > load.seconds:
                break
        return _of_rate("consume and ack, Arrow batches", count, began_s, load)


async def _consume_events(hr: headrace.Headrace, stream: str, load: Load, stored: int) -> BenchLine:
    async with _member(hr, stream, "events") as member:
        began_s, count = time.perf_counter(), 0
        async for delivery in member:
            delivery.ack_soon()
            count += 1
            if count == stored or time.perf_counter() - began_s > load.seconds:
                break
        await member.flush()
        return _of_rate("consume and ack, event by event", count, began_s, load)


async def _deliver(hr: headrace.Headrace, stream: str, load: Load) -> BenchLine:
    """From the call of ``publish`` until a member has the event."""
    times = []
    async with _member(hr, stream, "live", start="latest") as member:
        deliveries = aiter(member)
        end_s = time.perf_counter() + load.seconds
        while (began_s := time.perf_counter()) < end_s:
            await hr.publish(load.subject, load.value)
            delivery = await anext(deliveries)
            times.append(time.perf_counter() - began_s)
            await delivery.ack()
    return _of_times("publish until delivered, in one program", times)


# --- figures -----------------------------------------------------------------------------------


def _of_times(what: str, times: Sequence[float]) -> BenchLine:
    ordered = sorted(times)
    return BenchLine(
        what=what,
        p50_ms=round(ordered[len(ordered) // 2] * MS, 3),
        p99_ms=round(ordered[len(ordered) * 99 // 100] * MS, 3),
    )


def _of_rate(what: str, count: int, began_s: float, load: Load) -> BenchLine:
    rate = count / (time.perf_counter() - began_s)
    return BenchLine(what=what, events_per_s=round(rate), bytes_per_s=round(rate * len(load.value)))
