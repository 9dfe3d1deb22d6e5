"""Where the rows of a work queue come from, for elastic groups whose source is in several regions.

A group's progress is in its queue, and means nothing in another region; that of the source does.
So a round writes down, beside each batch of the queue, which offsets of the source its rows are.
That is kept apart from the rows: acks are translated without reading an event, compaction and
files have nothing to do with it, and it stays until then, however early the queue is trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.catalog.transaction import Tx

_PLACES = "segment_id, start_offset, end_offset, source_id, first_place, places"


class SourceSpan(msgspec.Struct, frozen=True):
    """Rows of a batch that come from one segment of the source, in its order."""

    source_id: int
    rows: int
    first: int
    """The lowest of their offsets in the source."""
    places: bytes
    """Their offsets in the source, as the group encodes them."""


class QueuedSpan(msgspec.Struct, frozen=True):
    """Rows of the queue, at the offsets ``start`` to ``end`` - 1, that come from one segment."""

    segment_id: int
    start: int
    end: int
    source_id: int
    first: int
    places: bytes


def record(tx: Tx, segment_id: int, start: int, given: Iterable[SourceSpan]) -> None:
    """A batch of the queue was placed at ``start``."""
    rows = []
    for span in given:
        end = start + span.rows
        rows.append((segment_id, start, end, span.source_id, span.first, span.places))
        start = end
    tx.executemany(f"INSERT INTO queue_places ({_PLACES}) VALUES (?, ?, ?, ?, ?, ?)", rows)


def between(tx: Tx, segment_id: int, lo: int, hi: int) -> list[QueuedSpan]:
    """The spans that hold some of the queue's offsets ``lo`` to ``hi`` - 1, ascending."""
    rows = tx.rows(
        f"SELECT {_PLACES} FROM queue_places WHERE segment_id = ? AND end_offset > ? "
        "AND start_offset < ? ORDER BY start_offset",
        (segment_id, lo, hi),
    )
    return [_span(row) for row in rows]


def _span(row: tuple[object, ...]) -> QueuedSpan:
    segment_id, start, end, source_id, first, places = row
    return QueuedSpan(
        int(segment_id),  # type: ignore[call-overload]
        int(start),  # type: ignore[call-overload]
        int(end),  # type: ignore[call-overload]
        int(source_id),  # type: ignore[call-overload]
        int(first),  # type: ignore[call-overload]
        bytes(places),  # type: ignore[call-overload]
    )


def lowest(tx: Tx, queue: str, source_id: int) -> int | None:
    """Below it, nothing of a segment of the source is in a queue; None if nothing is at all."""
    row = tx.row(
        "SELECT MIN(q.first_place) FROM queue_places AS q JOIN segments AS s "
        "ON s.id = q.segment_id JOIN streams AS t ON t.id = s.stream_id "
        "WHERE q.source_id = ? AND t.name = ?",
        (source_id, queue),
    )
    return None if row is None or row[0] is None else int(row[0])


def forget(tx: Tx, segment_id: int, before: int) -> None:
    """All rows below an offset of the queue are acked, and that was translated."""
    tx.execute(
        "DELETE FROM queue_places WHERE segment_id = ? AND end_offset <= ?", (segment_id, before)
    )


def drop(tx: Tx, segment_id: int) -> None:
    """Forget all places of a segment of a queue."""
    tx.execute("DELETE FROM queue_places WHERE segment_id = ?", (segment_id,))
