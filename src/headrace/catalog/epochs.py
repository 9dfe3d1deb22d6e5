"""The ledgers of epoch streams and of their publishers, as the catalog keeps them.

Only rows: what they mean and which changes are legal is decided in ``headrace.epochs.core.ledger``.
All of it goes with the stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.catalog import decisions, epoch_subscriptions
from headrace.catalog.transaction import Tx


class Standing(msgspec.Struct, frozen=True):
    """All that a commit of one publisher has to look at, found by one query.

    ``stream`` and ``publisher`` are encoded states; ``owner``, ``token`` and ``expires_us`` are of
    the publisher's lease.
    """

    stream: bytes | None
    moved_us: int
    publisher: bytes | None
    publisher_moved_us: int
    owner: str | None
    token: int
    expires_us: int


class PublisherRow(msgspec.Struct, frozen=True):
    """A publisher as it is stored, with its lease: the owner is None if it was given back."""

    name: str
    state: bytes
    moved_us: int
    last_us: int
    owner: str | None
    token: int
    expires_us: int


class Kept(msgspec.Struct, frozen=True):
    """How far retention got when it was last looked at."""

    since: bytes
    """Encoded: the first frontier from which all rows were there, and the tails that it is of."""
    line: int
    """The first line that had a retained row, or an earlier one."""


def locks(stream_id: int, stream: str) -> list[str]:
    """What is held to delete all that is known of a stream's epochs."""
    return [f"epochs:{stream_id}", decisions.lock(record_name(stream))]


def record_name(stream: str) -> str:
    """Under which name decisions about its publishers and subscriptions are recorded."""
    return f"epochs/{stream}"


def lease_prefix(stream_id: int) -> str:
    """What the names of all leases of a stream's publishers begin with."""
    return f"epochs/{stream_id}/"


def lease_name(stream_id: int, publisher: str) -> str:
    """The lease of one publisher; of a stream that is made anew it is another one."""
    return f"{lease_prefix(stream_id)}{publisher}"


def standing(tx: Tx, stream_id: int, publisher: str) -> Standing:
    """A stream's ledger, one publisher's, and its lease."""
    row = tx.row(
        "SELECT s.state, s.moved_us, p.state, p.moved_us, l.owner, l.token, l.expires_us "
        "FROM (SELECT CAST(? AS BIGINT) AS id) AS wanted "
        "LEFT JOIN epoch_streams s ON s.stream_id = wanted.id "
        "LEFT JOIN epoch_publishers p ON p.stream_id = wanted.id AND p.name = ? "
        "LEFT JOIN leases l ON l.name = ?",
        (stream_id, publisher, lease_name(stream_id, publisher)),
    )
    assert row is not None
    stream, moved_us, held, its_moved_us, owner, token, expires_us = row
    return Standing(
        stream=None if stream is None else bytes(stream),
        moved_us=int(moved_us or 0),
        publisher=None if held is None else bytes(held),
        publisher_moved_us=int(its_moved_us or 0),
        owner=owner,
        token=int(token or 0),
        expires_us=int(expires_us or 0),
    )


def stream_state(tx: Tx, stream_id: int) -> tuple[bytes, int] | None:
    """A stream's encoded state and when its frontier moved; None before the first publisher."""
    row = tx.row("SELECT state, moved_us FROM epoch_streams WHERE stream_id = ?", (stream_id,))
    return None if row is None else (bytes(row[0]), int(row[1]))


def put_stream(tx: Tx, stream_id: int, state: bytes, moved_us: int) -> None:
    tx.execute(
        "INSERT INTO epoch_streams (stream_id, state, moved_us) VALUES (?, ?, ?) "
        "ON CONFLICT (stream_id) DO UPDATE SET state = excluded.state, "
        "moved_us = excluded.moved_us",
        (stream_id, state, moved_us),
    )


def put_publisher(
    tx: Tx, stream_id: int, name: str, state: bytes, moved_us: int, last_us: int
) -> None:
    tx.execute(
        "INSERT INTO epoch_publishers (stream_id, name, state, moved_us, last_us) "
        "VALUES (?, ?, ?, ?, ?) ON CONFLICT (stream_id, name) DO UPDATE SET "
        "state = excluded.state, moved_us = excluded.moved_us, last_us = excluded.last_us",
        (stream_id, name, state, moved_us, last_us),
    )


def remove_publisher(tx: Tx, stream_id: int, name: str) -> None:
    tx.execute("DELETE FROM epoch_publishers WHERE stream_id = ? AND name = ?", (stream_id, name))


def publishers(tx: Tx, stream_id: int) -> Sequence[PublisherRow]:
    """All publishers of a stream, by name."""
    rows = tx.rows(
        "SELECT p.name, p.state, p.moved_us, p.last_us, l.owner, l.token, l.expires_us "
        "FROM epoch_publishers p LEFT JOIN leases l ON l.name = ? || p.name "
        "WHERE p.stream_id = ? ORDER BY p.name",
        (lease_prefix(stream_id), stream_id),
    )
    return [
        PublisherRow(name, bytes(state), moved, last, owner, int(token or 0), int(expires or 0))
        for name, state, moved, last, owner, token, expires in rows
    ]


def every(tx: Tx) -> tuple[dict[int, tuple[bytes, int]], dict[int, list[PublisherRow]]]:
    """All ledgers with when their frontiers moved, and all publishers, by the ids of streams."""
    states = {
        int(stream_id): (bytes(state), int(moved_us))
        for stream_id, state, moved_us in tx.rows(
            "SELECT stream_id, state, moved_us FROM epoch_streams"
        )
    }
    found: dict[int, list[PublisherRow]] = {}
    for stream_id, name, state, moved, last, owner, token, expires in tx.rows(
        "SELECT p.stream_id, p.name, p.state, p.moved_us, p.last_us, l.owner, l.token, "
        "l.expires_us FROM epoch_publishers p "
        "LEFT JOIN leases l ON l.name = 'epochs/' || p.stream_id || '/' || p.name "
        "ORDER BY p.stream_id, p.name"
    ):
        row = PublisherRow(
            name, bytes(state), moved, last, owner, int(token or 0), int(expires or 0)
        )
        found.setdefault(int(stream_id), []).append(row)
    return states, found


def kept(tx: Tx, stream_id: int) -> Kept | None:
    """What retention has left; None if nothing was found trimmed yet."""
    row = tx.row("SELECT since, kept_line FROM epoch_streams WHERE stream_id = ?", (stream_id,))
    if row is None or row[0] is None:
        return None
    return Kept(bytes(row[0]), int(row[1]))


def put_kept(tx: Tx, stream_id: int, found: Kept) -> None:
    tx.execute(
        "UPDATE epoch_streams SET since = ?, kept_line = ? WHERE stream_id = ?",
        (found.since, found.line, stream_id),
    )


def delete(tx: Tx, stream_id: int, stream: str) -> None:
    """Remove all that is recorded about a stream's epochs: leases, subscriptions, decisions."""
    epoch_subscriptions.remove_of_stream(tx, stream_id)
    decisions.forget(tx, record_name(stream))
    prefix = lease_prefix(stream_id)
    tx.execute("DELETE FROM leases WHERE substr(name, 1, ?) = ?", (len(prefix), prefix))
    for table in ("epoch_streams", "epoch_publishers"):
        tx.execute(f"DELETE FROM {table} WHERE stream_id = ?", (stream_id,))
