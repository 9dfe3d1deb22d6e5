"""What a subscriber has checked and cannot judge yet, in the order of coming; bounded.

It waits for the snapshot of another partition, so the link it came by may wait for room.
"""

from __future__ import annotations

from headrace.epochs.core.antichains import Antichain, Change, Frontier
from headrace.epochs.core.messages import Data, FrontierUpdate, Message
from headrace.epochs.core.times import TimeShape

HeldStep = tuple[str, Message, tuple[Change, ...]]
"""A partition, its message, and the changes of its lower frontier."""


class HeldBack:
    """Steps that wait."""

    def __init__(self, shape: TimeShape, batches_max: int | None) -> None:
        self._shape = shape
        self._batches_max = batches_max
        self._steps: list[HeldStep] = []

    def __len__(self) -> int:
        return len(self._steps)

    def full(self, message: Message) -> bool:
        """Whether there is no room; other messages than data have as much room again."""
        if self._batches_max is None:
            return False
        return len(self) >= self._batches_max * (1 if type(message) is Data else 2)

    def append(self, step: HeldStep) -> None:
        """Hold a step; updates of one partition in a row are held as one."""
        partition, message, changes = step
        if self._steps and type(message) is FrontierUpdate:
            before, last, earlier = self._steps[-1]
            if before == partition and type(last) is FrontierUpdate:
                self._steps[-1] = (partition, last, (*earlier, *changes))
                return
        self._steps.append(step)

    def take(self) -> list[HeldStep]:
        """All of it, which is not held any more."""
        steps, self._steps = self._steps, []
        return steps

    def take_back(self, partition: str, source: str, held: Frontier) -> None:
        """Let go of the batches of a source at or after the times it holds."""
        covered = Antichain.minimal(self._shape, held)

        def stays(step: HeldStep) -> bool:
            name, message, _ = step
            return not (
                name == partition
                and type(message) is Data
                and message.source == source
                and covered.covers(message.time)
            )

        self._steps = [step for step in self._steps if stays(step)]
