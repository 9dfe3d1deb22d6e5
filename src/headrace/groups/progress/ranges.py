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

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING

from headrace.errors import InvalidRangeError, ProgressDecodeError
from headrace.groups.progress import codec, unions
from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.groups.progress.unions import Block

_BLOCK_BOUNDARIES_MAX = 1024
_UNION_RANGES_MIN = 16  # fewer than this are added one by one
_WINDOW = 256  # and so are those with more boundaries for each of them in between
LAYERED_RANGES_MIN = 4096
"""More ranges than this are kept in a base."""

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.groups.progress.arrays import Int64s
    from headrace.groups.progress.base import Base
    from headrace.groups.progress.fresh import Fresh


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

    __slots__ = ("_above", "_blocks", "_floor", "_fresh", "_lows")

    def __init__(self, floor: int = 0) -> None:
        if not 0 <= floor <= OFFSET_MAX:
            raise InvalidRangeError(f"a floor of {floor} is not an offset (0 to {OFFSET_MAX})")
        self._floor = floor
        self._blocks: list[Block] = []
        self._lows: list[int] = []  # first boundary of each block
        self._above = 0
        self._fresh: Fresh | None = None  # beside a base, if there are very many

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
        near = self._bounds(int(offsets.min()), int(offsets.max())) if len(offsets) else offsets
        inside = near.searchsorted(offsets, side="right") & 1 == 1
        found: npt.NDArray[np.bool_] = (inside | (offsets < self._floor)) & (offsets >= 0)
        return found

    def holds_many(self, los: Int64s, his: Int64s) -> npt.NDArray[np.bool_]:
        """Which of many ranges are acked as a whole, at once."""
        near = self._bounds(int(los.min()), int(his.max())) if los.size else los
        at = near.searchsorted(los, side="right")
        within = (at % 2 == 1) & (at == near.searchsorted(his, side="left"))
        found: npt.NDArray[np.bool_] = within | (his <= self._floor)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckedRanges):
            return NotImplemented
        same = self._floor == other._floor and self._above == other._above
        return same and (not self._above or self.to_tuples() == other.to_tuples())

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        shown = ", ".join(f"[{lo}, {hi})" for lo, hi in islice(self._pairs(), 4))
        more = f", … {len(self) - 4} more" if len(self) > 4 else ""
        return f"AckedRanges(floor={self._floor}, ranges={{{shown}{more}}})"

    def to_tuples(self) -> tuple[tuple[int, int], ...]:
        """The ranges above the floor, ascending, as ``(lo, hi)`` half-open."""
        flat = list(chain.from_iterable(self._blocks))
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
        twin._blocks = [block[:] for block in self._blocks]
        twin._lows = list(self._lows)
        twin._above = self._above
        twin._fresh = None if self._fresh is None else self._fresh.copy()
        return twin

    # --- layers ------------------------------------------------------------------------

    @classmethod
    def over(cls, floor: int, base: Base, ranges: Iterable[Sequence[int]]) -> AckedRanges:
        """What :meth:`layers` parted, together again; what it cannot have parted is refused."""
        from headrace.groups.progress.fresh import Fresh

        beside, made = cls.from_tuples(floor, ranges), cls(floor)
        above = base.above(floor)
        made._hold(array("q", above.tobytes()), unions.size(above))
        made.merge(beside)
        if made._floor != floor:
            raise InvalidRangeError(f"a floor of {floor} is below acked ranges that touch it")
        made._fresh = Fresh(base, beside._bounds())
        return made

    def layers(self) -> tuple[Base | None, tuple[tuple[int, int], ...]]:
        """All that is acked above the floor as a base, if it is much, and ranges beside it."""
        fresh = self._fresh
        if not self._is_longer(LAYERED_RANGES_MIN // (1 if fresh is None else 2)):
            self._fresh = None
            return None, self.to_tuples()
        beside = None if fresh is None else fresh.above(self._floor)
        if fresh is None or beside is None or fresh.is_stale(self._floor, LAYERED_RANGES_MIN):
            from headrace.groups.progress.base import Base
            from headrace.groups.progress.fresh import Fresh

            beside = unions.array_of([])
            self._fresh = fresh = Fresh(Base.of(self._bounds()), beside)
        flat = beside.tolist()
        return fresh.base, tuple(zip(flat[::2], flat[1::2], strict=True))

    def _is_longer(self, count: int) -> bool:
        return any(length > 2 * count for length in accumulate(map(len, self._blocks)))

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
            self._fresh.note(lo, hi)
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
        flat = other._bounds()
        return gained + self._union(flat[::2], flat[1::2])

    # --- records -----------------------------------------------------------------------

    @classmethod
    def from_tuples(cls, floor: int, ranges: Iterable[Sequence[int]]) -> AckedRanges:
        """Build from a floor and ascending, disjoint ranges above it, as ``to_tuples`` gives.

        Ranges that overlap, touch, stand out of order or reach below the floor are refused:
        they show that the record was not written by this class.
        """
        made = cls(floor)
        made._adopt(list(chain.from_iterable((lo, hi) for lo, hi in ranges)))
        return made

    def encode(self) -> bytes:
        """A compact form: floor, then gap and length of each range, as MessagePack integers."""
        return codec.encode(self._floor, self._bounds() if self._blocks else ())

    @classmethod
    def decode(cls, data: bytes) -> AckedRanges:
        """The inverse of :meth:`encode`; anything that it cannot have written is refused."""
        floor, flat = codec.decode(data)
        try:
            made = cls(floor)
            made._adopt(flat)
        except InvalidRangeError as error:
            raise ProgressDecodeError(f"acked ranges cannot be decoded: {error}") from error
        return made

    # --- internals ---------------------------------------------------------------------

    def _bounds(self, first: int = 0, last: int = OFFSET_MAX) -> Int64s:
        lo = max(0, bisect_right(self._lows, first) - 1)  # whole blocks, around those offsets
        return unions.joined(self._blocks[lo : bisect_right(self._lows, last)])

    def _pairs(self) -> Iterator[tuple[int, int]]:
        for block in self._blocks:
            yield from zip(block[::2], block[1::2], strict=True)

    def _adopt(self, flat: Sequence[int]) -> None:
        """Take boundaries as the content of an empty set, once they are checked."""
        if flat:  # mostly there is a floor alone
            unions.check(flat, self._floor)
            self._hold(array("q", flat), sum(flat[1::2]) - sum(flat[::2]))

    def _hold(self, bounds: Block, above: int) -> None:
        self._above = above
        self._blocks = unions.halves(bounds, _BLOCK_BOUNDARIES_MAX)
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
            self._blocks.append(array("q", (lo, hi)))
            lows.append(lo)
            self._above += hi - lo
            return hi - lo
        first = max(bisect_right(lows, lo) - 1, 0)
        last = max(bisect_right(lows, hi) - 1, first)
        if first == last:
            block = self._blocks[first]
        else:  # the range reaches over blocks: treat them as one, then cut it again
            block = array("q", chain.from_iterable(self._blocks[first : last + 1]))
        i = bisect_left(block, lo)
        gained = hi - lo
        if first != last or not unions.insert_simply(block, i, lo, hi):
            j = bisect_right(block, hi)
            covered = block[i - (i & 1) : j + (j & 1)]
            start = covered[0] if i & 1 else lo
            end = covered[-1] if j & 1 else hi
            gained = end - start - (sum(covered[1::2]) - sum(covered[::2]))
            block[i:j] = array("q", ([] if i & 1 else [lo]) + ([] if j & 1 else [hi]))
        if first != last or len(block) > _BLOCK_BOUNDARIES_MAX:
            self._blocks[first : last + 1] = pieces = unions.halves(block, _BLOCK_BOUNDARIES_MAX)
            lows[first : last + 1] = [piece[0] for piece in pieces]
        else:
            lows[first] = block[0]
        self._above += gained
        return gained

    def _union(self, los: Int64s, his: Int64s) -> int:
        """Add ascending, disjoint ranges; costs what lies from the first to the last of them."""
        lo, hi = (int(los[0]), int(his[-1])) if los.size else (0, 0)
        first = 0 if lo <= self._floor else max(bisect_right(self._lows, lo) - 1, 0)
        last = bisect_right(self._lows, hi)
        wide = (last - first) * _BLOCK_BOUNDARIES_MAX > los.size * _WINDOW
        if los.size < _UNION_RANGES_MIN or wide or hi <= self._floor:
            return sum(map(self.ack_range, los.tolist(), his.tolist()))
        import numpy as np

        mine, with_floor = unions.joined(self._blocks[first:last]), lo <= self._floor
        if with_floor:
            mine = np.concatenate(((-1, self._floor), mine))
        at, to = mine.searchsorted(los, side="right"), mine.searchsorted(his, side="left")
        if ((at & 1) | (at != to)).any():
            flat, new = unions.overlapping(mine, los, his), (at & 1 == 0) | (at != to)
            gained, los, his = unions.size(flat) - unions.size(mine), los[new], his[new]
        else:  # the usual case: all of it is new
            flat, gained = unions.apart(mine, los, his), int(his.sum() - los.sum())
        if self._fresh is not None:
            self._fresh.note_many(los, his)
        self._above += gained
        if with_floor:
            self._above -= int(flat[1]) - self._floor
            self._floor = int(flat[1])
            flat = flat[2:]
        self._blocks[first:last] = pieces = unions.cut(flat, _BLOCK_BOUNDARIES_MAX)
        self._lows[first:last] = [piece[0] for piece in pieces]
        return gained
