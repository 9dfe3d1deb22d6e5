"""A base: very many acked ranges, stored once and named by the records that stand on it.

A group that acks out of order for long can have a million ranges.  Its record changes with every
commit, so it holds only what was acked since, and the name of the base that holds the rest.  The
name is a digest of what the base holds: one that is found under it is the one that was meant,
whoever stored it, and two programs that make the same base make the same row.
"""

from __future__ import annotations

import hashlib
from weakref import WeakValueDictionary

import numpy as np

from headrace.errors import ProgressDecodeError
from headrace.groups.progress.arrays import Int64s
from headrace.groups.progress.bounds import OFFSET_MAX

NAME_BYTES = 16
_VERSION = 1
_HEAD_BYTES = 10
_WIDTHS = (1, 2, 4, 8)


class Base:
    """Acked ranges as their ascending boundaries ``lo, hi, lo, hi, …``; never changed."""

    __slots__ = ("__weakref__", "bounds", "data", "name")

    def __init__(self, bounds: Int64s, data: bytes, name: bytes) -> None:
        self.bounds = bounds
        self.data = data
        self.name = name

    @classmethod
    def of(cls, bounds: Int64s) -> Base:
        """Of boundaries that ascend, at least two."""
        data = _encode(bounds)
        return cls(bounds, data, _name(data))

    @classmethod
    def named(cls, name: bytes, data: bytes) -> Base:
        """What is stored under a name; what cannot be that is refused.

        Whoever uses the same one already shares it.
        """
        found = _known.get(name)
        if found is None or found.data != data:
            if _name(data) != name:
                raise ProgressDecodeError("the base of this progress is not there, or damaged")
            found = _known[name] = cls(_decode(data), data, name)
        return found

    def __len__(self) -> int:
        """How many ranges."""
        return len(self.bounds) // 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Base) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Base({len(self)} ranges up to {self.end})"

    @property
    def end(self) -> int:
        """One past the highest of its offsets."""
        return int(self.bounds[-1])

    def end_of(self, offset: int) -> int:
        """Where the range ends that an offset is in; the offset itself, if it is in none."""
        at = int(self.bounds.searchsorted(offset, side="right"))
        return int(self.bounds[at]) if at % 2 else offset

    def above(self, floor: int) -> Int64s:
        """The boundaries above a floor that is none of its offsets."""
        at = int(self.bounds.searchsorted(floor, side="right"))
        if at % 2:
            raise ProgressDecodeError(f"a floor of {floor} is acked by the base of the progress")
        return self.bounds[at:]


def _encode(bounds: Int64s) -> bytes:
    """Where it begins, then gap and length of each range in as few bytes as the longest takes."""
    deltas = np.diff(bounds)
    longest = int(deltas.max())
    width = next(each for each in _WIDTHS if longest < 1 << (8 * each))
    head = bytes((_VERSION, width)) + int(bounds[0]).to_bytes(8, "little")
    return head + deltas.astype(f"<u{width}").tobytes()


def _decode(data: bytes) -> Int64s:
    """The inverse of :func:`_encode`."""
    width = data[1] if len(data) > _HEAD_BYTES else 0
    if not width or data[0] != _VERSION or width not in _WIDTHS:
        raise ProgressDecodeError("the base of this progress has an unknown form")
    first = int.from_bytes(data[2:_HEAD_BYTES], "little")
    body = memoryview(data)[_HEAD_BYTES:]
    if first > OFFSET_MAX or len(body) % width or not len(body) // width % 2:
        raise ProgressDecodeError("the base of this progress is cut off")
    deltas = np.frombuffer(body, dtype=f"<u{width}")
    sums = np.concatenate(([first], deltas.astype(np.int64))).cumsum()
    if not bool((sums[1:] > sums[:-1]).all()) or int(sums[0]) < 0:
        raise ProgressDecodeError("the base of this progress does not ascend")
    found: Int64s = sums
    return found


def _name(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=NAME_BYTES).digest()


_known: WeakValueDictionary[bytes, Base] = WeakValueDictionary()
