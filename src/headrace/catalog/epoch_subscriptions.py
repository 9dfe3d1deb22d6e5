"""Named subscriptions to epochs, as the catalog keeps them; what they mean is decided above."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.catalog import leases, progress
from headrace.catalog.keys import check_key
from headrace.catalog.transaction import Tx

PREFIX = "epoch-subscription/"
CHANNEL = "epoch-subscriptions"


class SubscriptionRow(msgspec.Struct, frozen=True):
    """A subscription as it is stored; `frontier` is None before its start was chosen."""

    name: str
    form: bytes
    frontier: bytes | None
    created_us: int
    moved_us: int
    expiry_us: int | None
    owner: str | None
    token: int
    expires_us: int


def lease_name(name: str) -> str:
    """The lease of whoever holds a subscription."""
    return f"{PREFIX}{check_key(name, 'the name of a subscription')}"


def reader_name(name: str) -> str:
    """Under which name it holds back retention; no group can be called so."""
    return f"epoch.subscription/{name}"


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


def put_frontier(tx: Tx, name: str, frontier: bytes) -> None:
    """All before the frontier is acked."""
    tx.execute(
        "UPDATE epoch_subscriptions SET frontier = ?, moved_us = ? WHERE name = ?",
        (frontier, tx.now_us(), name),
    )
    tx.notify(CHANNEL)


def remove(tx: Tx, name: str) -> bool:
    """Forget a subscription; whoever holds it is fenced."""
    leases.fence(tx, lease_name(name))
    progress.forget(tx, reader_name(name))
    tx.notify(CHANNEL)
    return tx.execute("DELETE FROM epoch_subscriptions WHERE name = ?", (name,)) > 0
