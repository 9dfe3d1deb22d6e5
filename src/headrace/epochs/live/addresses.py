"""Where live publishers are found: one entry per publisher, and nothing else is stored."""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, entries
from headrace.catalog.records import Records
from headrace.epochs.core.antichains import Frontier


class Serving(msgspec.Struct, frozen=True):
    """A publisher that serves its subscribers."""

    peer: str
    """The process that it runs in; its address is in the directory of peers."""
    life: str
    """Another one after every start."""
    start: Frontier
    """It publishes at or after these times only."""


_records = Records(Serving, "the address of live publisher")


def bucket(stream: int) -> str:
    """Where the publishers of a stream are; watch it to hear of them."""
    return f"live-epochs:{stream}"


def put(tx: Tx, stream: int, publisher: str, serving: Serving) -> None:
    """A publisher begins to serve; whoever served under its name does no more."""
    entries.put(tx, bucket(stream), publisher, _records.encode(publisher, serving))


def remove(tx: Tx, stream: int, publisher: str, life: str) -> None:
    """A publisher has ended, unless another one took its name meanwhile."""
    found = find(tx, stream, publisher)
    if found is not None and found.life == life:
        entries.delete(tx, bucket(stream), publisher)


def find(tx: Tx, stream: int, publisher: str) -> Serving | None:
    """Who serves under a name."""
    entry = entries.get(tx, bucket(stream), publisher)
    return None if entry is None else _records.decode_or(publisher, entry.value, None)


def all_of(tx: Tx, stream: int) -> dict[str, Serving]:
    """The publishers of a stream, by name."""
    found = {}
    for entry in entries.changes(tx, bucket(stream), 0).entries:
        if entry.value is not None:
            serving = _records.decode_or(entry.key, entry.value, None)
            if serving is not None:
                found[entry.key] = serving
    return found
