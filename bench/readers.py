"""Reader groups: against a member of a partitioned group, and how soon what changed is settled.

``python -m bench.readers`` prints the figures.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import headrace
from bench.consume import BATCHES, EVENT_ROWS, STREAM, _consume_batches, _consume_events, _fill
from bench.harness import Result, at_least, at_most, ratio_of_rounds, show
from bench.publish import ROWS
from headrace.groups.readers.core.updates import AddReader, RemoveReader
from headrace.groups.readers.group import ReaderGroup
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime.hub import hub_of
from headrace.groups.readers.runtime.segment_reader import SegmentReader
from headrace.groups.readers.runtime.transaction import GroupCommit
from headrace.log.events import Event

ROUNDS = 3
SEGMENTS = 1000
READERS = 9
SPLITTERS = 8
MANY, SEGMENTS_EACH = 100, 10
IDLE_READERS, IDLE_S = 500, 15.0
UPDATES_FEW, UPDATES_MANY = 10_000, 100_000
"""A million takes some minutes; what grows shows in the first hundred thousand, too."""
UPDATES_TOGETHER = 20

LEASE_MS = 2000
KILLS = 4

_groups = count(1)
_VICTIM = """
import asyncio, sys, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        group = await hr.reader_groups.get("wide")
        async with group.reader("victim", lease_ttl_ms=int(sys.argv[2])) as reader:
            async for delivery in reader:
                delivery.ack_soon()
