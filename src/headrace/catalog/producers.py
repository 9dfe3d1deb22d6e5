"""What idempotent producers have sent: (producer, sequence) -> the positions it was given.

A scope is a stream, or ``TRANSACTION`` for transactions over several.  The last ``KEPT``
sequences of a producer are remembered; an older one is known to be a repeat, but its positions
are not known any more.  A checksum of the events tells a repeat from a producer that counts from
the beginning again, whose new events would be taken for old ones.
"""

from __future__ import annotations

import msgspec

from headrace.catalog.calls import ProducerCall
from headrace.catalog.transaction import Tx
from headrace.errors import SequenceError, SequenceReusedError

TRANSACTION = 0
KEPT = 1000


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """Events of one append in one segment: offsets ``start`` to ``start + count - 1``."""

    stream: str
    segment: int
    start: int
    count: int


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(tuple[Placed, ...]).decode


def lock(scope: int, producer: str) -> str:
    return f"producer:{scope}:{producer}"


def seen(
    tx: Tx, scope: int, producer: str, sequence: int, checksum: int | None = None
) -> tuple[Placed, ...] | None:
    """The original positions of a repeat; None for a sequence that is new.

    Checksums are compared where both are known.
    """
    found = tx.row(
        "SELECT positions, checksum FROM producers WHERE scope = ? AND producer = ? "
        "AND sequence = ?",
        (scope, producer, sequence),
    )
    if found is not None and (found[1] == checksum or None in (found[1], checksum)):
        return decode(bytes(found[0]))
    newest = last(tx, scope, producer)
    if found is not None:
        raise SequenceReusedError(producer, sequence, newest or sequence)
    if newest is not None and sequence <= newest - KEPT:
        raise SequenceError(
            f"producer {producer!r}: sequence {sequence} is more than {KEPT} behind its last one, "
            f"{newest}; go on from there"
        )
    return None


def last(tx: Tx, scope: int, producer: str) -> int | None:
    """The last sequence of a producer; None for one that was never heard of."""
    row = tx.row(
        "SELECT max(sequence) FROM producers WHERE scope = ? AND producer = ?", (scope, producer)
    )
    return None if row is None or row[0] is None else int(row[0])


def saying(
    scope: int, producer: str, sequence: int, checksum: int | None, placed: tuple[Placed, ...]
) -> ProducerCall:
    """What :func:`record` does, for offsets that are not known yet.

    Each offset is written as a number of 8 bytes, whatever its size, so that the server can put it
    in its place.
    """
    parts = [b"\xdd" + len(placed).to_bytes(4, "big")]
    at = len(parts[0])
    gaps = []
    for each in placed:
        before = b"\x94" + _encode(each.stream) + _encode(each.segment) + b"\xd3"
        after = _encode(each.count)
        at += len(before)
        gaps.append(at + 1)
        at += 8 + len(after)
        parts += (before, bytes(8), after)
    return ProducerCall(scope, producer, sequence, checksum, b"".join(parts), tuple(gaps), KEPT)


def record(
    tx: Tx,
    scope: int,
    producer: str,
    sequence: int,
    placed: tuple[Placed, ...],
    checksum: int | None = None,
) -> None:
    tx.execute(
        "INSERT INTO producers (scope, producer, sequence, positions, checksum) "
        "VALUES (?, ?, ?, ?, ?)",
        (scope, producer, sequence, _encode(placed), checksum),
    )
    tx.execute(
        "DELETE FROM producers WHERE scope = ? AND producer = ? AND sequence <= ?",
        (scope, producer, sequence - KEPT),
    )
