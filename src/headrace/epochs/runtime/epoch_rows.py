"""The rows of epochs, read by reference: in few passes, and counted against what lines tell.

References in one segment become *runs* that one cursor walks through, over small gaps.  A row
counts if it lies within a reference and is at its time: what lies in a gap may be at that very
time and taken back, and so may rows beside it, of another epoch that is read in the same pass.  The
rows found in every reference must be as many as its line tells, so
damage, or rows that retention took meanwhile, are an error that names the place and never a short
epoch.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from headrace.catalog.streams import Segment
from headrace.epochs.core.arrays import Mask, Times
from headrace.epochs.core.feed import Reference
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.runtime.by_time import ByTime
from headrace.errors import EpochRowsError, EpochTrimmedError, TrimmedError
from headrace.log import events
from headrace.log.cursor import Cursor
from headrace.log.log import Log
from headrace.subjects.columns import mask_array

GAP_ROWS = 4096
"""Up to this many rows of other epochs are read along: that is quicker than another query."""


class RowRun(msgspec.Struct):
    """Bounds of references in one segment, in order, that one cursor reads."""

    stream: str
    segment: int
    starts: list[int]
    ends: list[int]
    rows: list[int]
    lines: list[int]
    times: list[list[Time]]
    epochs: list[int]
    """How many times the rows there have, those that are not wanted included."""

    @property
    def mixed(self) -> list[int]:
        """The places of references that do not name all times of their commit."""
        return [at for at, found in enumerate(self.times) if len(found) < self.epochs[at]]


def runs_of(references: Iterable[Reference]) -> list[RowRun]:
    """The references as runs, segment by segment."""
    places: dict[tuple[str, int], list[Reference]] = defaultdict(list)
    for one in references:
        places[one.stream, one.segment].append(one)
    found: list[RowRun] = []
    for (stream, segment), here in sorted(places.items(), key=_place):
        here.sort(key=_start)  # most often they are in order
        last = RowRun(stream, segment, [], [], [], [], [], [])
        at, end = -1, here[0].start
        for one in here:
            start = one.start
            if start == at:  # another time of the same commit
                last.times[-1].append(one.time)
                last.rows[-1] += one.rows
                continue
            if start - end > GAP_ROWS:
                found.append(last)
                last = RowRun(stream, segment, [], [], [], [], [], [])
            at, end = start, one.end
            last.starts.append(start)
            last.ends.append(end)
            last.rows.append(one.rows)
            last.lines.append(one.line)
            last.times.append([one.time])
            last.epochs.append(one.epochs)
        found.append(last)
    return found


_place = operator.itemgetter(0)
_start = operator.attrgetter("start")


class EpochRows:
    """Reads rows of one subscription's streams; blocking."""

    def __init__(self, log: Log, shape: TimeShape, streams: Mapping[str, int]) -> None:
        """`streams` are names and ids."""
        self._log = log
        self.shape = shape
        self._streams = streams
        self._segments: dict[tuple[str, int], Segment] = {}

    def reading(self, references: Iterable[Reference], times: Sequence[Time]) -> RowReading:
        """A read of the rows at `times`, load by load."""
        return RowReading(self, runs_of(references), WantedTimes(self.shape, times))

    def by_time(
        self,
        references: Iterable[Reference],
        times: Sequence[Time],
        *,
        brief: bool = False,
        bytes_max: int,
    ) -> tuple[dict[Time, list[pa.RecordBatch]], int]:
        """All rows at `times`, apart by time, and their bytes; see :class:`ByTime`."""
        apart = ByTime(self.shape, times, bytes_max=bytes_max)
        reading = self.reading(references, times)
        while (load := reading.next(brief=brief)) is not None:
            apart.add(*load)
        return apart.found, apart.size

    def cursor(self, run: RowRun) -> Cursor:
        """Reads a run from its beginning."""
        segment = self._segment(run.stream, run.segment)
        found = Cursor(self._log.catalog, self._log.store, run.stream, segment, run.starts[0])
        found.expect(len(run.starts))
        return found

    def stamps(self, run: RowRun, batch: pa.RecordBatch) -> Times:
        """The times of all rows; rows without one are at no time (-1)."""
        parts = self.shape.length or 1
        if "epoch" not in batch.schema.names:
            stamps = np.full(batch.num_rows * parts, -1, dtype=np.int64)
        else:
            column = batch.column("epoch")
            if column.null_count:
                stamps = events.int64s(column.flatten())
            else:
                # As flatten() does, without going through a compute function.
                bounds = events.bounds_of(column)
                stamps = events.int64s(column.values)[bounds[0] : bounds[-1]]
            if len(stamps) != batch.num_rows * parts:
                raise EpochRowsError(
                    run.stream, run.lines[0], f"segment {run.segment}", batch.num_rows, 0
                )
        return stamps if self.shape.length == 0 else stamps.reshape(-1, parts)

    def _segment(self, stream: str, number: int) -> Segment:
        found = self._segments.get((stream, number))
        if found is None:
            current = self._log.stream(stream)
            if current.id != self._streams[stream]:
                raise EpochTrimmedError(stream, "all", "the stream was deleted and made anew")
            self._segments |= {(stream, one.number): one for one in current.segments}
            found = self._segments[stream, number]
        return found


