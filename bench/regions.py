"""Two regions: how soon events and acks are known in the other one, and what being linked costs.

``python -m bench.regions`` prints the figures.  Each region is a SQLite catalog, with ``headrace
region run`` as a process of its own; this process publishes and consumes.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

import headrace
from bench.harness import Result, at_least, at_most, percentile, show
from bench.regions_pair import STREAM, Pair, ages, pair, wait
from headrace.catalog import Tx, progress
from headrace.groups.progress import Progress, store
from headrace.log.events import Event, batch_of
from headrace.log.times import now_us
from headrace.regions.records import groups

GROUP, MEMBER = "workers", "worker"
KEY = f"{STREAM}.{GROUP}"
WARM_UP = 100
EVENTS = 1_500
APART_S = 0.01
FLOOD_S, FLOOD_RATE, FLOOD_ROWS = 15.0, 50_000, 500
IDLE_GROUPS, BUSY_GROUPS, IDLE_S = 1_000, 100, 10.0
BUSY_ROUNDS, BUSY_APART_S = 60, 0.1
COST_EVENTS, COST_ROUNDS = 1_500, 7


# --- events ----------------------------------------------------------------------------------


def events_of(
    count: int, value: bytes = b"x" * 100, stream: str = STREAM, keys: int = 50
) -> pa.RecordBatch:
    given = [Event(subject=f"{stream}.a", key=str(n % keys), value=value) for n in range(count)]
    return batch_of(given, now_us())


def _stamp() -> bytes:
    """perf_counter is one clock for all processes of a machine."""
    return time.perf_counter_ns().to_bytes(8, "little") + os.urandom(92)


def visible(folder: Path) -> list[Result]:
    """From the call that publishes here until a reader there has it, at 100 events/s."""
    with pair(folder) as both:
        both.run()
        tail = both.tail("us", WARM_UP + EVENTS)
        due = time.monotonic()
        for number in range(WARM_UP + EVENTS):
            event = Event(subject=f"{STREAM}.a", key=str(number % 50), value=_stamp())
            both.eu.append(STREAM, [event])
            due += APART_S
            time.sleep(max(0.0, due - time.monotonic()))
        found = ages(tail)[WARM_UP:]
    return [
        at_most("regions: published -> visible there, p50", percentile(found, 0.5), 10, "ms"),
        at_most("regions: published -> visible there, p99", percentile(found, 0.99), 250, "ms"),
    ]


def flood(folder: Path) -> Result:
    """The oldest that an event is when it is read in the other region, at 50,000 events/s."""
    count = int(FLOOD_S * FLOOD_RATE)
    with pair(folder) as both:
        both.run()
        tail = both.tail("us", count)
        began = due = time.monotonic()
        for _ in range(count // FLOOD_ROWS):
            both.eu.append(STREAM, events_of(FLOOD_ROWS, _stamp()))
            due += FLOOD_ROWS / FLOOD_RATE
            time.sleep(max(0.0, due - time.monotonic()))
        rate = count / (time.monotonic() - began)
        found = ages(tail)
    return at_most(
        f"regions: lag at 50,000 events/s for {FLOOD_S:g} s",
        max(found) / 1000,
        1,
        "s",
        f"{rate:,.0f} events/s; p50 {percentile(found, 0.5):.0f} ms",
    )


# --- acks ------------------------------------------------------------------------------------


class _Watch:
    """Notes when how many events of a group are acked in a region."""

    def __init__(self, both: Pair, region: str, group: str) -> None:
        self._log, self._group = both.logs[region], group
        self._ids = [segment.id for segment in self._log.stream(STREAM).segments]
        self._stop = threading.Event()
        self.seen: list[tuple[int, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def acked(self) -> int:
        found = self._log.catalog.read(lambda tx: store.load_all(tx, self._group, self._ids))
        return sum(each.floor + sum(b - a for a, b in each.ranges) for each in found.values())

    def _run(self) -> None:
        with self._log.catalog.waiting(progress.channel(self._group)) as wait_for:
            while not self._stop.is_set():
                known = self.acked()
                if not self.seen or known != self.seen[-1][0]:
                    self.seen.append((known, time.perf_counter()))
                wait_for(0.2)

    def after(self, acked: list[float]) -> list[float]:
        """How long after the return of each ack, in ms, that many were known to be acked."""
        wait(lambda: bool(self.seen) and self.seen[-1][0] >= len(acked), "acks in the other region")
        self._stop.set()
        self._thread.join()
        found, at = [], 0
        for number, returned in enumerate(acked):
            while self.seen[at][0] <= number:
                at += 1
            found.append(max(0.0, self.seen[at][1] - returned) * 1e3)
        return found


async def _consume(folder: Path, count: int) -> list[float]:
    """Publish and consume at 100 events/s; when each ack came back."""
    returned: list[float] = []
    async with (
        headrace.open(folder) as hr,
        hr.join(STREAM, GROUP, member=MEMBER) as member,
    ):

        async def publish() -> None:
            for number in range(count):
                await hr.publish(f"{STREAM}.a", b"x" * 100, key=str(number % 50))
                await asyncio.sleep(APART_S)

        publishing = asyncio.ensure_future(publish())
        async for delivery in member:
            await delivery.ack()
            returned.append(time.perf_counter())
            if len(returned) == count:
                break
        await publishing
    return returned


async def _make(folder: Path, *names: str) -> None:
    async with headrace.open(folder) as hr:
        for name in names:
            await hr.groups.create_static(
                STREAM, name, max_members=4, members=[MEMBER], replicated=True
            )


def _are_there(both: Pair, count: int) -> bool:
    def look(tx: Tx) -> int:
        return sum(record.ready for record in groups(tx).values())

    return both.us.catalog.read(look) >= count


def known(folder: Path) -> list[Result]:
    """From the return of an ack here until the other region knows it."""
    with pair(folder) as both:
        both.run()
        asyncio.run(_make(both.paths["eu"], GROUP))
        wait(lambda: _are_there(both, 1), "the group in the other region")
        watch = _Watch(both, "us", KEY)
        returned = asyncio.run(_consume(both.paths["eu"], EVENTS))
        found = watch.after(returned)
    return [
        at_most("regions: ack returned -> known there, p50", percentile(found, 0.5), 50, "ms"),
        at_most("regions: ack returned -> known there, p99", percentile(found, 0.99), 500, "ms"),
    ]


# --- many groups -----------------------------------------------------------------------------


def many_groups(folder: Path) -> list[Result]:
    """1,000 replicated groups: what idling costs, and acks of 100 of them that are busy."""
    names = [f"g{number}" for number in range(IDLE_GROUPS)]
    with pair(folder) as both:
        both.run()
        asyncio.run(_make(both.paths["eu"], *names))
        wait(lambda: _are_there(both, IDLE_GROUPS), "the groups in the other region")
        both.eu.append(STREAM, events_of(4_000))
        wait(lambda: _heads(both, "us") == 4_000, "the events in the other region")
        time.sleep(2.0)
        revisions = _revisions(both)
        before, began = both.cpu_s("us"), time.monotonic()
        time.sleep(IDLE_S)
        share = (both.cpu_s("us") - before) / (time.monotonic() - began) * 100
        quiet = _revisions(both) == revisions and _heads(both, "us") == 4_000
        found = _busy(both, names[:BUSY_GROUPS])
    return [
        at_most(
            f"regions: idle with {IDLE_GROUPS:,} replicated groups",
            share,
            1,
            "% of a core",
            "nothing was written but leases" if quiet else "something was written",
        ),
        at_most(
            f"regions: ack -> known there, {BUSY_GROUPS} of {IDLE_GROUPS:,} groups busy, p99",
            percentile(found, 0.99) / 1e3,
            1,
            "s",
            f"p50 {percentile(found, 0.5):.0f} ms",
        ),
    ]


def _heads(both: Pair, region: str) -> int:
    return sum(segment.head for segment in both.logs[region].stream(STREAM).segments)


def _revisions(both: Pair) -> list[object]:
    """What changes when progress or groups are written."""
    from headrace.regions.runtime.applying import has_news

    return [both.logs[name].catalog.read(has_news) for name in ("eu", "us")]


def _busy(both: Pair, names: list[str]) -> list[float]:
    """Ten times a second each of these groups acks an event more; five of them are watched."""
    segments = both.eu.stream(STREAM).segments
    watches = {name: _Watch(both, "us", f"{STREAM}.{name}") for name in names[::20]}
    returned: list[float] = []
    for number in range(BUSY_ROUNDS):
        segment = segments[number % len(segments)]
        floor = number // len(segments) + 1

        def ack(tx: Tx, at: int = segment.id, floor: int = floor) -> None:
            for name in names:
                store.join(tx, f"{STREAM}.{name}", {at: Progress(floor)})

        both.eu.catalog.write(ack)
        returned.append(time.perf_counter())
        time.sleep(BUSY_APART_S)
    return [ms for watch in watches.values() for ms in watch.after(returned)]


# --- what it costs ---------------------------------------------------------------------------


def costs(folder: Path) -> list[Result]:
    """A linked stream against an unlinked one, a replicated group against one that is not.

    Both in one catalog, by turns, while no agent runs: this is what the caller pays.
    """
    return [*asyncio.run(_costs(folder))]


async def _costs(folder: Path) -> list[Result]:
    with pair(folder) as both:
        async with headrace.open(both.paths["eu"]) as hr:
            await hr.create_stream("plain", ["plain.>"], partitions=4)
            single = await _publishing(hr, 1)
            many = await _publishing(hr, 100)
            acks = await _acking(hr)
    return [
        at_least("regions: publish to a linked stream", single[0], 0.95, "of unlinked", single[1]),
        at_least("regions: append 100 to a linked stream", many[0], 0.95, "of unlinked", many[1]),
        at_least("regions: ack of a replicated group", acks[0], 0.9, "of another", acks[1]),
    ]


async def _publishing(hr: headrace.Headrace, rows: int) -> tuple[float, str]:
    count = COST_EVENTS if rows == 1 else COST_EVENTS // 10

    async def rate(stream: str) -> float:
        data = events_of(rows, stream=stream)
        began = time.process_time()
        for number in range(count):
            if rows == 1:
                await hr.publish(f"{stream}.a", b"x" * 100, key=str(number % 50))
            else:
                await hr.append(stream, data)
        return count * rows / (time.process_time() - began)

    return await _in_turn(lambda: rate("plain"), lambda: rate(STREAM))


async def _acking(hr: headrace.Headrace) -> tuple[float, str]:
    for _ in range(30):
        await hr.append(STREAM, events_of(1_000))
    total = sum(segment.head for segment in (await hr.stream(STREAM)).segments)
    number = 0

    async def rate(*, replicated: bool) -> float:
        nonlocal number
        number += 1
        name = f"cost{number}"
        await hr.groups.create_static(
            STREAM, name, max_members=4, members=[MEMBER], replicated=replicated
        )
        seen = 0
        async with hr.join(STREAM, name, member=MEMBER) as member:
            began = time.process_time()
            async for delivery in member:
                delivery.ack_soon()
                seen += 1
                if seen == min(total, 30_000):
                    break
            await member.flush()
            return seen / (time.process_time() - began)

    return await _in_turn(lambda: rate(replicated=False), lambda: rate(replicated=True))


async def _in_turn(floor, ours) -> tuple[float, str]:  # type: ignore[no-untyped-def]
    await floor()
    await ours()
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(COST_ROUNDS):
        for is_ours in (False, True) if number % 2 else (True, False):
            rates[is_ours].append(await (ours() if is_ours else floor()))
    ratios = sorted(a / b for a, b in zip(rates[True], rates[False], strict=True))
    base, rate = (sorted(rates[each])[COST_ROUNDS // 2] for each in (False, True))
    return ratios[len(ratios) // 2], f"{rate:,.0f} against {base:,.0f} a second of CPU"


def run() -> list[Result]:
    """All figures of two regions."""
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        found += visible(folder / "visible")
        found.append(flood(folder / "flood"))
        found += known(folder / "known")
        found += many_groups(folder / "groups")
        found += costs(folder / "costs")
    return found


if __name__ == "__main__":
    show(run())
