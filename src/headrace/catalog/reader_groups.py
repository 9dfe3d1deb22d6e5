"""Reader groups: config, snapshot and log of each, and what was acked at its checkpoints.

A row of ``reader_groups`` tells how far the log has come, and a *stamp*: a hash that is carried on
from entry to entry.  A replica carries the same hash along, so whether it has followed this very
log, and not one that was rolled back or of an earlier group of the name, is one comparison.

What a config, a snapshot and an entry hold is the business of ``groups/readers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from headrace.catalog.keys import check_key
from headrace.catalog.progress import Progress
from headrace.catalog.transaction import Row, Tx, in_parts


class ReaderGroupRow(msgspec.Struct, frozen=True):
    """A group as it stands; ``config`` is None after it was deleted."""

    name: str
    config: bytes | None
    revision: int
    stamp: int
    snapshot_revision: int
    snapshot_stamp: int
    log_bytes: int


class Version(msgspec.Struct, frozen=True):
    """What tells whether a group has changed."""

    stamp: int
    revision: int
    config: bytes | None


_ROW = "name, config, revision, stamp, snapshot_revision, snapshot_stamp, log_bytes"


def channel(name: str) -> str:
    """The channel that is notified when the group's state or config changes."""
    return f"reader-group:{name}"


ALL = "reader-groups"
"""The channel that is notified when a group is made, changed or deleted."""


def lock(name: str) -> str:
    """Held while the group's state is changed."""
    return f"reader-group:{name}"


