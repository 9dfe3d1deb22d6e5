"""Events that were refused or timed out, resting until they come again."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush

from headrace.groups.delivery.key_order import KeyOrder


class Refused:
    """Refused events by the time at which they are due."""

    __slots__ = ("_due", "_order", "events")

    def __init__(self, order: KeyOrder) -> None:
        self._order = order
        self.events: dict[int, tuple[int, int]] = {}  # offset: key, due
        self._due: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.events)

    @property
    def next_due_ms(self) -> int | None:
        """When the first of them is due."""
        return self._due[0][0] if self._due else None

    def add(self, offset: int, key: int, due_ms: int) -> None:
        """Let an event rest until ``due_ms``."""
        self.events[offset] = (key, due_ms)
        heappush(self._due, (due_ms, offset))
        self._order.rest(key, offset)

    def take_due(self, budget: int, now_ms: int) -> tuple[list[int], list[int]]:
        """Offsets and keys of what is due; of one key the earliest refused comes first."""
        offsets: list[int] = []
        keys: list[int] = []
        while self._due and self._due[0][0] <= now_ms and len(offsets) < budget:
            _, offset = heappop(self._due)
            key, _ = self.events[offset]
            first = min(self._order.resting[key])
            if offset != first:  # behind an earlier one of its key that still rests
                due_ms = max(now_ms, self.events[first][1])
                self.events[offset] = (key, due_ms)
                heappush(self._due, (due_ms, offset))  # sorts behind it, also at the same time
                continue
            del self.events[offset]
            self._order.wake(key, offset)
            offsets.append(offset)
            keys.append(key)
        return offsets, keys

    def drop(self, gone: Collection[int]) -> None:
        """These do not come again: their keys are free."""
        self._due = [pair for pair in self._due if pair[1] not in gone]
        heapify(self._due)
        for offset in gone:
            key, _ = self.events.pop(offset)
            self._order.wake(key, offset)
            self._order.release(key)
