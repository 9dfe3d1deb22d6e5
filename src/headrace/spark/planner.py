"""The driver's side of the source: looks at the catalog and decides what the next batch reads.

The cost of a decision depends on the number of segments and not on the backlog: rows are counted
by offsets, and bytes are looked up no further ahead than a batch may reach.  Spark polls a waiting
query every few milliseconds; until a change is notified, the answer comes from a cache.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import msgspec

from headrace.catalog import Tx, batches, histories, markers, streams
from headrace.catalog.streams import Segment, Stream
from headrace.errors import ForeignCheckpointError, UnknownSegmentError, UnknownStreamError
from headrace.log.log import Log
from headrace.spark import losses, planning, weighing
from headrace.spark.losses import Losses
from headrace.spark.offsets import Offset, StreamAt
from headrace.spark.options import SourceOptions
from headrace.spark.places import Places
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
        self._losses = Losses(options.fail_on_data_loss)
        self._places = Places(log, options)
        self._target: dict[str, dict[int, int]] | None = None
        self._news = threading.Event()
        self._heard: dict[int, Callable[[], None]] = {}
        self._known: dict[str, Stream] = {}
        self._history: str | None = None
        self._answer: tuple[Offset, bool, float] | None = None
        self._triggered = clock()

    # -- streams ------------------------------------------------------------------------

    def streams(self, *, missing: Container[str] = ()) -> dict[str, Stream]:
        """The streams of the query as they stand now; those in ``missing`` need not be there."""
        return self._log.catalog.read(lambda tx: self._read_streams(tx, missing), snapshot=True)

    def _read_streams(self, tx: Tx, missing: Container[str]) -> dict[str, Stream]:
        options = self._options
        if options.pattern is not None:
            known = sorted(name for _, name, _ in streams.stored_configs(tx))
            names = [name for name in known if re.fullmatch(options.pattern, name) is not None]
        else:
            names = list(options.subscribe or options.assign)
            tx.foresee(histories.asking(), *(q for name in names for q in streams.asking(name)))
        self._history = histories.newest(tx)
        found = {}
        for name in names:
            stream = streams.get(tx, name) if name in missing else self._require(tx, name)
            if stream is not None:
                found[name] = stream
        for name, wanted in options.assign.items():
            for number in wanted if name in found else ():
                if found[name].segment(number) is None:
                    raise UnknownSegmentError(f"stream {name!r} has no segment {number}")
        return found

    def _require(self, tx: Tx, name: str) -> Stream:
        try:
            return streams.require(tx, name)
        except UnknownStreamError as error:
            # Whether the name is wrong, or a query that goes on has read it, is not known yet.
            raise UnknownStreamError(
                f"{error}; if a query has read it, stream {name!r} is gone: set failOnDataLoss to "
                "false to go on without it, with the query's state"
            ) from None

    def _may_be_missing(self, place: Offset | None = None) -> Container[str]:
        """Streams whose absence is no mistake of the options.

        One that the query has read is lost.  Where losses do not matter, one that it has not met
        yet may have been lost as well, before the query was started again.
        """
        if not self._options.fail_on_data_loss:
            return self._options.subscribe or self._options.assign
        return () if place is None else place.streams

    # -- places -------------------------------------------------------------------------

    def start(self, default: str) -> Offset:
        """Where the query begins."""
        spot = self._options.start if self._options.start is not None else default
        found = self.streams(missing=self._may_be_missing())
        place = self._places.offset(found, spot, "startingOffsets", initial=True)
        return msgspec.structs.replace(place, history=self._history)

    def end(self) -> Offset:
        """Where a batch read ends."""
        spot = self._options.end if self._options.end is not None else "latest"
        return self._places.offset(
            self.streams(missing=self._may_be_missing()), spot, "endingOffsets"
        )

    # -- the next batch -----------------------------------------------------------------

    def freeze(self) -> None:
        """Fix the end to what there is now, for ``Trigger.AvailableNow``."""
        self._target = {
            name: {segment.number: segment.head for segment in stream.segments}
            for name, stream in self.streams(missing=self._may_be_missing()).items()
        }
        self._answer = None

    def next(self, start: Offset, *, limited: bool) -> Offset:
        """The end of the next batch; ``start`` itself when there is nothing to read."""
        if self._answer is not None:
            asked, all_of_it, until = self._answer
            waiting = asked == start and all_of_it == limited and self._clock() < until
            if waiting and not self._news.is_set():
                return start
        self._look(start)
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
            self._look(start)
        start = self._kept(start, self._known)
        heads = {(n, s.number): s.head for n, each in self._known.items() for s in each.segments}
        found = self._end(
            start,
            lambda stream, at: {
                number: heads[stream.name, number] for number in self._standing(stream, at).all
            },
        )
        return msgspec.structs.replace(found, markers=self._no_events(found, start))

    def _no_events(self, head: Offset, at: Offset) -> dict[str, dict[int, int]]:
        """How many offsets between two places are of markers or were trimmed, where any are."""
        found = {
            name: losses.without(stream.segments, at.at(name))
            for name, stream in self._known.items()
        }
        marked = [
            (name, segment, max(segment.tail, at.at(name).get(segment.number, 0)), end)
            for name, stream in self._known.items()
            for segment in stream.segments
            if segment.markers and (end := head.at(name).get(segment.number)) is not None
        ]
        for name, segment, start, end in marked:
            count = self._log.catalog.read(
                lambda tx, i=segment.id, lo=start, hi=end: markers.between(tx, i, lo, hi)  # type: ignore[misc]
            )
            found[name][segment.number] = found[name].get(segment.number, 0) + count
        counts = {name: {n: c for n, c in each.items() if c} for name, each in found.items()}
        return {name: each for name, each in counts.items() if each}

    def _look(self, place: Offset) -> None:
        self._news.clear()
        self._answer = None  # it was of the look before, and what was new has been heard
        self._known = self.streams(missing=self._may_be_missing(place))
        for stream in self._known.values():
            if stream.id not in self._heard:
                # Subscribe first, then look once more, so that no change is missed.
                self._heard[stream.id] = self._log.catalog.subscribe(
                    streams.channel(stream.id), self._news.set
                )
                self._news.set()

    def _standing(self, stream: Stream, at: Mapping[int, int]) -> planning.Standing:
        return planning.standing(
            self._places.segments(stream), at, successors=stream.name not in self._options.assign
        )

    def _plan(self, start: Offset, limited: bool) -> Offset | None:
        start = self._kept(start, self._known)
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
            found = dict(start.at(stream.name))
            gone = [number for number in found if stream.segment(number) is None]
            for number in gone:
                self._losses.segment(stream.name, number, found[number])
            if gone:
                found = planning.without_gone(self._places.segments(stream), found)
        else:
            found = {s.number: 0 for s in self._places.segments(stream) if not s.predecessors}
        if not self._options.fail_on_data_loss:
            for segment in self._places.segments(stream):
                if segment.number in found:
                    found[segment.number] = self._losses.retained(
                        stream.name, segment, found[segment.number]
                    )
        return found

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
            history=self._history,
            first=first,
        )

    def _kept(self, place: Offset, known: Mapping[str, Stream]) -> Offset:
        """A place without what is gone: streams, and what a catalog that went back has lost."""
        place = self._losses.kept(place, self._log.prefix, known)
        history = place.history
        if history is None or history == self._history:
            return place
        turns = self._log.catalog.read(lambda tx: histories.heads_since(tx, history))
        left = {}
        for name, at in place.streams.items():
            ids = {segment.number: segment.id for segment in known[name].segments}
            segments = dict(at.segments)
            for number, offset in at.segments.items():
                reached = min((heads.get(ids.get(number, 0), 0) for heads in turns), default=offset)
                if number in ids and reached < offset:
                    self._losses.taken_back(name, number, offset, reached)
                    segments[number] = reached
            left[name] = StreamAt(at.id, segments)
        return msgspec.structs.replace(place, streams=left, history=self._history)

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
        self._losses.retained(stream.name, segment, position)
        return segment

    # -- spans --------------------------------------------------------------------------

    def spans(self, start: Offset, end: Offset) -> list[Span]:
        """What a batch between two places reads."""
        known = self._knowing(end.streams, end)
        start, end = (self._kept(each, known) for each in (start, end))
        runs = []
        for name in sorted(end.streams):
            begin = end.beginning(name) if start.initial else start.at(name)
            runs += planning.spans(name, begin, end.at(name))
        for run in runs:
            if known[run.stream].segment(run.segment) is None:
                self._losses.segment(run.stream, run.segment, run.start)
        return [run for run in runs if known[run.stream].segment(run.segment) is not None]

    def whole_runs(self, name: str, start: Mapping[int, int], end: Mapping[int, int]) -> list[Span]:
        """What a batch read takes of a stream: everything after ``start``, in parts of a size.

        There is no order between the tasks of a batch, so all that follows is read at once.
        """
        stream = self._knowing([name])[name]
        begin = self._standing(stream, start).all
        runs = []
        for segment in self._places.segments(stream):
            first = begin.get(segment.number)
            if first is None or first >= end.get(segment.number, 0):
                continue
            run = Span(name, segment.number, max(first, segment.tail), end[segment.number])
            each = max(1, segment.retained_bytes // max(1, segment.events))
            runs += planning.cut([run], run.events * each // planning.SPLIT_BYTES + 1)
        return runs

    def since(self, runs: Sequence[Span], time_us: int) -> list[Span]:
        """Spans without what lies before the first batch with an event at or after a time."""
        known = self._knowing({run.stream for run in runs})
        places = {(run.stream, run.segment) for run in runs}

        def look(tx: Tx) -> dict[tuple[str, int], int]:
            found = {}
            for name, number in places:
                segment = known[name].segment(number)
                if segment is not None:
                    first = batches.first_by_event_time(tx, segment, time_us)
                    found[name, number] = segment.head if first is None else first.start
            return found

        starts = self._log.catalog.read(look, snapshot=True)
        later = [
            Span(run.stream, run.segment, max(run.start, starts.get(place, 0)), run.end)
            for run in runs
            if (place := (run.stream, run.segment))
        ]
        return [run for run in later if run.start < run.end]

    def _knowing(self, names: Iterable[str], place: Offset | None = None) -> dict[str, Stream]:
        if any(name not in self._known for name in names):
            self._known = self.streams(missing=self._may_be_missing(place))
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
