"""Lag: how far a group is behind, per unit and in all, in events, bytes and seconds.

It is read from the catalog alone, so any process can tell, whether members run or not.  An event
counts until its ack is stored.  Seconds are the time since the oldest such event was appended;
bytes count evenly within a stored batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.catalog import Tx, batches, markers, streams
from headrace.catalog import progress as stored
from headrace.catalog.streams import Segment, Stream
from headrace.groups.progress import Progress


class UnitLag(msgspec.Struct, frozen=True):
    """How far a group is behind in one segment."""

    stream: str
    segment: int
    floor: int
    head: int
    events: int
    bytes: int
    seconds: float


class GroupLag(msgspec.Struct, frozen=True):
    """How far a group is behind; ``seconds`` is that of the unit that is furthest behind."""

    group: str
    events: int
    bytes: int
    seconds: float
    units: tuple[UnitLag, ...]


def group_lag(tx: Tx, group: str, stream: str, segments: Iterable[int] | None = None) -> GroupLag:
    """The lag of a group in a stream; run it in ``catalog.read(…, snapshot=True)``.

    ``group`` is the name under which its progress is kept.  A segment in which the group has
    no progress yet counts from the first event that is retained.
    """
    found = streams.require(tx, stream)
    wanted = None if segments is None else set(segments)
    now_us = tx.now_us()
    units = tuple(
        unit_lag(tx, group, found, segment, now_us)
        for segment in found.segments
        if wanted is None or segment.number in wanted
    )
    return total(group, units)


def total(group: str, units: Iterable[UnitLag]) -> GroupLag:
    """The lag of units of one group together, of whatever streams."""
    found = tuple(units)
    return GroupLag(
        group,
        sum(unit.events for unit in found),
        sum(unit.bytes for unit in found),
        max((unit.seconds for unit in found), default=0.0),
        found,
    )


def unit_lag(tx: Tx, group: str, stream: Stream, segment: Segment, now_us: int) -> UnitLag:
    """The lag of a group in one segment."""
    row = stored.get(tx, group, segment.id)
    if row is None:
        acked = Progress(segment.tail).acked()
    else:
        acked = (Progress.decode(row.state) if row.state else Progress(row.floor)).acked()
    floor = min(max(acked.floor, segment.tail), segment.head)
    events = markers.events_in(tx, segment, acked.missing(segment.head))
    size = seconds = 0.0
    if events:
        behind = segment.bytes - batches.bytes_before(tx, segment, floor)
        size = behind * events / max(1, segment.head - floor)
        since = tx.row(
            "SELECT created_us FROM batches WHERE segment_id = ? AND start_offset <= ? "
            "ORDER BY start_offset DESC LIMIT 1",
            (segment.id, floor),
        )
        seconds = 0.0 if since is None else max(0.0, (now_us - since[0]) / 1e6)
    return UnitLag(stream.name, segment.number, floor, segment.head, events, int(size), seconds)
