"""The whole epochs that are there now, as plain rows: for a look at a stream that is not large.

The same subscriber as in :mod:`headrace.epochs.runtime.subscription` decides what is whole, fed
with the lines that there are.  It takes no event loop, and Arrow only where a file is met.  What
was read is held until the end, since commits of many epochs would be read once for each of them
otherwise; so a stream has to be small for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.catalog.streams import Segment, Stream
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.effects import Effect, End, Ended, Epoch, Mode
from headrace.epochs.core.feed import LineFeed, Reference
from headrace.epochs.core.subscriber import Subscriber
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.core.token import ResumeToken
from headrace.epochs.runtime import starting
from headrace.epochs.runtime.starting import EpochStart
from headrace.errors import EpochRowsError, EpochsAbortedError, EpochTrimmedError, TrimmedError
from headrace.log.log import Log
from headrace.log.plain import Row
from headrace.log.rows import RowCursor

FEW_ROWS = 10_000
FEW_BYTES = 16 * 1024 * 1024
"""What a stream may hold in order to be looked at this way."""


class SeenEpoch(NamedTuple):
    """A whole epoch with its rows, and what to keep in order to go on after it."""

    time: Time
    rows: list[Row]
    token: str


def is_small(stream: Stream) -> bool:
    """Whether a stream may be looked at this way."""
    rows = sum(segment.head - segment.tail for segment in stream.segments)
    return rows <= FEW_ROWS and sum(segment.bytes for segment in stream.segments) <= FEW_BYTES


def whole_epochs(
    log: Log, stream: str, start: EpochStart, until: Frontier = ()
) -> Iterator[SeenEpoch]:
    """Whole epochs from a start to ``until``, which is not part of them, or as far as they go."""
    begun = starting.resolve(log, [stream], start)
    (place,) = begun.streams
    subscriber = Subscriber(
        (stream,),
        begun.shape,
        mode=Mode.WHOLE,
        start=begun.start,
        until=until,
        stored=True,
        counts=False,
    )
    feed = LineFeed(stream, place.lower)
    rows = _Rows(log, place.progress.stream, begun.shape)

    def seen(effects: list[Effect]) -> Iterator[SeenEpoch]:
        for effect in effects:
            match effect:
                case Epoch(time=time, batches=batches, resume=resume):
                    references = [one for batch in batches for one in batch.data.payload]
                    token = ResumeToken(begun.catalog, begun.ids, begun.shape, resume).encode()
                    yield SeenEpoch(time, rows.of(time, references), token)
                case Ended(end=End.ABORTED, reason=reason):
                    raise EpochsAbortedError(stream, reason, list(subscriber.frontier))
                case _:
                    pass

    yield from seen(subscriber.receive(stream, feed.snapshot(place.upper)))
    for number, line in place.progress.scan(place.line, place.progress.bounds()[1]):
        for message in feed.messages(number, line):
            yield from seen(subscriber.receive(stream, message))


class _Rows:
    """The rows of a stream by reference, counted against what lines tell."""

    def __init__(self, log: Log, stream: Stream, shape: TimeShape) -> None:
        self._log = log
        self._stream = stream.name
        self._shape = shape
        self._segments: dict[int, Segment] = {one.number: one for one in stream.segments}
        self._read: dict[tuple[int, int], dict[Time, list[Row]]] = {}

    def of(self, time: Time, references: list[Reference]) -> list[Row]:
        """All rows of an epoch, segment by segment in the order of offsets."""
        found: list[Row] = []
        for one in sorted(references, key=lambda one: (one.segment, one.start)):
            rows = self._commit(one).get(time, [])
            if len(rows) != one.rows:
                place = f"segment {one.segment}, offsets {one.start} to {one.end}"
                raise EpochRowsError(self._stream, one.line, place, one.rows, len(rows))
            found += rows
        return found

    def _commit(self, one: Reference) -> dict[Time, list[Row]]:
        """The rows of a commit in one segment, apart by time."""
        found = self._read.get((one.segment, one.start))
        if found is not None:
            return found
        found = self._read[one.segment, one.start] = {}
        log, segment = self._log, self._segments[one.segment]
        cursor = RowCursor(log.catalog, log.store, self._stream, segment, one.start)
        while cursor.position < one.end:
            try:
                rows = cursor.next(one.end)
            except TrimmedError as error:
                raise EpochTrimmedError(self._stream, str(one.time), str(error)) from error
            for row in rows or ():
                if row.epoch is not None:
                    found.setdefault(self._shape.from_row(row.epoch), []).append(row)
        return found
