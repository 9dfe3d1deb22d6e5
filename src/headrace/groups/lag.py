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

from collections.abc import Iterable, Sequence

import msgspec

from headrace.catalog.overview import Reached
from headrace.catalog.streams import Segment, Stream
from headrace.groups.progress import glance
from headrace.subjects.filters import covers

_RENAMED = {"events": "lag_events", "bytes": "lag_bytes", "seconds": "lag_seconds"}


class UnitLag(msgspec.Struct, frozen=True, kw_only=True, rename=_RENAMED):
    """What is not acked of one unit."""

    unit: str
    """A partition's number, ``stream/segment``, or the member whose share of a stream it is."""
    member: str | None = None
    """To whom it is given."""
    partitions: tuple[int, ...] = ()
    """Of a partitioned group: what the unit holds."""
    events: int = 0
    bytes: int = 0
    seconds: float = 0.0
    exact: bool = True
    """False where a filter may exclude some of the events: there are at most so many."""
    lost_to_trimming: int = 0


class GroupLag(msgspec.Struct, frozen=True, kw_only=True, rename=_RENAMED):
    """How far a group is behind."""

    group: str
    kind: str
    events: int
    bytes: int
    seconds: float
    exact: bool
    lost_to_trimming: int
    source_events: int = 0
    """Of an elastic group: events of the source that are not in its work queue yet."""
    source_bytes: int = 0
    source_seconds: float = 0.0
    units: tuple[UnitLag, ...] = ()
    finding: str = ""
    """Why the work queue is not filled, if it is not."""

    @property
    def parts(self) -> tuple[UnitLag, ...]:
        """The units, by their older name."""
        return self.units


def is_exact(filters: Iterable[str], stream: Stream) -> bool:
    """Whether everything that a stream captures passes the filters, by their texts alone."""
    wanted = [filter or ">" for filter in filters]
    return all(any(covers(one, each) for one in wanted) for each in stream.config.subjects)


def unit_lag(
    unit: str,
    reached: Reached | None,
    segment: Segment,
    now_us: int,
    *,
    member: str | None = None,
    partitions: tuple[int, ...] = (),
    exact: bool = True,
    markers: int = 0,
) -> UnitLag:
    """What a group has not acked in a segment; ``markers`` are not events among what it misses."""
    if reached is None:
        kept, lost = segment.head - segment.tail, segment.tail
    else:
        try:
            kept, lost = glance.unacked(reached.state, reached.floor, segment.tail, segment.head)
        except (msgspec.DecodeError, ValueError):  # damaged: the floor is known all the same
            kept, lost = glance.unacked(b"", reached.floor, segment.tail, segment.head)
            exact = False
    events = kept - markers
    if events <= 0 or reached is None or reached.start is None:
        return UnitLag(
            unit=unit,
            member=member,
            partitions=partitions,
            events=max(0, events),
            exact=exact or events <= 0,
            lost_to_trimming=lost,
        )
    return UnitLag(
        unit=unit,
        member=member,
        partitions=partitions,
        events=events,
        bytes=_bytes_left(reached, segment),
        seconds=max(0.0, (now_us - (reached.created_us or now_us)) / 1e6),
        exact=exact,
        lost_to_trimming=lost,
    )


def _bytes_left(reached: Reached, segment: Segment) -> int:
    """The bytes from the first unacked event on; within its batch by the number of events."""
    assert reached.start is not None and reached.end is not None
    assert reached.size_bytes is not None and reached.total_bytes is not None
    left = reached.end - max(reached.start, reached.floor, segment.tail)
    part = reached.size_bytes * left // (reached.end - reached.start)
    return max(0, segment.bytes - reached.total_bytes + part)


def total(
    group: str,
    kind: str,
    units: Sequence[UnitLag],
    source: Sequence[UnitLag] = (),
    *,
    events: int | None = None,
    finding: str = "",
) -> GroupLag:
    """The lag of a group; ``events`` where its units miss some of the same ones."""
    both = (*units, *source)
    of_units = sum(unit.events for unit in units) if events is None else events
    return GroupLag(
        group=group,
        kind=kind,
        events=of_units + sum(unit.events for unit in source),
        bytes=sum(unit.bytes for unit in both),
        seconds=max((unit.seconds for unit in both), default=0.0),
        exact=all(unit.exact for unit in both),
        lost_to_trimming=sum(unit.lost_to_trimming for unit in both),
        source_events=sum(unit.events for unit in source),
        source_bytes=sum(unit.bytes for unit in source),
        source_seconds=max((unit.seconds for unit in source), default=0.0),
        units=tuple(units),
        finding=finding,
    )


def missed(reached: Reached | None, segment: Segment) -> list[tuple[int, int]]:
    """The retained ranges of a segment that a reader has not acked."""
    floor, deltas = (0, []) if reached is None else (reached.floor, [])
    if reached is not None and reached.state:
        try:
            deltas = glance.deltas_of(reached.state)
        except msgspec.DecodeError:
            deltas = []
    found = glance.missing(floor, deltas, segment.head)
    return [(max(lo, segment.tail), hi) for lo, hi in found if hi > segment.tail]


def together(parts: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, int]:
    """How many offsets at least one of several lists of ranges holds, and how many all of them.

    >>> together([[(0, 8)], [(4, 8)]])
    (8, 4)
    """
    edges = sorted(
        edge for ranges in parts for lo, hi in ranges for edge in ((lo, 1), (hi, -1))
    )
    some = every = depth = last = 0
    for at, step in edges:
        if depth:
            some += at - last
        if depth == len(parts):
            every += at - last
        depth, last = depth + step, at
    return some, every
