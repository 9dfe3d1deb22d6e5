"""Segments of which nothing is left: which of them every group has passed, and their end."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.catalog import lanes, streams
from headrace.catalog.streams import Segment
from headrace.catalog.transaction import Tx, in_parts


def passed(tx: Tx, stream_id: int, sealed_before_us: int) -> list[int]:
    """The numbers of segments that were sealed before a time, hold nothing, and nobody waits for.

    To a group, what it has no row for is still to come.  A segment that never held anything is
    passed by all.
    """
    rows = tx.rows(
        "SELECT s.number FROM segments AS s WHERE s.stream_id = ? AND s.sealed_us < ? "
        "AND s.tail = s.head AND s.lane IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM progress AS p "
        "WHERE p.segment_id = s.id AND p.floor < s.head) "
        "AND NOT EXISTS (SELECT 1 FROM subscriptions AS u LEFT JOIN progress AS p "
        "ON p.group_name = u.group_name AND p.segment_id = s.id "
        "WHERE u.stream_id = s.stream_id AND COALESCE(p.floor, 0) < s.head) ORDER BY s.number",
        (stream_id, sealed_before_us),
    )
    return [int(row[0]) for row in rows]


def is_gone(tx: Tx, name: str, number: int) -> bool:
    """Whether a stream is there and has a segment no longer that it once had."""
    row = tx.row(
        "SELECT s.next_segment > ? AND NOT EXISTS (SELECT 1 FROM segments "
        "WHERE stream_id = s.id AND number = ?) FROM streams AS s WHERE s.name = ?",
        (number, number, name),
    )
    return row is not None and bool(row[0])


def remove(tx: Tx, stream_id: int, segments: Sequence[Segment]) -> None:
    """Remove segments and what is known of them; none of them may have a predecessor that stays."""
    for part, marks in in_parts([segment.number for segment in segments]):
        tx.execute(
            f"DELETE FROM segment_edges WHERE stream_id = ? AND predecessor IN ({marks})",
            (stream_id, *part),
        )
    for segment in segments:
        lanes.drop(tx, segment.id)
    for part, marks in in_parts([segment.id for segment in segments]):
        tx.execute(f"DELETE FROM progress WHERE segment_id IN ({marks})", part)
        tx.execute(f"DELETE FROM progress_bases WHERE segment_id IN ({marks})", part)
        tx.execute(f"DELETE FROM segments WHERE id IN ({marks})", part)
    tx.notify(streams.channel(stream_id))
