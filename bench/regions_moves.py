"""Groups that move between regions under load, and what large groups and many of them cost.

``python -m bench.regions_moves`` prints the figures.  Groups move while 5,000 events a second are
published in each of two regions; snapshots and large cursors are measured with agents that are
stepped by hand.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

import headrace
from bench.harness import Result, at_least, at_most, show
from bench.regions import MEMBER, events_of
from bench.regions_pair import STREAM, Pair, pair, wait
from headrace.catalog import Tx, markers
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import Progress, store
from headrace.log.log import Log
from headrace.regions import enabling, losing, moving
from headrace.regions.core.effects import SnapshotSettings
from headrace.regions.records import get_group
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.replicator import Replicator

GROUP = "workers"
KEY = f"{STREAM}.{GROUP}"
SWITCHES = 5
ROWS, APART_S = 100, 0.02
"""Each region publishes so many events at once, so often: 10,000 a second in both together."""
SNAPSHOT_GROUPS = 1_000
RANGES = 1_000_000
KEYS = 51
"""Odd, so that every other event has all of them: events of one key wait for one another."""
DELIVERED = 20_000

_CONSUMER = """
import asyncio, sys, time, headrace
async def main():
    async with headrace.open(sys.argv[1]) as hr:
        async with hr.join("bench", "workers", member="worker") as member:
            last = 0.0
            async for found in member.batches():
                now = time.monotonic()
                if now - last > 0.01:
                    print(now, flush=True)
                    last = now
                await found.ack()
