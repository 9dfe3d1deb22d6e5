"""Where an event comes from: lanes, and the map between local offsets and origins.

Theory of operation
-------------------
Every event is tagged with the region that it was published in and a dense sequence number there.
Replication keeps the order of each origin, so (origin, sequence) names an event in every region
while its local offset differs from region to region.

An event need not go everywhere.  Events with the same origin *and* the same audience form a
**lane**, with a sequence of its own: a lane is dense in every region that it reaches and absent
in the others, so no region ever sees a gap.  The lane of the events for all is named by its region
alone; ``b!`` is what stays in ``b``, ``b!c!d`` what goes to ``c`` and ``d`` only.  ``!`` is not
allowed in a region's name, so lanes cannot collide.

:class:`OriginMap` relates the two.  A log is written in batches, so neighbours in the log mostly
are neighbours in their lane: the map holds runs, not events, and finds one by bisection.  Offsets
that no run covers are markers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from headrace.errors import OriginOrderError
from headrace.regions.core.markers import LaneEnd
from headrace.regions.core.spans import RangeList, union

Lane = str


def lane_of(region: str, audience: Iterable[str] | None = None) -> Lane:
    """The lane of events published in a region; no audience means every region.

    >>> lane_of("b"), lane_of("b", []), lane_of("b", ["d", "c"])
    ('b', 'b!', 'b!c!d')
    """
    if audience is None:
        return region
    others = sorted(set(audience) - {region})
    return "!".join((region, *others)) if others else f"{region}!"


def base_region(lane: Lane) -> str:
    """The region that a lane comes from, whichever incarnation of it.

    >>> base_region("eu"), base_region("eu~2"), base_region("eu~2!us")
    ('eu', 'eu', 'eu')
    """
    return lane.partition("!")[0].partition("~")[0]


def lane_reaches(lane: Lane, region: str) -> bool:
    """Whether the events of a lane come to a region."""
    origin, limited, audience = lane.partition("!")
    return not limited or region == base_region(origin) or region in audience.split("!")


class _Runs:
    """The runs of one lane, ascending both in sequence and in local offset."""

    __slots__ = ("end", "lengths", "offsets", "sequences")

    def __init__(self, end: int) -> None:
        self.end = end
        self.sequences = array("q")
        self.offsets = array("q")
        self.lengths = array("q")


class OriginMap:
    """Local offsets of one segment ↔ (lane, sequence).

    >>> log = OriginMap()
    >>> log.events(0, "a", 0, 3), log.marker(3), log.events(4, "b", 0, 2)
    (None, None, None)
    >>> list(log.origins(1, 5)), list(log.offsets("b", 0, 9))
    ([('a', 1, 3), ('b', 0, 1)], [(4, 6)])
    """

    def __init__(
        self,
        first: int = 0,
        lanes: Iterable[LaneEnd] = (),
        absent: Mapping[Lane, Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        self.first = first
        """The first offset that is retained."""
        self.end = first
        """The offset that the next record of the log will get."""
        self.absent: dict[Lane, RangeList] = {
            lane: list(ranges) for lane, ranges in (absent or {}).items()
        }
        """What never was here of a lane, ascending: it was met in the middle, or has a gap."""
        self._lanes: dict[Lane, _Runs] = {
            each.lane: _Runs(self._past_gap(each.lane, each.sequence)) for each in lanes
        }
        self._starts = array("q")
        self._names: list[Lane] = []
        self._sequences = array("q")
        self._lengths = array("q")

    # --- reading -----------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of runs."""
        return len(self._starts)

    def lanes(self) -> tuple[Lane, ...]:
        """Every lane that has been met here."""
        return tuple(self._lanes)

    def next_sequence(self, lane: Lane) -> int:
        """The sequence that the next event of a lane will have."""
        runs = self._lanes.get(lane)
        return runs.end if runs is not None else self._past_gap(lane, 0)

    def seen(self) -> tuple[LaneEnd, ...]:
        """How far every lane has come, in alphabetical order."""
        return tuple(LaneEnd(lane, self._lanes[lane].end) for lane in sorted(self._lanes))

    def retained(self) -> tuple[LaneEnd, ...]:
        """The first sequence of each lane that is still here (or would be next), by name.

        Whoever trims a log saves it (and :attr:`absent`), so that the rest can be read into a map
        again.
        """
        cut = self.cut(self.first)
        return tuple(LaneEnd(lane, cut[lane]) for lane in sorted(cut))

    def cut(self, offset: int) -> dict[Lane, int]:
        """The sequence of each lane's first event at or above an offset."""
        return {lane: self._cut(runs, offset) for lane, runs in self._lanes.items()}

    @staticmethod
    def _cut(runs: _Runs, offset: int) -> int:
        k = bisect_right(runs.offsets, offset) - 1
        if k < 0:
            return runs.sequences[0] if runs.sequences else runs.end
        return int(runs.sequences[k]) + min(offset - runs.offsets[k], runs.lengths[k])

    def offsets(self, lane: Lane, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """Where the events ``lo`` to ``hi`` (exclusive) of a lane are, as ranges of offsets."""
        runs = self._lanes.get(lane)
        if runs is None:
            return
        k = max(bisect_right(runs.sequences, lo) - 1, 0)
        while k < len(runs.sequences) and (start := runs.sequences[k]) < hi:
            low = max(lo, start) - start
            high = min(hi - start, runs.lengths[k])
            if low < high:
                yield runs.offsets[k] + low, runs.offsets[k] + high
            k += 1

    def many_offsets(
        self, lane: Lane, ranges: Sequence[tuple[int, int]]
    ) -> Iterable[tuple[int, int]]:
        """Where many ascending ranges of a lane's events are; :meth:`offsets` in one pass."""
        runs = self._lanes.get(lane)
        if runs is None or not runs.sequences or not ranges:
            return []
        import numpy as np

        bounds = np.array(ranges, dtype=np.int64)
        starts, lengths = np.array(runs.sequences), np.array(runs.lengths)
        k = np.maximum(np.searchsorted(starts, bounds[:, 0], side="right") - 1, 0)
        within = (bounds[:, 0] >= starts[k]) & (bounds[:, 1] <= starts[k] + lengths[k])
        moved = bounds[within] + (np.array(runs.offsets) - starts)[k[within], np.newaxis]
        rest = bounds[~within].tolist()
        return chain(
            map(tuple, moved.tolist()),
            *(self.offsets(lane, lo, hi) for lo, hi in rest),
        )

    def origins(self, lo: int, hi: int) -> Iterator[tuple[Lane, int, int]]:
        """Which events are at the offsets ``lo`` to ``hi`` (exclusive), as ranges of sequences."""
        for start, end, lane, sequence in self.pieces(lo, hi):
            yield lane, sequence, sequence + end - start

    def pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int, Lane, int]]:
        """Runs of events: first offset, end (exclusive), lane, sequence of the first."""
        k = max(bisect_right(self._starts, lo) - 1, 0)
        while k < len(self._starts) and (start := self._starts[k]) < hi:
            low = max(lo, start) - start
            high = min(hi - start, self._lengths[k])
            if low < high:
                yield start + low, start + high, self._names[k], self._sequences[k] + low
            k += 1

    def markers(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """The ranges within ``lo`` to ``hi`` (exclusive) that hold markers."""
        lo, hi = max(lo, self.first), min(hi, self.end)
        k = max(bisect_right(self._starts, lo) - 1, 0)
        while lo < hi and k < len(self._starts):
            start = self._starts[k]
            if start > lo:
                yield lo, min(start, hi)
            lo = max(lo, start + self._lengths[k])
            k += 1
        if lo < hi:
            yield lo, hi

    # --- growing -----------------------------------------------------------------------

    def skip_to(self, lane: Lane, sequence: int) -> None:
        """What a lane has from its next event up to ``sequence`` (exclusive) never comes here.

        The lane is met in the middle, or its source trimmed it before it had crossed.
        """
        update, expected = f"lane {lane!r} going on at {sequence}", self.next_sequence(lane)
        if sequence <= expected:
            raise self._refused(update, lane, "that is nothing to pass over")
        self._lanes.setdefault(lane, _Runs(0)).end = sequence
        self.absent[lane] = union(self.absent.get(lane, ()), [(expected, sequence)])

    def _past_gap(self, lane: Lane, sequence: int) -> int:
        """What comes next in a lane that has come to ``sequence``, in a log that is read again."""
        return next((hi for lo, hi in self.absent.get(lane, ()) if lo <= sequence < hi), sequence)

    def events(self, offset: int, lane: Lane, sequence: int, count: int = 1) -> None:
        """Events were appended: ``count`` of a lane, from ``sequence`` on, from ``offset`` on."""
        update = f"events {sequence} to {sequence + count - 1} of lane {lane!r} at offset {offset}"
        if count < 1:
            raise self._refused(update, lane, "there must be at least one")
        if offset != self.end:
            raise self._refused(update, lane, "that is not the end of the log")
        expected = self.next_sequence(lane)
        if sequence != expected:
            kind = "came already" if sequence < expected else "came before what precedes them"
            raise self._refused(update, lane, f"they {kind}")
        runs = self._lanes.setdefault(lane, _Runs(0))
        if (
            self._names
            and self._names[-1] == lane
            and self._starts[-1] + self._lengths[-1] == offset
            and self._sequences[-1] + self._lengths[-1] == sequence
        ):
            self._lengths[-1] += count
            runs.lengths[-1] += count
        else:
            self._starts.append(offset)
            self._names.append(lane)
            self._sequences.append(sequence)
            self._lengths.append(count)
            runs.offsets.append(offset)
            runs.sequences.append(sequence)
            runs.lengths.append(count)
        runs.end = self._past_gap(lane, sequence + count)
        self.end = offset + count

    def marker(self, offset: int) -> None:
        """A marker was appended."""
        if offset != self.end:
            raise self._refused(f"a marker at offset {offset}", "", "that is not the end")
        self.end = offset + 1

    def trim(self, first: int) -> None:
        """Everything below ``first`` is gone from the log.  Runs that lie wholly below go too."""
        first = min(first, self.end)
        if first <= self.first:
            return
        self.first = first
        keep = max(bisect_right(self._starts, first) - 1, 0)
        if keep < len(self._starts) and self._starts[keep] + self._lengths[keep] <= first:
            keep += 1
        for column in (self._starts, self._names, self._sequences, self._lengths):
            del column[:keep]
        for runs in self._lanes.values():
            gone = bisect_left(runs.offsets, self._starts[0] if self._starts else first)
            for numbers in (runs.sequences, runs.offsets, runs.lengths):
                del numbers[:gone]

    def _refused(self, update: str, lane: Lane, why: str) -> OriginOrderError:
        state = f"the log ends at {self.end} and its lane at {self.next_sequence(lane)}"
        return OriginOrderError(update, state, why)


LEFT_MAX = 4096
"""The most runs trimmed unacked that are remembered; of more, the oldest are forgotten."""


class TrimmedRuns:
    """What was trimmed before it was acked: its ack may still be under way.

    Without it such an ack would mean nothing to other regions, which may still have the event.
    """

    def __init__(self, runs: Iterable[tuple[int, int, Lane, int]] = ()) -> None:
        self.runs = list(runs)

    def add(self, runs: Iterable[tuple[int, int, Lane, int]]) -> None:
        """Runs that are about to be trimmed, in the order of the log."""
        self.runs += runs
        del self.runs[:-LEFT_MAX]

    def origins(self, lo: int, hi: int) -> Iterator[tuple[Lane, int, int]]:
        """Which of them are at the offsets ``lo`` to ``hi`` (exclusive)."""
        for start, end, lane, sequence in self.runs:
            low, high = max(lo, start), min(hi, end)
            if low < high:
                yield lane, sequence + low - start, sequence + high - start
