"""Epochs against the same rows without them: publishing, reading, and from one process to another.

``python -m bench.epochs`` prints the figures; what is large stands in ``bench/epochs_large.py``.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import headrace
from bench.harness import Result, at_least, at_most, percentile, ratio_of_rounds, show
from bench.publish import ROWS, SEGMENTS, batch

BATCHES = 150
SINGLES = 300
ROUNDS = 7
EPOCHS = 400
FILE_EPOCHS = 40
FILE_ROWS = 50_000
INTERLEAVED = 10
EVENTS = 800
WARM_UP = 100
SUSTAINED_S = 30.0
SUSTAINED_EPOCHS = 12_000
"""Epochs a second that the publisher of the sustained run offers."""

Work = Callable[[headrace.Headrace], Awaitable[float]]


def in_new_folder(work: Work, stream: bool = True) -> Callable[[], float]:
    """Run it on a new log with a plain stream and an epoch stream."""

    def run() -> float:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            return asyncio.run(_opened(Path(name) / "log", work, make=stream))

    return run


async def _opened(folder: Path, work: Work, *, make: bool) -> float:
    async with headrace.open(folder) as hr:
        if make:
            await _streams(hr)
        return await work(hr)


async def _streams(hr: headrace.Headrace) -> None:
    await hr.create_stream("plain", subjects=["plain.>"], segments=SEGMENTS)
    await hr.create_stream("bench", ["bench.>"], segments=SEGMENTS, epochs=headrace.Epochs())


def _plain(data: pa.RecordBatch) -> pa.RecordBatch:
    subjects = pa.array([f"plain{name[5:]}" for name in data.column("subject").to_pylist()])
    return pa.record_batch(
        [subjects, data.column("key"), data.column("value")], ["subject", "key", "value"]
    )


# -- publishing ---------------------------------------------------------------------------


def publishing() -> list[Result]:
    data = batch()
    plain = _plain(data)

    async def appender(hr: headrace.Headrace) -> float:
        started = time.perf_counter()
        async with hr.appender("plain") as appender:
            for _ in range(BATCHES):
                await appender.append(plain)
        return BATCHES / (time.perf_counter() - started)

    async def epoch_appender(hr: headrace.Headrace) -> float:
        async with hr.epoch_publisher("bench", "p") as pub:
            started = time.perf_counter()
            async with pub.appender() as appender:
                for at in range(BATCHES):
                    await appender.append(at, data, advance_to=at + 1)
            return BATCHES / (time.perf_counter() - started)

    async def append(hr: headrace.Headrace) -> float:
        started = time.perf_counter()
        for _ in range(SINGLES):
            await hr.append("plain", plain)
        return SINGLES / (time.perf_counter() - started)

    async def epoch_append(hr: headrace.Headrace) -> float:
        async with hr.epoch_publisher("bench", "p") as pub:
            started = time.perf_counter()
            for at in range(SINGLES):
                await pub.append(at, data, advance_to=at + 1)
            return SINGLES / (time.perf_counter() - started)

    found = []
    for name, floor, ours, least in (
        ("epoch appender against hr.appender, 1000 x 100 B", appender, epoch_appender, 0.75),
        ("awaited epoch append and advance against hr.append", append, epoch_append, 0.7),
    ):
        ratio, base, rate = ratio_of_rounds(in_new_folder(floor), in_new_folder(ours), ROUNDS)
        detail = f"{rate * ROWS:,.0f} against {base * ROWS:,.0f} events/s"
        found.append(at_least(name, ratio, least, "of the plain one", detail))
    return found


# -- reading ------------------------------------------------------------------------------


async def _fill_blobs(hr: headrace.Headrace, interleaved: int = 1) -> int:
    """Epochs of 1000 rows, in order or some at a time; returns how many rows there are."""
    data = batch()
    parts = [data.slice(at * ROWS // interleaved, ROWS // interleaved) for at in range(interleaved)]
    async with hr.epoch_publisher("bench", "p") as pub, pub.appender() as appender:
        for first in range(0, EPOCHS, interleaved):
            for part in parts:
                for at in range(first, first + interleaved):
                    await appender.append(at, part)
            await appender.advance_to(first + interleaved)
    return EPOCHS * (ROWS // interleaved) * interleaved


async def _fill_files(hr: headrace.Headrace) -> int:
    large = pa.Table.from_batches([batch()] * (FILE_ROWS // ROWS))
    async with hr.epoch_publisher("bench", "p") as pub:
        for at in range(FILE_EPOCHS):
            await pub.append(at, large, advance_to=at + 1)
    return FILE_EPOCHS * FILE_ROWS


async def _read(hr: headrace.Headrace) -> int:
    count = 0
    async for found in hr.read("bench"):
        count += found.num_rows
    return count


async def _steps(hr: headrace.Headrace, last: int = EPOCHS) -> int:
    count = 0
    async with hr.epochs("bench", start="earliest", until=last) as epochs:
        async for step in epochs.steps():
            async for found in step:
                count += found.num_rows
    return count


async def _file_steps(hr: headrace.Headrace) -> int:
    return await _steps(hr, last=FILE_EPOCHS)


async def _each(hr: headrace.Headrace) -> int:
    count = 0
    async with hr.epochs("bench", start="earliest", until=EPOCHS) as epochs:
        async for epoch in epochs:
            async for found in epoch:
                count += found.num_rows
    return count


def reading() -> list[Result]:
    found = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        for place, fill in (
            ("blobs", _fill_blobs),
            ("files", _fill_files),
            ("mixed", lambda hr: _fill_blobs(hr, INTERLEAVED)),
        ):
            folder = Path(name) / place
            rows = int(asyncio.run(_opened(folder, _filled(fill), make=True)))

            def rate(read: Callable[[headrace.Headrace], Awaitable[int]]) -> Callable[[], float]:
                async def work(hr: headrace.Headrace) -> float:
                    started = time.perf_counter()
                    assert await read(hr) == rows  # noqa: B023
                    return rows / (time.perf_counter() - started)  # noqa: B023

                return lambda: asyncio.run(_opened(folder, work, make=False))  # noqa: B023

            ways = {
                "blobs": (("whole epochs by steps, blobs", _steps, 0.8),
                          ("whole epochs one by one, blobs", _each, 0.6)),
                "files": (("whole epochs by steps, files", _file_steps, 0.8),),
                "mixed": (("ten epochs interleaved, by steps", _steps, 0.5),),
            }[place]  # fmt: skip
            for title, read, least in ways:
                ratio, base, ours = ratio_of_rounds(rate(_read), rate(read), ROUNDS)
                detail = f"{ours:,.0f} against {base:,.0f} rows/s"
                found.append(at_least(title, ratio, least, "of hr.read", detail))
    return found


def _filled(fill: Callable[[headrace.Headrace], Awaitable[int]]) -> Work:
    async def work(hr: headrace.Headrace) -> float:
        return float(await fill(hr))

    return work


# -- from process to process --------------------------------------------------------------

_SUBSCRIBER = """
import asyncio, struct, sys, time, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr, hr.epochs("bench", start="open") as epochs:
        print("ready", flush=True)
        count = 0
        async for epoch in epochs:
            async for batch in epoch:
                now = time.perf_counter_ns()
                for value in batch.column("value").to_pylist():
                    print((now - struct.unpack("<q", value[:8])[0]) / 1e6)
                    count += 1
            if count == int(sys.argv[2]):
                return
