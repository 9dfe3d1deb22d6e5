"""What only an audit asks of the catalog: rows whose owners are gone, and the file's own state."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog.progress import Progress
from headrace.catalog.transaction import Tx

_OWNERS = (
    ("segments", "stream_id", "streams"),
    ("segment_edges", "stream_id", "streams"),
    ("subscriptions", "stream_id", "streams"),
    ("batches", "segment_id", "segments"),
    ("markers", "segment_id", "segments"),
    ("progress", "segment_id", "segments"),
)


def integrity(tx: Tx) -> list[str]:
    """What SQLite finds wrong with its file: pages, indexes, and rows without an entry in one."""
    return [str(row[0]) for row in tx.rows("PRAGMA integrity_check(20)") if row[0] != "ok"]


def ownerless(tx: Tx) -> list[str]:
    """Rows of streams and segments that do not exist."""
    found = []
    for table, column, owner in _OWNERS:
        rows = tx.rows(
            f"SELECT {column}, count(*) FROM {table} WHERE {column} NOT IN "
            f"(SELECT id FROM {owner}) GROUP BY {column} ORDER BY {column}"
        )
        found += [f"{count} rows of {table} have no {column} {key}" for key, count in rows]
    return found


def marker_rows(tx: Tx, segment_id: int) -> list[tuple[int, int]]:
    """(offset, running number) of a segment's markers."""
    rows = tx.rows(
        "SELECT at_offset, total FROM markers WHERE segment_id = ? ORDER BY at_offset",
        (segment_id,),
    )
    return [(offset, total) for offset, total in rows]


def progress_rows(tx: Tx) -> Iterator[tuple[Progress, int | None]]:
    """The progress of all groups, each with the head of its segment."""
    rows = tx.rows(
        "SELECT group_name, segment_id, floor, state, head FROM progress "
        "LEFT JOIN segments ON segments.id = segment_id ORDER BY group_name, segment_id"
    )
    for group, segment_id, floor, state, head in rows:
        yield Progress(group, segment_id, floor, bytes(state)), head


def producer_rows(tx: Tx) -> Iterator[tuple[str, int, bytes]]:
    """(producer, sequence, positions) of all that is remembered of producers."""
    for producer, sequence, positions in tx.rows(
        "SELECT producer, sequence, positions FROM producers ORDER BY scope, producer, sequence"
    ):
        yield producer, sequence, bytes(positions)
