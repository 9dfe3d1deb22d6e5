"""Reader groups: against a member of a partitioned group, and how soon what changed is settled.

``python -m bench.readers`` prints the figures.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from itertools import count
from pathlib import Path

import headrace
from bench.consume import BATCHES, EVENT_ROWS, STREAM, _consume_batches, _consume_events, _fill
from bench.harness import Result, at_least, at_most, ratio_of_rounds, show
from bench.publish import ROWS
from headrace.groups.readers.runtime.reading import SegmentReader

ROUNDS = 3
SEGMENTS = 1000
READERS = 9

_groups = count(1)


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


async def _joining(folder: Path) -> tuple[float, float, float]:
    """Seconds until a tenth reader has its share, moves by the least, and until one that left
    is replaced."""
    async with headrace.open(folder) as hr:
        await hr.create_stream("wide", subjects=["wide.>"], segments=SEGMENTS)
        group = await hr.reader_groups.create("wide", streams=["wide"])
        readers = [group.reader(f"r{n}") for n in range(READERS)]
        for reader in readers:
            await reader.open()
        await _balanced(readers, SEGMENTS)
        moved: list[str] = []
        tenth = group.reader("tenth", on_assigned=moved.extend)
        began = time.perf_counter()
        await tenth.open()
        await _balanced([*readers, tenth], SEGMENTS)
        joined_s = time.perf_counter() - began
        moves = len(moved) / (SEGMENTS // (READERS + 1))
        began = time.perf_counter()
        await tenth.close()
        await _owned(readers, SEGMENTS)
        left_s = time.perf_counter() - began
        for reader in readers:
            await reader.close()
        return joined_s, moves, left_s


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
    return [
        at_least("a reader / a member, batches", batches, 0.95, "x"),
        at_least("a reader / a member, events", events, 0.95, "x"),
        at_most(f"{SEGMENTS} segments, a tenth reader joins", joined_s, 1.5, "s"),
        at_most("moves by the least that is needed", moves, 1.1, "x"),
        at_most("a reader leaves: all owned again", left_s, 0.5, "s"),
    ]


if __name__ == "__main__":
    show(run())
