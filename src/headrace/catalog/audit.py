"""What only an audit asks of the catalog: rows whose owners are gone, and the file's own state."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.catalog.keys import TABLES, is_damaged, remedy, shown
from headrace.catalog.progress import Progress, with_base
from headrace.catalog.transaction import Tx

_OWNERS = (
    ("segments", "stream_id", "streams"),
    ("segment_edges", "stream_id", "streams"),
    ("subscriptions", "stream_id", "streams"),
    ("batches", "segment_id", "segments"),
    ("markers", "segment_id", "segments"),
    ("progress", "segment_id", "segments"),
    ("progress_bases", "segment_id", "segments"),
    ("queue_places", "segment_id", "segments"),
)


_KEYS = (
    ("leases", "name"),
    ("claims", "group_name"),
    ("claims", "unit"),
    ("progress", "group_name"),
    ("subscriptions", "group_name"),
    ("decisions", "group_key"),
    ("producers", "producer"),
)

_TOMBSTONES = (("leases", "name"), ("claims", "unit"))
"""A row without a name keeps the highest token of what was deleted."""


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


def damaged_keys(tx: Tx) -> list[str]:
    """Records under keys that no program stores."""
    found = []
    keys = [(each, key) for each, key in tx.rows("SELECT bucket, key FROM entries")]
    keys += [
        (each, key) for each in TABLES for (key,) in tx.rows(f"SELECT name FROM {TABLES[each]}")
    ]
    for where, key in keys:
        if is_damaged(key):
            found.append(f"the key '{shown(key)}' of {where} is damaged; {remedy(where, key)}")
    for table, column in _KEYS:
        for (key,) in tx.rows(f"SELECT DISTINCT {column} FROM {table}"):
            if is_damaged(key) and not (key == "" and (table, column) in _TOMBSTONES):
                found.append(f"the {column} '{shown(key)}' of rows of {table} is damaged")
    return found


def uncounted(tx: Tx) -> list[str]:
    """Entries of a bucket that never counted them: the name of the bucket, or a count, is wrong."""
    rows = tx.rows(
        "SELECT e.bucket, max(e.revision), max(b.revision) FROM entries e "
        "LEFT JOIN buckets b ON b.bucket = e.bucket GROUP BY e.bucket"
    )
    return [
        f"bucket {bucket!r} holds revision {last}, and counted to {counted or 0}"
        for bucket, last, counted in rows
        if counted is None or last > counted
    ]


def numbers_given(tx: Tx) -> dict[str, int]:
    """How many segments each stream has had; their numbers are below that."""
    return {str(name): int(n) for name, n in tx.rows("SELECT name, next_segment FROM streams")}


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
        yield with_base(tx, Progress(group, segment_id, floor, bytes(state))), head


def producer_rows(tx: Tx) -> Iterator[tuple[str, int, bytes]]:
    """(producer, sequence, positions) of all that is remembered of producers."""
    for producer, sequence, positions in tx.rows(
        "SELECT producer, sequence, positions FROM producers ORDER BY scope, producer, sequence"
    ):
        yield producer, sequence, bytes(positions)
