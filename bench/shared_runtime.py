"""Shared groups at work: joining, leading, confirming and consuming, on a real catalog.

Joins and leading are measured over real leaders, borrowers, transport and catalog; what stands in
for the consumers only counts its units, so that reading the log does not blur the figures.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import headrace
from bench.harness import Result, at_least, at_most, percentile, ratio_of_rounds, show
from headrace.errors import Fenced
from headrace.groups.consumer import OwnedUnit, UnitAck
from headrace.groups.progress import Progress
from headrace.groups.shared.borrowing import Borrowing
from headrace.groups.shared.node import Node, SharedOptions

TEXT = "$share/g/>"
SEGMENTS_PER_STREAM = 1_000
ROOT = Path(__file__).parent.parent


class Counting:
    """Stands in for a consumer: has its units, and gives them back at once."""

    def __init__(self) -> None:
        self.units: dict[str, OwnedUnit] = {}
        self.taken = 0
        self.borrowing: Borrowing

    def open(self, unit: OwnedUnit) -> None:
        self.units[unit.unit] = unit
        self.taken += 1

    def drain(self, unit: str, token: int) -> None:
        progress = self.units.pop(unit).progress
        asyncio.get_running_loop().call_soon(self.borrowing.drained, unit, token, progress)

    def abandon(self, unit: str, token: int, why: Fenced) -> None:  # noqa: ARG002
        self.units.pop(unit, None)


def member_of(node: Node, name: str) -> Counting:
    sink = Counting()
    sink.borrowing = Borrowing(node, sink, name, 1, node.options.borrower)
    node.add_session(f"{name}:1", sink.borrowing)
    sink.borrowing.subscribe(TEXT)
    return sink


async def _prepare(hr: headrace.Headrace, segments: int) -> None:
    for number in range(0, segments, SEGMENTS_PER_STREAM):
        name = f"orders-{number // SEGMENTS_PER_STREAM}"
        await hr.create_stream(name, [f"{name}.>"], segments=SEGMENTS_PER_STREAM)
    await hr.shared_groups.declare("g", ">")


def run(*, seconds: float = 8.0) -> list[Result]:
    """All figures."""
    return [
        *asyncio.run(_joining(1_000, 50)),
        *asyncio.run(_leading(10_000, 200, 1_000, seconds)),
        *_consuming(),
    ]


# --- joining ---


async def _joining(segments: int, members: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        async with headrace.open(folder, housekeeping=False) as hr:
            await _prepare(hr, segments)
            here, there = Node(hr, SharedOptions()), Node(hr, SharedOptions())
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


async def _leading(segments: int, members: int, rate: int, seconds: float) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        async with headrace.open(folder, housekeeping=False) as hr:
            await _prepare(hr, segments)
            leader = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "bench.shared_leader", folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            try:
                assert leader.stdout is not None
                await asyncio.to_thread(leader.stdout.readline)
                node = Node(hr, SharedOptions())
                await node.open()
                sinks = [member_of(node, f"m{n}") for n in range(members)]
                # One more member is in the leader's process.
                share = segments // (members + 1)
                await until(lambda: min(len(sink.units) for sink in sinks) >= share)
                idle, _ = await _cpu_share(leader, lambda: asyncio.sleep(seconds / 2))
                latencies: list[float] = []
                busy, took_s = await _cpu_share(
                    leader, lambda: _report(sinks, rate, seconds, latencies)
                )
                await node.close()
            finally:
                leader.kill()
                leader.wait()
                for pipe in (leader.stdin, leader.stdout):
                    if pipe is not None:
                        pipe.close()
    size = f"{segments:,} segments x {members} members"
    done = f"{len(latencies) / took_s:,.0f} reports/s confirmed"
    p99_ms = percentile(latencies, 0.99) * 1000
    p50_ms = percentile(latencies, 0.5) * 1000
    return [
        Result(f"shared: an idle leader, {size}", idle * 100, "% of a core"),
        at_most(f"shared: a leader at {rate:,} reports/s, {size}", busy * 100, 10.0, "%", done),
        Result("shared: report to confirmation, p50", p50_ms, "ms", detail=done),
        at_most("shared: report to confirmation, p99 (crash replay)", p99_ms, 50.0, "ms"),
    ]


async def _cpu_share(
    leader: subprocess.Popen[str], work: Callable[[], Awaitable[None]]
) -> tuple[float, float]:
    """The part of a core that a process uses while something is done, and how long that took."""
    before, began = await _cpu_s(leader), time.perf_counter()
    await work()
    took_s = time.perf_counter() - began
    return (await _cpu_s(leader) - before) / took_s, took_s


async def _cpu_s(leader: subprocess.Popen[str]) -> float:
    assert leader.stdin is not None
    assert leader.stdout is not None
    leader.stdin.write("\n")
    leader.stdin.flush()
    cpu_s, leaders = (await asyncio.to_thread(leader.stdout.readline)).split()
    if leaders != "1":
        raise RuntimeError("the group is led by another process")
    return float(cpu_s)


async def _report(sinks: list[Counting], rate: int, seconds: float, latencies: list[float]) -> None:
    """Reports at a steady rate, from all members in turn."""
    units = [(sink, unit) for sink in sinks for unit in sink.units.values()]
    units = units[:: max(1, len(units) // 2000)]
    under_way: set[asyncio.Task[None]] = set()
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        sink, unit = units[number % len(units)]
        progress = Progress(floor=number // len(units) + 1)
        task = asyncio.create_task(_one(sink, UnitAck(unit, progress), latencies))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)


async def _one(sink: Counting, ack: UnitAck, latencies: list[float]) -> None:
    began = time.perf_counter()
    if await sink.borrowing.commit([ack]) == [None]:
        latencies.append(time.perf_counter() - began)


# --- consuming ---


def _consuming(events: int = 200_000, rounds: int = 5) -> list[Result]:
    """A member of a shared group against one that commits its acks itself."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_fill(folder, events))
        turn = iter(range(1000))

        def rate(kind: str, *, batches: bool) -> float:
            text = f"$share/g{next(turn)}/orders.>" if kind == "shared" else "orders.>"
            return asyncio.run(_consume(folder, text, events, batches=batches))

        found = []
        for batches, name in ((False, "event by event"), (True, "Arrow batches")):
            ratio, own, shared = ratio_of_rounds(
                lambda b=batches: rate("own", batches=b),  # type: ignore[misc]
                lambda b=batches: rate("shared", batches=b),  # type: ignore[misc]
                rounds,
            )
            detail = f"{shared:,.0f}/s against {own:,.0f}/s of a member that commits itself"
            found.append(
                at_least(f"shared: throughput of a member, {name}", ratio, 0.8, "x", detail)
            )
        return found


async def _fill(folder: str, events: int) -> None:
    async with headrace.open(folder, housekeeping=False) as hr:
        await hr.create_stream("orders", ["orders.>"], segments=4)
        for begin in range(0, events, 10_000):
            await hr.append(
                "orders",
                [
                    headrace.Event(
                        subject=f"orders.{n % 1000}", value=b"x" * 100, key=str(n % 5000)
                    )
                    for n in range(begin, begin + 10_000)
                ],
            )


async def _consume(folder: str, text: str, events: int, *, batches: bool) -> float:
    async with (
        headrace.open(folder, housekeeping=False) as hr,
        hr.session() as session,
    ):
        await session.subscribe(text, start="earliest")
        seen = 0
        began = time.perf_counter()
        if batches:
            async for batch in session.batches():
                seen += batch.data.num_rows
                await batch.ack()
                if seen >= events:
                    break
        else:
            async for delivery in session:
                delivery.ack_soon()
                seen += 1
                if seen >= events:
                    break
        await session.flush()
        return events / (time.perf_counter() - began)


if __name__ == "__main__":
    show(run())
