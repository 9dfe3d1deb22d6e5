"""The batches of epochs that are not complete, for a subscriber of whole epochs; bounded."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import Antichain, Frontier
from headrace.epochs.core.effects import Deliver, Epoch
from headrace.epochs.core.times import Time, TimeShape


class Pending:
    """What waits for its epoch to be complete."""

    def __init__(self, shape: TimeShape, batches_max: int | None) -> None:
        self._shape = shape
        self._epochs: ActiveEpochs[list[Deliver]] = ActiveEpochs(shape)
        self._batches_max = batches_max
        self.batches = 0

    @property
    def unbounded(self) -> bool:
        """Whether there is always room."""
        return self._batches_max is None

    def __contains__(self, time: Time) -> bool:
        return time in self._epochs

    def put(self, deliver: Deliver) -> None:
        """Keep a batch."""
        batches = self._epochs.get(deliver.data.time)
        if batches is None:
            batches = []
            self._epochs.put(deliver.data.time, batches)
        batches.append(deliver)
        self.batches += 1

    def too_many(self) -> Time | None:
        """The epoch to give up if there is more than fits: the one farthest ahead.

        Those before it are nearer to being complete, and the first of all is never given up for
        one that comes after it.
        """
        full = self._batches_max is not None and self.batches > self._batches_max
        return self._epochs.last() if full else None

    def give_up(self, time: Time) -> int:
        """Let go of one epoch; how many batches it had."""
        gone = len(self._epochs.drop(time))
        self.batches -= gone
        return gone

    def void(self, upper: Frontier) -> None:
        """Let go of what is at or before `upper`."""
        lost = Antichain.maximal(self._shape, upper)
        for time in [time for time in self._epochs if lost.covers(time)]:
            self.give_up(time)

    def take_back(self, partition: str, source: str, held: Frontier) -> None:
        """Let go of the batches of a source at or after the times it holds."""
        for time in self._epochs.covered(held):
            batches = self._epochs.get(time) or []
            kept = [
                one for one in batches if one.partition != partition or one.data.source != source
            ]
            self.batches -= len(batches) - len(kept)
            if kept:
                self._epochs.put(time, kept)
            else:
                self._epochs.drop(time)

    def take_completed(self, frontier: Frontier) -> list[tuple[Time, list[Deliver]]]:
        """The epochs that a frontier has left behind, earlier ones first."""
        complete = self._epochs.take_completed(frontier)
        self.batches -= sum(len(batches) for _, batches in complete)
        return complete

    def covered(self, frontier: Frontier) -> list[Time]:
        """The epochs at or after a frontier."""
        return self._epochs.covered(frontier)


def given_out(
    shape: TimeShape, complete: list[tuple[Time, list[Deliver]]], frontier: Frontier
) -> Iterator[Epoch]:
    """Whole epochs to give; after each, what is still to come includes the rest of them."""
    rest = Antichain.minimal(shape, frontier) if shape.length else None
    epochs = []
    for time, batches in reversed(complete):
        epochs.append(Epoch(time, tuple(batches), frontier))
        if rest is None:
            frontier = (time,)  # all of them lie before it
        elif rest.insert(time):
            frontier = rest.frontier
    return reversed(epochs)
