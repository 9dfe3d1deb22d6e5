"""Which times a subscription lets through, and why it drops the others.

The *filter* holds what had begun when the snapshots were taken, and what was skipped.  A partition
that was added later brings a filter of its own (`late`), which counts only where that partition
began.  A partition that was lost before it told what had begun there leaves a place (`unheard`)
from which on nothing can ever be whole.  Beside these stand the start, the end, and single epochs
that were given up because they did not fit.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import Antichain, CountedAntichain, Frontier, leave_out, meet
from headrace.epochs.core.arrays import Mask, Times, at_or_after, at_or_before
from headrace.epochs.core.effects import Drop
from headrace.epochs.core.messages import Snapshot
from headrace.epochs.core.times import TIME_MAX, Time, TimeShape
from headrace.errors import HistoryGoneError


class Gate:
    """What passes, by time alone."""

    def __init__(
        self,
        shape: TimeShape,
        *,
        start: Frontier | None,
        until: Frontier,
        filtered: bool,
        stored: bool = False,
    ) -> None:
        self.shape = shape
        self.stored = stored
        self.filtered = filtered
        self.start = None if start is None else Antichain.minimal(shape, start)
        self.until = Antichain.minimal(shape, until)
        self.filter = Antichain.maximal(shape)
        self.late: list[tuple[Antichain, Antichain]] = []
        """Per partition that was added: where it began, and what had begun there when it spoke."""
        self.unheard = Antichain.minimal(shape)
        self._given_up: ActiveEpochs[None] = ActiveEpochs(shape)

    def bounded(self, frontier: Frontier) -> Frontier:
        """No farther than `until`: what comes after was not given, and whoever resumes wants it.

        Where nothing is stored, nobody resumes.
        """
        if not self.stored or not len(self.until):
            return frontier
        return meet(self.shape, frontier, self.until)

    def verdict(self, time: Time) -> Drop | None:
        """Why data at `time` is not delivered, or None."""
        if self.filtered and (self.filter.covers(time) or (self.late and self._begun_late(time))):
            return Drop.FILTERED
        if self.start is not None and not self.start.covers(time):
            return Drop.BEFORE_START
        if self.until.covers(time):
            return Drop.AFTER_END
        if self.unheard.covers(time):
            return Drop.LOST
        if time in self._given_up:
            return Drop.GIVEN_UP
        return None

    def plain(self, first: int | None) -> tuple[int, int]:
        """Which integers from `first` on pass, if they are all in a row: (first, end)."""
        if first is None or len(self.filter) or self.late or len(self.unheard):
            return 0, 0
        if self.shape.length or len(self._given_up) or (self.start is not None and not self.start):
            return 0, 0
        begin = 0 if self.start is None else self.start.frontier[0]
        end = self.until.frontier[0] if self.until else TIME_MAX + 1
        assert isinstance(begin, int)
        assert isinstance(end, int)
        return max(first, begin), end

    def _begun_late(self, time: Time) -> bool:
        return any(at.covers(time) and upper.covers(time) for at, upper in self.late)

    def passes(self, times: Times) -> Mask:
        """Which of many times pass."""
        passed = np.ones(len(times), dtype=np.bool_)
        if self.filtered and len(self.filter):
            passed &= ~at_or_before(times, self.filter)
        for at, upper in self.late if self.filtered else ():
            passed &= ~(at_or_before(times, upper) & at_or_after(times, at))
        if self.start is not None:
            passed &= at_or_after(times, self.start)
        for shut in (self.until, self.unheard):
            if len(shut):
                passed &= ~at_or_after(times, shut)
        return passed

    def check_history(self, message: Snapshot) -> None:
        """A start in the past needs all that came since: a snapshot may not show otherwise."""
        start = self.start or Antichain.minimal(self.shape)
        missed = [time for time in message.upper if start.covers(self.shape.check(time))]
        if missed:
            since = leave_out(self.shape, (self.shape.bottom,), missed)
            raise HistoryGoneError(
                start.frontier, since, what=f"data up to {missed} was published before"
            )

    def begun(self, times: Iterable[Time]) -> None:
        """Epochs at or before `times` have begun or lost data: none of them is seen whole."""
        self.filter.insert_all(times)

    def joined(self, at: Frontier, upper: Frontier) -> None:
        """A partition that began `at` a frontier had begun what lies up to `upper`."""
        late = (Antichain.minimal(self.shape, at), Antichain.maximal(self.shape, upper))
        self.late.append(late)

    def give_up(self, time: Time) -> None:
        """One epoch does not fit: the rest of it is dropped too."""
        self._given_up.put(time, None)

    def settle(self, lower: CountedAntichain) -> None:
        """Forget what the merged frontier has passed: no partition can publish there any more."""
        if len(self.filter):
            self.filter.prune(lower.covers)
        for _, upper in self.late:
            upper.prune(lower.covers)
        self.late = [late for late in self.late if len(late[1])]
        self._given_up.take_completed(lower.frontier)
