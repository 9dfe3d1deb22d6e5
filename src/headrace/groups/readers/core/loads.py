"""How loaded the readers are, kept in order as it changes.

A reader's size is the number of segments that it owns, times :data:`FAR_WEIGHT` if it counts as
*far behind*.  Lags of the same order are no reason to move anything, so a reader is far behind if
its lag is :data:`FAR_FACTOR` times that of the reader in the middle, and only once it has said so
several times in a row (see ``reader_rules``).  One that has not told its lag counts like the
others.

Readers are compared with those that are no further behind than they are: what one sheds because
it is slow must not make the others, who took it, look overloaded against it.
A change costs a few bisections in lists of the readers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

import msgspec

FAR_FACTOR: Final = 4
"""A reader this many times as far behind as the one in the middle is far behind."""
NEAR_FACTOR: Final = 2
"""Below this many times it is no longer."""
FAR_WEIGHT: Final = 4
"""A segment of a reader that is far behind counts as this many."""


class Load(msgspec.Struct, frozen=True):
    """What is known of one reader."""

    owned: int
    lag_ms: int | None = None
    """None: it has not told since it owns something."""
    far_behind: bool = False

    @property
    def weight(self) -> int:
        """What one of its segments counts for."""
        return FAR_WEIGHT if self.far_behind else 1

    @property
    def size(self) -> int:
        """All of them."""
        return self.owned * self.weight


class Loads:
    """The sizes of all readers of a group."""

    def __init__(self, lag_assumed_ms: int) -> None:
        self._assumed_ms = lag_assumed_ms
        self._order: list[tuple[int, str]] = []
        self._near: list[int] = []
        """Sizes of the readers that are not far behind, ascending."""
        self._lags: list[int] = []
        """Lags that were told by readers that own something, ascending."""
        self._known: dict[str, Load] = {}

    def put(self, reader: str, load: Load) -> None:
        """Set how many segments a reader owns and how far it is behind."""
        self.remove(reader)
        self._known[reader] = load
        insort(self._order, (load.size, reader))
        if not load.far_behind:
            insort(self._near, load.size)
        if load.owned and load.lag_ms is not None:
            insort(self._lags, load.lag_ms)

    def remove(self, reader: str) -> None:
        """A reader is gone, if it was there."""
        load = self._known.pop(reader, None)
        if load is None:
            return
        del self._order[bisect_left(self._order, (load.size, reader))]
        if not load.far_behind:
            del self._near[bisect_left(self._near, load.size)]
        if load.owned and load.lag_ms is not None:
            del self._lags[bisect_left(self._lags, load.lag_ms)]

    def rank(self, reader: str) -> int:
        """0 for the most loaded reader, up to the number of readers - 1 for the least."""
        load = self._known[reader]
        return len(self._order) - 1 - bisect_left(self._order, (load.size, reader))

    def exceeds(self, reader: str, fewer: int, margin: int) -> bool:
        """Whether a reader without `fewer` of its segments exceeds the smallest by > `margin`."""
        load = self._known[reader]
        least = self._order[0][0] if load.far_behind else self._near[0]
        return (load.owned - fewer - margin) * load.weight > least

    def is_far(self, reader: str) -> bool:
        """Whether a reader counts as far behind the others."""
        return self._known[reader].far_behind

    def seems_far(self, reader: str, lag_ms: int) -> bool:
        """Whether a lag that a reader tells now is far behind the lag in the middle."""
        load = self._known[reader]
        others = self._lags.copy()
        if load.owned and load.lag_ms is not None:
            del others[bisect_left(others, load.lag_ms)]
        if not (others and load.owned):
            return False
        middle_ms = max(self._assumed_ms, others[(len(others) - 1) // 2])
        factor = NEAR_FACTOR if load.far_behind else FAR_FACTOR
        return lag_ms >= factor * middle_ms

    def size(self, reader: str) -> int:
        """A reader's size, for people."""
        return self._known[reader].size
