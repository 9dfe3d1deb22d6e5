"""What breaks, what grows, and what others wait for: each figure against the one that is wanted.

``python -m bench.unbreakable`` measures all at full size, which takes some forty minutes;
``--scale 0.1`` does with a tenth of everything, and names choose: ``python -m bench.unbreakable
streams close``.  The wanted figures are for the full size.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

import headrace
from bench.faults import forks, handlers, interrupts, truth
from bench.growth import grow
from bench.harness import Result, at_most, folder, show
from bench.idle import idle
from bench.streams import MS, publish_ms, streams
from headrace.catalog.streams import StreamConfig
from headrace.errors import HeadraceError
from headrace.groups.vacant import drop_vacant
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.open import open_log

GIVE_UP_S = 45.0

app = cyclopts.App(name="python -m bench.unbreakable", help_format="plaintext")


# --- growth --------------------------------------------------------------------------------


async def follows(scale: float) -> list[Result]:
    """Publishes after many follow reads that were left, in turn with those of who had none."""
    count = int(10_000 * scale)
    async with headrace.open(folder()) as hr, headrace.open(folder()) as other:
        for each in (hr, other):
            await each.create_stream("s", ["s.>"])
            await each.publish("s.x", b"1")
        before_ms = await publish_ms(hr, ["s.x"] * 300)
        for _ in range(count):
            async for _batch in hr.read("s", follow=True):
                break
        await publish_ms(other, ["s.x"] * 300)  # its files grow to their size
        turns = [[await publish_ms(each, ["s.x"] * 20) for each in (hr, other)] for _ in range(15)]
    after_ms, without_ms = (statistics.median(each) for each in zip(*turns, strict=True))
    ratio = statistics.median(after / without for after, without in turns)
    detail = f"{after_ms:.2f} ms, without {without_ms:.2f} ms; before {before_ms:.2f} ms"
    name = f"publish after {count:,} follow reads that were left"
    return [at_most(name, ratio, 1.5, "x of without", detail)]


async def segments(scale: float) -> list[Result]:
    """Splits and merges of a stream that is trimmed, and what is left of its segments."""
    rounds = int(1_000 * scale)
    tenth = max(1, rounds // 10)
    async with headrace.open(folder(), housekeeping=False) as hr:
        await hr.create_stream("s", ["s.>"])
        times, open_segment = [], 0
        for number in range(rounds):
            began = time.process_time()
            opened = (await hr.split("s", open_segment)).opened
            (open_segment,) = (await hr.merge("s", opened)).opened
            times.append(time.process_time() - began)
            await hr.publish("s.x", b"x")
            if number % tenth == tenth - 1:
                stream = await hr.stream("s")
                await hr.trim("s", {each.number: each.head for each in stream.segments})
                await hr.in_thread(drop_vacant, hr.log, stream, -1.0)
        left = len((await hr.stream("s")).segments)
    ratio = statistics.median(times[-tenth:]) / statistics.median(times[:tenth])
    name = f"split and merge, {rounds:,} times"
    return [
        at_most(f"segments left after {name}", left, 1, "segments"),
        at_most(f"{name}: the last tenth", ratio, 1.5, "x of the first"),
    ]


async def sessions(scale: float) -> list[Result]:
    """Opening a session beside many that have names."""
    count = int(3_000 * scale)
    async with headrace.open(folder()) as hr:
        for number in range(count):
            async with hr.session(f"named-{number}"):
                pass
        times = []
        for number in range(30):
            began = time.perf_counter()
            session = await hr.session(f"new-{number}").__aenter__()
            times.append(time.perf_counter() - began)
            await session.close()
    return [
        at_most(
            f"open a session beside {count:,} named ones", statistics.median(times) * MS, 3, "ms"
        )
    ]


async def anonymous(scale: float) -> list[Result]:
    """Rows that sessions without a name leave behind."""
    count = int(16_000 * scale)
    tables = ("leases", "claims", "subscriptions", "progress", "entries")
    async with headrace.open(folder()) as hr:
        await hr.create_stream("s", ["s.>"], segments=2)

        def rows() -> dict[str, int]:
            return hr.log.catalog.read(
                lambda tx: {
                    table: int((tx.row(f"SELECT count(*) FROM {table}") or (0,))[0])
                    for table in tables
                }
            )

        before = sum((await hr.in_thread(rows)).values())
        for _ in range(count):
            async with hr.session() as session:
                await session.subscribe("s.>")
        left = await hr.in_thread(rows)
    detail = ", ".join(f"{table} {number:,}" for table, number in left.items() if number)
    return [
        at_most(
            f"rows left by {count:,} anonymous sessions",
            sum(left.values()) - before,
            1000,
            "rows",
            detail,
        )
    ]


async def compaction(scale: float) -> list[Result]:
    """The catalog's file when many small batches became few large ones."""
    count = int(900_000 * scale)
    place = Path(folder())

    def fill() -> float:
        log = open_log(place)
        log.create_stream("bench", StreamConfig(subjects=("bench.>",)))
        grow(log, count)
        log.catalog.close()
        return _size_mb(place)

    before_mb = await asyncio.to_thread(fill)
    async with headrace.open(place) as hr:
        took_s = await _timed(hr.compact("bench", CompactionPolicy(min_age_s=0)))
        for _ in range(100):  # whoever gives pages back may do so a little later
            if _size_mb(place) < 50:
                break
            await asyncio.sleep(0.2)
    detail = f"{before_mb:.0f} MB before; compacted in {took_s:.1f} s"
    name = f"catalog file after compaction of {count:,} batches"
    return [at_most(name, _size_mb(place), 50, "MB", detail)]