asyncio.run(main())
"""


async def _read_batches(folder: Path) -> float:
    """From the moment of joining until the last ack is stored."""
    async with headrace.open(folder) as hr:
        group = await hr.reader_groups.create(f"r{next(_groups)}", streams=[STREAM])
        began, seen = time.perf_counter(), 0
        async with group.reader("r1", join_delay_ms=1) as reader:
            async for found in reader.batches():
                seen += found.data.num_rows
                await found.ack()
                if seen == BATCHES * ROWS:
                    break
            return seen / (time.perf_counter() - began)


async def _read_events(folder: Path) -> float:
    async with headrace.open(folder) as hr:
        group = await hr.reader_groups.create(f"r{next(_groups)}", streams=[STREAM])
        began, seen = time.perf_counter(), 0
        async with group.reader("r1", join_delay_ms=1) as reader:
            async for delivery in reader:
                delivery.ack_soon()
                seen += 1
                if seen == EVENT_ROWS:
                    break
            await reader.flush()
            return seen / (time.perf_counter() - began)


async def _balanced(readers: list[SegmentReader], segments: int) -> None:
    low = segments // len(readers)
    while True:
        counts = [len(reader.status.segments) for reader in readers]
        if sum(counts) == segments and min(counts) >= low - 1 and max(counts) <= low + 2:
            return
        await asyncio.sleep(0.01)


async def _owned(readers: list[SegmentReader], segments: int) -> None:
    while True:
        if sum(len(reader.status.segments) for reader in readers) == segments:
            return
        await asyncio.sleep(0.005)


async def _take_checkpoints(group: ReaderGroup) -> None:
    for number in count():
        await asyncio.sleep(1)
        await group.checkpoint(f"c{number}", timeout_s=60)


async def _read_all_events(folder: Path, *, checkpoints: bool) -> float:
    """Events a second by a reader that acks each, while somebody takes checkpoints or not."""
    async with headrace.open(folder) as hr:
        group = await hr.reader_groups.create(f"r{next(_groups)}", streams=[STREAM])
        async with group.reader("r1", join_delay_ms=1) as reader:
            taking = asyncio.ensure_future(_take_checkpoints(group)) if checkpoints else None
            began, seen = time.perf_counter(), 0
            async for delivery in reader:
                delivery.ack_soon()
                seen += 1
                if seen == BATCHES * ROWS:
                    break
            await reader.flush()
            took_s = time.perf_counter() - began
            if taking is not None:
                taking.cancel()
            return seen / took_s


async def _opened(
    hr: headrace.Headrace, segments: int, readers: int
) -> tuple[ReaderGroup, list[SegmentReader]]:
    """A group over a stream of so many segments, and its readers, each with its share."""
    await hr.create_stream("wide", subjects=["wide.>"], segments=segments)
    group = await hr.reader_groups.create("wide", streams=["wide"])
    opened = [group.reader(f"r{n}") for n in range(readers)]
    await asyncio.gather(*(reader.open() for reader in opened))
    await _balanced(opened, segments)
    return group, opened


async def _close(readers: list[SegmentReader]) -> None:
    await asyncio.gather(*(reader.close() for reader in readers))


async def _ack_all(reader: SegmentReader) -> None:
    async for delivery in reader:
        delivery.ack_soon()


@asynccontextmanager
async def _at_work(
    readers: list[SegmentReader],
    *more: Coroutine[None, None, None],
    work: Callable[[SegmentReader], Coroutine[None, None, None]] = _ack_all,
) -> AsyncIterator[None]:
    """Every reader takes what comes, and acks it."""
    working = [asyncio.ensure_future(each) for each in (*map(work, readers), *more)]
    try:
        yield
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await _close(readers)


async def _publish(hr: headrace.Headrace) -> None:
    for number in count():
        await hr.publish(f"wide.{number}", b"x", key=str(number))


async def _splitting(folder: Path) -> float:
    """Seconds until the successors of all segments are owned, when all were split."""
    async with headrace.open(folder) as hr:
        _, readers = await _opened(hr, SEGMENTS, SPLITTERS)
        async with _at_work(readers):
            await asyncio.gather(*(hr.split("wide", number) for number in range(SEGMENTS)))
            began = time.perf_counter()
            await _owned(readers, 2 * SEGMENTS)
            return time.perf_counter() - began


async def _checkpoint_of_many(folder: Path) -> float:
    """Seconds for a checkpoint of a hundred readers with ten segments each, all at work."""
    async with headrace.open(folder) as hr:
        group, readers = await _opened(hr, MANY * SEGMENTS_EACH, MANY)
        times = []
        async with _at_work(readers, _publish(hr)):
            for number in range(ROUNDS):
                began = time.perf_counter()
                await group.checkpoint(f"c{number}", timeout_s=60)
                times.append(time.perf_counter() - began)
        return statistics.median(times)


async def _idle(folder: Path, readers: int) -> float:
    """The part of a core that readers take who have nothing to do, in percent."""
    async with headrace.open(folder) as hr:
        _, opened = await _opened(hr, readers, readers)
        await asyncio.sleep(IDLE_S / 3)
        cpu_s, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(IDLE_S)
        used = (time.process_time() - cpu_s) / (time.perf_counter() - began)
        await _close(opened)
        return 100 * used


def _updates(commit: GroupCommit) -> None:
    for _ in range(UPDATES_TOGETHER // 2):
        commit.put(AddReader("r"))
        commit.put(RemoveReader("r"))


async def _growth(folder: Path, many: int = UPDATES_MANY) -> float:
    """The size of a closed catalog after many updates of a group, by that after some.

    Each update is one that leaves a decision as well.
    """
    async with headrace.open(folder) as hr:
        await hr.create_stream("s", ["s.>"], segments=4)
        await hr.reader_groups.create("g", streams=["s"])
    sizes = []
    for updates in (UPDATES_FEW, many):
        async with headrace.open(folder) as hr:
            group, hub = await hr.reader_groups.get("g"), hub_of(hr.host)
            while (await group.info()).revision < updates:
                for _ in range(500 // UPDATES_TOGETHER):
                    await hub.transact(ReaderGroupName("g"), _updates)
        sizes.append(_size(folder))
    return sizes[1] / sizes[0]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def _joining(folder: Path) -> tuple[float, float, float]:
    """Seconds until a tenth reader has its share, moves by the least, and until one that left
    is replaced; the others are at work."""
    async with headrace.open(folder) as hr:
        group, readers = await _opened(hr, SEGMENTS, READERS)
        moved: list[str] = []
        tenth = group.reader("tenth", on_assigned=moved.extend)
        async with _at_work(readers, _publish(hr)):
            began = time.perf_counter()
            await tenth.open()
            await _balanced([*readers, tenth], SEGMENTS)
            joined_s = time.perf_counter() - began
            moves = len(moved) / (SEGMENTS // (READERS + 1))
            began = time.perf_counter()
            await tenth.close()
            await _owned(readers, SEGMENTS)
            return joined_s, moves, time.perf_counter() - began


class _First:
    """Readers at work, and the moment at which one of them is given an event of some segments."""

    def __init__(self) -> None:
        self.awaited: set[str] = set()
        self.came = asyncio.Event()
        self.at_s = 0.0

    def await_event_of(self, segments: Iterable[str]) -> None:
        self.awaited = set(segments)
        self.came.clear()

    async def work(self, reader: SegmentReader) -> None:
        async for delivery in reader:
            if f"{delivery.stream}/{delivery.segment}" in self.awaited and not self.came.is_set():
                self.at_s = time.perf_counter()
                self.came.set()
            delivery.ack_soon()


async def _to_all_segments(hr: headrace.Headrace) -> None:
    await hr.append("wide", [Event(subject=f"wide.{n}", value=b"x") for n in range(5000)])


async def _left(folder: Path) -> float:
    """Seconds from the moment at which one of ten readers at work has left until an event of one of
    its segments is delivered."""
    async with headrace.open(folder) as hr:
        _, readers = await _opened(hr, SEGMENTS, READERS + 1)
        *staying, leaving = readers
        first = _First()
        working = [asyncio.ensure_future(first.work(reader)) for reader in staying]
        first.await_event_of(leaving.status.segments)
        await _to_all_segments(hr)
        await leaving.close()
        began = time.perf_counter()
        await first.came.wait()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await _close(staying)
        return first.at_s - began


async def _killed(folder: Path) -> tuple[float, float]:
    """Seconds beyond the lease until all segments of a killed reader are owned, and until an event
    of one of them is delivered: the longest of some kills, between different renewals."""
    async with headrace.open(folder) as hr:
        group, readers = await _opened(hr, SEGMENTS, READERS)
        first = _First()
        async with _at_work(readers, work=first.work):
            found = []
            for number in range(KILLS):
                await asyncio.sleep(number * LEASE_MS / 1000 / 10)
                found.append(await _kill_one(hr, folder, group, readers, first))
        owned_s, first_s = zip(*found, strict=True)
        return max(owned_s) - LEASE_MS / 1000, max(first_s) - LEASE_MS / 1000


async def _kill_one(
    hr: headrace.Headrace,
    folder: Path,
    group: ReaderGroup,
    readers: list[SegmentReader],
    first: _First,
) -> tuple[float, float]:
    words = [sys.executable, "-c", _VICTIM, str(folder), str(LEASE_MS)]
    victim = await asyncio.create_subprocess_exec(*words)
    try:
        while True:
            info = await group.info()
            owned = {each.reader: each.segments for each in info.readers}
            if len(owned.get("victim", ())) >= SEGMENTS // (READERS + 1) - 1:
                break
            await asyncio.sleep(0.1)
        first.await_event_of(owned["victim"])
    finally:
        victim.kill()
        await victim.wait()
    began = time.perf_counter()
    await _to_all_segments(hr)
    await _owned(readers, SEGMENTS)
    owned_s = time.perf_counter() - began
    await first.came.wait()
    return owned_s, first.at_s - began


def run() -> list[Result]:
    """All figures of reader groups in processes without Spark."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "data"
        asyncio.run(_fill(folder))
        batches, _, _ = ratio_of_rounds(
            lambda: asyncio.run(_consume_batches(folder)),
            lambda: asyncio.run(_read_batches(folder)),
            ROUNDS,
        )
        events, _, _ = ratio_of_rounds(
            lambda: asyncio.run(_consume_events(folder)),
            lambda: asyncio.run(_read_events(folder)),
            ROUNDS,
        )
        joined_s, moves, left_s = asyncio.run(_joining(Path(scratch) / "wide"))
        checked, _, _ = ratio_of_rounds(
            lambda: asyncio.run(_read_all_events(folder, checkpoints=False)),
            lambda: asyncio.run(_read_all_events(folder, checkpoints=True)),
            ROUNDS,
        )
        left_first_s = asyncio.run(_left(Path(scratch) / "left"))
        killed_s, killed_first_s = asyncio.run(_killed(Path(scratch) / "killed"))
        split_s = asyncio.run(_splitting(Path(scratch) / "split"))
        checkpoint_s = asyncio.run(_checkpoint_of_many(Path(scratch) / "many"))
        idle_many = asyncio.run(_idle(Path(scratch) / "idle", IDLE_READERS))
        idle_one = asyncio.run(_idle(Path(scratch) / "one", 1))
        grown = asyncio.run(_growth(Path(scratch) / "grown"))
    return [
        at_least("a reader / a member, batches", batches, 0.95, "x"),
        at_least("a reader / a member, events", events, 0.95, "x"),
        at_most(f"{SEGMENTS} segments, a tenth reader joins", joined_s, 1.5, "s"),
        at_most("moves by the least that is needed", moves, 1.1, "x"),
        at_most("a reader leaves: all owned again", left_s, 0.5, "s"),
        at_most("a reader leaves: first event", left_first_s, 0.1, "s"),
        at_most("a reader is killed: all owned again", killed_s, 0.5, "s beyond its lease"),
        at_most("a reader is killed: first event", killed_first_s, 0.2, "s beyond its lease"),
        at_least("events with a checkpoint every second / without", checked, 0.9, "x"),
        at_most(f"{SEGMENTS} segments split, {SPLITTERS} readers: all owned", split_s, 2, "s"),
        at_most(f"a checkpoint of {MANY} readers x {SEGMENTS_EACH}", checkpoint_s, 1, "s"),
        at_most(f"{IDLE_READERS} idle readers", idle_many, 10, "% core"),
        at_most("one idle reader", idle_one, 0.3, "% core"),
        at_most(f"catalog after {UPDATES_MANY:,} / {UPDATES_FEW:,} updates", grown, 1.2, "x"),
    ]


if __name__ == "__main__":
    show(run())
