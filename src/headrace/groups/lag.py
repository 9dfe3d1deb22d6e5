"""Lag: how far groups are behind, in events, bytes and seconds; one answer for every kind.

A unit's *events* are those that the log retains and the group has not acked; markers are none.
*Bytes* are those of the batches from the first such event on, *seconds* the time since that event
was appended.  The lag of a group is the sum of its units' events and bytes and the greatest of
their seconds.  For an elastic group that includes the *source*: what no round has put into its work
queue yet.

What a filter excludes does not count.  Where the filter lets everything of a stream pass, all is
known; elsewhere an event that nobody has looked at yet may or may not count, and the figure is an
upper bound: ``exact`` is false.  Members that read shares of the same segments miss the same
events: those count once.

What was trimmed before the group acked it will never be consumed.  It is no lag, and counted apart
(``lost_to_trimming``, an upper bound as well: nobody can look at it any more).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from headrace.catalog.overview import Reached
from headrace.catalog.streams import Segment, Stream
from headrace.groups.progress import glance
from headrace.groups.shapes import GroupLag, UnitView
from headrace.subjects import covers

OffsetRanges: TypeAlias = list[tuple[int, int]]
"""Offsets from the first of each pair up to the second, which is not included."""


def is_exact(filters: Iterable[str], stream: Stream) -> bool:
    """Whether everything that a stream captures passes the filters, by their texts alone."""
    wanted = [filter or ">" for filter in filters]
    return all(any(covers(one, each) for one in wanted) for each in stream.config.subjects)


def unit_view(
    frame: UnitView, reached: Reached | None, segment: Segment, now_us: int, markers: int = 0
) -> UnitView:
    """A unit with what the group has not acked of it; ``frame`` tells what else there is to it.

    Its ``exact`` tells whether all of the segment counts.  ``markers`` are among what is not acked,
    and are no events.  A look at everything makes ten thousand of them, so nothing is called here
    that need not be.
    """
    floor, record, start, end, batch, total, created_us = reached or _NOTHING
    tail, head, exact = segment.tail, segment.head, frame.exact
    try:
        kept, lost = glance.unacked(record, floor, tail, head)
    except (msgspec.DecodeError, ValueError):  # damaged: the floor is known all the same
        kept, lost = glance.unacked(b"", floor, tail, head)
        exact = False
    events = kept - markers
    size, seconds = 0, 0.0
    if events <= 0:
        events, exact = 0, True
    elif start is not None and end is not None and batch is not None and total is not None:
        # Bytes from the first unacked event on, within its batch by the number of events.
        first = floor if floor > tail else tail
        rest = end - (start if start > first else first)
        size = segment.bytes - total + batch * rest // (end - start)
        size = size if size > 0 else 0
        if created_us is not None and created_us < now_us:
            seconds = (now_us - created_us) / 1e6
    return replace(
        frame,
        floor=floor,
        head=head,
        events=events,
        bytes=size,
        seconds=seconds,
        exact=exact,
        lost_to_trimming=lost,
    )


_NOTHING = Reached(0, b"", None, None, None, None, None)
"""How far somebody is who has not begun in a segment where there is nothing."""


def total(
    group: str,
    kind: str,
    units: Sequence[UnitView],
    source: Sequence[UnitView] = (),
    *,
    finding: str = "",
) -> GroupLag:
    """The lag of a group that has these units, and this left in its source; without the units."""
    events, size, seconds, exact, lost = _sums(units)
    left, left_bytes, left_s, left_exact, left_lost = _sums(source)
    return GroupLag(
        group=group,
        kind=kind,
        events=events + left,
        bytes=size + left_bytes,
        seconds=max(seconds, left_s),
        exact=exact and left_exact,
        lost_to_trimming=lost + left_lost,
        source_events=left,
        source_bytes=left_bytes,
        source_seconds=left_s,
        finding=finding,
    )


def aged(units: Sequence[UnitView], by_us: int) -> tuple[UnitView, ...]:
    """Units of which nothing has changed but that it is later."""
    return tuple(
        [
            replace(unit, seconds=(round(seconds * 1e6) + by_us) / 1e6)
            if (seconds := unit.seconds)
            else unit
            for unit in units
        ]
    )


def later(unit: UnitView, reached: Reached | None, now_us: int) -> UnitView:
    """A unit as :func:`unit_view` made it of this progress, at another time."""
    if reached is None or not unit.events or reached.size_bytes is None:
        return unit
    created_us = reached.created_us
    age_us = 0 if created_us is None else max(0, now_us - created_us)
    seconds = age_us / 1e6
    return unit if seconds == unit.seconds else replace(unit, seconds=seconds)


def later_s(seconds: float, by_us: int) -> float:
    """How long ago something was that was so long ago; 0 if nothing was."""
    return (round(seconds * 1e6) + by_us) / 1e6 if seconds else 0.0


def _sums(units: Sequence[UnitView]) -> tuple[int, int, float, bool, int]:
    """Events, bytes, seconds, whether exact, and what was lost to trimming, of several units."""
    events = size = lost = 0
    seconds, exact = 0.0, True
    for unit in units:
        events += unit.events
        size += unit.bytes
        lost += unit.lost_to_trimming
        if unit.seconds > seconds:
            seconds = unit.seconds
        if not unit.exact:
            exact = False
    return events, size, seconds, exact, lost


def joined(parts: Sequence[UnitView], **about: Any) -> UnitView:
    """The parts of one reader in several segments, as one unit."""
    return UnitView(
        events=sum(part.events for part in parts),
        bytes=sum(part.bytes for part in parts),
        seconds=max((part.seconds for part in parts), default=0.0),
        exact=all(part.exact for part in parts),
        lost_to_trimming=sum(part.lost_to_trimming for part in parts),
        **about,
    )


def counted_once(
    units: Sequence[UnitView],
    segment: Segment,
    ranges: Sequence[OffsetRanges],
    markers: Callable[[Reached | None, Segment], int],
) -> UnitView:
    """What several members that read shares of one segment have not acked, counted once.

    ``ranges`` is what each of them misses.  An event that only some of them miss may be somebody's
    who has acked it, so the count is an upper bound.
    """
    some, every = together([_above(each, segment.tail) for each in ranges])
    lost, _ = together([_below(each, segment.tail) for each in ranges])
    events = min(some, segment.head - segment.tail - (markers(None, segment)))
    return UnitView(
        unit=str(segment.number),
        events=events,
        bytes=max((unit.bytes for unit in units), default=0),
        seconds=max((unit.seconds for unit in units), default=0.0),
        exact=not events or (some == every and all(unit.exact for unit in units)),
        lost_to_trimming=lost,
    )


def missed(reached: Reached | None, head: int) -> OffsetRanges:
    """The ranges of a segment that a reader has not acked, trimmed or not."""
    if reached is None:
        return [(0, head)] if head else []
    try:
        deltas = glance.deltas_of(reached.state) if reached.state else []
    except msgspec.DecodeError:
        deltas = []
    return glance.missing(reached.floor, deltas, head)


def _above(ranges: OffsetRanges, tail: int) -> OffsetRanges:
    return [(max(lo, tail), hi) for lo, hi in ranges if hi > tail]


def _below(ranges: OffsetRanges, tail: int) -> OffsetRanges:
    return [(lo, min(hi, tail)) for lo, hi in ranges if lo < tail]


def together(parts: Sequence[OffsetRanges]) -> tuple[int, int]:
    """How many offsets at least one of several lists of ranges holds, and how many all of them.

    >>> together([[(0, 8)], [(4, 8)]])
    (8, 4)
    """
    edges = sorted(edge for ranges in parts for lo, hi in ranges for edge in ((lo, 1), (hi, -1)))
    some = every = depth = last = 0
    for at, step in edges:
        if depth:
            some += at - last
        if depth == len(parts):
            every += at - last
        depth, last = depth + step, at
    return some, every
