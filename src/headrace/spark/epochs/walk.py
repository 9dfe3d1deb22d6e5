"""Whole epochs in the order of their completion, out of the progress logs; synchronous.

Lines become messages of the pure subscriber, as in a subscription of a program.  No row is read.
Lines are taken in small portions and only of the streams that hold the merged frontier back, so the
cost of the next epochs depends on them and not on how many wait behind them.
"""

from __future__ import annotations

from collections import deque

from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.effects import Effect, End, Ended, Epoch, Mode
from headrace.epochs.core.feed import LineFeed, Reference
from headrace.epochs.core.subscriber import Subscriber
from headrace.epochs.runtime.starting import EpochBegin

LINES = 256
"""The most lines that are taken at a time."""
EPOCHS = 1000
"""Lines are taken only until they give this many epochs: one line may hold thousands."""


class EpochWalk:
    """From one frontier on; with ``until``, no farther than that."""

    def __init__(self, begin: EpochBegin, until: Frontier | None = None) -> None:
        assert begin.start is not None
        names = [place.progress.stream.name for place in begin.streams]
        self._subscriber = Subscriber(
            names,
            begin.shape,
            mode=Mode.WHOLE,
            start=begin.start,
            until=until or (),
            stored=True,
            counts=False,
        )
        self._until = until
        self.waiting: deque[Epoch] = deque()
        """Whole epochs that were not taken yet."""
        self.ended: Ended | None = None
        self._feeds = {
            place.progress.stream.name: LineFeed(place.progress.stream.name, place.lower)
            for place in begin.streams
        }
        self._logs = {place.progress.stream.name: place.progress for place in begin.streams}
        self._next = {place.progress.stream.name: place.line for place in begin.streams}
        for name, feed in self._feeds.items():
            self._take(self._subscriber.receive(name, feed.snapshot()))

    @property
    def frontier(self) -> Frontier:
        """How far the lines that were taken go."""
        return self._subscriber.frontier

    def heads(self) -> dict[str, int]:
        """How many lines there are now."""
        return {name: log.bounds()[1] for name, log in self._logs.items()}

    def more(self, heads: dict[str, int]) -> bool:
        """Take in lines below ``heads``; false when there are none that matter."""
        if self.ended is not None:
            return False
        enough = len(self.waiting) + EPOCHS
        merged = set(self._subscriber.frontier)
        behind = [name for name, at in self._next.items() if at < heads[name]]
        holding = [
            name for name in behind if not merged.isdisjoint(self._subscriber.lower_of(name))
        ]
        for name in holding or behind:
            end = min(heads[name], self._next[name] + LINES)
            for number, line in self._logs[name].scan(self._next[name], end):
                for message in self._feeds[name].messages(number, line):
                    self._take(self._subscriber.receive(name, message))
                self._next[name] = number + 1
                if len(self.waiting) >= enough:
                    break
        return bool(behind)

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Epoch():
                    self.waiting.append(effect)
                case Ended(end=End.CLOSED | End.REACHED | End.ABORTED | End.FULL):
                    self.ended = effect
                case _:
                    pass


def references_of(epoch: Epoch) -> list[Reference]:
    """Where the rows of a whole epoch are."""
    return [one for batch in epoch.batches for one in batch.data.payload]
