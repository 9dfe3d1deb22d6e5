"""Leases: a named claim with a time to live, judged by the catalog's clock.

The fencing token grows with every acquisition, and the row stays when the lease ends, so a token
is never used twice.  An operation with an old token is refused.  The lease of something that is
deleted goes with it (:func:`retire`): a row without a name keeps the highest token of those that
went, and a lease that is new begins above it.

The catalog's clock is a wall clock, and may be put back.  So whoever waits for a lease also counts
by its own monotonic clock (:class:`Watch`): one that is not renewed for its time to live is over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.catalog.keys import check_key
from headrace.catalog.lease_watch import Ended as Ended
from headrace.catalog.lease_watch import Lease as Lease
from headrace.catalog.lease_watch import Watch as Watch
from headrace.catalog.transaction import Query, Row, Tx, in_parts
from headrace.errors import InvalidInputError, LeaseLost

if TYPE_CHECKING:
    from headrace.catalog.base import Catalog

TTL_MS_MAX = 24 * 3600 * 1000


def channel(name: str) -> str:
    """The channel that is notified when the lease changes hands or is released."""
    return f"lease:{name}"


def lock(name: str) -> str:
    return f"lease:{name}"


def get(tx: Tx, name: str) -> Lease | None:
    """The lease, if somebody holds it now."""
    owner, token, expires_us = last(tx, name)
    if owner is None or expires_us <= tx.now_us():
        return None
    return Lease(name, owner, token, expires_us)


def asking(name: str) -> Query:
    """The query of :func:`last` and of :func:`get`."""
    return "SELECT owner, token, expires_us FROM leases WHERE name = ?", (name,)


def last(tx: Tx, name: str) -> tuple[str | None, int, int]:
    """(owner, token, expires_us) as they were left, also of a lease that has run out.

    The owner is None when it was given back, and the token is 0 when nobody ever took it.
    """
    row = tx.row(*asking(name))
    return (None, 0, 0) if row is None else (row[0], int(row[1]), int(row[2]))


def asking_not_released(names: Sequence[str]) -> list[Query]:
    """The queries of :func:`not_released`."""
    return [
        (
            f"SELECT name, owner, token, expires_us FROM leases WHERE name IN ({marks}) "
            "AND owner IS NOT NULL",
            tuple(part),
        )
        for part, marks in in_parts(names)
    ]


def not_released(tx: Tx, names: Sequence[str]) -> list[Lease]:
    """Those of the leases that have an owner, even if they have run out."""
    found: list[Row] = []
    for query in asking_not_released(names):
        found += tx.rows(*query)
    return [Lease(*row) for row in found]


def hold(tx: Tx, names: Sequence[str]) -> list[Lease]:
    """As :func:`not_released`; nobody else changes them before this transaction is over.

    The rows are locked in the order of their names, by everybody who locks several.
    """
    found: list[Row] = []
    for sql, part in asking_not_released(sorted(names)):
        found += tx.rows(f"{sql} ORDER BY name{tx.by_bytes}{tx.for_update}", part)
    return [Lease(*row) for row in found]


_ENDED = "SELECT name, owner, token, expires_us, heard_us, told FROM leases WHERE owner IS NOT NULL"


def ended(tx: Tx, name: str) -> Ended | None:
    """A lease that somebody let run out."""
    row = tx.row(f"{_ENDED} AND name = ? AND expires_us <= ?", (name, tx.now_us()))
    return None if row is None else _ended(row)


def asking_last_owner(name: str) -> Query:
    """The query of :func:`last_owner`."""
    return f"{_ENDED} AND name = ?", (name,)


def last_owner(tx: Tx, name: str) -> Ended | None:
    """A lease as it stands, if it was not given back, whether it has run out or not."""
    row = tx.row(*asking_last_owner(name))
    return None if row is None else _ended(row)


def last_owners(tx: Tx, names: Sequence[str]) -> list[Ended]:
    """As :func:`last_owner`, of several leases."""
    found: list[Row] = []
    for part, marks in in_parts(names):
        found += tx.rows(f"{_ENDED} AND name IN ({marks})", tuple(part))
    return [_ended(row) for row in found]


def untold(tx: Tx, limit: int) -> list[Ended]:
    """Leases that ran out and whose end was not recorded, the oldest first."""
    rows = tx.rows(
        f"{_ENDED} AND expires_us <= ? AND told < token ORDER BY expires_us LIMIT ?",
        (tx.now_us(), limit),
    )
    return [_ended(row) for row in rows]


def _ended(row: Row) -> Ended:
    name, owner, token, expires_us, heard_us, told = row
    return Ended(name, owner, token, expires_us, heard_us, told >= token)


def tell(tx: Tx, lease: Ended) -> bool:
    """Note that the end of a lease is recorded; false if it was noted before, or came to life."""
    return bool(
        tx.execute(
            "UPDATE leases SET told = token WHERE name = ? AND token = ? AND told < token "
            "AND owner IS NOT NULL AND expires_us <= ?",
            (lease.name, lease.token, tx.now_us()),
        )
    )


def beginning_with(tx: Tx, text: str) -> list[Lease]:
    """Leases with the name prefix ``text`` that have an owner, even if they have run out."""
    rows = tx.rows(
        "SELECT name, owner, token, expires_us FROM leases WHERE substr(name, 1, ?) = ? "
        "AND owner IS NOT NULL",
        (len(text), text),
    )
    return [Lease(*row) for row in rows]


def names(tx: Tx, text: str) -> list[str]:
    """The leases with the name prefix ``text``, also those that nobody has."""
    sql = "SELECT name FROM leases WHERE substr(name, 1, ?) = ?"
    return [str(name) for (name,) in tx.rows(sql, (len(text), text))]


def owned(tx: Tx, text: str) -> list[Ended]:
    """As :func:`beginning_with`, with when each was last renewed."""
    rows = tx.rows(f"{_ENDED} AND substr(name, 1, ?) = ?", (len(text), text))
    return [_ended(row) for row in rows]


def set_expiry(tx: Tx, due: Sequence[tuple[int, str]]) -> None:
    """Set when leases run out, each (expires_us, name); who holds them was checked before."""
    now_us = tx.now_us()
    tx.later(
        "UPDATE leases SET expires_us = ?, heard_us = ?, told = 0 WHERE name = ?",
        *((expires_us, now_us, name) for expires_us, name in due),
    )


def acquire(tx: Tx, name: str, owner: str, ttl_ms: int, over: Lease | None = None) -> Lease | None:
    """Take the lease if it is free, expired or the same owner's; None while another holds it.

    One that still is as the caller has watched it run out (``over``) is free, too.
    """
    _check(name, owner, ttl_ms)
    row = tx.row(*asking_taking(tx, name))
    if row is not None and row[0] is not None and row[2] > tx.now_us():
        held = Lease(name, *row)
        if held.owner != owner and held != over:
            return None
    return _take(tx, name, owner, ttl_ms, row)


def asking_taking(tx: Tx, name: str) -> Query:
    """The query of :func:`acquire` and :func:`seize`; a renewal that comes in between waits."""
    sql, params = asking(name)
    return sql + tx.for_update, params


def seize(tx: Tx, name: str, owner: str, ttl_ms: int) -> Lease:
    """Take the lease whoever holds it; the former owner's token is stale from here on.

    The caller holds the :func:`lock` of the lease.
    """
    _check(name, owner, ttl_ms)
    return _take(tx, name, owner, ttl_ms, tx.row(*asking_taking(tx, name)))


def _take(tx: Tx, name: str, owner: str, ttl_ms: int, row: Row | None) -> Lease:
    now_us = tx.now_us()
    before = _floor(tx) if row is None else int(row[1])
    lease = Lease(name, owner, before + 1, now_us + ttl_ms * 1000)
    tx.later(
        "INSERT INTO leases (name, owner, token, expires_us, heard_us) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = excluded.token, "
        "expires_us = excluded.expires_us, heard_us = excluded.heard_us",
        (name, owner, lease.token, lease.expires_us, now_us),
    )
    tx.notify(channel(name))
    return lease


def asking_floor() -> Query:
    """The query for the highest token of the leases that went."""
    return "SELECT token FROM leases WHERE name = ''", ()


def _floor(tx: Tx) -> int:
    row = tx.row(*asking_floor())
    return 0 if row is None else int(row[0])


def extend(tx: Tx, name: str, token: int, ttl_ms: int) -> None:
    """Prolong the lease, also one that has run out, unless somebody else took it."""
    _check_ttl(name, ttl_ms)
    check(tx, name, token)
    now_us = tx.now_us()
    # One whose end was told of has come back to life.
    tx.later(
        "UPDATE leases SET expires_us = ?, heard_us = ?, told = 0 WHERE name = ?",
        (now_us + ttl_ms * 1000, now_us, name),
    )


def renew(tx: Tx, name: str, token: int, ttl_ms: int) -> Lease:
    """Prolong the lease; raises :class:`LeaseLost` once it has expired or changed hands."""
    _check_ttl(name, ttl_ms)
    held = get(tx, name)
    if held is None or held.token != token:
        raise LeaseLost(name, token)
    expires_us = tx.now_us() + ttl_ms * 1000
    set_expiry(tx, [(expires_us, name)])
    return Lease(name, held.owner, token, expires_us)


def check(tx: Tx, name: str, token: int) -> None:
    """Raise :class:`LeaseLost` unless ``token`` is the newest.

    A lease that has run out and was not taken over still counts: it has no other owner.
    """
    owner, current, _ = last(tx, name)
    if owner is None or current != token:
        raise LeaseLost(name, token)


def release(tx: Tx, name: str, token: int) -> bool:
    """Give the lease back; false if it was no longer held under this token."""
    count = tx.execute(
        "UPDATE leases SET owner = NULL, expires_us = 0 "
        "WHERE name = ? AND token = ? AND owner IS NOT NULL",
        (name, token),
    )
    if count:
        tx.notify(channel(name))
    return count > 0


def fence(tx: Tx, name: str) -> None:
    """Take the lease from whoever has it, also one that has run out and still counts."""
    tx.execute("UPDATE leases SET owner = NULL, expires_us = 0 WHERE name = ?", (name,))
    tx.notify(channel(name))


def retire(tx: Tx, name: str) -> None:
    """Delete the lease of something that is deleted; who held it stays fenced.

    The caller holds the :func:`lock` of the lease.
    """
    token = last(tx, name)[1]
    if token:
        forget(tx, name)
        tx.execute(
            "INSERT INTO leases (name, owner, token, expires_us) VALUES ('', NULL, ?, 0) "
            "ON CONFLICT (name) DO UPDATE SET token = excluded.token "
            "WHERE leases.token < excluded.token",
            (token,),
        )


def forget(tx: Tx, name: str) -> None:
    """Delete a lease whose name nobody will ever use again: its token begins anew."""
    tx.execute("DELETE FROM leases WHERE name = ?", (name,))
    tx.notify(channel(name))


def _check(name: str, owner: str, ttl_ms: int) -> None:
    check_key(name, "a lease's name")
    check_key(owner, "a lease's owner")
    _check_ttl(name, ttl_ms)


def _check_ttl(name: str, ttl_ms: int) -> None:
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise InvalidInputError(f"lease {name!r}: ttl_ms is {ttl_ms}; it must be 1 to {TTL_MS_MAX}")


def steady_ms() -> int:
    """A clock that nobody puts forward or back."""
    return time.monotonic_ns() // 1_000_000


class Leases:
    """Lease operations, each one transaction.

    Whoever asks again and again takes a lease that is not renewed for its time to live, also when
    the catalog's clock was put back.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._watch = Watch()
        self._over: dict[str, Lease] = {}

    def get(self, name: str) -> Lease | None:
        """The lease, if somebody holds it now."""

        def look(tx: Tx) -> tuple[Ended | None, int]:
            return last_owner(tx, name), tx.now_us()

        found, now_us = self._catalog.read(look)
        self._over.pop(name, None)
        if found is None or found.expires_us <= now_us:
            return None
        held = Lease(name, found.owner, found.token, found.expires_us)
        seen_ms = steady_ms() - self._watch.see(held, steady_ms())
        if not found.heard_us or seen_ms < (found.expires_us - found.heard_us) // 1000:
            return held
        self._over[name] = held
        return None

    def acquire(self, name: str, owner: str, ttl_ms: int) -> Lease | None:
        """Take the lease if it is free; None while another holds it."""
        over = self._over.pop(name, None)
        lease = self._catalog.write(
            lambda tx: acquire(tx, name, owner, ttl_ms, over), locks=(lock(name),)
        )
        if lease is None:
            self.get(name)  # from now on it is watched
        return lease

    def renew(self, lease: Lease, ttl_ms: int) -> Lease:
        return self._catalog.write(
            lambda tx: renew(tx, lease.name, lease.token, ttl_ms), locks=(lock(lease.name),)
        )

    def release(self, lease: Lease) -> bool:
        return self._catalog.write(
            lambda tx: release(tx, lease.name, lease.token), locks=(lock(lease.name),)
        )
