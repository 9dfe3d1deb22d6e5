"""Stored progress at a glance: how much is acked, without building the ranges.

Whoever looks at thousands of units wants two numbers of each.  A record holds its ranges as gaps
and lengths, so those are sums; ranges are made only where a segment was trimmed past the floor.
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from headrace.catalog.progress import BOTH
from headrace.errors import ProgressDecodeError

_record = msgspec.msgpack.Decoder(tuple[int, bytes, list[int]]).decode
_ranges = msgspec.msgpack.Decoder(tuple[int, int, list[int]]).decode


def unacked(state: bytes, floor: int, tail: int, head: int) -> tuple[int, int]:
    """How many offsets are not acked: (those that are retained, those that were trimmed).

    >>> unacked(b"", 3, 0, 10), unacked(b"", 3, 5, 10)
    ((7, 0), (5, 2))
    """
    # As deltas_of, which is called ten thousand times by a look at everything.
    both = state[:1] == BOTH
    deltas = (_both(state) if both else _ranges(_record(state)[1])[2]) if state else ()
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


def deltas_of(state: bytes) -> list[int]:
    """Gap and length of each acked range above the floor; raises ``msgspec.DecodeError``."""
    return _both(state) if state[:1] == BOTH else _ranges(_record(state)[1])[2]


def _both(state: bytes) -> list[int]:
    """The same of a state that is given with its base."""
    from headrace.groups.progress.record import Progress

    end = 5 + int.from_bytes(state[1:5], "little")
    try:
        found = Progress.decode(state[5:end], state[end:])
    except ProgressDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error
    deltas, at = list[int](), found.floor
    for lo, hi in found.above:
        deltas += lo - at, hi - lo
        at = hi
    return deltas


def missing(floor: int, deltas: list[int], head: int) -> list[tuple[int, int]]:
    """The ranges between floor and head that are not acked."""
    bounds = [floor, *(floor + at for at in accumulate(deltas)), head]
    return [
        (lo, min(hi, head)) for lo, hi in zip(bounds[::2], bounds[1::2], strict=True) if lo < head
    ]
