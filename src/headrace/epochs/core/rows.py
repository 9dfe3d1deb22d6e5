"""How many rows of a partition's epochs have arrived, held against what its publisher tells."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import Antichain, Frontier
from headrace.epochs.core.messages import EpochCount
from headrace.epochs.core.times import Time, TimeShape


class RowCounts:
    """Rows per active epoch and source, of epochs that are seen in full.

    `partial` holds the times at or before which rows may be missing; nothing is counted there, nor
    before the start.
    """

    def __init__(self, shape: TimeShape, start: Frontier) -> None:
        # With a start at the first of all times there is nothing to compare.
        self._start = None if start == (shape.bottom,) else Antichain.minimal(shape, start)
        self.partial = Antichain.maximal(shape)
        self._rows: ActiveEpochs[dict[str, int]] = ActiveEpochs(shape)
        self._told: ActiveEpochs[int] = ActiveEpochs(shape)
        """What was told ahead of the update that completes it."""

    def counts(self, time: Time) -> bool:
        """Whether rows at `time` are counted."""
        return not self.partial.covers(time) and (self._start is None or self._start.covers(time))

    def over(self, time: Time) -> bool:
        """Whether the number of an epoch's rows was told: it gets no more."""
        return time in self._told

    def any(self) -> bool:
        """Whether there is anything to hold against what is told."""
        return bool(len(self._rows) or len(self._told))

    def add(self, time: Time, rows: int, source: str = "") -> None:
        """Count rows that have arrived."""
        if not self.counts(time):
            return
        known = self._rows.get(time)
        if known is None:
            self._rows.put(time, {source: rows})
        else:
            known[source] = known.get(source, 0) + rows

    def take_back(self, source: str, held: Frontier) -> None:
        """Rows of a source at or after `held` do not count."""
        for time in self._rows.covered(held):
            known = self._rows.get(time) or {}
            known.pop(source, None)
            if not known:
                self._rows.drop(time)

    def tell(self, counts: Iterable[EpochCount]) -> None:
        """Keep what was told ahead."""
        for time, rows in counts:
            if self.counts(time):
                self._told.put(time, rows)

    def wrong(
        self, frontier: Frontier, counts: Iterable[EpochCount], partial: Antichain
    ) -> tuple[Time, int, int] | None:
        """An epoch left behind by `frontier` with other rows than told: time, told, arrived."""
        told: dict[Time, int] = {}
        for time in self._rows.completed(frontier):
            told[time] = 0
        for time in self._told.completed(frontier):
            told[time] = self._told.get(time) or 0
        told.update(counts)
        for time, rows in told.items():
            if partial.covers(time) or not self.counts(time):
                continue
            got = sum((self._rows.get(time) or {}).values())
            if got != rows:
                return time, rows, got
        return None

    def skip(self, partial: Antichain) -> None:
        """More may be missing: forget what was counted there."""
        self.partial = partial
        for active in (self._rows, self._told):
            for time in [time for time in active if partial.covers(time)]:
                active.drop(time)

    def complete(self, frontier: Frontier) -> None:
        """Forget what a frontier has left behind."""
        self._rows.take_completed(frontier)
        self._told.take_completed(frontier)
