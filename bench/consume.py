"""Consuming in a group: against a bare read, over a long backlog, and how little waiting costs.

``python -m bench.consume`` prints the figures.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace
from bench.harness import Result, at_least, at_most, ratio_of_rounds, show
from bench.publish import ROWS, batch
from headrace.log.events import decode_blob

STREAM, MEMBER = "bench", "worker"
PARTITIONS = 4
BATCHES = 1000
EVENT_ROWS = 300_000
ROUNDS = 5
BACKLOG_EVENTS = 5_000_000
BACKLOG_STEP = 100_000
MEMBERS_IDLE = 500
GROUPS_IDLE = 1_000
IDLE_S = 5.0

_groups = count(1)


async def _fill(folder: Path) -> None:
    async with headrace.open(folder) as hr:
        await hr.create_stream(STREAM, subjects=["bench.>"], partitions=PARTITIONS)
        data = batch()
        for _ in range(BATCHES):
            await hr.append(STREAM, data)


async def _new_group(hr: headrace.Headrace) -> str:
    """A group that has consumed nothing yet."""
    name = f"g{next(_groups)}"
    await hr.groups.create_static(STREAM, name, max_members=PARTITIONS, members=[MEMBER])
    return name


# --- speed ---------------------------------------------------------------------------------


async def _read(folder: Path) -> float:
    async with headrace.open(folder) as hr:
        began, seen = time.perf_counter(), 0
        async for found in hr.read(STREAM):
            seen += found.num_rows
        assert seen == BATCHES * ROWS
        return seen / (time.perf_counter() - began)


async def _consume_batches(folder: Path) -> float:
    """From the moment of joining until the last ack is stored."""
    async with headrace.open(folder) as hr:
        group = await _new_group(hr)
        began, seen = time.perf_counter(), 0
        async with hr.join(STREAM, group, member=MEMBER) as member:
            async for found in member.batches():
                seen += found.data.num_rows
                await found.ack()
                if seen == BATCHES * ROWS:
                    break
            return seen / (time.perf_counter() - began)


async def _consume_events(folder: Path) -> float:
    async with headrace.open(folder) as hr:
        group = await _new_group(hr)
        began, seen = time.perf_counter(), 0
        async with hr.join(STREAM, group, member=MEMBER) as member:
            async for delivery in member:
                delivery.ack_soon()
                seen += 1
                if seen == EVENT_ROWS:
                    break
            await member.flush()
            return seen / (time.perf_counter() - began)


def _bare(folder: Path) -> float:
    """SELECT and Arrow decoding of the blobs, and no more."""
    connection = sqlite3.connect(folder / "headrace.db")
    began, seen = time.perf_counter(), 0
    for data, layout in connection.execute("SELECT data, layout FROM batches ORDER BY id"):
        seen += decode_blob(data, layout).num_rows
    connection.close()
    return seen / (time.perf_counter() - began)


def speed(folder: Path) -> list[Result]:
    """Consume and ack against a bare read of the same log."""
    asyncio.run(_fill(folder))
    ratio, base, rate = ratio_of_rounds(
        lambda: asyncio.run(_read(folder)), lambda: asyncio.run(_consume_batches(folder)), ROUNDS
    )
    bare = _bare(folder)
    events = sorted(asyncio.run(_consume_events(folder)) for _ in range(3))[1]
    return [
        at_least(
            "consume + ack, Arrow batches, against a bare read of the log",
            ratio,
            0.5,
            "of hr.read",
            f"{rate:,.0f} against {base:,.0f} events/s; SQLite and Arrow alone: {bare:,.0f}",
        ),
        Result("consume + ack, event by event", events, "events/s"),
    ]


# --- memory --------------------------------------------------------------------------------

_CONSUMER = """
import asyncio, sys, headrace
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
async def main():
    folder, group, kind, events = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    seen, early, most = 0, 0, 0
    async with headrace.open(folder) as hr, hr.join("bench", group, member="worker") as member:
        if kind == "batches":
            async for batch in member.batches():
                seen += batch.data.num_rows
                await batch.ack()
                most = max(most, rss())
                if seen <= events // 10: early = most
                if seen == events: break
        else:
            async for delivery in member:
                delivery.ack_soon()
                seen += 1
                if seen % 4096 == 0:
                    most = max(most, rss())
                    if seen <= events // 10: early = most
                if seen == events: break
            await member.flush()
    print(seen, early, most)
