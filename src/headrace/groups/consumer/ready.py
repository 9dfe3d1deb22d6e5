"""What stands ready for the application: taken from the runs, and not seen yet.

A failure is raised before the next event: the events are put aside until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from headrace.groups.consumer.batches import Batch
from headrace.groups.consumer.delivery import Delivery
from headrace.groups.consumer.run import Run

FAILURES_MAX = 16


class AtHand:
    """Deliveries and batches at hand, and failures to be raised."""

    def __init__(self) -> None:
        self.events: deque[Delivery] = deque()
        self.batches: deque[Batch] = deque()
        self.failures: deque[Exception] = deque(maxlen=FAILURES_MAX)
        self._aside: deque[Delivery] = deque()

    def fail(self, error: Exception) -> None:
        """Raise this before the next event."""
        self.failures.append(error)
        self._aside.extend(self.events)
        self.events.clear()

    def restore(self) -> None:
        """The failure was raised: the events are at hand again."""
        self.events.extend(self._aside)
        self._aside.clear()

    def unseen(self) -> dict[Run, list[int]]:
        """What the application has not seen, by run: offsets, or where a batch begins."""
        found: dict[Run, list[int]] = {}
        for queue in (self.events, self._aside):
            for one in queue:
                found.setdefault(one._run, []).append(one.offset)
        for batch in self.batches:
            found.setdefault(batch._run, []).append(batch._handout.piece.start)
        return found

    def take_back(self, runs: Iterable[Run]) -> dict[Run, list[int]]:
        """Remove what the application has not seen of some runs, and say what that was."""
        unseen = self.unseen()
        found = {run: unseen[run] for run in runs if run in unseen}
        if found:
            for queue in (self.events, self._aside):
                kept = [one for one in queue if one._run not in found]
                queue.clear()
                queue.extend(kept)
            self.batches = deque(batch for batch in self.batches if batch._run not in found)
        return found

    def drop(self, run: Run, offsets: Collection[int]) -> None:
        """Remove events of a run that the application is not to see."""
        for queue in (self.events, self._aside):
            kept = [one for one in queue if one._run is not run or one.offset not in offsets]
            queue.clear()
            queue.extend(kept)

    def clear(self) -> None:
        """Nothing is at hand any more."""
        self.events.clear()
        self.batches.clear()
        self._aside.clear()
