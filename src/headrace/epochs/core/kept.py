"""What retention has left of an epoch stream: ``since``, the first frontier that is whole.

Theory of operation
-------------------
Rows go from the front of each segment, at its own pace.  A time is *gone* when a row of it lies
below the tail of its segment, and a start F is permitted when no time at or after F is gone.  The
least such frontier is ``since``: everything but what is at or before a gone time.  Rows that were
taken back count as well, for whoever reads an open epoch as it comes is told of them first.

Lines name offsets in order, segment by segment, so only lines about newly trimmed rows are looked
at: for every segment, what was known names the tail then and the line to go on from.

*Bounded.*  A frontier of many times is replaced by a later one of one time: more counts as gone,
never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce

import msgspec

from headrace.epochs.core.antichains import Frontier, leave_out
from headrace.epochs.core.fronts import MAXIMAL_MAX, raised
from headrace.epochs.core.lines import Line
from headrace.epochs.core.times import Time, TimeShape

SINCE_MAX = 64

Scan = Callable[[int, int], Iterator[tuple[int, Line]]]
"""(number, line) from one number to another."""


class SegmentKept(msgspec.Struct, frozen=True, array_like=True):
    """Rows below ``tail`` are gone and counted; those at it are in ``line`` or a later one."""

    segment: int
    tail: int
    line: int


class KeptRows(msgspec.Struct, frozen=True, array_like=True):
    """What is left: all rows at or after ``since``."""

    since: Frontier
    line: int = 0
    """No earlier line has a row that is left."""
    segments: tuple[SegmentKept, ...] = ()


def all_kept(shape: TimeShape) -> KeptRows:
    """Nothing was trimmed."""
    return KeptRows((shape.bottom,))


def after_trim(
    shape: TimeShape, known: KeptRows, tails: Mapping[int, int], head: int, scan: Scan
) -> KeptRows:
    """What is left with these tails of segments, of lines up to ``head`` - 1."""
    places = {place.segment: place for place in known.segments}
    moved = {}
    for number, tail in tails.items():
        place = places.get(number, SegmentKept(number, 0, 0))
        if tail > place.tail:
            moved[number] = SegmentKept(number, place.tail, max(place.line, known.line))
    if not moved:
        return known
    since = _without(shape, known.since, _gone(moved, tails, head, scan, shape))
    stays = [place for place in known.segments if place.segment not in moved]
    segments = tuple(sorted([*stays, *moved.values()], key=lambda place: place.segment))
    return KeptRows(since, _first_left(known.line, tails, head, scan), segments)


def _gone(
    moved: dict[int, SegmentKept],
    tails: Mapping[int, int],
    head: int,
    scan: Scan,
    shape: TimeShape,
) -> Frontier:
    """The maximal times of newly trimmed rows; moves the places on."""
    gone: Frontier = ()
    waiting = set(moved)
    for number, line in scan(min(place.line for place in moved.values()), head):
        times: set[Time] = set()
        for time, span, rows in line.spans_at(lambda _: True):
            place = moved.get(span.segment)
            if place is None or not rows or span.segment not in waiting:
                continue
            if place.tail < span.end and span.start < tails[span.segment]:
                times.add(time)
        if times:
            gone = raised(shape, gone, sorted(times), MAXIMAL_MAX)
        for span in line.spans:
            if span.segment in waiting and span.end >= tails[span.segment]:
                waiting.remove(span.segment)
                moved[span.segment] = SegmentKept(span.segment, tails[span.segment], number)
        if not waiting:
            break
    for segment in waiting:  # rows without a line: none of an epoch
        moved[segment] = SegmentKept(segment, tails[segment], head)
    return gone


def _first_left(line: int, tails: Mapping[int, int], head: int, scan: Scan) -> int:
    """The first line from ``line`` on with a row that is left."""
    for number, found in scan(line, head):
        if any(span.end > tails.get(span.segment, 0) for span in found.spans):
            return number
    return head


def _without(shape: TimeShape, since: Frontier, gone: Frontier) -> Frontier:
    since = leave_out(shape, since, gone)
    if len(since) > SINCE_MAX:
        return (reduce(shape.join, since),)
    return since


encode_kept = msgspec.msgpack.Encoder().encode
decode_kept = msgspec.msgpack.Decoder(KeptRows).decode