asyncio.run(main())
"""


async def _backlog(folder: Path) -> None:
    async with headrace.open(folder) as hr:
        await hr.create_stream(STREAM, subjects=["bench.>"], partitions=PARTITIONS)
        value = pa.array([os.urandom(100)] * BACKLOG_STEP, pa.binary())
        subject = pa.array([f"bench.{row % 1000}" for row in range(BACKLOG_STEP)])
        key = pa.array([f"{row % 5000}" for row in range(BACKLOG_STEP)])
        table = pa.table({"subject": subject, "key": key, "value": value})
        small = table.slice(0, 2000)
        for _ in range(BACKLOG_EVENTS // BACKLOG_STEP // 2):
            await hr.append(STREAM, table)
            await asyncio.gather(*(hr.append(STREAM, small) for _ in range(BACKLOG_STEP // 2000)))
        await _new_group(hr)
        await _new_group(hr)


def memory(folder: Path) -> list[Result]:
    """Resident memory from the first tenth of a 5 M-event backlog to its end."""
    first = next(_groups) + 1
    asyncio.run(_backlog(folder))
    results = []
    for number, kind in enumerate(("batches", "events")):
        command = [sys.executable, "-c", _CONSUMER, str(folder), f"g{first + number}", kind]
        command.append(str(BACKLOG_EVENTS))
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seen, early, most = map(int, out.split())
        assert seen == BACKLOG_EVENTS
        results.append(
            at_most(
                f"consumer memory over a 5 M-event backlog, {kind}",
                most / early,
                1.25,
                "x its first tenth",
                f"{early / 2**20:.0f} MiB at first, {most / 2**20:.0f} MiB at most",
            )
        )
    return results


# --- waiting -------------------------------------------------------------------------------

_IDLE = """
import asyncio, contextlib, sys, time, headrace
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
async def main():
    folder, kind, number, idle_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    async with headrace.open(folder) as hr, contextlib.AsyncExitStack() as stack:
        began = time.perf_counter()
        async def join(n):
            group, member = ("many", f"m{n}") if kind == "members" else (f"idle{n}", "worker")
            return await stack.enter_async_context(hr.join("bench", group, member=member))
        members = await asyncio.gather(*(join(n) for n in range(number)))
        await asyncio.gather(*(member.settled() for member in members))
        joined = time.perf_counter() - began
        await asyncio.sleep(2.0)
        used, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(idle_s)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        print(joined, share, rss())
asyncio.run(main())
"""


async def _many(folder: Path) -> None:
    async with headrace.open(folder) as hr:
        await hr.create_stream(STREAM, subjects=["bench.>"], partitions=MEMBERS_IDLE)
        names = [f"m{number}" for number in range(MEMBERS_IDLE)]
        await hr.groups.create_static(STREAM, "many", max_members=MEMBERS_IDLE, members=names)


async def _many_groups(folder: Path) -> float:
    async with headrace.open(folder) as hr:
        await hr.create_stream(STREAM, subjects=["bench.>"], partitions=1)
        began = time.perf_counter()
        for number in range(GROUPS_IDLE):
            await hr.groups.create_static(STREAM, f"idle{number}", max_members=1, members=[MEMBER])
        return time.perf_counter() - began


def idle(folder: Path) -> list[Result]:
    """What members cost that have nothing to do."""
    asyncio.run(_many(folder / "members"))
    made_s = asyncio.run(_many_groups(folder / "groups"))
    results = []
    for kind, number in (("members", MEMBERS_IDLE), ("groups", GROUPS_IDLE)):
        command = [sys.executable, "-c", _IDLE, str(folder / kind), kind, str(number), str(IDLE_S)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        joined_s, share, rss = map(float, out.split())
        what = "members of one group" if kind == "members" else "groups, a member each"
        detail = f"all at work {joined_s:.1f} s after joining, {rss / 2**20:.0f} MiB"
        if kind == "groups":
            detail += f"; made in {made_s:.1f} s"
        name = f"{number:,} idle {what}, in one process, CPU"
        results.append(at_most(name, share * 100, 10.0, "% of a core", detail))
    return results


def run() -> list[Result]:
    from bench import takeover

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        return [
            *speed(folder / "speed"),
            *memory(folder / "memory"),
            *takeover.run(folder / "takeover"),
            *idle(folder),
        ]


def main(arguments: list[str]) -> None:
    """All of it, or the named parts."""
    parts: dict[str, Any] = {"speed": speed, "memory": memory, "idle": idle}
    if not arguments:
        show(run())
        return
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        show([r for part in arguments for r in parts[part](Path(name) / part)])


if __name__ == "__main__":
    main(sys.argv[1:])
