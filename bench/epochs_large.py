"""Epochs where something is large: publishers, segments, history, one epoch; and live ones.

``python -m bench.epochs_large`` prints the figures; ``… large|memory|live`` those of one part.
"""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import msgspec
import pyarrow as pa

import headrace
from bench.harness import Result, at_least, at_most, ratio_of_rounds, show
from bench.publish import batch
from headrace.catalog import Tx, batches, epochs
from headrace.catalog.batches import NewBatch
from headrace.epochs.core import ledger
from headrace.epochs.core.commits import JoinStream, Publish, Step
from headrace.epochs.core.lines import encode_line
from headrace.epochs.core.times import INTEGERS
from headrace.epochs.runtime import starting
from headrace.log.events import Event, batch_of, encode_blob, layout_of
from headrace.log.internal import progress_log
from headrace.log.log import Log
from headrace.log.open import open_log

ADVANCES = 300
ROUNDS = 5
OPENINGS = 60
SMALL, LARGE = 1_000, 1_000_000
STEP = 2_000
EPOCH_BYTES = 2 * 1024**3
PART_BYTES = 64 * 1024**2
REPLAYED = 1_000_000
LIVE_BATCHES = 400
MIB = 2**20


# -- advances -----------------------------------------------------------------------------


async def _advance_us(folder: Path, publishers: int, segments: int) -> float:
    """The median of one awaited advance, with so many publishers that hold times."""
    async with headrace.open(folder) as hr:
        await hr.create_stream("a", ["a.>"], segments=segments, epochs=headrace.Epochs())
        async with hr.epoch_publisher("a", "p") as pub:
            for number in range(1, publishers):
                await hr.epoch_publisher("a", f"p{number}").__aenter__()
            times = []
            for at in range(ADVANCES):
                started = time.perf_counter()
                await pub.advance_to(at + 1)
                times.append(time.perf_counter() - started)
        return statistics.median(times) * 1e6


def advances() -> list[Result]:
    found = []
    for name, few, many, most in (
        ("an advance, 1,000 publishers against 10", (10, 4), (1000, 4), 1.5),
        ("an advance, 1,000 segments against 4", (1, 4), (1, 1000), 1.2),
    ):
        ratios, seen = [], []
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            for number in range(3):
                base = asyncio.run(_advance_us(Path(folder) / f"few{number}", *few))
                ours = asyncio.run(_advance_us(Path(folder) / f"many{number}", *many))
                ratios.append(ours / base)
                seen.append((ours, base))
        ours, base = seen[1]
        detail = f"{ours:.0f} against {base:.0f} us"
        found.append(at_most(name, statistics.median(ratios), most, "x", detail))
    return found


# -- history ------------------------------------------------------------------------------


def _history(log: Log, count: int) -> None:
    """So many epochs, each completed by a line of its own; no rows, which opening never reads."""
    stream, lines = log.stream("a"), log.stream(progress_log("a"))
    state = ledger.begin("a", INTEGERS)[0]
    decided = ledger.decide(state, None, JoinStream("p", 1))
    new = []
    for at in range(count):
        assert decided.publisher is not None
        assert decided.line is not None
        event = batch_of([Event(subject="line", value=encode_line(decided.line))], 1)
        blob = encode_blob(event)
        checksum, layout = zlib.crc32(blob), layout_of(event.schema)
        new.append(NewBatch(lines.segments[0].id, 1, len(blob), 1, layout, checksum, data=blob))
        step = Step(advance_to=(at + 1,))
        decided = ledger.decide(decided.state, decided.publisher, Publish("p", 1, (step,)))
    # The state after the last line that is stored.
    stored = msgspec.structs.replace(decided.state, line=count, lower=(count - 1,))
    encoded = ledger.encode_state(stored)

    def add(tx: Tx, part: list[NewBatch]) -> None:
        for one in part:
            batches.append(tx, [one])

    for first in range(0, count, STEP):
        log.catalog.write(lambda tx, first=first: add(tx, new[first : first + STEP]))  # type: ignore[misc]
    log.catalog.write(lambda tx: epochs.put_stream(tx, stream.id, encoded, 0))


