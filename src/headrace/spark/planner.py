"""The driver's side of the source: looks at the catalog and decides what the next batch reads.

The cost of a decision depends on the number of segments and not on the backlog: rows are counted
by offsets, and bytes are looked up no further ahead than a batch may reach.  Spark polls a waiting
query every few milliseconds; until a change is notified, the answer comes from a cache.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from headrace.catalog import Tx, markers, streams
from headrace.catalog.streams import Segment, Stream
from headrace.errors import (
    ForeignCheckpointError,
    InvalidOptionError,
    InvalidPositionError,
    UnknownSegmentError,
)
from headrace.log.log import Log
from headrace.log.read import Query
from headrace.spark import planning, weighing
from headrace.spark.losses import data_loss, segment_loss
from headrace.spark.offsets import Offset, StreamAt
from headrace.spark.options import KAFKA_EARLIEST, KAFKA_LATEST, SourceOptions, Spot
from headrace.spark.planning import Span
from headrace.spark.weighing import Ahead

LOOK_S = 1.0
"""How long the cached answer is trusted without a notification."""


class Planner:
    """Places and spans of one query; used by one thread."""

    def __init__(
        self, log: Log, options: SourceOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._options = options
        self._clock = clock
        self._target: dict[str, dict[int, int]] | None = None
        self._news = threading.Event()
        self._heard: dict[int, Callable[[], None]] = {}
        self._known: dict[str, Stream] = {}
        self._answer: tuple[Offset, bool, float] | None = None
        self._triggered = clock()

    # -- streams ------------------------------------------------------------------------

    def streams(self) -> dict[str, Stream]:
        """The streams of the query as they stand now."""
        return self._log.catalog.read(self._read_streams, snapshot=True)

    def _read_streams(self, tx: Tx) -> dict[str, Stream]:
        options = self._options
        if options.pattern is not None:
            known = sorted(name for _, name, _ in streams.stored_configs(tx))
            names = [name for name in known if re.fullmatch(options.pattern, name) is not None]
        else:
            names = list(options.subscribe or options.assign)
        found = {name: streams.require(tx, name) for name in names}
        for name, wanted in options.assign.items():
            for number in wanted:
                if found[name].segment(number) is None:
                    raise UnknownSegmentError(f"stream {name!r} has no segment {number}")
        return found

    def _segments(self, stream: Stream) -> tuple[Segment, ...]:
        """Those that the query may read."""
        wanted = self._options.assign.get(stream.name)
        if wanted is None:
            return stream.segments
        return tuple(segment for segment in stream.segments if segment.number in wanted)

    # -- places -------------------------------------------------------------------------

    def start(self, default: str) -> Offset:
        """Where the query begins."""
        spot = self._options.start if self._options.start is not None else default
        return self._offset(self.streams(), spot, "startingOffsets", initial=True)

    def end(self) -> Offset:
        """Where a batch read ends."""
        spot = self._options.end if self._options.end is not None else "latest"
        return self._offset(self.streams(), spot, "endingOffsets")

    def _offset(
        self, found: Mapping[str, Stream], spot: Spot, what: str, *, initial: bool = False
    ) -> Offset:
        if isinstance(spot, dict):
            for name in spot:
                if name not in found:
                    raise InvalidOptionError(
                        f"{what} names stream {name!r}, which is not among those that are read"
                    )
            for name in found:
                if name not in spot:
                    raise InvalidOptionError(f"{what} says nothing about stream {name!r}")
        return Offset(
            catalog=self._log.prefix,
            streams={
                name: StreamAt(stream.id, self._positions(stream, spot, what))
                for name, stream in found.items()
            },
            initial=initial,
        )

    def _positions(self, stream: Stream, spot: Spot, what: str) -> dict[int, int]:
        segments = self._segments(stream)
        match spot:
            case "earliest":
                return planning.earliest(segments)
            case "latest" if what == "endingOffsets":
                return {segment.number: segment.head for segment in segments}
            case "latest":
                return planning.latest(segments)
            case int():
                found = self._at_time(stream, spot)
                if what == "endingOffsets":
                    return {s.number: found.get(s.number, s.head) for s in segments}
                return found
            case dict():
                return self._given(stream, segments, spot[stream.name], what)
        raise InvalidOptionError(f"{what}={spot!r} is not a place")

    def _given(
        self, stream: Stream, segments: tuple[Segment, ...], given: Mapping[int, int], what: str
    ) -> dict[int, int]:
        by_number = {segment.number: segment for segment in segments}
        found = {}
        for number, offset in given.items():
            segment = by_number.get(number)
            if segment is None:
                raise UnknownSegmentError(
                    f"{what}: stream {stream.name!r} has no segment {number} that is read"
                )
            offset = {KAFKA_EARLIEST: segment.tail, KAFKA_LATEST: segment.head}.get(offset, offset)
            if not segment.tail <= offset <= segment.head:
                raise InvalidPositionError(
                    f"{what}: offset {offset} is outside segment {number} of stream "
                    f"{stream.name!r}, which has {segment.tail} to {segment.head}"
                )
            found[number] = offset
        if what == "endingOffsets":
            # What is not named is read to its head, as a read without an end would.
            return {segment.number: segment.head for segment in segments} | found
        left_out = planning.uncovered(segments, found)
        if left_out:
            raise InvalidOptionError(
                f"{what} leaves out segment {left_out[0]} of stream {stream.name!r}, which would "
                "never be read; name it too (-2 is earliest, -1 latest)"
            )
        return found

    def _at_time(self, stream: Stream, ts_us: int) -> dict[int, int]:
        """The first event at or after a time, for every segment that has or may get one."""
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ts_us)
        query = Query(start=moment, follow=True, segments=self._options.assign.get(stream.name))
        return self._log.reader(stream.name, query).positions

    # -- the next batch -----------------------------------------------------------------

    def freeze(self) -> None:
        """Fix the end to what there is now, for ``Trigger.AvailableNow``."""
        self._target = {
            name: {segment.number: segment.head for segment in stream.segments}
            for name, stream in self.streams().items()
        }
        self._answer = None

    def next(self, start: Offset, *, limited: bool) -> Offset:
        """The end of the next batch; ``start`` itself when there is nothing to read."""
        if self._answer is not None:
            asked, all_of_it, until = self._answer
            waiting = asked == start and all_of_it == limited and self._clock() < until
            if waiting and not self._news.is_set():
                return start
        self._look()
        end = self._plan(start, limited)
        if end is None:
            self._answer = (start, limited, self._clock() + LOOK_S)
            return start
        self._answer = None
        self._triggered = self._clock()
        return end

    def latest(self, start: Offset) -> Offset:
        """The heads of all that a query at ``start`` has still to read."""
        if self._news.is_set() or not self._known:
            self._look()
        heads = {(n, s.number): s.head for n, each in self._known.items() for s in each.segments}
        found = self._end(
            start,
            lambda stream, at: {
                number: heads[stream.name, number] for number in self._standing(stream, at).all
            },
        )
        return msgspec.structs.replace(found, markers=self._markers_ahead(found, start))

    def _markers_ahead(self, head: Offset, at: Offset) -> dict[str, dict[int, int]]:
        """How many offsets between two places are of markers, where there are any."""
        marked = [
            (name, segment, at.at(name).get(segment.number, 0), end)
            for name, stream in self._known.items()
            for segment in stream.segments
            if segment.markers and (end := head.at(name).get(segment.number)) is not None
        ]
        found: dict[str, dict[int, int]] = {}
        for name, segment, start, end in marked:
            count = self._log.catalog.read(
                lambda tx, i=segment.id, lo=start, hi=end: markers.between(tx, i, lo, hi)  # type: ignore[misc]
            )
            if count:
                found.setdefault(name, {})[segment.number] = count
        return found

    def _look(self) -> None:
        self._news.clear()
        self._known = self.streams()
        for stream in self._known.values():
            if stream.id not in self._heard:
                # Subscribe first, then look once more, so that no change is missed.
                self._heard[stream.id] = self._log.catalog.subscribe(
                    streams.channel(stream.id), self._news.set
                )
                self._news.set()

    def _standing(self, stream: Stream, at: Mapping[int, int]) -> planning.Standing:
        return planning.standing(
            self._segments(stream), at, successors=stream.name not in self._options.assign
        )

    def _plan(self, start: Offset, limited: bool) -> Offset | None:
        check_owner(start, self._log.prefix, self._known)
        behind: dict[tuple[str, int], Ahead] = {}
        for name, stream in self._known.items():
            bound = None if self._target is None else self._target.get(name, {})
            for number, position in self._standing(stream, self._at(start, stream)).ready.items():
                segment = self._retained(stream, number, position)
                end = segment.head if bound is None else min(segment.head, bound.get(number, 0))
                if position < end:
                    behind[name, number] = Ahead(segment, position, end - position)
        if not behind:
            return None
        ends = self._log.catalog.read(lambda tx: self._ends(tx, behind, limited), snapshot=True)
        if ends is None:
            return None
        return self._end(
            start,
            lambda stream, at: {
                number: ends.get((stream.name, number), position)
                for number, position in self._standing(stream, at).all.items()
            },
        )

    def _ends(
        self, tx: Tx, behind: Mapping[tuple[str, int], Ahead], limited: bool
    ) -> dict[tuple[str, int], int] | None:
        """Where the batch ends in each segment; None to wait for more."""
        options = self._options
        if not limited:
            return {key: ahead.end for key, ahead in behind.items()}
        if self._holds_back(sum(weighing.lags(tx, behind).values())):
            return None
        return weighing.ends(tx, behind, options.rows_max, options.bytes_max)

    def _at(self, start: Offset, stream: Stream) -> Mapping[int, int]:
        """The query's place in a stream; one that it has not met yet is read from its start."""
        if stream.name in start.streams:
            at = start.at(stream.name)
            gone = [number for number in at if stream.segment(number) is None]
            if not gone:
                return at
            self._missed(stream.name, gone[0], at[gone[0]])
            return planning.without_gone(self._segments(stream), at)
        return {s.number: 0 for s in self._segments(stream) if not s.predecessors}

    def _end(
        self, start: Offset, positions: Callable[[Stream, Mapping[int, int]], dict[int, int]]
    ) -> Offset:
        first = None
        if start.initial:
            first = {name: dict(at.segments) for name, at in start.streams.items()}
        return Offset(
            catalog=self._log.prefix,
            streams={
                name: StreamAt(stream.id, positions(stream, self._at(start, stream)))
                for name, stream in self._known.items()
            },
            first=first,
        )

    def _holds_back(self, total: int) -> bool:
        """Whether to wait for more, as ``minOffsetsPerTrigger`` asks."""
        waited_s = self._clock() - self._triggered
        return self._target is None and self._options.wait_for_more(total, waited_s)

    def _retained(self, stream: Stream, number: int, position: int) -> Segment:
        """The segment, if it still has what comes after a position."""
        segment = stream.segment(number)
        assert segment is not None
        if position > segment.head:
            raise ForeignCheckpointError(
                f"the query has read segment {number} of stream {stream.name!r} up to {position}, "
                f"and its head is {segment.head}: the catalog is older than the checkpoint; start "
                "with a new checkpointLocation"
            )
        if position < segment.tail and self._options.fail_on_data_loss:
            raise data_loss(stream.name, number, position, segment.tail)
        return segment

    def _missed(self, stream: str, number: int, position: int) -> None:
        """A segment that a query has not finished is gone."""
        if self._options.fail_on_data_loss:
            raise segment_loss(stream, number, position)

    # -- spans --------------------------------------------------------------------------

    def spans(self, start: Offset, end: Offset) -> list[Span]:
        """What a batch between two places reads, cut as asked."""
        runs = []
        for name in sorted(end.streams):
            begin = end.beginning(name) if start.initial else start.at(name)
            runs += planning.spans(name, begin, end.at(name))
        known = self._knowing(end.streams)
        for run in runs:
            if known[run.stream].segment(run.segment) is None:
                self._missed(run.stream, run.segment, run.start)
        runs = [run for run in runs if known[run.stream].segment(run.segment) is not None]
        return planning.cut(runs, self._options.partitions_min)

    def whole_runs(self, name: str, start: Mapping[int, int], end: Mapping[int, int]) -> list[Span]:
        """What a batch read takes of a stream: everything after ``start``, in parts of a size.

        There is no order between the tasks of a batch, so all that follows is read at once.
        """
        stream = self._knowing([name])[name]
        begin = self._standing(stream, start).all
        runs = []
        for segment in self._segments(stream):
            first = begin.get(segment.number)
            if first is None or first >= end.get(segment.number, 0):
                continue
            run = Span(name, segment.number, max(first, segment.tail), end[segment.number])
            each = max(1, segment.retained_bytes // max(1, segment.events))
            runs += planning.cut([run], run.events * each // planning.SPLIT_BYTES + 1)
        return runs

    def check_owner(self, place: Offset) -> None:
        """Refuse a place that belongs to another catalog or stream."""
        check_owner(place, self._log.prefix, self._knowing(place.streams))

    def _knowing(self, names: Iterable[str]) -> dict[str, Stream]:
        if any(name not in self._known for name in names):
            self._known = self.streams()
        return self._known

    def segment_ids(self, names: Iterable[str]) -> dict[tuple[str, int], int]:
        """The catalog's ids of segments, by stream and number."""
        return {
            (name, segment.number): segment.id
            for name, stream in self._knowing(names).items()
            for segment in stream.segments
        }

    def close(self) -> None:
        for stop in self._heard.values():
            stop()
        self._heard.clear()


def check_owner(start: Offset, catalog: str, known: Mapping[str, Stream]) -> None:
    """Refuse a place of another catalog, or of a stream that is no longer the same."""
    mend = "choose another checkpointLocation"
    if start.catalog != catalog:
        raise ForeignCheckpointError(f"the checkpoint belongs to another catalog; {mend}")
    for name, at in start.streams.items():
        stream = known.get(name)
        if stream is None:
            raise ForeignCheckpointError(
                f"the checkpoint belongs to stream {name!r}, which this query does not read; {mend}"
            )
        if stream.id != at.id:
            raise ForeignCheckpointError(
                f"stream {name!r} was deleted and made anew since the checkpoint; {mend}"
            )
