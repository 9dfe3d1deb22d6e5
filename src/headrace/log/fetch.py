"""Fetch: one event by its position."""

from __future__ import annotations

from headrace.errors import InvalidPositionError
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.position import Position
from headrace.log.query import Query


def fetch_event(log: Log, position: Position) -> Event:
    """The event at a position; raises if there is none yet, or none any more."""
    stream, segment, offset = position.stream, position.segment, position.offset
    start = {segment: offset}
    until = {segment: offset + 1}
    reader = log.reader(stream, Query(start=start, until=until, segments=[segment], limit=1))
    while not reader.done:
        batch = reader.next()
        if batch is None:
            break
        for row in batch.to_pylist():
            headers = row.get("headers") or []
            return Event(
                subject=row["subject"],
                value=row["value"],
                key=row.get("key"),
                headers=[(each["key"], each["value"]) for each in headers],
                timestamp=row["timestamp"],
                epoch=None if row.get("epoch") is None else tuple(row["epoch"]),
            )
    raise InvalidPositionError(
        f"there is no event at offset {offset} of segment {segment} of stream {stream!r}"
    )