asyncio.run(main())
"""

_TAIL = """
import asyncio, struct, sys, time, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        reading = hr.tail("plain")
        pending = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        count = 0
        while True:
            batch = await pending
            now = time.perf_counter_ns()
            for value in batch.column("value").to_pylist():
                print((now - struct.unpack("<q", value[:8])[0]) / 1e6)
                count += 1
            if count == int(sys.argv[2]):
                return
            pending = asyncio.ensure_future(anext(reading))
asyncio.run(main())
"""

_SUSTAINED = """
import asyncio, struct, sys, time, headrace
async def main():
    count = 0
    async with headrace.open(sys.argv[1]) as hr, hr.epochs("bench", start="open") as epochs:
        print("ready", flush=True)
        async for step in epochs.steps(max_epochs=5000):
            oldest = None
            async for batch in step:
                first = batch.column("value")[0].as_py()
                at = struct.unpack("<q", first[:8])[0]
                oldest = at if oldest is None else min(oldest, at)
            count += len(step.times)
            print(count, (time.perf_counter_ns() - oldest) / 1e9)
asyncio.run(main())
"""


@contextmanager
def child(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has said that it is ready; its output is a file, so it never blocks."""
    with tempfile.TemporaryFile("w+") as out:
        command = [sys.executable, "-c", script, *arguments]
        process = subprocess.Popen(command, stdout=out, text=True)
        try:
            while not os.path.getsize(f"/proc/self/fd/{out.fileno()}"):
                time.sleep(0.02)
            time.sleep(0.3)
            process.stdout = out
            yield process
        finally:
            process.kill()
            process.wait()


