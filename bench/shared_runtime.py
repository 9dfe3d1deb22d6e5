"""Shared groups at work: joining, leading, confirming and consuming, on a real catalog.

Joins and leading are measured over real leaders, borrowers, transport and catalog; what stands in
for the consumers only counts its units, so that reading the log does not blur the figures.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pyarrow as pa

import headrace
from bench.harness import Result, at_least, at_most, percentile, ratio_of_rounds, show
from headrace.catalog import Tx
from headrace.errors import Fenced, HeadraceError
from headrace.groups.consumer import OwnedUnit, UnitAck, UnitEvents
from headrace.groups.progress import Progress
from headrace.groups.shared.runtime.borrowing import Borrowing
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.groups.shared.runtime.peer import LocalPeer

TEXT = "$share/g/>"
SEGMENTS_PER_STREAM = 1_000
ROOT = Path(__file__).parent.parent


class Counting:
    """Stands in for a consumer: has its units, and gives them back at once."""

    closed = False
    valid_until_s = math.inf

    def __init__(self) -> None:
        self.units: dict[str, OwnedUnit] = {}
        self.taken = 0
        self.borrowing: Borrowing

    def open(self, unit: OwnedUnit, owner: UnitEvents) -> None:  # noqa: ARG002
        self.units[unit.unit] = unit
        self.taken += 1

    def drain(self, units: Mapping[str, int]) -> None:
        for name in units:
            unit = self.units.pop(name)
            asyncio.get_running_loop().call_soon(self.borrowing.drained, unit, unit.progress)

    def abandon(self, unit: str, token: int, why: Fenced) -> None:  # noqa: ARG002
        self.units.pop(unit, None)

    def pause(self, units: Mapping[str, int]) -> None: ...

    def resume(self, units: Mapping[str, int]) -> None: ...

    def fail(self, error: HeadraceError) -> None: ...


def member_of(peer: LocalPeer, name: str) -> Counting:
    sink = Counting()
    sink.borrowing = Borrowing(peer, sink, name, 1, peer.options.borrower)
    peer.add_session(f"{name}:1", sink.borrowing)
    sink.borrowing.subscribe(TEXT)
    return sink


async def _prepare(hr: headrace.Headrace, segments: int) -> None:
    for number in range(0, segments, SEGMENTS_PER_STREAM):
        name = f"orders-{number // SEGMENTS_PER_STREAM}"
        await hr.create_stream(name, [f"{name}.>"], segments=SEGMENTS_PER_STREAM)
    await hr.shared_groups.declare("g", ">")


def run(*, seconds: float = 10.0) -> list[Result]:
    """All figures."""
    return [
        *asyncio.run(_joining(1_000, 50)),
        *asyncio.run(_leading(10_000, 200, 1_000, seconds, connections=1)),
        *asyncio.run(_leading(10_000, 200, 1_000, seconds, connections=20)),
        *asyncio.run(_leading(10_000, 200, 1_000, seconds, connections=200)),
        *asyncio.run(_dying(1_000, 50, 1_000, connections=5, deaths=6)),
        *_consuming(),
    ]


# --- joining ---


async def _joining(segments: int, members: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        async with headrace.open(folder, housekeeping=False) as hr:
            await _prepare(hr, segments)
            here, there = LocalPeer(hr.host, SharedOptions()), LocalPeer(hr.host, SharedOptions())
            await here.open()
            await there.open()
            sinks = [member_of((here, there)[n % 2], f"m{n}") for n in range(members)]
            await until(lambda: _settled(sinks, segments))
            for sink in sinks:
                sink.taken = 0
            began = time.perf_counter()
            sinks.append(member_of(there, "late"))
            await until(lambda: _settled(sinks, segments))
            joined_s = time.perf_counter() - began
            moves = sum(sink.taken for sink in sinks)
            leaving = sinks.pop(0)
            began = time.perf_counter()
            leaving.borrowing.disconnect()
            await until(lambda: _settled(sinks, segments))
            left_s = time.perf_counter() - began
            await there.close()
            await here.close()
    share = segments // (members + 1) + 1
    size = f"{segments:,} segments x {members} members"
    return [
        at_most(f"shared: a join settles, {size}", joined_s, 1.0, "s"),
        at_most(f"shared: units moved by a join, {size}", moves, share, "units"),
        at_most(f"shared: a leave settles, {size}", left_s, 1.0, "s"),
    ]


def _settled(sinks: list[Counting], segments: int) -> bool:
    loads = [len(sink.units) for sink in sinks]
    return sum(loads) == segments and max(loads) - min(loads) <= 1


async def until(done: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if done():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("the group does not settle")


# --- leading ---


class Led:
    """A process that leads the group, and members here that report to it."""

    def __init__(self, hr: headrace.Headrace, folder: str) -> None:
        self._hr = hr
        self._peers: list[LocalPeer] = []
        self.sinks: list[Counting] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.shared_leader", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    async def join(self, segments: int, members: int, connections: int) -> None:
        """Let members in, over a number of connections, and wait until all have their share."""
        await self._line()
        for _ in range(connections):
            peer = LocalPeer(self._hr.host, SharedOptions())
            await peer.open()
            self._peers.append(peer)
        self.sinks = [member_of(self._peers[n % connections], f"m{n}") for n in range(members)]
        # One more member is in the leader's process.
        share = segments // (members + 1)
        await until(lambda: min(len(sink.units) for sink in self.sinks) >= share)
        # This process stands in for many: no single one of them would have so much to look
        # through for garbage, and so be held up for so long.
        gc.collect()
        gc.freeze()

    async def cpu_s(self) -> float:
        """CPU seconds of the process so far; refused when it does not lead."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        cpu_s, leaders = (await self._line()).split()
        if leaders != "1":
            raise RuntimeError("the group is led by another process")
        return float(cpu_s)

    async def _line(self) -> str:
        assert self.process.stdout is not None
        return await asyncio.to_thread(self.process.stdout.readline)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


