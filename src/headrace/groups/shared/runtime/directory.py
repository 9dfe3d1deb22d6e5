"""Where peers listen, and the secret by which they know each other.

Both are in the catalog: whoever can open it may take part.  The secret is made by the first peer
that needs it and never leaves the catalog but in the first request of a connection.
"""

from __future__ import annotations

import secrets

import msgspec

from headrace.catalog import Tx, entries, schema

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


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_decode_address = msgspec.json.Decoder(Address).decode


def locks() -> tuple[str, ...]:
    """The locks for :func:`register` and :func:`unregister`."""
    return (entries.lock(BUCKET),)


def register(tx: Tx, address: Address) -> str:
    """Store where a peer listens; returns the catalog's secret."""
    now_us = tx.now_us()
    for entry in entries.changes(tx, BUCKET, 0).entries:
        if entry.value is not None:
            seen_us = _decode_address(entry.value).seen_us
            if now_us - seen_us > STALE_US:
                entries.delete(tx, BUCKET, entry.key)
    stamped = msgspec.structs.replace(address, seen_us=now_us)
    entries.put(tx, BUCKET, address.peer, msgspec.json.encode(stamped))
    found = schema.get_setting(tx, SETTING)
    if found is None:
        found = secrets.token_urlsafe(32)
        schema.put_setting(tx, SETTING, found)
    return found


def unregister(tx: Tx, peer: str) -> None:
    """The peer is closing."""
    entries.delete(tx, BUCKET, peer)


def find(tx: Tx, peer: str) -> Address | None:
    """Where a peer listens."""
    entry = entries.get(tx, BUCKET, peer)
    if entry is None or entry.value is None:
        return None
    return _decode_address(entry.value)


def secret(tx: Tx) -> str | None:
    """The catalog's secret, if any peer has needed one."""
    return schema.get_setting(tx, SETTING)