class RowReading:
    """Rows of some references, load by load in one pass; blocking."""

    def __init__(self, rows: EpochRows, runs: Sequence[RowRun], wanted: WantedTimes) -> None:
        self._rows = rows
        self._runs = deque(runs)
        self._wanted = wanted
        self._pass: _Pass | None = None

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, Times]]:
        return iter(self.next, None)

    @property
    def done(self) -> bool:
        """Whether all of it was read, and counted."""
        return self._pass is None and not self._runs

    def next(self, *, brief: bool = False) -> tuple[pa.RecordBatch, Times] | None:
        """A record batch of rows, and their times as an array; None at the end.

        With `brief`, for an event loop, it raises ``FileAhead`` instead of opening a file; a call
        without goes on from there.
        """
        while True:
            if self._pass is None:
                if not self._runs:
                    return None
                self._pass = _Pass(self._rows, self._runs.popleft(), self._wanted)
            if (found := self._pass.next(brief=brief)) is not None:
                return found
            self._pass = None


class _Pass:
    """One run, read from its beginning to its end."""

    def __init__(self, rows: EpochRows, run: RowRun, wanted: WantedTimes) -> None:
        self._rows, self._run, self._wanted = rows, run, wanted
        self._cursor = rows.cursor(run)
        self._starts, self._ends = np.array(run.starts), np.array(run.ends)
        self._got = np.zeros(len(run.starts), dtype=np.int64)
        sizes = self._ends - self._starts
        self._whole = np.array(run.rows) == sizes
        """Which references name every row from their start to their end."""
        self._all_whole = bool(self._whole.all())
        self._mixed = run.mixed if wanted.several else []
        single = wanted.shape.length == 0 and {*run.epochs, *map(len, run.times)} == {1}
        self._times = np.array([times[0] for times in run.times]) if single else None
        """The time of every reference, where all have one."""
        self._time = None if self._times is None or wanted.several else self._times[0]
        """The time of all references, where there is only one."""
        seamless = self._all_whole and run.starts[1:] == run.ends[:-1]
        self._sizes = sizes if single and seamless else None
        """How many rows each reference has, where nothing lies between them."""

    def next(self, *, brief: bool) -> tuple[pa.RecordBatch, Times] | None:
        run, cursor, end = self._run, self._cursor, self._run.ends[-1]
        while (at := cursor.position) < end:
            try:
                batch = cursor.next(end, brief=brief)
            except TrimmedError as error:
                raise EpochTrimmedError(run.stream, self._wanted.shown, str(error)) from error
            if batch is None:
                continue
            stamps = self._rows.stamps(run, batch)
            match = self._match(at, stamps)
            if match is not None:
                count = int(np.count_nonzero(match))
                if not count:
                    continue
                batch, stamps = _kept(batch, stamps, match, count)
            return events.public(batch, run.segment, batch.column(0)), stamps
        self._check()
        return None

    def _match(self, at: int, stamps: Times) -> Mask | None:
        """Which rows of a load from offset `at` on count; None if all do."""
        count = len(stamps)
        first, last = bisect_right(self._run.ends, at), bisect_left(self._run.starts, at + count)
        if self._sizes is not None and self._seamless(first, last, at, count, stamps):
            return None
        if first == last:
            return np.zeros(count, dtype=np.bool_)  # rows of others, which are read along
        lows = np.maximum(self._starts[first:last], at) - at
        highs = np.minimum(self._ends[first:last], at + count) - at
        sizes = highs - lows
        if (self._all_whole or self._whole[first:last].all()) and sizes.sum() == count:
            if self._times is None:
                wanted = self._wanted.all_match(stamps)
            elif self._time is not None:
                wanted = bool((stamps == self._time).all())
            else:
                wanted = bool((stamps == self._times[first:last].repeat(sizes)).all())
            if wanted:
                self._got[first:last] += sizes
                return None
        edges = np.zeros(count + 1, dtype=np.int64)
        np.add.at(edges, lows, 1)
        begun = np.cumsum(edges[:-1])
        np.add.at(edges, highs, -1)
        inside = np.cumsum(edges[:-1]) > 0
        match: Mask
        if self._times is not None:
            match = inside & (stamps == self._times[first:last][np.maximum(begun, 1) - 1])
        else:
            match = inside & self._wanted.match(stamps)
        mixed = self._mixed
        for place in mixed[bisect_left(mixed, first) : bisect_left(mixed, last)]:
            low, high = lows[place - first], highs[place - first]
            here = WantedTimes(self._wanted.shape, self._run.times[place])
            match[low:high] &= here.match(stamps[low:high])
        sums = np.concatenate(([0], np.cumsum(match)))
        self._got[first:last] += sums[highs] - sums[lows]
        return match

    def _seamless(self, first: int, last: int, at: int, count: int, stamps: Times) -> bool:
        """Whether all rows of a load are wanted, in the quick way for whole references in a row."""
        run, sizes, times = self._run, self._sizes, self._times
        assert sizes is not None
        assert times is not None
        if at < run.starts[0] or at + count > run.ends[-1]:
            return False
        if last - first == 1:
            found = count
            same = stamps == times[first]
        else:
            found = sizes[first:last].copy()
            found[0] = run.ends[first] - at
            found[-1] = at + count - run.starts[last - 1]
            same = stamps == times[first:last].repeat(found)
        if not same.all():
            return False
        self._got[first:last] += found
        return True

    def _check(self) -> None:
        """As many rows in every reference as its line tells."""
        run, told = self._run, np.array(self._run.rows)
        if np.array_equal(self._got, told):
            return
        place = int(np.argmax(self._got != told))
        raise EpochRowsError(
            run.stream,
            run.lines[place],
            f"segment {run.segment}, offsets {run.starts[place]} to {run.ends[place]}",
            int(told[place]),
            int(self._got[place]),
        )


