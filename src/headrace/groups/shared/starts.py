"""Where a group begins in the streams that its filter can match.

The places are fixed once, in the transaction that makes the group: a row of progress for every
segment that exists then.  A segment without a row is younger than the group, so the group begins
at its first event.  That way every leader says the same, and a group collects from its first
moment on, with or without members.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from headrace.catalog import Tx, progress, streams
from headrace.catalog.streams import Segment, Stream
from headrace.catalog.transaction import Query as Asked
from headrace.errors import InvalidPositionError, StartBeforeHistoryError
from headrace.groups.progress import Progress, store
from headrace.groups.shared import ended_units
from headrace.log import order
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.rows import RowCursor
from headrace.log.times import TIME_MAX_US, TIME_MIN_US, to_us
from headrace.subjects import overlaps

Start: TypeAlias = str | datetime
"""``"earliest"``, ``"now"`` or a time."""

Places: TypeAlias = Mapping[int, Mapping[int, int]]
"""{stream id: {segment number: offset}} of a start by time."""


def check_start(start: Start) -> Start:
    """The start, or an error that says which there are."""
    if isinstance(start, datetime):
        if TIME_MIN_US <= to_us(start) <= TIME_MAX_US:
            return start
    elif start in ("earliest", "now"):
        return start
    raise InvalidPositionError(f"start={start!r}: give 'earliest', 'now' or a time with its zone")


def describe(start: Start) -> str:
    """A start as it is stored and shown."""
    if isinstance(start, datetime):
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=to_us(start))
        return moment.isoformat()
    return start


def asking() -> tuple[Asked, ...]:
    """The queries of :func:`matching`."""
    return streams.asking_all(internal=False)


def asking_begin(group: str) -> tuple[Asked, ...]:
    """The queries of :func:`begin`."""
    return (*asking(), *progress.asking(group))


def matching(tx: Tx, filter: str) -> list[Stream]:
    """The streams that can hold events of a filter; those of groups capture nothing."""
    return [
        stream
        for stream in streams.all_streams(tx, internal=False)
        if any(overlaps(filter, subject) for subject in stream.config.subjects)
    ]


def places_at(log: Log, filter: str, start: Start) -> Places:
    """Look a time up in the log; blocks.  Empty for the starts that need no looking up."""
    if not isinstance(start, datetime):
        return {}
    found: dict[int, dict[int, int]] = {}
    for stream in log.catalog.read(lambda tx: matching(tx, filter), snapshot=True):
        check_history(log, stream, start)
        reader = log.reader(stream.name, Query(start=start))
        here = reader.positions
        found[stream.id] = {s.number: here.get(s.number, s.head) for s in reader.stream.segments}
    return found


def check_history(log: Log, stream: Stream, start: datetime) -> None:
    """Refuse a time before what a stream still has, where something of it is gone."""
    for at, segment in enumerate(stream.segments):
        if segment.tail:
            begins_us = _first_time_us(log, stream, segment)
        elif not segment.predecessors and segment.number > at:
            begins_us = _known_since_us(log, stream, segment)  # what it followed may be gone
        else:
            continue
        if to_us(start) < begins_us:
            raise _before_history(stream, start, begins_us)


def check_made(log: Log, stream: Stream, start: datetime) -> None:
    """Refuse a time before a stream was made, or before its first event if that is older.

    Events bear the time that their publisher gives them, so there may be older ones.
    """
    begins_us = stream.created_us
    for segment in stream.segments:
        if to_us(start) >= begins_us:
            return
        begins_us = min(begins_us, _known_since_us(log, stream, segment))
    if to_us(start) < begins_us:
        raise _before_history(stream, start, begins_us)


def _before_history(stream: Stream, start: datetime, begins_us: int) -> StartBeforeHistoryError:
    begins = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=begins_us)
    return StartBeforeHistoryError(stream.name, describe(start), begins.isoformat())


def _known_since_us(log: Log, stream: Stream, segment: Segment) -> int:
    """When a segment was made, or the time of its first event if that is older."""
    if not segment.events:
        return segment.created_us
    return min(segment.created_us, _first_time_us(log, stream, segment))


def _first_time_us(log: Log, stream: Stream, segment: Segment) -> int:
    """The time of the first event that is still there."""
    cursor = RowCursor(log.catalog, log.store, stream.name, segment, segment.tail, lambda _: None)
    while cursor.position < segment.head:
        if rows := cursor.next(segment.head):
            return rows[0].timestamp_us
    return segment.max_ts_us + 1


def begin(tx: Tx, group: str, filter: str, start: Start, places: Places) -> None:
    """Write where a new group begins in everything that exists."""
    tx.foresee(*asking_begin(group))
    fresh = not progress.of_group(tx, group)
    for stream in matching(tx, filter):
        progress.subscribe(tx, stream.id, group)
        offsets = {}
        for segment in stream.segments:
            offset = _offset(segment, start, places.get(stream.id))
            if offset is not None:
                offsets[segment.number] = offset
        ids = {segment.number: segment.id for segment in stream.segments}
        begun = {ids[number]: Progress(offset) for number, offset in offsets.items()}
        if fresh:
            store.begin(tx, group, begun)
        else:
            store.join(tx, group, begun)
        for number in sorted(order.standing_at(stream.segments, offsets).finished):
            if number in offsets:
                ended_units.put_finished(tx, group, f"{stream.name}/{number}", ids[number])


def _offset(segment: Segment, start: Start, places: Mapping[int, int] | None) -> int | None:
    if start == "earliest":
        return segment.tail
    if start == "now":
        return segment.head
    # A stream or a segment that appeared after the look-up is younger than the group.
    return None if places is None else places.get(segment.number)
