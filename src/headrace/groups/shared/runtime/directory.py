"""Where peers listen, and the secret by which they know each other.

Both are in the catalog: whoever can open it may take part.  The secret is made by the first peer
that needs it and never leaves the catalog but in the first request of a connection.
"""

from __future__ import annotations

import secrets

import msgspec

from headrace.catalog import Tx, entries, schema
from headrace.catalog.records import Records
from headrace.net import Target

BUCKET = "nodes"
SETTING = "shared_secret"
STALE_US = 24 * 3600 * 1_000_000
"""An address that was not confirmed for a day is removed by whoever registers next."""


class Address(msgspec.Struct, frozen=True):
    """Where a peer listens."""

    peer: str = msgspec.field(name="node")
    host: str
    port: int
    seen_us: int = 0
    tls: bool = False
    """Whether it takes connections with TLS only."""


_addresses = Records(Address, "the address of peer")


def parcels_to(peer: str) -> str:
    """The bucket of what others write to a peer that they cannot dial."""
    return f"parcels:{peer}"


def locks() -> tuple[str, ...]:
    """The locks for :func:`register` and :func:`unregister`."""
    return (entries.lock(BUCKET),)


def register(tx: Tx, address: Address) -> str:
    """Store where a peer listens; returns the catalog's secret."""
    tx.foresee(*entries.asking_changes(BUCKET, 0), schema.asking_setting(SETTING))
    now_us = tx.now_us()
    for entry in entries.changes(tx, BUCKET, 0).entries:
        if entry.value is not None:
            found = _addresses.decode_or(entry.key, entry.value, None)
            if found is None or now_us - found.seen_us > STALE_US:
                entries.delete(tx, BUCKET, entry.key)
                # Without its lock: nobody has written to it for as long, or will again.
                entries.drop_bucket(tx, parcels_to(entry.key))
    stamped = msgspec.structs.replace(address, seen_us=now_us)
    entries.store(tx, BUCKET, address.peer, _addresses.encode(address.peer, stamped))
    secret = schema.get_setting(tx, SETTING)
    if secret is None:
        secret = secrets.token_urlsafe(32)
        schema.put_setting(tx, SETTING, secret)
    return secret


def unregister(tx: Tx, peer: str) -> None:
    """The peer is closing; the caller holds the lock of its parcels as well."""
    entries.delete(tx, BUCKET, peer)
    entries.drop_bucket(tx, parcels_to(peer))


def write_to(tx: Tx, peer: str, sender: str, parcel: bytes) -> None:
    """Leave a parcel for a peer, over the last of the same sender, if it is still registered."""
    if entries.get(tx, BUCKET, peer) is not None:
        entries.store(tx, parcels_to(peer), sender, parcel)


def find(tx: Tx, peer: str) -> Address | None:
    """Where a peer listens."""
    entry = entries.get(tx, BUCKET, peer)
    return _addresses.decode_or(peer, entry.value, None) if entry is not None else None


def target(tx: Tx, peer: str) -> Target | None:
    """Where a peer is dialled, and what it is shown."""
    found, known = find(tx, peer), secret(tx)
    if found is None or known is None:
        return None
    return Target(found.host, found.port, known, found.tls)


def registered(tx: Tx) -> list[Address]:
    """Where all peers listen, or have listened until they died."""
    found = []
    for entry in entries.changes(tx, BUCKET, 0).entries:
        if entry.value is not None:
            address = _addresses.decode_or(entry.key, entry.value, None)
            if address is not None:
                found.append(address)
    return found


def secret(tx: Tx) -> str | None:
    """The catalog's secret, if any peer has needed one."""
    return schema.get_setting(tx, SETTING)
