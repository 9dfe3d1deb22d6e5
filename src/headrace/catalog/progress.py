"""How far groups have come: per group and segment, the floor and the state above it.

``floor`` is plain, so that retention can compare it; ``state`` (acked ranges, attempts) is the
group's own and opaque here.  A group counts for a stream's retention once it is subscribed.
"""

from __future__ import annotations

import msgspec

from headrace.catalog.transaction import Tx


class Progress(msgspec.Struct, frozen=True):
    """A group's place in one segment: everything below ``floor`` is acked."""

    group: str
    segment_id: int
    floor: int
    state: bytes = b""


def subscribe(tx: Tx, stream_id: int, group: str) -> None:
    """From now on, this group holds back the stream's retention."""
    tx.execute(
        "INSERT INTO subscriptions (stream_id, group_name, created_us) VALUES (?, ?, ?) "
        "ON CONFLICT (stream_id, group_name) DO NOTHING",
        (stream_id, group, tx.now_us()),
    )


def unsubscribe(tx: Tx, stream_id: int, group: str) -> None:
    """Forget the group and its progress in this stream."""
    tx.execute(
        "DELETE FROM progress WHERE group_name = ? AND segment_id IN "
        "(SELECT id FROM segments WHERE stream_id = ?)",
        (group, stream_id),
    )
    tx.execute(
        "DELETE FROM subscriptions WHERE stream_id = ? AND group_name = ?", (stream_id, group)
    )


def subscribed(tx: Tx, stream_id: int) -> list[str]:
    rows = tx.rows(
        "SELECT group_name FROM subscriptions WHERE stream_id = ? ORDER BY group_name", (stream_id,)
    )
    return [str(row[0]) for row in rows]


def get(tx: Tx, group: str, segment_id: int) -> Progress | None:
    row = tx.row(
        "SELECT floor, state FROM progress WHERE group_name = ? AND segment_id = ?",
        (group, segment_id),
    )
    return None if row is None else Progress(group, segment_id, row[0], bytes(row[1]))


def put(tx: Tx, progress: Progress) -> None:
    """Record progress; the floor never falls (a reset deletes the row first)."""
    tx.execute(
        "INSERT INTO progress (group_name, segment_id, floor, state) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (group_name, segment_id) DO UPDATE "
        "SET floor = excluded.floor, state = excluded.state "
        "WHERE excluded.floor >= progress.floor",
        (progress.group, progress.segment_id, progress.floor, progress.state),
    )


def floors(tx: Tx, segment_id: int) -> dict[str, int]:
    rows = tx.rows("SELECT group_name, floor FROM progress WHERE segment_id = ?", (segment_id,))
    return {str(group): int(floor) for group, floor in rows}