def carried(stamp: int, data: bytes) -> int:
    """The stamp of a log that goes on with ``data``."""
    digest = blake2b(stamp.to_bytes(8, "big") + data, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def get(tx: Tx, name: str) -> ReaderGroupRow | None:
    """The row of a group, also of one that was deleted."""
    row = tx.row(f"SELECT {_ROW} FROM reader_groups WHERE name = ?", (name,))
    return None if row is None else _row(row)


def all_rows(tx: Tx) -> list[ReaderGroupRow]:
    """Every group that there is, by name."""
    rows = tx.rows(f"SELECT {_ROW} FROM reader_groups WHERE config IS NOT NULL ORDER BY name")
    return [_row(row) for row in rows]


def all_names(tx: Tx) -> list[str]:
    """The names of every group that there is, sorted."""
    rows = tx.rows("SELECT name FROM reader_groups WHERE config IS NOT NULL ORDER BY name")
    return [row[0] for row in rows]


def versions(tx: Tx, names: Sequence[str]) -> dict[str, Version]:
    """Those of the groups that there are."""
    found: dict[str, Version] = {}
    for part, marks in in_parts(names):
        rows = tx.rows(
            "SELECT name, stamp, revision, config FROM reader_groups "
            f"WHERE config IS NOT NULL AND name IN ({marks})",
            part,
        )
        found |= {name: Version(at, revision, bytes(config)) for name, at, revision, config in rows}
    return found


def _row(row: Row) -> ReaderGroupRow:
    name, config, *numbers = row
    return ReaderGroupRow(name, None if config is None else bytes(config), *map(int, numbers))


def create(tx: Tx, name: str, config: bytes, snapshot: Sequence[bytes], revision: int) -> None:
    """Begin a group at a revision that is higher than any its name ever had."""
    check_key(name, "a reader group's name")
    stamp = carried(revision, config)
    tx.execute(
        f"INSERT INTO reader_groups ({_ROW}) VALUES (?, ?, ?, ?, ?, ?, 0) "
        "ON CONFLICT (name) DO UPDATE SET config = excluded.config, "
        "revision = excluded.revision, stamp = excluded.stamp, "
        "snapshot_revision = excluded.snapshot_revision, "
        "snapshot_stamp = excluded.snapshot_stamp, log_bytes = 0",
        (name, config, revision, stamp, revision, stamp),
    )
    _put_snapshot(tx, name, snapshot)
    tx.notify(channel(name))
    tx.notify(ALL)


def configure(tx: Tx, name: str, config: bytes) -> None:
    """Store the config of a group."""
    tx.execute("UPDATE reader_groups SET config = ? WHERE name = ?", (config, name))
    tx.notify(channel(name))
    tx.notify(ALL)


def delete(tx: Tx, name: str) -> None:
    """Delete a group but for its revision."""
    tx.execute(
        "UPDATE reader_groups SET config = NULL, snapshot_revision = revision, log_bytes = 0 "
        "WHERE name = ?",
        (name,),
    )
    for table in ("reader_snapshots", "reader_log", "reader_checkpoints"):
        tx.execute(f"DELETE FROM {table} WHERE group_name = ?", (name,))
    tx.notify(channel(name))
    tx.notify(ALL)


def append(tx: Tx, row: ReaderGroupRow, data: bytes) -> ReaderGroupRow:
    """Add the next entry to the log of a group that is at ``row``."""
    after = msgspec.structs.replace(
        row,
        revision=row.revision + 1,
        stamp=carried(row.stamp, data),
        log_bytes=row.log_bytes + len(data),
    )
    tx.execute(
        "INSERT INTO reader_log (group_name, revision, at_us, data) VALUES (?, ?, ?, ?)",
        (row.name, after.revision, tx.now_us(), data),
    )
    tx.execute(
        "UPDATE reader_groups SET revision = ?, stamp = ?, log_bytes = ? WHERE name = ?",
        (after.revision, after.stamp, after.log_bytes, row.name),
    )
    tx.notify(channel(row.name))
    return after


def compact(tx: Tx, row: ReaderGroupRow, snapshot: Sequence[bytes]) -> None:
    """Replace the log up to ``row`` by a snapshot."""
    _put_snapshot(tx, row.name, snapshot)
    tx.execute(
        "UPDATE reader_groups SET snapshot_revision = ?, snapshot_stamp = ?, log_bytes = 0 "
        "WHERE name = ?",
        (row.revision, row.stamp, row.name),
    )
    tx.execute(
        "DELETE FROM reader_log WHERE group_name = ? AND revision <= ?", (row.name, row.revision)
    )


def _put_snapshot(tx: Tx, name: str, parts: Sequence[bytes]) -> None:
    tx.execute("DELETE FROM reader_snapshots WHERE group_name = ?", (name,))
    tx.executemany(
        "INSERT INTO reader_snapshots (group_name, part, data) VALUES (?, ?, ?)",
        [(name, number, part) for number, part in enumerate(parts)],
    )


def snapshot(tx: Tx, name: str) -> list[bytes]:
    """The parts of the snapshot."""
    rows = tx.rows("SELECT data FROM reader_snapshots WHERE group_name = ? ORDER BY part", (name,))
    return [bytes(row[0]) for row in rows]


class StoredState(msgspec.Struct, frozen=True):
    """A snapshot in its parts, and the entries of the log since."""

    snapshot: list[bytes]
    entries: list[bytes]


def states(tx: Tx, name: str | None = None) -> dict[str, StoredState]:
    """The states of all groups that there are, or of one, by name; in two statements."""
    one = "" if name is None else " AND g.name = ?"
    params = () if name is None else (name,)
    found: dict[str, StoredState] = {}
    for group, data in tx.rows(
        "SELECT g.name, s.data FROM reader_groups g JOIN reader_snapshots s ON "
        f"s.group_name = g.name WHERE g.config IS NOT NULL{one} ORDER BY g.name, s.part",
        params,
    ):
        found.setdefault(group, StoredState([], [])).snapshot.append(bytes(data))
    for group, data in tx.rows(
        "SELECT g.name, l.data FROM reader_groups g JOIN reader_log l ON l.group_name = g.name "
        f"AND l.revision > g.snapshot_revision WHERE g.config IS NOT NULL{one} "
        "ORDER BY g.name, l.revision",
        params,
    ):
        found.setdefault(group, StoredState([], [])).entries.append(bytes(data))
    return found


def log_after(tx: Tx, name: str, revision: int) -> list[bytes]:
    """The entries of the log after a revision."""
    rows = tx.rows(
        "SELECT data FROM reader_log WHERE group_name = ? AND revision > ? ORDER BY revision",
        (name, revision),
    )
    return [bytes(row[0]) for row in rows]


# --- what was acked at checkpoints -----------------------------------------------------------


def keep(tx: Tx, created: int, rows: Iterable[Progress], name: str) -> None:
    """Copy progress for a checkpoint."""
    tx.executemany(
        "INSERT INTO reader_checkpoints (group_name, created, segment_id, floor, state) "
        "VALUES (?, ?, ?, ?, ?) ON CONFLICT (group_name, created, segment_id) DO NOTHING",
        [(name, created, row.segment_id, row.floor, row.state) for row in rows],
    )


def kept(tx: Tx, name: str, created: int) -> list[Progress]:
    """What was acked at a checkpoint, as far as it is more than its offsets tell."""
    rows = tx.rows(
        "SELECT segment_id, floor, state FROM reader_checkpoints "
        "WHERE group_name = ? AND created = ?",
        (name, created),
    )
    return [Progress(name, key, floor, bytes(state)) for key, floor, state in rows]


def forget_stream(tx: Tx, name: str, stream_id: int) -> None:
    """Delete what checkpoints hold of a stream: a group that reads it again begins anew there."""
    tx.execute(
        "DELETE FROM reader_checkpoints WHERE group_name = ? AND segment_id IN "
        "(SELECT id FROM segments WHERE stream_id = ?)",
        (name, stream_id),
    )


def forget_but(tx: Tx, name: str, created: Sequence[int]) -> None:
    """Delete the copies of all checkpoints but those that were created at these revisions."""
    rows = tx.rows("SELECT DISTINCT created FROM reader_checkpoints WHERE group_name = ?", (name,))
    gone = sorted({int(row[0]) for row in rows} - set(created))
    for part, marks in in_parts(gone):
        tx.execute(
            f"DELETE FROM reader_checkpoints WHERE group_name = ? AND created IN ({marks})",
            (name, *part),
        )