def _kept(
    batch: pa.RecordBatch, stamps: Times, match: Mask, count: int
) -> tuple[pa.RecordBatch, Times]:
    """The rows that match; where they stand side by side, nothing is copied."""
    first = int(match.argmax())
    if match[first : first + count].all():
        return batch.slice(first, count), stamps[first : first + count]
    return batch.filter(mask_array(match)), stamps[match]


class WantedTimes:
    """Some times, to be found among many."""

    def __init__(self, shape: TimeShape, times: Sequence[Time]) -> None:
        self.shape = shape
        self._times = set(times)
        self._array = np.array(sorted(self._times), dtype=np.int64)
        self._gapless = bool(
            len(self._array)
            and shape.length == 0
            and self._array[-1] - self._array[0] == len(self._array) - 1
        )
        """Whether they are all integers from the first to the last."""

    @property
    def several(self) -> bool:
        return len(self._times) > 1

    @property
    def shown(self) -> str:
        first = min(self._times)
        return str(first) if len(self._times) == 1 else f"{first} and {len(self._times) - 1} more"

    def match(self, stamps: Times) -> Mask:
        """Which of the stamps are wanted."""
        if len(self._array) == 1:
            same: Mask = stamps == self._array[0]
            return same if same.ndim == 1 else np.logical_and.reduce(same, axis=1)
        if stamps.ndim == 1:
            if self._gapless:
                between: Mask = (stamps >= self._array[0]) & (stamps <= self._array[-1])
                return between
            places = np.searchsorted(self._array, stamps)
            places[places == len(self._array)] = 0
            found: Mask = self._array[places] == stamps
            return found
        distinct, where = np.unique(stamps, axis=0, return_inverse=True)
        known = np.array([tuple(row) in self._times for row in distinct.tolist()], dtype=np.bool_)
        return known[where.reshape(-1)]

    def all_match(self, stamps: Times) -> bool:
        """Whether all of the stamps, one or more, are wanted."""
        if self._gapless:
            return bool(stamps.min() >= self._array[0] and stamps.max() <= self._array[-1])
        return bool(self.match(stamps).all())
