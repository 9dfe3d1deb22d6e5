"""Stored progress at a glance: how much is acked, without building the ranges.

Whoever looks at thousands of units wants two numbers of each.  A record holds its ranges as gaps
and lengths, so those are sums; ranges are made only where a segment was trimmed past the floor.
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from headrace.groups.progress.bounds import LAYERED

_record = msgspec.msgpack.Decoder(tuple[int, bytes, list[int]]).decode
_layered = msgspec.msgpack.Decoder(tuple[int, bytes, bytes, list[int], int]).decode
_ranges = msgspec.msgpack.Decoder(tuple[int, int, list[int]]).decode


def unacked(state: bytes, floor: int, tail: int, head: int) -> tuple[int, int]:
    """How many offsets are not acked: (those that are retained, those that were trimmed).

    >>> unacked(b"", 3, 0, 10), unacked(b"", 3, 5, 10)
    ((7, 0), (5, 2))
    """
    # As deltas_of, which is called ten thousand times by a look at everything.
    if state[:2] == LAYERED:
        return _unacked_beside(_layered(state)[4], floor, tail, head)
    deltas = _ranges(_record(state)[1])[2] if state else ()
    if not deltas:
        return (max(0, head - max(floor, tail)), max(0, min(tail, head) - floor))
    left = head - floor
    if floor >= tail and sum(deltas) <= left:
        return left - sum(deltas[1::2]), 0
    kept = lost = 0
    for lo, hi in missing(floor, deltas, head):
        kept += max(0, hi - max(lo, tail))
        lost += max(0, min(hi, tail) - lo)
    return kept, lost


def _unacked_beside(acked: int, floor: int, tail: int, head: int) -> tuple[int, int]:
    """The same of a record that names a base: it says how much is acked above the floor."""
    if floor < tail:
        raise ValueError("what a base holds below the tail is not told by the record")
    return max(0, head - floor - acked), 0


def deltas_of(state: bytes) -> list[int]:
    """Gap and length of each acked range above the floor; raises ``msgspec.DecodeError``."""
    return _ranges(_record(state)[1])[2]


def missing(floor: int, deltas: list[int], head: int) -> list[tuple[int, int]]:
    """The ranges between floor and head that are not acked."""
    bounds = [floor, *(floor + at for at in accumulate(deltas)), head]
    return [
        (lo, min(hi, head)) for lo, hi in zip(bounds[::2], bounds[1::2], strict=True) if lo < head
    ]