async def _leading(
    segments: int, members: int, rate: int, seconds: float, connections: int
) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        async with headrace.open(folder, housekeeping=False) as hr:
            await _prepare(hr, segments)
            led = Led(hr, folder)
            try:
                await led.join(segments, members, connections)
                idle, _ = await _cpu_share(led, lambda: asyncio.sleep(seconds / 2))
                reports = Reports(led.sinks)
                busy, took_s = await _cpu_share(led, lambda: reports.run(rate, seconds))
            finally:
                await led.close()
    over = f"{connections} connection{'s' * (connections > 1)}"
    size = f"{segments:,} segments x {members} members, {over}"
    waits_s = reports.waits_s
    p50_ms, p99_ms = (percentile(waits_s, part) * 1e3 for part in (0.5, 0.99))
    done = f"{len(waits_s) / took_s:,.0f} reports/s confirmed over {took_s:.0f} s"
    return [
        Result(f"shared: an idle leader, {size}", idle * 100, "% of a core"),
        at_most(f"shared: a leader at {rate:,} reports/s, {size}", busy * 100, 10.0, "%", done),
        Result(f"shared: report to confirmation, p50, {over}", p50_ms, "ms"),
        at_most(f"shared: report to confirmation, p99, {over}", p99_ms, 50, "ms"),
    ]