def opening() -> list[Result]:
    chance = random.Random(1)
    logs = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for count in (SMALL, LARGE):
            log = logs[count] = open_log(Path(folder) / str(count))
            asyncio.run(_made(Path(folder) / str(count)))
            _history(log, count)

        def once(count: int) -> float:
            times = []
            for _ in range(OPENINGS):
                wanted = chance.randrange(count - 1)
                started = time.perf_counter()
                starting.resolve(logs[count], ["a"], wanted)
                times.append(time.perf_counter() - started)
            return statistics.median(times) * 1000

        rounds = [(once(SMALL), once(LARGE)) for _ in range(ROUNDS)]
        for log in logs.values():
            log.catalog.close()
    ratio = statistics.median(large / small for small, large in rounds)
    large = statistics.median(large for _, large in rounds)
    small = statistics.median(small for small, _ in rounds)
    detail = f"{large:.2f} against {small:.2f} ms"
    return [
        at_most("opening a replay, 10^6 epochs against 10^3", ratio, 3, "x", detail),
        at_most("opening a replay at any of 10^6 epochs", large, 50, "ms"),
    ]


async def _made(folder: Path) -> None:
    async with headrace.open(folder) as hr:
        await hr.create_stream("a", ["a.>"], epochs=headrace.Epochs())


# -- memory -------------------------------------------------------------------------------

_READER = """
import asyncio, sys, headrace
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        idle, most, rows, seen = rss(), 0, 0, 0
        async with hr.epochs("a", start="earliest", until=int(sys.argv[2])) as epochs:
            async for epoch in epochs:
                seen += 1
                async for batch in epoch:
                    rows += batch.num_rows
                    del batch
                    if rows % 100 == 0 or rows < 1000:
                        most = max(most, rss())
        print(seen, rows, idle, most)
asyncio.run(main())
"""


