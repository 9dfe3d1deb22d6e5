"""Named subscriptions to epochs, as the catalog keeps them; what they mean is decided above."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.catalog import leases, progress
from headrace.catalog.keys import check_key
from headrace.catalog.transaction import Tx

PREFIX = "epoch-subscription/"
CHANNEL = "epoch-subscriptions"
READER = "epoch.subscription/"


class SubscriptionRow(msgspec.Struct, frozen=True):
    """A subscription as it is stored; `frontier` is None before its start was chosen."""

    name: str
    form: bytes
    frontier: bytes | None
    created_us: int
    moved_us: int
    expiry_us: int | None
    """For how long it is kept while nobody holds it."""
    owner: str | None
    token: int
    expires_us: int


def lease_name(name: str) -> str:
    """The lease of whoever holds a subscription."""
    return f"{PREFIX}{check_key(name, 'the name of a subscription')}"


def reader_name(name: str) -> str:
    """Under which name it holds back retention; no group can be called so."""
    return f"{READER}{name}"


def lock(name: str) -> str:
    return leases.lock(lease_name(name))


def get(tx: Tx, name: str) -> SubscriptionRow | None:
    """One subscription, with who holds it."""
    found = _rows(tx, "WHERE s.name = ?", (name,))
    return found[0] if found else None


def every(tx: Tx) -> Sequence[SubscriptionRow]:
    """All of them, by name."""
    return _rows(tx, "ORDER BY s.name", ())


def _rows(tx: Tx, which: str, values: tuple[object, ...]) -> list[SubscriptionRow]:
    rows = tx.rows(
        "SELECT s.name, s.form, s.frontier, s.created_us, s.moved_us, s.expiry_us, l.owner, "
        "l.token, l.expires_us FROM epoch_subscriptions s "
        f"LEFT JOIN leases l ON l.name = '{PREFIX}' || s.name {which}",
        values,
    )
    return [
        SubscriptionRow(
            name,
            bytes(form),
            None if frontier is None else bytes(frontier),
            created_us,
            moved_us,
            expiry_us,
            owner,
            int(token or 0),
            int(expires_us or 0),
        )
        for name, form, frontier, created_us, moved_us, expiry_us, owner, token, expires_us in rows
    ]


def create(
    tx: Tx, name: str, form: bytes, stream_ids: Iterable[int], expiry_us: int | None = None
) -> None:
    """Record a subscription whose start is not chosen yet: it holds back everything."""
    now = tx.now_us()
    tx.execute(
        "INSERT INTO epoch_subscriptions (name, form, frontier, created_us, moved_us, expiry_us) "
        "VALUES (?, ?, NULL, ?, ?, ?)",
        (name, form, now, now, expiry_us),
    )
    for stream_id in stream_ids:
        progress.subscribe(tx, stream_id, reader_name(name))
    tx.notify(CHANNEL)


def of_stream(tx: Tx, stream_id: int) -> list[str]:
    """The names of those that read a stream."""
    readers = progress.subscribed(tx, stream_id)
    return [name.removeprefix(READER) for name in readers if name.startswith(READER)]


def remove_of_stream(tx: Tx, stream_id: int) -> None:
    """Forget all that read a stream, which is deleted; before its rows go."""
    for name in of_stream(tx, stream_id):
        remove(tx, name)


def put_frontier(tx: Tx, name: str, frontier: bytes) -> None:
    """All before the frontier is acked."""
    tx.execute(
        "UPDATE epoch_subscriptions SET frontier = ?, moved_us = ? WHERE name = ?",
        (frontier, tx.now_us(), name),
    )
    tx.notify(CHANNEL)


def put_expiry(tx: Tx, name: str, expiry_us: int | None) -> None:
    """For how long it is kept while nobody holds it; None: for ever."""
    tx.execute("UPDATE epoch_subscriptions SET expiry_us = ? WHERE name = ?", (expiry_us, name))


def let_go(tx: Tx, name: str) -> None:
    """Nobody holds it from now on: its expiry counts from here."""
    tx.execute(
        "UPDATE epoch_subscriptions SET moved_us = ? WHERE name = ? AND expiry_us IS NOT NULL",
        (tx.now_us(), name),
    )


def remove(tx: Tx, name: str) -> bool:
    """Forget a subscription; whoever holds it is fenced."""
    leases.fence(tx, lease_name(name))
    progress.forget(tx, reader_name(name))
    tx.notify(CHANNEL)
    return tx.execute("DELETE FROM epoch_subscriptions WHERE name = ?", (name,)) > 0