async def _cpu_share(led: Led, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """The part of a core that a leader uses while something is done, and how long that took."""
    before, began = await led.cpu_s(), time.perf_counter()
    await work()
    took_s = time.perf_counter() - began
    return (await led.cpu_s() - before) / took_s, took_s


class Reports:
    """Reports at a steady rate, from all members in turn, whether or not they are answered."""

    def __init__(self, sinks: list[Counting]) -> None:
        units = [(sink, unit) for sink in sinks for unit in sink.units.values()]
        random.Random(1).shuffle(units)
        self._units = units[:2000]
        self.waits_s: list[float] = []
        self.open: dict[int, tuple[float, int, int]] = {}
        """Those without an answer: when each was made, of which segment, and its floor."""

    async def run(self, rate: int, seconds: float) -> None:
        under_way: set[asyncio.Task[None]] = set()
        try:
            await self._send(rate, seconds, under_way)
            await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()

    async def _send(self, rate: int, seconds: float, under_way: set[asyncio.Task[None]]) -> None:
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            sink, unit = self._units[number % len(self._units)]
            floor = number // len(self._units) + 1
            self.open[number] = (time.perf_counter(), unit.segment_id, floor)
            ack = UnitAck(unit, Progress(floor=floor))
            task = asyncio.create_task(self._one(sink, ack, number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    async def _one(self, sink: Counting, ack: UnitAck, number: int) -> None:
        began = time.perf_counter()
        if await sink.borrowing.commit([ack]) == [None]:
            self.waits_s.append(time.perf_counter() - began)
        del self.open[number]


# --- the death of a leader ---


async def _dying(
    segments: int, members: int, rate: int, connections: int, deaths: int
) -> list[Result]:
    """How far back the reports go that the death of a leader undoes."""
    ages_s: list[float] = []
    undone = 0
    for number in range(deaths):
        with tempfile.TemporaryDirectory() as folder:
            async with headrace.open(folder, housekeeping=False) as hr:
                await _prepare(hr, segments)
                led = Led(hr, folder)
                try:
                    await led.join(segments, members, connections)
                    reports = Reports(led.sinks)
                    reporting = asyncio.create_task(reports.run(rate, 60.0))
                    await asyncio.sleep(1.0 + number * 0.0137)
                    led.process.kill()
                    died = time.perf_counter()
                    unanswered = list(reports.open.values())
                    led.process.wait()
                    floors = dict(await hr.in_thread(hr.log.catalog.read, _floors))
                    reporting.cancel()
                    await asyncio.gather(reporting, return_exceptions=True)
                finally:
                    await led.close()
        lost = [at for at, segment_id, floor in unanswered if floors[segment_id] < floor]
        undone += len(lost)
        ages_s.append(died - min(lost, default=died))
    what = f"{rate:,} reports/s, {deaths} deaths"
    return [
        at_most(
            f"shared: oldest report undone by a leader's death, {what}",
            max(ages_s) * 1e3,
            50,
            "ms",
            f"median {percentile(ages_s, 0.5) * 1e3:.0f} ms; {undone / deaths:.0f} reports a death",
        )
    ]


def _floors(tx: Tx) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in tx.rows("SELECT segment_id, floor FROM progress")]


# --- consuming ---


def _consuming(events: int = 200_000, rows: int = 2_000_000, rounds: int = 5) -> list[Result]:
    """A member of a shared group against one of a partitioned group, on the same events."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_fill(folder, rows))
        turn = iter(range(1000))

        def rate(kind: str, count: int, *, batches: bool) -> float:
            group = f"g{next(turn)}"
            return asyncio.run(_consume(folder, kind, group, count, batches=batches))

        found = []
        for batches, count, name in (
            (False, events, "event by event"),
            (True, rows, "Arrow batches"),
        ):
            ratio, partitioned, shared = ratio_of_rounds(
                functools.partial(rate, "parted", count, batches=batches),
                functools.partial(rate, "shared", count, batches=batches),
                rounds,
            )
            detail = f"{shared:,.0f}/s against {partitioned:,.0f}/s in a partitioned group"
            found.append(
                at_least(f"shared: throughput of a member, {name}", ratio, 0.8, "x", detail)
            )
        return found


async def _fill(folder: str, rows: int) -> None:
    part = 100_000
    async with headrace.open(folder, housekeeping=False) as hr:
        await hr.create_stream("shared", ["shared.>"], segments=4)
        await hr.create_stream("parted", ["parted.>"], partitions=4)
        for stream in ("shared", "parted"):
            table = pa.table(
                {
                    "subject": [f"{stream}.{n % 1000}" for n in range(part)],
                    "key": [str(n % 5000) for n in range(part)],
                    "value": pa.array([b"x" * 100] * part, pa.binary()),
                }
            )
            for _ in range(0, rows, part):
                await hr.append(stream, table)


async def _consume(folder: str, kind: str, group: str, events: int, *, batches: bool) -> float:
    """Events per second, from the first that is delivered until the last ack is stored."""
    async with headrace.open(folder, housekeeping=False) as hr:
        if kind == "parted":
            await hr.groups.create_static(
                "parted", group, max_members=4, filter="parted.>", members=["m"]
            )
            async with hr.join("parted", group, member="m") as member:
                return await _take(member, events, batches=batches)
        await hr.shared_groups.declare(group, "shared.>", start="earliest")
        async with hr.session() as session:
            await session.subscribe(f"$share/{group}/shared.>")
            return await _take(session, events, batches=batches)


async def _take(member: headrace.Session | headrace.Member, events: int, *, batches: bool) -> float:
    seen = 0
    began = 0.0
    if batches:
        async for batch in member.batches():
            began = began or time.perf_counter()
            seen += batch.data.num_rows
            await batch.ack()
            if seen >= events:
                break
    else:
        async for delivery in member:
            began = began or time.perf_counter()
            delivery.ack_soon()
            seen += 1
            if seen >= events:
                break
    await member.flush()
    return events / (time.perf_counter() - began)


if __name__ == "__main__":
    show(run())
