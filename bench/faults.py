"""Faults of programs as people write them, counted: forks, handlers, signals, what is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec

import headrace
from bench.harness import Result, at_least, at_most, folder

FORKED = """
import multiprocessing as mp, sys, headrace.sync
from headrace.errors import HeadraceError

def child(hr, told, closed):
    closed.wait()
    durable = errors = 0
    for _ in range(int(sys.argv[2])):
        try:
            hr.publish("s.c", b"after")
            durable += 1
        except HeadraceError:
            errors += 1
    told.put((durable, errors))

ctx = mp.get_context("fork")
told, closed = ctx.Queue(), ctx.Event()
with headrace.sync.open(sys.argv[1]) as hr:
    hr.create_stream("s", ["s.>"])
    forked = ctx.Process(target=child, args=(hr, told, closed))
    forked.start()
closed.set()
durable, errors = told.get(timeout=60)
forked.join()
with headrace.sync.open(sys.argv[1]) as hr:
    stored = sum(batch.num_rows for batch in hr.read("s"))
print(durable - stored, errors)
"""


class _Struck(msgspec.Struct):
    """What ``tests.torture.interrupts`` says."""

    interrupts: int
    locks_left: int
    programs_stuck: int
    slowest_ms: float
    wal_bytes_max: int


class _Judged(msgspec.Struct):
    """What ``tests.torture.histories`` says."""

    figures: dict[str, int]
    violations: dict[str, int]


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(arguments[:2])} said nothing: {done.stderr[-2000:]}")
    return done.stdout


async def forks(scale: float) -> list[Result]:
    """A log that was opened before a fork, used by the child after its parent has closed it."""
    count = max(1, int(500 * scale))
    said = await asyncio.to_thread(_run, "-W", "ignore", "-c", FORKED, folder(), str(count))
    lost, errors = map(int, said.split())
    name = f"acknowledged events lost in a forked child, of {count}"
    return [
        at_most(name, lost, 0, "events"),
        at_least("calls in the forked child that are an error", errors, count, "calls"),
    ]


async def handlers(scale: float) -> list[Result]:
    """Events that are acked though what the handler returned was never run."""
    count = max(1, int(20 * scale))
    async with headrace.open(folder()) as hr:
        await hr.create_stream("s", ["s.>"], partitions=2)
        await hr.groups.create_static("s", "g", max_members=2, members=["m"])
        for number in range(count):
            await hr.publish("s.x", b"%d" % number, key=str(number))
        ran: list[bytes] = []

        async def bill(delivery: headrace.Delivery) -> None:
            ran.append(delivery.value)

        async with hr.join("s", "g", "m") as member:
            work = asyncio.create_task(member.consume(lambda delivery: bill(delivery)))
            while (await hr.groups.lag("s", "g")).events:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    name = f"events acked without running the handler (lambda), of {count}"
    return [at_most(name, count - len(set(ran)), 0, "events")]


async def interrupts(scale: float) -> list[Result]:
    """Exceptions of signals in blocking publishes."""
    count = max(1, int(10_000 * scale))
    said = await asyncio.to_thread(
        _run, "-m", "tests.torture.interrupts", "--interrupts", str(count)
    )
    found = msgspec.json.decode(said, type=_Struck)
    return [
        at_most(f"locks left by {count:,} interrupts", found.locks_left, 0, "locks"),
        at_most("programs that cannot write any more", found.programs_stuck, 0, "programs"),
        at_most("slowest write of another process meanwhile", found.slowest_ms, 1000, "ms"),
        at_most("largest write-ahead log", found.wal_bytes_max / 1e6, 64, "MB"),
    ]


async def truth(scale: float) -> list[Result]:
    """What acks and transactions were told, judged by the log, with kills and freezes."""
    rounds = max(1, int(62 * scale))
    said = await asyncio.to_thread(_run, "-m", "tests.torture.histories", "--rounds", str(rounds))
    found = msgspec.json.decode(said[said.index("\n{") :], type=_Judged)
    name = f"answers that are not what the log says, in {rounds} rounds"
    detail = ", ".join(f"{what} {count:,}" for what, count in found.figures.items())
    return [at_most(name, sum(found.violations.values()), 0, "answers", detail)]
