"""Reading against a bare loop over the same blobs, and the memory of a reader.

``python -m bench.read`` prints the figures.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import headrace
from bench.harness import Result, at_least, at_most, ratio_of_rounds, show
from bench.publish import ROWS, batch
from headrace.log.events import decode_blob

BATCHES = 1000
ROUNDS = 7
BACKLOG_EVENTS = 5_000_000
BACKLOG_STEP = 100_000


async def _fill(folder: Path) -> None:
    async with headrace.open(folder) as hr:
        await hr.create_stream("bench", subjects=["bench.>"], segments=4)
        data = batch()
        for _ in range(BATCHES):
            await hr.append("bench", data)


def read_blobs(folder: Path) -> Result:
    """Events read a second, against SELECT and Arrow decoding of the same blobs and no more."""
    asyncio.run(_fill(folder))

    def floor() -> float:
        connection = sqlite3.connect(folder / "headrace.db")
        started = time.perf_counter()
        count = 0
        for data, layout in connection.execute("SELECT data, layout FROM batches ORDER BY id"):
            count += decode_blob(data, layout).num_rows
        rate = count / (time.perf_counter() - started)
        connection.close()
        return rate

    async def read() -> float:
        async with headrace.open(folder) as hr:
            started = time.perf_counter()
            count = 0
            async for found in hr.read("bench"):
                count += found.num_rows
            assert count == BATCHES * ROWS
            return count / (time.perf_counter() - started)

    ratio, base, rate = ratio_of_rounds(floor, lambda: asyncio.run(read()), ROUNDS)
    return at_least(
        "Arrow read of inline batches",
        ratio,
        0.5,
        "of a bare loop",
        f"{rate:,.0f} against {base:,.0f} events/s",
    )


_READER = """
import asyncio, sys, headrace, pyarrow as pa
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        count, marks = 0, []
        async for batch in hr.read("bench"):
            count += batch.num_rows
            marks.append((count, rss()))
        print(count, max(m for c, m in marks if c <= count // 10), max(m for c, m in marks))
asyncio.run(main())
"""


async def _backlog(folder: Path) -> None:
    async with headrace.open(folder) as hr:
        await hr.create_stream("bench", subjects=["bench.>"], segments=4)
        value = pa.array([os.urandom(100)] * BACKLOG_STEP, pa.binary())
        subject = pa.array([f"bench.{row % 1000}" for row in range(BACKLOG_STEP)])
        key = pa.array([f"{row % 5000}" for row in range(BACKLOG_STEP)])
        table = pa.table({"subject": subject, "key": key, "value": value})
        small = table.slice(0, 2000)
        # Half in files, half inside the catalog: both ways have to stay flat.
        for _ in range(BACKLOG_EVENTS // BACKLOG_STEP // 2):
            await hr.append("bench", table)
            await asyncio.gather(*(hr.append("bench", small) for _ in range(BACKLOG_STEP // 2000)))


def reader_memory(folder: Path) -> Result:
    """How a reader's resident memory grows from the first tenth of a 5 M backlog to its end."""
    asyncio.run(_backlog(folder))
    script = [sys.executable, "-c", _READER, str(folder)]
    out = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    count, early, most = map(int, out.split())
    assert count == BACKLOG_EVENTS
    return at_most(
        "reader memory over a 5 M-event backlog",
        most / early,
        1.25,
        "x its first tenth",
        f"{early / 2**20:.0f} MiB at first, {most / 2**20:.0f} MiB at most",
    )


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        return [read_blobs(Path(name) / "blobs"), reader_memory(Path(name) / "backlog")]


if __name__ == "__main__":
    show(run())
