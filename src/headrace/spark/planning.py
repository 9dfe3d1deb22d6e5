"""What a batch reads: which segments may be read, how far, and in how many parts.

No I/O here.  A query's place in a stream is a map from segment to next offset that holds every
segment it has still to finish.  A segment outside the map lies either *after* it (it descends from
a segment in the map, and is read from its first offset) or *before* it (it was finished, or lies
before the start).  Only segments that are ready (:mod:`headrace.log.order`) are planned.  So a
key's events keep their order through splits and merges, because one batch ends before the next
begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from headrace.catalog.streams import Segment
from headrace.log import order

SPLIT_BYTES = 64 * 1024 * 1024
"""A batch read is cut into parts of about this size."""
PARTS_MAX = 10_000
TASK_EVENTS = 16_384
"""Spans of fewer events share a task."""
CORES_MAX = 8
"""The most tasks that are made for the cores of a machine."""

K = TypeVar("K")


class Standing(msgspec.Struct, frozen=True):
    """Segments that are not finished, at their offsets: those that can be read, and the rest."""

    ready: dict[int, int]
    waiting: dict[int, int]

    @property
    def all(self) -> dict[int, int]:
        return self.ready | self.waiting


def standing(
    segments: Sequence[Segment], at: Mapping[int, int], *, successors: bool = True
) -> Standing:
    """Where a query stands in a stream; without ``successors`` only what is in the map counts."""
    graph = {segment.number: segment.predecessors for segment in segments}
    after = order.following(at, graph) if successors else ()
    floors = {**dict.fromkeys(after, 0), **at}
    found = order.standing_at(segments, floors)
    return Standing(
        {number: floors[number] for number in found.ready},
        {number: floors[number] for number in found.waiting},
    )


def earliest(segments: Sequence[Segment]) -> dict[int, int]:
    """The place before every retained event."""
    return _unfinished(segments, {segment.number: segment.tail for segment in segments})


def latest(segments: Sequence[Segment]) -> dict[int, int]:
    """The place after every event there is."""
    return {segment.number: segment.head for segment in segments if not segment.sealed}


def without_gone(segments: Sequence[Segment], at: Mapping[int, int]) -> dict[int, int]:
    """A place that names segments which are gone, with what followed from them in their stead.

    A segment goes with all its predecessors, so the stream begins now with what followed.  What
    else it begins with was finished: something that follows from it is in the place.
    """
    graph = {segment.number: segment.predecessors for segment in segments}
    kept = {number: offset for number, offset in at.items() if number in graph}
    begins = {segment.number: segment.tail for segment in segments if not segment.predecessors}
    return kept | {
        number: tail
        for number, tail in begins.items()
        if number not in kept and not order.following([number], graph) & kept.keys()
    }


def uncovered(segments: Sequence[Segment], at: Mapping[int, int]) -> list[int]:
    """Open segments that a read from this place would never come to."""
    seen = standing(segments, at).all
    return [s.number for s in segments if not s.sealed and s.number not in seen]


def _unfinished(segments: Sequence[Segment], at: Mapping[int, int]) -> dict[int, int]:
    return {
        segment.number: at[segment.number]
        for segment in segments
        if not segment.sealed or at[segment.number] < segment.head
    }


def admit(lags: Mapping[K, int], most: int | None) -> dict[K, int]:
    """How much of each segment's lag a batch takes, ``most`` in all; in proportion, none left out.

    >>> admit({0: 90, 1: 10}, 50), admit({0: 1000, 1: 1}, 10), admit({0: 5}, None)
    ({0: 45, 1: 5}, {0: 9, 1: 1}, {0: 5})
    """
    behind = {number: lag for number, lag in lags.items() if lag > 0}
    total = sum(behind.values())
    if most is None or total <= most:
        return behind
    if most <= len(behind):
        # Not even one each: rotate by the total lag, so that no segment is starved.
        turns = list(behind)
        turn = total % len(turns)
        return dict.fromkeys((turns[turn:] + turns[:turn])[:most], 1)
    taken = dict.fromkeys(behind, 1)
    spare = most - len(behind)
    rest = total - len(behind)
    for number, lag in behind.items():
        taken[number] += (lag - 1) * spare // rest
    left = most - sum(taken.values())
    for number in sorted(behind, key=lambda each: taken[each] - behind[each]):
        more = min(left, behind[number] - taken[number])
        taken[number] += more
        left -= more
    return taken


class Span(msgspec.Struct, frozen=True):
    """A run of offsets of one segment, ``end`` not included."""

    stream: str
    segment: int
    start: int
    end: int

    @property
    def events(self) -> int:
        return self.end - self.start


def spans(stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> list[Span]:
    """What lies between two places of a stream; a segment that the start lacks begins at 0."""
    return [
        Span(stream, number, start.get(number, 0), end[number])
        for number in sorted(end)
        if start.get(number, 0) < end[number]
    ]


def cut(runs: Sequence[Span], least: int) -> list[Span]:
    """Cut spans until there are at least ``least``; the longest are cut in equal shares."""
    total = sum(run.events for run in runs)
    if len(runs) >= least or total == 0:
        return list(runs)
    return shorten(runs, max(1, -(-total // min(least, PARTS_MAX))))


def shorten(runs: Sequence[Span], most: int | None) -> list[Span]:
    """Cut spans into parts of ``most`` offsets at the most.

    >>> [(run.start, run.end) for run in shorten([Span("s", 0, 3, 10)], 4)]
    [(3, 7), (7, 10)]
    """
    if most is None:
        return list(runs)
    return [
        Span(run.stream, run.segment, start, min(start + most, run.end))
        for run in runs
        for start in range(run.start, run.end, most)
    ]


def pack(
    runs: Sequence[Span], least: int, cores: int, most: int | None = None
) -> list[tuple[Span, ...]]:
    """Spans in their order as tasks: small ones share a task, and a large one has its own.

    A task takes ``most`` offsets at the most, if that is given.

    A task costs Spark as much as some ten thousand events.  There is one for every core all the
    same, as far as there are spans, and never fewer than ``least``.

    >>> many = [Span("s", n, 0, 10) for n in range(100)]
    >>> len(pack(many, 1, 4)), len(pack(many, 5, 4)), len(pack(many[:2], 1, 4))
    (4, 5, 2)
    """
    total = sum(run.events for run in runs)
    wanted = max(least, min(len(runs), cores), -(-total // TASK_EVENTS))
    if wanted >= len(runs):
        return [(run,) for run in runs]
    each = min(total / wanted, math.inf if most is None else most)
    tasks: list[list[Span]] = []
    held = 0
    for run in runs:
        if not tasks or (held and held + run.events > each):
            tasks.append([])
            held = 0
        tasks[-1].append(run)
        held += run.events
    while len(tasks) < least:  # there are more spans than that, so one task has several
        at = max(range(len(tasks)), key=lambda each: len(tasks[each]))
        half = len(tasks[at]) // 2
        tasks[at : at + 1] = [tasks[at][:half], tasks[at][half:]]
    return [tuple(task) for task in tasks]
