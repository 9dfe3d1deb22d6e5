"""From the progress log to a subscriber: lines become the messages of a partition.

A stream is one partition of the subscription.  The payload of a batch is not rows but *references*:
which offsets of which segment a commit wrote, and how many of them are at this time.  So a whole
epoch is held as a few numbers per commit, and its rows are read when it is complete.

What a publisher has taken back leaves with the batches that named it, exactly: references are never
joined here.  Ranges that are joined for reading keep the bounds of every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from headrace.epochs.core import lines
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.lines import Line, covers_all
from headrace.epochs.core.messages import (
    Aborted,
    Data,
    FrontierUpdate,
    Message,
    Snapshot,
    TakeBack,
)
from headrace.epochs.core.times import Time, TimeShape


class Reference(msgspec.Struct, frozen=True, gc=False):
    """`rows` rows of one time among offsets `start` to `end` - 1 of a segment, by one commit."""

    stream: str
    line: int
    segment: int
    start: int
    end: int
    rows: int
    time: Time
    epochs: int
    """How many times the commit's rows in this segment have: others may be there, or taken back."""


class LineFeed:
    """The lines of one stream, in order, as messages."""

    def __init__(self, stream: str, lower: Frontier, segments: Iterable[int] | None = None) -> None:
        """`lower` is the merged lower frontier before the first line; only `segments` count."""
        self.stream = stream
        self._lower = lower
        self._segments = None if segments is None else frozenset(segments)

    def snapshot(self, upper: Frontier = ()) -> Snapshot:
        """The first message; `upper` is what had begun, if that is to be left out."""
        return Snapshot(self._lower, upper)

    def messages(self, number: int, line: Line) -> list[Message]:
        """What a line says: first what is taken back, then rows, then how far that got."""
        found: list[Message] = []
        if line.taken_back:
            found.append(TakeBack(line.taken_back, line.publisher))
        if line.spans:
            found += self._data(number, line)
        if line.lower != self._lower:
            before, self._lower = self._lower, line.lower
            gone = [(time, -1) for time in before if time not in line.lower]
            come = [(time, 1) for time in line.lower if time not in before]
            found.append(FrontierUpdate((*gone, *come)))
        if line.event == lines.ABORTED:
            found.append(Aborted(line.reason))
        return found

    def _data(self, number: int, line: Line) -> list[Message]:
        stream, times, chosen = self.stream, line.times, self._segments
        if chosen is None and len(line.spans) == 1:
            (span,) = line.spans
            segment, start, end, publisher = span.segment, span.start, span.end, line.publisher
            counts = span.counts or ((0, end - start),)
            many = len(counts)
            return [
                Data(
                    time := times[place],
                    (Reference(stream, number, segment, start, end, rows, time, many),),
                    rows,
                    publisher,
                )
                for place, rows in counts
            ]
        references: dict[Time, list[Reference]] = {time: [] for time in times}
        for span in line.spans:
            segment, start, end = span.segment, span.start, span.end
            if chosen is not None and segment not in chosen:
                continue
            counts = span.counts or ((0, end - start),)
            for place, rows in counts:
                time = times[place]
                references[time].append(
                    Reference(stream, number, segment, start, end, rows, time, len(counts))
                )
        return [
            Data(time, tuple(found), sum([one.rows for one in found]), line.publisher)
            for time, found in references.items()
            if found
        ]


def first_line(
    shape: TimeShape,
    line_at: Callable[[int], Line],
    tail: int,
    head: int,
    frontier: Frontier,
) -> int:
    """The line to begin with for everything at or after a frontier, of lines `tail` to `head` - 1.

    A binary search for the last line after which nothing of it was complete; that one tells.
    """
    low, high = tail - 1, head  # at `low` the frontier is covered, at `high` it is not
    start = tail
    while high - low > 1:
        at = (low + high) // 2
        line = line_at(at)
        if covers_all(shape, line.lower, frontier):
            low, start = at, line.first_open
        else:
            high = at
    return max(start, tail)