async def _one_large(folder: Path) -> int:
    async with headrace.open(folder) as hr:
        await hr.create_stream("a", ["a.>"], segments=4, epochs=headrace.Epochs())
        async with hr.epoch_publisher("a", "p") as pub:
            value, rows = random.Random(1).randbytes(MIB // 16), PART_BYTES // (MIB // 16)
            subjects = [f"a.{row}" for row in range(rows)]
            part = pa.table({"subject": subjects, "key": subjects, "value": [value] * rows})
            for _ in range(EPOCH_BYTES // PART_BYTES):
                await pub.append(0, part)
            await pub.advance_to(1)
    return EPOCH_BYTES // PART_BYTES * rows


async def _many_small(folder: Path) -> int:
    async with headrace.open(folder) as hr:
        await hr.create_stream("a", ["a.>"], segments=4, epochs=headrace.Epochs())
        async with hr.epoch_publisher("a", "p") as pub, pub.appender() as appender:
            subjects = pa.array([f"a.{row % 100}" for row in range(STEP)])
            values = pa.array([b"x" * 20] * STEP, pa.binary())
            bounds = pa.array(range(STEP + 1), pa.int32())
            for first in range(0, REPLAYED, STEP):
                times = pa.ListArray.from_arrays(bounds, pa.array(range(first, first + STEP)))
                part = pa.table({"subject": subjects, "value": values, "epoch": times})
                await appender.append(None, part, advance_to=first + STEP)
    return REPLAYED


def memory() -> list[Result]:
    found = []
    for name, fill, until in (
        ("memory above idle, a 2 GiB epoch", _one_large, 1),
        ("memory above idle, 10^6 epochs replayed", _many_small, REPLAYED),
    ):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            place = Path(folder) / "log"
            wanted = asyncio.run(fill(place))
            command = [sys.executable, "-c", _READER, str(place), str(until)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seen, rows, idle, most = map(int, out.split())
        assert (seen, rows) == (until, wanted)
        detail = f"{idle / MIB:.0f} MiB idle, {most / MIB:.0f} MiB at most"
        found.append(at_most(name, (most - idle) / MIB, 150, "MiB", detail))
    return found


# -- live ---------------------------------------------------------------------------------


def _bare_rate(data: bytes) -> float:
    """Batches a second of these bytes over a bare socket of the same kind, loopback."""
    size = len(data)
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()

    def send() -> None:
        for _ in range(LIVE_BATCHES):
            one.sendall(data)

    thread = threading.Thread(target=send)
    started = time.perf_counter()
    thread.start()
    left, room = LIVE_BATCHES * size, bytearray(MIB)
    while left:
        left -= other.recv_into(room)
    took = time.perf_counter() - started
    thread.join()
    one.close()
    other.close()
    return LIVE_BATCHES / took


_LIVE = """
import asyncio, sys, time, headrace
async def main():
    options = {"filtered": False} if sys.argv[2] == "received" else {}
    async with (
        headrace.open(sys.argv[1]) as hr,
        hr.live_epochs("a", mode="streaming", **options) as found,
    ):
        items = aiter(found)
        await anext(items)
        print("ready", flush=True)
        began = time.process_time()
        while found.frontier != (1,):
            await anext(items)
        print(time.process_time() - began, flush=True)
asyncio.run(main())
"""


async def _live(folder: Path, *, dropped: bool, received: bool = False) -> tuple[float, float]:
    """Batches from one process to another: those a second, and a second of the subscriber's CPU.

    What is to be dropped its publisher leaves out, unless it is to be `received`.
    Each side of the bare socket has a thread of its own, which waits for nothing but the system.
    """
    data = batch()
    async with headrace.open(folder) as hr:
        await hr.create_stream("a", ["bench.>"], epochs=headrace.Epochs(stored=False))
        async with hr.live_publisher("a", "p") as pub:
            if dropped:
                await pub.append(10**9, data)  # what has begun is dropped, up to here
            command = (sys.executable, "-c", _LIVE, str(folder), "received" if received else "")
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            await process.stdout.readline()
            started = time.perf_counter()
            for _ in range(LIVE_BATCHES):
                await pub.append(0, data)
            await pub.advance_to(1)
            cpu = float(await process.stdout.readline())
            took = time.perf_counter() - started
            await process.wait()
    return LIVE_BATCHES / took, LIVE_BATCHES / cpu


def live() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        places = iter(range(1000))

        def rate(**how: bool) -> tuple[float, float]:
            return asyncio.run(_live(Path(folder) / str(next(places)), **how))

        data = bytes(encode_blob(batch()))
        size = len(data)
        share, bare, ours = ratio_of_rounds(
            lambda: _bare_rate(data), lambda: rate(dropped=False)[0], ROUNDS
        )
        heard, per_delivered, per_dropped = ratio_of_rounds(
            lambda: 1e6 / rate(dropped=False)[1],
            lambda: 1e6 / rate(dropped=True, received=True)[1],
            ROUNDS,
        )
        left_out, _, _ = ratio_of_rounds(
            lambda: 1 / rate(dropped=False)[0], lambda: 1 / rate(dropped=True)[0], ROUNDS
        )
    all_sent = (
        f"with filtered=False {heard:.2f} of the subscriber's CPU: {per_dropped:.0f} against "
        f"{per_delivered:.0f} us, its bytes received"
    )
    detail = f"{ours * size / 1e6:,.0f} against {bare * size / 1e6:,.0f} MB/s"
    return [
        at_least("live rows against a bare socket", share, 0.5, "of its rate", detail),
        at_most(
            "live: a dropped batch against a delivered one", left_out, 0.3, "x its time", all_sent
        ),
    ]


PARTS = {"large": lambda: [*advances(), *opening()], "memory": memory, "live": live}


def run() -> list[Result]:
    return [result for part in PARTS.values() for result in part()]


if __name__ == "__main__":
    chosen = [PARTS[name] for name in sys.argv[1:]] or list(PARTS.values())
    show([result for part in chosen for result in part()])
