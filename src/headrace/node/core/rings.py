"""Figures over time in bounded memory: fine for the last hour, coarse for the last day.

A ring has a fixed number of slots of a fixed length.  A figure of a moment falls into the slot of
that moment; slots that nobody filled are gaps.  A coarse slot keeps the worst of its fine ones,
since a short peak is what people look for.
"""

from __future__ import annotations

import math
from array import array

FINE_S = 10
FINE_SLOTS = 360
COARSE_S = 120
COARSE_SLOTS = 720

Point = tuple[int, tuple[float, ...]]
"""(seconds since 1970, figures)"""

_GAP = math.nan


class Ring:
    """The last slots of several figures."""

    __slots__ = ("_last", "_slot_s", "_slots", "_values", "width")

    def __init__(self, width: int, slot_s: int, slots: int) -> None:
        self.width = width
        self._slot_s = slot_s
        self._slots = slots
        self._values = array("f", [_GAP]) * (width * slots)
        self._last = -1

    def put(self, at_s: float, figures: tuple[float, ...], *, worst: bool = False) -> None:
        """Figures of a moment; what is older than the ring is dropped."""
        slot = int(at_s) // self._slot_s
        if slot <= self._last - self._slots:
            return
        if slot > self._last:
            for gap in range(max(self._last + 1, slot - self._slots + 1), slot):
                self._store(gap, (_GAP,) * self.width)
            self._last = slot
        elif worst:
            both = zip(self._load(slot), figures, strict=True)
            figures = tuple([new if math.isnan(old) else max(old, new) for old, new in both])
        self._store(slot, figures)

    def points(self, since_s: float = 0) -> list[Point]:
        """What is known, oldest first."""
        first = max(self._last - self._slots + 1, int(since_s) // self._slot_s, 0)
        found = []
        for slot in range(first, self._last + 1):
            figures = self._load(slot)
            if not math.isnan(figures[0]):
                found.append((slot * self._slot_s, figures))
        return found

    def _load(self, slot: int) -> tuple[float, ...]:
        at = slot % self._slots * self.width
        return tuple(self._values[at : at + self.width])

    def _store(self, slot: int, figures: tuple[float, ...]) -> None:
        at = slot % self._slots * self.width
        for step, figure in enumerate(figures):
            self._values[at + step] = figure


class Series:
    """One thing's figures: fine and coarse."""

    __slots__ = ("coarse", "fine")

    def __init__(self, width: int) -> None:
        self.fine = Ring(width, FINE_S, FINE_SLOTS)
        self.coarse = Ring(width, COARSE_S, COARSE_SLOTS)

    def put(self, at_s: float, figures: tuple[float, ...]) -> None:
        self.fine.put(at_s, figures)
        self.coarse.put(at_s, figures, worst=True)

    def points(self, since_s: float, now_s: float) -> list[Point]:
        """Fine ones where they reach back far enough, else coarse ones and then fine ones."""
        fine = self.fine.points(since_s)
        if since_s >= now_s - FINE_S * FINE_SLOTS:
            return fine
        first = fine[0][0] if fine else now_s
        return [p for p in self.coarse.points(since_s) if p[0] + COARSE_S <= first] + fine
