"""Acked ranges: which offsets of a unit a group is done with.

Theory of operation
-------------------
Progress is a *floor* (everything below it is acked) and a set of half-open ranges above it.
Ranges never touch the floor nor one another: whatever touches is joined at once, so there is
one representation per set, and the floor is always the first offset that is not acked.

The ranges are kept as their sorted boundaries ``lo, hi, lo, hi, …`` in one flat sequence.  An
offset is acked when an odd number of boundaries is at or below it, and adding a range replaces
a slice of boundaries by at most two: joining, overlap and containment need no cases of their
own.  The sequence is cut into blocks of bounded length, so that an insertion in the middle of
a million ranges moves a few kilobytes, not sixteen megabytes: every single operation is a
bisection over the blocks and one within a block.

Bulk operations (a union, thousands of offsets at once) sort and join vectorised when that is
cheaper than going one by one.

A record of very many ranges is not written anew for each that is added: :meth:`AckedRanges.layers`
parts them into a base (:mod:`headrace.groups.progress.base`) and what was acked since it was made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import lt
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import InvalidRangeError, ProgressDecodeError
from headrace.groups.progress.bounds import OFFSET_MAX

_BLOCK_BOUNDARIES_MAX = 1024
_UNION_RANGES_MIN = 64  # fewer than this are added one by one
LAYERED_RANGES_MIN = 4096
"""More ranges than this are kept in a base."""
_FRESH_OF_BASE = 64  # a base is made anew when this part of as many ranges was acked since
_ENCODING_VERSION = 1

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.groups.progress.arrays import Int64s
    from headrace.groups.progress.base import Base


class AckedRanges:
    """A set of acked offsets: a floor, and ranges above it.

    >>> acked = AckedRanges(floor=10)
    >>> acked.ack(12), acked.ack(12)
    (True, False)
    >>> acked.to_tuples(), acked.missing(14)
    (((12, 13),), ((10, 12), (13, 14)))
    >>> acked.ack_range(10, 12), acked.floor, len(acked)
    (2, 13, 0)
    """

    __slots__ = ("_above", "_base", "_blocks", "_floor", "_fresh", "_lows")

    def __init__(self, floor: int = 0) -> None:
        if not 0 <= floor <= OFFSET_MAX:
            raise InvalidRangeError(f"a floor of {floor} is not an offset (0 to {OFFSET_MAX})")
        self._floor = floor
        self._blocks: list[list[int]] = []
        self._lows: list[int] = []  # first boundary of each block
        self._above = 0
        self._base: Base | None = None
        self._fresh: AckedRanges | None = None  # at least what is acked above the floor beyond it

    # --- reading -----------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """The first offset that is not acked; everything below is."""
        return self._floor

    @property
    def acked_above_floor(self) -> int:
        """How many offsets at or above the floor are acked."""
        return self._above

    @property
    def end(self) -> int:
        """One past the highest acked offset (the floor when nothing above it is acked)."""
        return self._blocks[-1][-1] if self._blocks else self._floor

    def __len__(self) -> int:
        """Number of ranges above the floor."""
        return sum(map(len, self._blocks)) // 2

    def __bool__(self) -> bool:
        """Always true: an empty set of ranges is still a progress, with a floor."""
        return True

    def __contains__(self, offset: int) -> bool:
        if offset < self._floor:
            return offset >= 0
        k = bisect_right(self._lows, offset) - 1
        return k >= 0 and bisect_right(self._blocks[k], offset) & 1 == 1

    def contains_many(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of many offsets are acked, at once."""
        near = self._flat(int(offsets.min()), int(offsets.max())) if len(offsets) else []
        inside = _array(near).searchsorted(offsets, side="right") & 1 == 1
        found: npt.NDArray[np.bool_] = (inside | (offsets < self._floor)) & (offsets >= 0)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckedRanges):
            return NotImplemented
        same = self._floor == other._floor and self._above == other._above
        return same and (not self._above or self._flat() == other._flat())

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        shown = ", ".join(f"[{lo}, {hi})" for lo, hi in self._first(4))
        more = f", … {len(self) - 4} more" if len(self) > 4 else ""
        return f"AckedRanges(floor={self._floor}, ranges={{{shown}{more}}})"

    def to_tuples(self) -> tuple[tuple[int, int], ...]:
        """The ranges above the floor, ascending, as ``(lo, hi)`` half-open."""
        flat = self._flat()
        return tuple(zip(flat[::2], flat[1::2], strict=True))

    def missing(self, hi: int) -> tuple[tuple[int, int], ...]:
        """The ranges from the floor up to ``hi`` (exclusive) that are not acked."""
        gaps: list[tuple[int, int]] = []
        lo = self._floor
        for start, end in self._pairs():
            if start >= hi:
                break
            gaps.append((lo, start))
            lo = end
        if lo < hi:
            gaps.append((lo, hi))
        return tuple(gaps)

    def between(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """What is acked of ``lo`` to ``hi`` (exclusive), ascending; costs what lies there.

        >>> acked = AckedRanges(floor=4)
        >>> acked.ack_range(6, 9)
        3
        >>> list(acked.between(2, 8))
        [(2, 4), (6, 8)]
        """
        if lo < min(hi, self._floor):
            yield lo, min(hi, self._floor)
        for k in range(max(bisect_right(self._lows, lo) - 1, 0), len(self._blocks)):
            block = self._blocks[k]
            if block[0] >= hi:
                return
            for i in range(bisect_right(block, lo) & ~1, len(block), 2):
                if block[i] >= hi:
                    return
                yield max(lo, block[i]), min(hi, block[i + 1])

    def copy(self) -> AckedRanges:
        """An independent set with the same content."""
        twin = AckedRanges(self._floor)
        twin._blocks = [list(block) for block in self._blocks]
        twin._lows = list(self._lows)
        twin._above = self._above
        twin._base = self._base
        twin._fresh = None if self._fresh is None else self._fresh.copy()
        return twin

    # --- layers ------------------------------------------------------------------------

    @classmethod
    def over(cls, floor: int, base: Base, ranges: Iterable[Sequence[int]]) -> AckedRanges:
        """What :meth:`layers` parted, together again; what it cannot have parted is refused."""
        fresh, made = cls.from_tuples(floor, ranges), cls(floor)
        made._take(base.above(floor).tolist())
        made.merge(fresh)
        if made._floor != floor:
            raise InvalidRangeError(f"a floor of {floor} is below acked ranges that touch it")
        made._base, made._fresh = base, fresh
        return made

    def layers(self) -> tuple[Base | None, tuple[tuple[int, int], ...]]:
        """All that is acked above the floor as a base, if it is much, and ranges beside it."""
        few = len(self._blocks) <= 2 * LAYERED_RANGES_MIN // _BLOCK_BOUNDARIES_MAX
        base, fresh = self._base, self._fresh
        if few and len(self) <= LAYERED_RANGES_MIN // (1 if base is None else 2):
            self._base = self._fresh = None
            return None, self.to_tuples()
        if base is None and len(self) <= LAYERED_RANGES_MIN:
            return None, self.to_tuples()
        if (
            base is None
            or fresh is None
            or base.end <= self._floor
            or len(fresh) > max(LAYERED_RANGES_MIN, len(base) // _FRESH_OF_BASE)
        ):
            from headrace.groups.progress.base import Base

            base, fresh = Base.of(_array(self._flat())), AckedRanges(self._floor)
            self._base, self._fresh = base, fresh
        fresh.ack_range(0, self._floor)
        return base, fresh.to_tuples()

    # --- changing ----------------------------------------------------------------------

    def ack(self, offset: int) -> bool:
        """Ack one offset; ``False`` when it was acked already."""
        if offset == self._floor < OFFSET_MAX and not self._lows:
            self._floor = offset + 1  # in order with nothing above: the usual case
            return True
        return self.ack_range(offset, offset + 1) == 1

    def ack_range(self, lo: int, hi: int) -> int:
        """Ack ``lo`` up to ``hi`` (exclusive); returns how many offsets that added."""
        if not 0 <= lo <= hi <= OFFSET_MAX:
            raise InvalidRangeError(
                f"[{lo}, {hi}) is not a range of offsets; it needs 0 <= lo <= hi <= {OFFSET_MAX}"
            )
        if hi <= self._floor or lo == hi:
            return 0
        if lo <= self._floor:
            return self._raise_floor(hi)
        gained = self._insert(lo, hi)
        if gained and self._fresh is not None:
            self._fresh.ack_range(lo, hi)
        return gained

    def ack_many(self, offsets: Iterable[int] | Int64s) -> int:
        """Ack many offsets in any order, repeats allowed; returns how many were new."""
        import numpy as np

        if not isinstance(offsets, np.ndarray):
            offsets = np.fromiter(offsets, dtype=np.int64)
        if offsets.size == 0:
            return 0
        ordered = np.sort(offsets)
        if ordered[0] < 0 or ordered[-1] >= OFFSET_MAX:
            raise InvalidRangeError(
                f"offsets must be from 0 to {OFFSET_MAX - 1}, "
                f"got {int(ordered[0])} to {int(ordered[-1])}"
            )
        breaks = np.flatnonzero(np.diff(ordered) > 1)
        los = ordered[np.concatenate(([0], breaks + 1))]
        his = ordered[np.concatenate((breaks, [ordered.size - 1]))] + 1
        return self._union(los, his)

    def ack_ranges(self, los: Int64s, his: Int64s) -> int:
        """Ack ascending, disjoint, non-empty ranges; returns how many offsets that added."""
        if los.size and (los[0] < 0 or his[-1] > OFFSET_MAX or bool((his <= los).any())):
            raise InvalidRangeError("ranges must be within the offsets and not empty")
        if bool((los[1:] < his[:-1]).any()):
            raise InvalidRangeError("ranges must ascend and not overlap")
        return self._union(los, his)

    def merge(self, other: AckedRanges) -> int:
        """Ack everything that ``other`` has acked; returns how many offsets that added."""
        gained = self.ack_range(0, other._floor)
        if not other._blocks:
            return gained  # the usual case
        flat = _array(other._flat())
        return gained + self._union(flat[::2], flat[1::2])

    # --- records -----------------------------------------------------------------------

    @classmethod
    def from_tuples(cls, floor: int, ranges: Iterable[Sequence[int]]) -> AckedRanges:
        """Build from a floor and ascending, disjoint ranges above it, as ``to_tuples`` gives.

        Ranges that overlap, touch, stand out of order or reach below the floor are refused:
        they show that the record was not written by this class.
        """
        made = cls(floor)
        flat = list(chain.from_iterable((lo, hi) for lo, hi in ranges))
        made._adopt(flat)
        return made

    def encode(self) -> bytes:
        """A compact form: floor, then gap and length of each range, as MessagePack integers."""
        if not self._blocks:
            return self.encode_floor(self._floor)
        flat = _array([self._floor, *self._flat()])
        deltas = (flat[1:] - flat[:-1]).tolist()
        return msgspec.msgpack.encode((_ENCODING_VERSION, self._floor, deltas))

    @staticmethod
    def encode_floor(floor: int) -> bytes:
        """What :meth:`encode` gives for a floor without ranges above it."""
        return _encoder.encode((_ENCODING_VERSION, floor, ()))

    @classmethod
    def decode(cls, data: bytes) -> AckedRanges:
        """The inverse of :meth:`encode`; anything that it cannot have written is refused."""
        try:
            version, floor, deltas = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ProgressDecodeError(f"acked ranges cannot be decoded: {error}") from error
        if version != _ENCODING_VERSION:
            raise ProgressDecodeError(f"acked ranges have the unknown version {version}")
        if deltas and (min(deltas) < 1 or floor + sum(deltas) > OFFSET_MAX):
            raise ProgressDecodeError("acked ranges are not ascending within the offsets")
        try:
            made = cls(floor)
            if not deltas:
                return made  # the usual case
            made._adopt(_array([floor, *deltas]).cumsum()[1:].tolist())
        except InvalidRangeError as error:
            raise ProgressDecodeError(f"acked ranges cannot be decoded: {error}") from error
        return made

    # --- internals ---------------------------------------------------------------------

    def _flat(self, first: int = 0, last: int = OFFSET_MAX) -> list[int]:
        lo = max(0, bisect_right(self._lows, first) - 1)  # whole blocks, around those offsets
        return list(chain.from_iterable(self._blocks[lo : bisect_right(self._lows, last)]))

    def _pairs(self) -> Iterator[tuple[int, int]]:
        for block in self._blocks:
            yield from zip(block[::2], block[1::2], strict=True)

    def _first(self, count: int) -> list[tuple[int, int]]:
        return [pair for pair, _ in zip(self._pairs(), range(count), strict=False)]

    def _adopt(self, flat: list[int]) -> None:
        """Take checked boundaries as the content, in place of what there was."""
        if not flat:
            self._blocks, self._lows, self._above = [], [], 0
            return
        if len(flat) % 2:
            raise InvalidRangeError("a range has a beginning but no end")
        if not all(map(lt, flat, islice(flat, 1, None))):
            raise InvalidRangeError("ranges must ascend and be apart from one another")
        if flat[0] <= self._floor or flat[-1] > OFFSET_MAX:
            raise InvalidRangeError(f"a range lies outside {self._floor + 1} to {OFFSET_MAX}")
        self._take(flat)

    def _take(self, flat: list[int]) -> None:
        self._above = sum(flat[1::2]) - sum(flat[::2])
        self._blocks = _cut(flat)
        self._lows = [block[0] for block in self._blocks]

    def _raise_floor(self, hi: int) -> int:
        """Everything below ``hi`` is acked: drop what it covers, join what it touches."""
        before = self._floor + self._above
        while self._lows and self._lows[0] <= hi:
            block = self._blocks[0]
            cut = bisect_right(block, hi)
            if cut & 1:
                hi = block[cut]
                cut += 1
            self._above -= sum(block[1:cut:2]) - sum(block[0:cut:2])
            if cut < len(block):
                del block[:cut]
                self._lows[0] = block[0]
                break
            del self._blocks[0], self._lows[0]
        self._floor = hi
        return hi + self._above - before

    def _insert(self, lo: int, hi: int) -> int:
        """Add a range that begins above the floor."""
        lows = self._lows
        if not lows:
            self._blocks.append([lo, hi])
            lows.append(lo)
            self._above += hi - lo
            return hi - lo
        first = max(bisect_right(lows, lo) - 1, 0)
        last = max(bisect_right(lows, hi) - 1, first)
        if first == last:
            block = self._blocks[first]
        else:  # the range reaches over blocks: treat them as one, then cut it again
            block = list(chain.from_iterable(self._blocks[first : last + 1]))
        i = bisect_left(block, lo)
        if first == last and self._insert_simply(block, i, lo, hi):
            if len(block) > _BLOCK_BOUNDARIES_MAX:
                pieces = _cut(block)
                self._blocks[first : first + 1] = pieces
                lows[first : first + 1] = [piece[0] for piece in pieces]
            else:
                lows[first] = block[0]
            self._above += hi - lo
            return hi - lo
        j = bisect_right(block, hi)
        covered = block[i - (i & 1) : j + (j & 1)]
        start = covered[0] if i & 1 else lo
        end = covered[-1] if j & 1 else hi
        gained = end - start - (sum(covered[1::2]) - sum(covered[::2]))
        block[i:j] = ([] if i & 1 else [lo]) + ([] if j & 1 else [hi])
        if first != last or len(block) > _BLOCK_BOUNDARIES_MAX:
            pieces = _cut(block)
            self._blocks[first : last + 1] = pieces
            lows[first : last + 1] = [piece[0] for piece in pieces]
        else:
            lows[first] = block[0]
        self._above += gained
        return gained

    @staticmethod
    def _insert_simply(block: list[int], i: int, lo: int, hi: int) -> bool:
        """The usual cases, quickly: all of the range is new and touches at most one other."""
        after = block[i] if i < len(block) else OFFSET_MAX + 1
        if i & 1:
            if after != lo or (i + 1 < len(block) and block[i + 1] <= hi):
                return False
            block[i] = hi  # grows the range below it
        elif after > hi:
            block[i:i] = (lo, hi)
        elif after == hi:
            block[i] = lo  # grows the range above it
        else:
            return False
        return True

    def _union(self, los: Int64s, his: Int64s) -> int:
        """Add ascending, disjoint ranges."""
        if los.size < _UNION_RANGES_MIN or los.size * 4 < len(self):
            return sum(map(self.ack_range, los.tolist(), his.tolist()))
        import numpy as np

        before = self._floor + self._above
        mine = _array(self._flat())
        if self._fresh is not None:
            within = mine.searchsorted(los, side="right")
            known = (within % 2 == 1) & (within == mine.searchsorted(his, side="left"))
            self._fresh._union(los[~known], his[~known])
        los = np.concatenate(([0], mine[::2], los))
        his = np.concatenate(([self._floor], mine[1::2], his))
        order = np.argsort(los, kind="stable")
        los, reach = los[order], np.maximum.accumulate(his[order])
        opens = np.flatnonzero(np.concatenate(([True], los[1:] > reach[:-1])))
        closes = np.concatenate((opens[1:] - 1, [los.size - 1]))
        flat = np.stack((los[opens], reach[closes]), axis=1).ravel().tolist()
        self._floor = flat[1]
        self._adopt(flat[2:])
        return self._floor + self._above - before


def _array(numbers: list[int]) -> Int64s:
    import numpy as np  # here, since who only looks at records seldom needs it

    return np.array(numbers, dtype=np.int64)


def _cut(flat: list[int]) -> list[list[int]]:
    """Half-full blocks, so that the next insertions find room."""
    size = _BLOCK_BOUNDARIES_MAX // 2
    return [flat[k : k + size] for k in range(0, len(flat), size)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, int, list[int]])
