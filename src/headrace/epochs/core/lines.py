"""Lines of the progress log: what one commit of an epoch stream did, and how far that got.

A line is the value of one event of the internal stream ``NAME.epochs``, as MessagePack; its number
is that event's offset in the only segment.  It is written in the transaction that appends the rows
it tells of, so whoever sees a line can read its rows.

Every line holds the merged lower frontier after it, absolute, and the number of the first line that
may hold rows of an epoch that is not complete then.  So any line is enough to start from:

* what is complete only grows, so "the frontier of a line covers all of F" is true for the first
  lines and false ever after, and a binary search finds the last one for which it is true;
* whoever wants everything at or after F whole begins at the ``first_open`` of that line: an earlier
  line holds only rows of epochs that were complete by then, none of which F covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headrace.epochs.core.antichains import Antichain, Frontier
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import EpochLimitError, UnreadableRecordError

TIMES_MAX = 10_000
"""Distinct times in one commit."""
PAIRS_MAX = 65_536
"""(time, segment) pairs in one commit; a line stays well below the size of a blob."""

JOINED = "joined"
CLOSED = "closed"
RELEASED = "released"
ROLLED_BACK = "rolled back"
ABORTED = "aborted"


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows of a commit in one segment: offsets ``start`` to ``end`` - 1."""

    segment: int
    start: int
    end: int
    counts: tuple[tuple[int, int], ...] = ()
    """(place in the line's ``times``, rows); left out where the line has one time only."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One commit; see the module's text."""

    publisher: str
    token: int
    lower: Frontier
    """The merged lower frontier after this line."""
    first_open: int
    """The first line, this one included, that may hold rows of an epoch not complete after it."""
    times: tuple[Time, ...] = ()
    """The times of its rows, each once, sorted."""
    spans: tuple[Span, ...] = ()
    taken_back: Frontier = ()
    """Not empty: the publisher's rows in *earlier* lines at or after these do not count."""
    event: str = ""
    """What else happened: the publisher joined, closed, or was released or rolled back by an
    operator; or the stream was aborted."""
    reason: str = ""

    @property
    def rows(self) -> int:
        """How many rows it tells of."""
        return sum(span.end - span.start for span in self.spans)

    def rows_by_time(self) -> dict[Time, int]:
        """How many rows of which times."""
        if len(self.times) == 1:
            return {self.times[0]: self.rows}
        found = dict.fromkeys(self.times, 0)
        for span in self.spans:
            for place, count in span.counts:
                found[self.times[place]] += count
        return found

    def spans_at(self, wanted: Callable[[Time], bool]) -> Iterator[tuple[Time, Span, int]]:
        """(time, span, rows of that time in it) for all times that are ``wanted``."""
        if len(self.times) == 1:
            if wanted(self.times[0]):
                for span in self.spans:
                    yield self.times[0], span, span.end - span.start
            return
        chosen = {place for place, time in enumerate(self.times) if wanted(time)}
        for span in self.spans:
            for place, count in span.counts:
                if place in chosen:
                    yield self.times[place], span, count

    def takes_back(self, shape: TimeShape, publisher: str, time: Time) -> bool:
        """Whether it takes back rows that ``publisher`` put into an earlier line at ``time``."""
        if not self.taken_back or publisher != self.publisher:
            return False
        return Antichain.minimal(shape, self.taken_back).covers(time)


def covers_all(shape: TimeShape, lower: Iterable[Time], wanted: Iterable[Time]) -> bool:
    """Whether nothing at or after ``wanted`` is complete under ``lower``: the search's question."""
    held = Antichain.minimal(shape, lower)
    return all(held.covers(time) for time in wanted)


def check_size(stream: str, times: Sequence[Time], spans: Sequence[Span]) -> None:
    """Raise if a commit has more times than a line may hold."""
    pairs = sum(len(span.counts) for span in spans)
    if len(times) > TIMES_MAX or pairs > PAIRS_MAX:
        raise EpochLimitError(
            f"stream {stream!r}: {len(times)} different epochs over {len(spans)} segments are too "
            f"many for one commit ({TIMES_MAX} epochs, {PAIRS_MAX} pairs of epoch and segment); "
            "append in parts"
        )


encode_line = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Line).decode


def decode_line(data: bytes, stream: str, number: int) -> Line:
    """Read a line; damage is an error that names the place."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise UnreadableRecordError(
            f"line {number} of the progress log of stream {stream!r} cannot be read ({error}); "
            "restore the catalog from a backup",
            stream,
        ) from error
