"""Boundaries of acked ranges in bulk: their blocks as arrays, and unions.

numpy is loaded where it is used: whoever only looks at records seldom needs it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, TypeAlias

from headrace.errors import InvalidRangeError
from headrace.groups.progress.bounds import OFFSET_MAX

if TYPE_CHECKING:
    from headrace.groups.progress.arrays import Int64s

Block: TypeAlias = "array[int]"
"""Boundaries of ranges; an array takes a fifth of a list, and numpy reads it as it stands."""


def apart(mine: Int64s, los: Int64s, his: Int64s) -> Int64s:
    """The usual union: of ranges that overlap none; where two touch, both bounds vanish."""
    import numpy as np

    flat = np.concatenate((mine, los, his))
    flat.sort()
    same = np.flatnonzero(flat[1:] == flat[:-1])
    if same.size:
        keep = np.ones(flat.size, dtype=np.bool_)
        keep[same] = keep[same + 1] = False
        flat = flat[keep]
    return flat


def overlapping(mine: Int64s, los: Int64s, his: Int64s) -> Int64s:
    """The union of any ranges, also of some that overlap each other."""
    import numpy as np

    los, his = np.concatenate((mine[::2], los)), np.concatenate((mine[1::2], his))
    order = np.argsort(los, kind="stable")
    los, reach = los[order], np.maximum.accumulate(his[order])
    opens = np.flatnonzero(np.concatenate(([True], los[1:] > reach[:-1])))
    closes = np.concatenate((opens[1:] - 1, [los.size - 1]))
    flat: Int64s = np.stack((los[opens], reach[closes]), axis=1).ravel()
    return flat


def insert_simply(block: Block, i: int, lo: int, hi: int) -> bool:
    """The usual cases, quickly: all of the range is new and overlaps no other."""
    after = block[i] if i < len(block) else OFFSET_MAX + 1
    if i & 1:
        following = block[i + 1] if i + 1 < len(block) else OFFSET_MAX + 1
        if after != lo or following < hi:
            return False
        if following == hi:
            del block[i : i + 2]  # closes the gap between two
        else:
            block[i] = hi  # grows the range below it
    elif after > hi:
        block[i:i] = array("q", (lo, hi))
    elif after == hi:
        block[i] = lo  # grows the range above it
    else:
        return False
    return True


def array_of(numbers: Sequence[int]) -> Int64s:
    """Bounds as an array."""
    import numpy as np

    return np.array(numbers, dtype=np.int64)


def joined(blocks: Sequence[Block]) -> Int64s:
    """A copy of the boundaries of blocks that follow each other."""
    import numpy as np

    return np.frombuffer(b"".join(blocks), dtype=np.int64)


def size(flat: Int64s) -> int:
    """How many offsets lie between boundaries."""
    return int(flat[1::2].sum() - flat[::2].sum())


def cut(flat: Int64s, longest: int) -> list[Block]:
    """Half-full blocks, so that the next insertions find room."""
    return halves(array("q", flat.tobytes()), longest)


def halves(block: Block, longest: int) -> list[Block]:
    """A block that has become too long, in several that are half-full."""
    half = longest // 2
    return [block[k : k + half] for k in range(0, len(block), half)]


def check(flat: Sequence[int], floor: int) -> None:
    """Refuse what cannot be the boundaries of ranges above a floor."""
    if len(flat) % 2:
        raise InvalidRangeError("a range has a beginning but no end")
    if not all(map(lt, flat, islice(flat, 1, None))):
        raise InvalidRangeError("ranges must ascend and be apart from one another")
    if flat and (flat[0] <= floor or flat[-1] > OFFSET_MAX):
        raise InvalidRangeError(f"a range lies outside {floor + 1} to {OFFSET_MAX}")
