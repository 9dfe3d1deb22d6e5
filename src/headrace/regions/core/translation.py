"""Between the offsets of one region and the origins that mean the same everywhere.

The catalog keeps where events come from as runs (offsets ``start`` to ``end`` - 1 are a lane's
events from ``sequence`` on).  Everything here goes over ranges and runs, never over single events,
and costs what lies between the first and the last thing that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from headrace.groups.progress import AckedRanges, Progress
from headrace.regions.core.origins import Lane, lane_reaches
from headrace.regions.core.progress import LaneDelta, OriginProgress
from headrace.regions.core.spans import RangeList, difference, intersection


class OriginRun(Protocol):
    """The events of a lane from ``sequence`` on, at the offsets ``start`` to ``end`` - 1."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def lane(self) -> str: ...
    @property
    def sequence(self) -> int: ...


def newly_acked(before: Progress, after: Progress) -> RangeList:
    """What ``after`` has acked and ``before`` has not.

    >>> newly_acked(Progress(2, ((5, 6),)), Progress(4, ((5, 8),)))
    [(2, 4), (6, 8)]
    """
    above = after.above
    end = above[-1][1] if above else after.floor
    missing = before.acked().missing(end)
    return intersection(missing, [(0, after.floor), *above])


def origins_of(runs: Sequence[OriginRun], ranges: Sequence[tuple[int, int]]) -> list[LaneRange]:
    """RangeList of offsets as ranges of lanes; what no run covers is a marker and left out."""
    found: list[LaneRange] = []
    at = 0
    for run in runs:
        while at < len(ranges) and ranges[at][1] <= run.start:
            at += 1
        here = at
        while here < len(ranges) and ranges[here][0] < run.end:
            lo, hi = max(ranges[here][0], run.start), min(ranges[here][1], run.end)
            first = run.sequence + lo - run.start
            found.append((run.lane, first, first + hi - lo))
            here += 1
    return found


LaneRange = tuple[Lane, int, int]


def offsets_of(runs: Iterable[OriginRun], acked: AckedRanges) -> RangeList:
    """Where the acked events of one lane are; ``runs`` are that lane's."""
    return [
        (run.start + lo - run.sequence, run.start + hi - run.sequence)
        for run in runs
        for lo, hi in acked.between(run.sequence, run.sequence + run.end - run.start)
    ]


def is_ahead(progress: OriginProgress, ends: Mapping[Lane, int], region: str) -> bool:
    """Whether acks are known of events that have not come here yet, and will."""
    for lane in progress.lanes():
        acked = progress.acked(lane)
        if acked is not None and lane_reaches(lane, region) and acked.end > ends.get(lane, 0):
            return True
    return False


def command_lanes(
    progress: OriginProgress,
    region: str,
    target: Sequence[LaneRange],
    absent: Mapping[Lane, Sequence[tuple[int, int]]],
    ends: Mapping[Lane, int],
    *,
    at_end: bool,
) -> tuple[LaneDelta, ...]:
    """The lanes of a seek: ``target`` is what is acked after it here, by lane.

    A seek says nothing about what never was in this region (``absent``), and one to the end takes
    back nothing that is not here yet: those parts keep the progress that they have.
    """
    stamp = progress.next_stamp(region)
    by_lane: dict[Lane, RangeList] = {}
    for lane, lo, hi in target:
        by_lane.setdefault(lane, []).append((lo, hi))
    found = []
    for lane in sorted({*ends, *by_lane, *progress.lanes()}):
        if not lane_reaches(lane, region):
            continue
        acked = AckedRanges()
        never, end = absent.get(lane, ()), ends.get(lane, 0)
        known = progress.acked(lane)
        if known is not None:
            kept = [*never, (end, known.end)] if at_end else never
            for first, last in kept:
                for lo, hi in known.between(first, last):
                    acked.ack_range(lo, hi)
        for lo, hi in difference(sorted(by_lane.get(lane, ())), never):
            acked.ack_range(lo, hi)
        found.append(LaneDelta(lane, stamp, acked.floor, acked.to_tuples()))
    return tuple(found)
