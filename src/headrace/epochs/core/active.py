"""What is known of epochs that are not complete yet, by time.

Publishers count the rows of active epochs, links check those counts, and a subscriber of whole
epochs keeps their batches.  All of them ask the same question at every step of a frontier: which
epochs does it leave behind?  For integers a heap answers in O(log n) per epoch left behind; for
tuples all active epochs are looked through.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from headrace.epochs.core.times import Time, TimeShape

V = TypeVar("V")


class ActiveEpochs(Generic[V]):
    """A value per epoch, given up when the epoch is completed."""

    __slots__ = ("_heap", "_integers", "_values")

    def __init__(self, shape: TimeShape) -> None:
        self._integers = shape.length == 0
        self._values: dict[Time, V] = {}
        self._heap: list[Any] = []

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, time: Time) -> bool:
        return time in self._values

    def __iter__(self) -> Iterator[Time]:
        return iter(self._values)

    def get(self, time: Time) -> V | None:
        """What is known of an epoch."""
        return self._values.get(time)

    def put(self, time: Time, value: V) -> None:
        """Keep a value for an epoch."""
        if self._integers and time not in self._values:
            heapq.heappush(self._heap, time)
        self._values[time] = value

    def items(self) -> list[tuple[Time, V]]:
        """Everything kept, in the sequence of times."""
        return sorted(self._values.items(), key=lambda item: item[0])

    def completed(self, covers: Callable[[Time], bool]) -> list[Time]:
        """The epochs that a frontier has left behind, earlier ones first; they stay."""
        if not self._integers:
            return sorted(time for time in self._values if not covers(time))
        taken: list[Any] = []
        while self._heap and not covers(self._heap[0]):
            time = heapq.heappop(self._heap)
            # A time may stand twice in the heap if it was dropped and put again.
            if time in self._values and (not taken or taken[-1] != time):
                taken.append(time)
        for time in taken:
            heapq.heappush(self._heap, time)
        return taken

    def take_completed(self, covers: Callable[[Time], bool]) -> list[tuple[Time, V]]:
        """Give up the epochs that a frontier has left behind, earlier ones first."""
        return [(time, self.drop(time)) for time in self.completed(covers)]

    def drop(self, time: Time) -> V:
        """Give up one epoch."""
        return self._values.pop(time)
