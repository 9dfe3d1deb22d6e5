"""What idempotent producers have sent: (producer, sequence) -> the positions it was given.

A scope is a stream, or ``TRANSACTION`` for transactions over several.  The last ``KEPT``
sequences of a producer are remembered; an older one is known to be a repeat, but its positions
are not known any more.
"""

from __future__ import annotations

import msgspec

from headrace.catalog.transaction import Tx
from headrace.errors import SequenceError

TRANSACTION = 0
KEPT = 1000


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """Events of one append in one segment: offsets ``start`` to ``start + count - 1``."""

    stream: str
    segment: int
    start: int
    count: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Placed, ...]).decode


def lock(scope: int, producer: str) -> str:
    return f"producer:{scope}:{producer}"


def seen(tx: Tx, scope: int, producer: str, sequence: int) -> tuple[Placed, ...] | None:
    """The original positions of a repeat; None for a sequence that is new."""
    row = tx.row(
        "SELECT positions FROM producers WHERE scope = ? AND producer = ? AND sequence = ?",
        (scope, producer, sequence),
    )
    if row is not None:
        return _decode(bytes(row[0]))
    row = tx.row(
        "SELECT max(sequence) FROM producers WHERE scope = ? AND producer = ?", (scope, producer)
    )
    last = row[0] if row else None
    if last is not None and sequence <= last - KEPT:
        raise SequenceError(
            f"producer {producer!r}: sequence {sequence} is more than {KEPT} behind its last one, "
            f"{last}; go on from there"
        )
    return None


def record(tx: Tx, scope: int, producer: str, sequence: int, placed: tuple[Placed, ...]) -> None:
    tx.execute(
        "INSERT INTO producers (scope, producer, sequence, positions) VALUES (?, ?, ?, ?)",
        (scope, producer, sequence, _encode(placed)),
    )
    tx.execute(
        "DELETE FROM producers WHERE scope = ? AND producer = ? AND sequence <= ?",
        (scope, producer, sequence - KEPT),
    )