async def _delays(hr: headrace.Headrace, folder: Path, *, epochs: bool) -> list[float]:
    """Milliseconds from before a commit until its row is seen in another process."""
    total = EVENTS + WARM_UP
    script = _SUBSCRIBER if epochs else _TAIL
    with child(script, str(folder), str(total)) as process:
        async with hr.epoch_publisher("bench", "p") as pub:
            first = pub.frontier
            for at in range(first, first + total):
                stamp = time.perf_counter_ns().to_bytes(8, "little") + os.urandom(92)
                if epochs:
                    await pub.publish(at, "bench.a", stamp, key="k", advance_to=at + 1)
                else:
                    await hr.publish("plain.a", stamp, key="k")
                await asyncio.sleep(0.001)
        await asyncio.to_thread(process.wait, 60)
        assert process.stdout is not None
        process.stdout.seek(0)
        return [float(line) for line in process.stdout.read().split()[1:]][WARM_UP:]


def latency() -> list[Result]:
    async def measure(folder: Path) -> list[Result]:
        async with headrace.open(folder) as hr:
            await _streams(hr)
            ratios: dict[float, list[float]] = {0.5: [], 0.99: []}
            seen: dict[float, list[float]] = {0.5: [], 0.99: []}
            for number in range(4):
                order = (False, True) if number % 2 else (True, False)
                found = {kind: await _delays(hr, folder, epochs=kind) for kind in order}
                for share, values in ratios.items():
                    ours, plain = (percentile(found[kind], share) for kind in (True, False))
                    values.append(ours / plain)
                    seen[share].append(ours)
        return [
            at_most(
                f"commit to whole epoch in another process, p{share * 100:.0f}",
                percentile(ratios[share], 0.5),
                most,
                "x publish to tail",
                f"{percentile(seen[share], 0.5):.2f} ms",
            )
            for share, most in ((0.5, 1.3), (0.99, 1.5))
        ]

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        return asyncio.run(measure(Path(name) / "log"))


def sustained(seconds: float = SUSTAINED_S) -> list[Result]:
    """Epochs of 1 to 10 rows at a steady rate, and a whole subscriber in another process."""
    sizes = [1 + at % 10 for at in range(SUSTAINED_EPOCHS // 20)]
    rows = sum(sizes)
    subjects = pa.array(["bench.a"] * rows)
    spread = [at for at, size in enumerate(sizes) for _ in range(size)]
    offsets = pa.array(range(rows + 1), pa.int32())

    def table(first: int) -> pa.RecordBatch:
        stamp = time.perf_counter_ns().to_bytes(8, "little")
        times = pa.array([first + at for at in spread], pa.int64())
        epoch = pa.ListArray.from_arrays(offsets, times)
        value = pa.array([stamp] * rows, pa.binary())
        return pa.record_batch([subjects, value, epoch], ["subject", "value", "epoch"])

    async def measure(folder: Path) -> list[Result]:
        async with headrace.open(folder) as hr:
            await _streams(hr)
            with child(_SUSTAINED, str(folder)) as process:
                async with hr.epoch_publisher("bench", "p") as pub, pub.appender() as appender:
                    began, given = time.perf_counter(), 0
                    while (now := time.perf_counter() - began) < seconds:
                        if given / SUSTAINED_EPOCHS <= now:
                            ahead = given + len(sizes)
                            await appender.append(None, table(given), advance_to=ahead)
                            given = ahead
                        else:
                            await asyncio.sleep(given / SUSTAINED_EPOCHS - now)
                    await appender.flush()
                took = time.perf_counter() - began
                deadline = time.perf_counter() + 30
                assert process.stdout is not None
                while time.perf_counter() < deadline:
                    process.stdout.seek(0)
                    lines = process.stdout.read().split("\n")[1:-1]
                    if lines and int(lines[-1].split()[0]) == given:
                        break
                    await asyncio.sleep(0.1)
        seen = [(int(count), float(late)) for count, late in (line.split() for line in lines)]
        assert seen[-1][0] == given, (seen[-1], given)
        worst = max(late for _, late in seen)
        return [
            at_least(
                "epochs of 1 to 10 rows, published and given whole", given / took, 10_000, "/s"
            ),
            at_most("the same, how far behind at most", worst, 1.0, "s"),
        ]

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        return asyncio.run(measure(Path(name) / "log"))


def run() -> list[Result]:
    return [*publishing(), *reading(), *latency(), *sustained()]


if __name__ == "__main__":
    parts = {"publishing": publishing, "reading": reading, "latency": latency}
    chosen = [parts[name] for name in sys.argv[1:] if name in parts]
    if "sustained" in sys.argv[1:]:
        chosen.append(sustained)
    show([result for part in chosen for result in part()] if chosen else run())