asyncio.run(main())
"""


class _Consumer:
    """A process that consumes in a region; when it was given something, at most every 10 ms."""

    def __init__(self, both: Pair, region: str) -> None:
        self.seen: list[float] = []
        self._program = both.start(region, "-c", _CONSUMER, str(both.paths[region]))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            self.seen.append(float(line))

    def first_after(self, moment: float) -> float:
        wait(lambda: bool(self.seen) and self.seen[-1] > moment, "the first delivery", 0.002)
        return next(at for at in self.seen if at > moment)


def moves(folder: Path) -> list[Result]:
    """From the command until the first delivery in the other region."""
    took: dict[str, list[float]] = {"switch": [], "fail-over": []}
    stop, away = threading.Event(), set[str]()
    with pair(folder) as both:
        near = Neighbours()
        create_static(both.eu, STREAM, GROUP, max_members=4, members=[MEMBER])
        enabling.enable(both.eu, KEY, near, home="eu")
        both.run()
        wait(lambda: _knows(both.us), "the group in the other region")
        consumers = {name: _Consumer(both, name) for name in both.paths}

        def publish() -> None:
            batch, due = events_of(ROWS), time.monotonic()
            while not stop.is_set():
                for name in both.paths.keys() - away:
                    both.logs[name].append(STREAM, batch)
                due = max(due + APART_S, time.monotonic() - 1)
                stop.wait(max(0.0, due - time.monotonic()))

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            home, other = "eu", "us"
            consumers[home].first_after(time.monotonic())
            for _ in range(SWITCHES):
                time.sleep(1.0)
                began = time.monotonic()
                moving.switch(both.logs[home], KEY, other, near, timeout_s=60)
                took["switch"].append(consumers[other].first_after(began) - began)
                home, other = other, home
            time.sleep(1.0)
            away.add(home)
            both.kill(home)
            began = time.monotonic()
            losing.fail_over(both.logs[other], home, near, force=True)
            took["fail-over"].append(consumers[other].first_after(began) - began)
        finally:
            stop.set()
            publisher.join()
            near.close()
    switched = statistics.median(took["switch"])
    worst = max(took["switch"])
    return [
        at_most("regions: switch to first delivery", switched, 2, "s", f"the longest {worst:.2f}"),
        at_most("regions: fail-over to first delivery", took["fail-over"][0], 1, "s"),
    ]


def _knows(log: Log) -> bool:
    found = log.catalog.read(lambda tx: get_group(tx, KEY))
    return found is not None and found.ready


# --- by hand ---------------------------------------------------------------------------------


class _Stepped:
    """Two regions whose agents are stepped by hand."""

    def __init__(self, both: Pair, interval_ms: int = 0) -> None:
        self.both, self.near = both, Neighbours()
        self.agents = {name: RegionAgent(log, self.near) for name, log in both.logs.items()}
        for agent in self.agents.values():
            agent.snapshots.settings = SnapshotSettings(interval_ms=interval_ms)
        self._copies = [
            Replicator(both.logs[name], self.near, other)
            for name, other in (("eu", "us"), ("us", "eu"))
        ]

    def settle(self, rounds: int) -> float:
        """Everything goes to and fro; the CPU time that the agents took."""
        used = 0.0
        for _ in range(rounds):
            for copying in self._copies:
                while copying.step():
                    pass
            began = time.process_time()
            for agent in self.agents.values():
                agent.step()
            used += time.process_time() - began
        return used


def snapshots(folder: Path) -> list[Result]:
    """A snapshot and its updates: groups that acked everything, and twice as many."""
    cpu_s, batches = {}, 0
    for groups in (SNAPSHOT_GROUPS // 2, SNAPSHOT_GROUPS):
        with pair(folder / str(groups), segments=1) as both:
            names = [f"g{number}" for number in range(groups)]
            stepped = _Stepped(both)
            for name in names:
                create_static(both.eu, STREAM, name, max_members=1, members=[MEMBER])
                enabling.enable(both.eu, f"{STREAM}.{name}", stepped.near, mode="snapshot")
            both.eu.append(STREAM, events_of(100))
            stepped.settle(30)
            used = []
            for _ in range(3):
                both.eu.append(STREAM, events_of(100))
                both.us.append(STREAM, events_of(100))
                stepped.settle(6)
                segment = both.eu.stream(STREAM).segments[0]

                def ack(tx: Tx, at: int = segment.id, floor: int = segment.head) -> None:
                    for name in names:  # noqa: B023
                        store.join(tx, f"{STREAM}.{name}", {at: Progress(floor)})

                both.eu.catalog.write(ack)
                time.sleep(0.15)
                before = both.eu.stream(STREAM).segments[0].head
                used.append(stepped.settle(6))
                batches = _batches(both.eu, before)
            cpu_s[groups] = statistics.median(used)
            stepped.near.close()
    whole, half = cpu_s[SNAPSHOT_GROUPS], cpu_s[SNAPSHOT_GROUPS // 2]
    return [
        at_most(
            f"regions: one snapshot with {SNAPSHOT_GROUPS:,} groups, both agents",
            whole * 1e3,
            100,
            "ms of CPU",
            f"{whole / half:.2f} x that of half as many; {batches} batches of markers",
        )
    ]


def _batches(log: Log, before: int) -> int:
    segment = log.stream(STREAM).segments[0]
    return len(log.catalog.read(lambda tx: markers.spans(tx, segment.id, before, segment.head)))


def large(folder: Path) -> list[Result]:
    """A group with a million acked ranges that another region takes over, against one with none."""
    with pair(folder, segments=1) as both:
        stepped = _Stepped(both)
        for name in ("ranges", "none"):
            create_static(both.eu, STREAM, name, max_members=1, members=[MEMBER])
            enabling.enable(both.eu, f"{STREAM}.{name}", stepped.near)
        batch = events_of(10_000, keys=KEYS)
        for _ in range(2 * RANGES // 10_000):
            both.eu.append(STREAM, batch)
        stepped.settle(4)
        acked = Progress(0, tuple((2 * n + 1, 2 * n + 2) for n in range(RANGES)))
        at = both.eu.stream(STREAM).segments[0].id

        def ack(tx: Tx) -> None:
            store.join(tx, f"{STREAM}.ranges", {at: acked})
            store.join(tx, f"{STREAM}.none", {at: Progress(0)})

        both.eu.catalog.write(ack)
        agents_s = stepped.settle(4)
        found = both.us.catalog.read(lambda tx: store.load(tx, f"{STREAM}.ranges", at))
        assert found is not None
        assert len(found.above) == RANGES
        stepped.near.close()
        firsts, rates = asyncio.run(_deliver(both.paths["us"]))
    return [
        at_most(
            f"regions: first delivery over {RANGES:,} acked ranges",
            firsts["ranges"],
            1,
            "s",
            f"{firsts['none']:.2f} s without; agents took {agents_s:.1f} s of CPU to tell of them",
        ),
        at_least(
            "regions: speed after it",
            rates["ranges"] / rates["none"],
            0.9,
            "of a group without",
            f"{rates['ranges']:,.0f} against {rates['none']:,.0f} events a second of CPU",
        ),
    ]


async def _deliver(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    firsts, rates = {}, {}
    async with headrace.open(folder) as hr:
        for name in ("none", "ranges"):
            began, seen = time.perf_counter(), count(1)
            async with hr.join(STREAM, name, member=MEMBER) as member:
                used = 0.0
                async for delivery in member:
                    delivery.ack_soon()
                    number = next(seen)
                    if number == 1:
                        firsts[name] = time.perf_counter() - began
                        used = time.process_time()
                    if number == DELIVERED:
                        break
                await member.flush()
                rates[name] = DELIVERED / (time.process_time() - used)
    return firsts, rates


def run() -> list[Result]:
    """All figures of groups that move, and of large ones."""
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        for part in (moves, snapshots, large):
            found += part(Path(name) / part.__name__)
    return found


if __name__ == "__main__":
    show(run())
