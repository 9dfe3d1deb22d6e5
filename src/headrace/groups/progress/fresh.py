"""What was acked since a base was made: the part of very many ranges that commits write.

A running owner keeps the whole set, for answers, and beside it notes what is new, which costs an
append.  A commit joins the notes; when they have grown to a part of the base, it is made anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.groups.progress.base import Base
from headrace.groups.progress.unions import array_of, overlapping

if TYPE_CHECKING:
    from headrace.groups.progress.arrays import Int64s

FRESH_OF_BASE = 64
"""A base is made anew when this part of as many ranges was acked since."""


class Fresh:
    """A base, and what is acked above a floor beyond it."""

    __slots__ = ("_bounds", "_many", "_since", "base")

    def __init__(self, base: Base, bounds: Int64s) -> None:
        self.base = base
        self._bounds = bounds
        self._since: list[int] = []
        self._many: list[tuple[Int64s, Int64s]] = []

    def copy(self) -> Fresh:
        """An independent one with the same content."""
        twin = Fresh(self.base, self._bounds)
        twin._since, twin._many = list(self._since), list(self._many)
        return twin

    def note(self, lo: int, hi: int) -> None:
        """A range that is acked now, at least in part."""
        self._since += lo, hi

    def note_many(self, los: Int64s, his: Int64s) -> None:
        """Ranges that are acked now, each at least in part."""
        self._many.append((los, his))

    def above(self, floor: int) -> Int64s:
        """The boundaries of what was noted, joined, and above the floor."""
        since, known = array_of(self._since), self._bounds
        los = np.concatenate([known[::2], since[::2], *(los for los, _ in self._many)])
        his = np.concatenate([known[1::2], since[1::2], *(his for _, his in self._many)])
        self._since, self._many = [], []
        kept = his > floor
        los, his = los[kept], his[kept]
        self._bounds = overlapping(array_of([]), los, his) if los.size else los
        return self._bounds

    def is_stale(self, floor: int, least: int) -> bool:
        """Whether the base is better made anew; some ranges beside it are never too many."""
        most = max(least, len(self.base) // FRESH_OF_BASE)
        return self.base.end <= floor or len(self._bounds) // 2 > most
