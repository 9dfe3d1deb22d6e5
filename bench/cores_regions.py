"""How fast the cores of regions are, at sizes where a careless one would be slow.

``python -m bench.cores_regions`` prints a line per operation; ``run()`` gives the figures.  Origin
cursors are measured beside a million acked ranges: joining and translating must cost what changes,
so the figure per change is also given for an empty cursor, and their ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.harness import Result, at_most, show
from headrace.regions.core.cursor import CursorReceipt, OriginCursor
from headrace.regions.core.index import SnapshotIndex
from headrace.regions.core.markers import RegionPosition, SnapshotMarker, UpdateMarker
from headrace.regions.core.origins import OriginMap
from headrace.regions.core.progress import CursorDelta, LaneDelta
from headrace.regions.core.stamps import Life, Stamp
from headrace.regions.core.updates import SnapshotCursor

RANGES = 1_000_000
CHANGES = 1000
SNAPSHOTS = 60_000
RUN_EVENTS = 100


def two_lanes(events: int) -> OriginMap:
    """Two origins in runs, as two regions' batches alternate."""
    log = OriginMap()
    offset = 0
    for sequence in range(0, events, RUN_EVENTS):
        for lane in ("a", "b"):
            log.events(offset, lane, sequence, RUN_EVENTS)
            offset += RUN_EVENTS
    return log


def every_other(first: int, count: int) -> tuple[tuple[int, int], ...]:
    return tuple((2 * k + 1, 2 * k + 2) for k in range(first, first + count))


def delta(lane: str, ranges: tuple[tuple[int, int], ...]) -> CursorDelta:
    return CursorDelta("g", Life(), (LaneDelta(lane, Stamp(), 0, ranges),))


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _best(work: Callable[[int], object], repeats: int = 5) -> float:
    """The best of some repeats; each gets its number, so that it can do something new."""
    return min(_seconds(lambda n=n: work(n)) for n in range(repeats))  # type: ignore[misc]


def _merging(cursor: OriginCursor, first: int) -> float:
    """Seconds to join and translate `CHANGES` new ranges."""
    return _best(lambda n: cursor.merge(delta("b", every_other(first + n * CHANGES, CHANGES)), "b"))


def run(ranges: int = RANGES) -> list[Result]:
    """Measure every operation in CPU time of one core; a target is the most it may be."""
    log = two_lanes(2 * ranges + 20 * CHANGES)
    results: list[Result] = []

    def add(name: str, value: float, unit: str, target: float | None = None) -> None:
        name = f"regions: {name}"
        plain = Result(name, value, unit)
        results.append(plain if target is None else at_most(name, value, target, unit))

    add("runs in the map", len(log), "runs")
    small = _merging(OriginCursor("a", "g", log), ranges)
    full = OriginCursor("a", "g", log)
    whole = delta("b", every_other(0, ranges))
    add(f"join {ranges:,} ranges at once", _seconds(lambda: full.merge(whole, "b")), "s")
    big = _merging(full, ranges)
    add("join and translate a range, empty cursor", small / CHANGES * 1e6, "us")
    add(f"join and translate a range beside {ranges:,}", big / CHANGES * 1e6, "us")
    add("ratio of the two (linear in what changed)", big / small, "x", 5.0)
    again = delta("b", every_other(ranges, CHANGES))
    repeated = _best(lambda _: full.merge(again, "b"))
    add("join a range that is known", repeated / CHANGES * 1e6, "us")

    def acks(n: int) -> None:
        first = 2 * RUN_EVENTS * (n + 1)
        for offset in range(first, first + RUN_EVENTS):
            full.ack(offset)

    add(f"ack an event beside {ranges:,}", _best(acks) / RUN_EVENTS * 1e6, "us", 100.0)
    full.receipt(CursorReceipt("c", "g", full.revision))
    full.merge(delta("b", every_other(ranges + 6 * CHANGES, CHANGES)), "b")
    add(f"message of {CHANGES:,} changes", _seconds(lambda: full.message_for("c")) * 1e3, "ms")
    add(f"seek beside {ranges:,}", _seconds(lambda: full.seek(0)) * 1e3, "ms")

    taken: dict[int, SnapshotMarker] = {}
    index = SnapshotIndex(lambda lo, hi: [taken[at] for at in range(lo, hi) if at in taken])
    for number in range(SNAPSHOTS):
        local = number * 10
        taken[local + 1] = SnapshotMarker(str(number), local, (RegionPosition("b", local),))
        index.add(taken[local + 1], local + 1)
    found = _best(lambda n: [index.newest_at(n + 7 * k) for k in range(CHANGES)])
    add(f"find one of {SNAPSHOTS:,} snapshots", found / CHANGES * 1e6, "us", 50.0)

    group = SnapshotCursor("a", "g", log)
    update = UpdateMarker("g", "b", "s", (RegionPosition("a", log.end - 1),), log.seen())
    add("apply an update over the whole log", _seconds(lambda: group.apply(update)) * 1e6, "us")
    return results


if __name__ == "__main__":
    show(run())