async def _timed(work: Coroutine[Any, Any, Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("headrace.db*")) / 1e6


# --- waiting -------------------------------------------------------------------------------


async def close(scale: float) -> list[Result]:
    """``close()`` while somebody publishes."""
    del scale
    hr = await headrace.open(folder()).__aenter__()
    await hr.create_stream("s", ["s.>"])

    async def publisher() -> None:
        try:
            while True:
                await hr.publish("s.x", b"x")
        except HeadraceError:
            pass

    publishing = [asyncio.create_task(publisher()) for _ in range(20)]
    await asyncio.sleep(0.3)
    began = time.monotonic()
    closing = asyncio.create_task(hr.close())
    await asyncio.wait([closing], timeout=15)
    took_s = time.monotonic() - began
    for task in publishing:
        task.cancel()
    await asyncio.wait([closing, *publishing])
    return [at_most("close() beside publishers", took_s, 1, "s")]


async def joins(scale: float) -> list[Result]:
    """Joins that were given up half-way, and whether the next one gets anything."""
    rounds = max(1, int(12 * scale))
    zombies = 0
    for seed in range(rounds):
        zombies += not await _delivered_after_given_up(seed)
    name = f"joins given up that leave a zombie, of {rounds} rounds of 60"
    return [at_most(name, zombies, 0, "rounds")]


async def _delivered_after_given_up(seed: int) -> bool:
    async with headrace.open(folder()) as hr:
        await hr.create_stream("s", ["s.>"], partitions=2)
        await hr.groups.create_static("s", "g", max_members=2, members=["m"])
        for number in range(60):
            try:
                async with asyncio.timeout((number * 7 + seed) % 60 / 10_000):
                    async with hr.join("s", "g", "m"):
                        await asyncio.sleep(0.001)
            except TimeoutError:
                pass
        await hr.publish("s.x", b"1", key="a")
        try:
            async with asyncio.timeout(8), hr.join("s", "g", "m") as member:
                async for delivery in member:
                    await delivery.ack()
                    return True
        except TimeoutError:
            pass
    return False


# --- clocks --------------------------------------------------------------------------------

_real_ns, _real_s = time.time_ns, time.time

OTHER = """
import asyncio, os, sys, headrace
async def main(url, kind):
    async with headrace.open(url) as hr:
        if kind == "static":
            source = await hr.join("s", "g", "m").__aenter__()
        elif kind == "reader":
            group = await hr.reader_groups.get("r")
            source = await group.reader("a").__aenter__()
        else:
            source = await hr.session("a").__aenter__()
            await source.subscribe("$share/h/s.>", start="earliest")
        async for delivery in source:
            await delivery.ack()
            print("acked", flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


def _step_clock(seconds: float) -> None:
    time.time_ns = lambda: _real_ns() + int(seconds * 1e9)
    time.time = lambda: _real_s() + seconds


async def clocks(scale: float) -> list[Result]:
    """Takeover from a program that was killed, after the wall clock went back a minute."""
    del scale
    found = []
    for kind, ttl_s in (("static", 5.0), ("shared", 10.0), ("reader", 10.0)):
        took_s = await _takeover_s(kind)
        name = f"takeover of a {kind} group after a step back of 60 s"
        found.append(at_most(name, took_s, ttl_s + 1, "s", f"time to live {ttl_s:.0f} s"))
    return found


async def _takeover_s(kind: str) -> float:
    url = folder()
    async with headrace.open(url) as hr:
        await hr.create_stream("s", ["s.>"], partitions=1)
        await hr.groups.create_static("s", "g", max_members=1, members=["m"])
        group = await hr.reader_groups.create("r", streams=["s"])
        arguments = [sys.executable, "-c", OTHER, url, kind]
        other = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
        assert other.stdout is not None
        await hr.publish("s.x", b"first", key="k")
        await other.stdout.readline()
        try:
            if kind == "static":
                source: Any = await hr.join("s", "g", "m").__aenter__()
            elif kind == "reader":
                source = await group.reader("b").__aenter__()
            else:
                source = await hr.session("b").__aenter__()
                await source.subscribe("$share/h/s.>", start="earliest")
            other.kill()
            await other.wait()
            _step_clock(-60)
            began = time.monotonic()
            await hr.publish("s.x", b"second", key="k")
            try:
                async with asyncio.timeout(GIVE_UP_S):
                    async for delivery in source:
                        await delivery.ack()
                        break
            except TimeoutError:
                pass
            took_s = time.monotonic() - began
            await source.close()
        finally:
            _step_clock(0)
            if other.returncode is None:
                other.kill()
                await other.wait()
    return took_s


FIGURES: dict[str, Callable[[float], Coroutine[Any, Any, list[Result]]]] = {
    "forks": forks,
    "handlers": handlers,
    "interrupts": interrupts,
    "truth": truth,
    "close": close,
    "clocks": clocks,
    "joins": joins,
    "follows": follows,
    "streams": streams,
    "segments": segments,
    "sessions": sessions,
    "idle": idle,
    "anonymous": anonymous,
    "compaction": compaction,
}


@app.default
def main(
    *names: str,
    scale: Annotated[float, Parameter(help="a share of the full sizes")] = 1.0,
) -> int:
    """Measure; exits with 1 when a figure is missed."""
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        print(f"no figure {', '.join(unknown)}; there are {', '.join(FIGURES)}")
        return 2
    results: list[Result] = []
    for name in names or FIGURES:
        began = time.monotonic()
        results += asyncio.run(FIGURES[name](scale))
        took_s = time.monotonic() - began
        print(f"{name}: measured in {took_s:.0f} s", file=sys.stderr, flush=True)
    show(results)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    status = app()
    sys.stdout.flush()
    os._exit(status or 0)
