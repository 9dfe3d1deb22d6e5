"""How loaded the readers are, kept in order as it changes.

A reader's size is (segments owned) × (its lag) ÷ (the greatest lag of a reader that owns any);
lags below an assumed one count as that.  The divisor is the same for all, so readers are ordered
by the product alone, in integers: comparing with "one segment more" multiplies by the divisor.
A change costs two bisections in a list of the readers.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Loads:
    """The sizes of all readers of a group."""

    def __init__(self, lag_assumed_ms: int) -> None:
        self._assumed_ms = lag_assumed_ms
        self._order: list[tuple[int, str]] = []
        self._lags: list[int] = []
        """Lags of the readers that own something, ascending."""
        self._known: dict[str, tuple[int, int]] = {}

    def put(self, reader: str, owned: int, lag_ms: int) -> None:
        """Set how many segments a reader owns and how far it is behind."""
        self.remove(reader)
        lag_ms = max(self._assumed_ms, lag_ms)
        self._known[reader] = (owned, lag_ms)
        insort(self._order, (owned * lag_ms, reader))
        if owned:
            insort(self._lags, lag_ms)

    def remove(self, reader: str) -> None:
        """A reader is gone, if it was there."""
        owned, lag_ms = self._known.pop(reader, (0, 0))
        if lag_ms:
            del self._order[bisect_left(self._order, (owned * lag_ms, reader))]
            if owned:
                del self._lags[bisect_left(self._lags, lag_ms)]

    def rank(self, reader: str) -> int:
        """0 for the most loaded reader, up to the number of readers - 1 for the least."""
        owned, lag_ms = self._known[reader]
        return len(self._order) - 1 - bisect_left(self._order, (owned * lag_ms, reader))

    def exceeds(self, reader: str, fewer: int, margin: int) -> bool:
        """Whether a reader without `fewer` of its segments exceeds the smallest by > `margin`."""
        owned, lag_ms = self._known[reader]
        unit = self._lags[-1] if self._lags else self._assumed_ms
        return (owned - fewer) * lag_ms > self._order[0][0] + margin * unit

    def size(self, reader: str) -> float:
        """The relative size, for people: 1.0 is one segment of the reader that lags most."""
        owned, lag_ms = self._known[reader]
        return owned * lag_ms / self._lags[-1] if owned else 0.0
