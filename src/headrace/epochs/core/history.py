"""Where in the log of a partition to begin, to see every epoch from a frontier on whole.

Theory of operation
-------------------
A durable partition keeps its batches and, in line with them, markers of its lower frontier.  A
subscriber that wants everything at or after a frontier must begin at the first batch of any such
epoch, which may lie well before the marker at which the frontier got there: data may come early.
The history remembers the first offset of every epoch still retained, in the order of those offsets,
and where the lower frontier stood at each marker.

Retention takes batches away from the front.  An epoch that has lost one can no longer be seen
whole, and with it goes everything at or before it; what is left is everything at or after *since*.
A wish for more is refused, with *since* in the answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import (
    Antichain,
    Frontier,
    check_frontier,
    leave_out,
    not_before,
)
from headrace.epochs.core.messages import Data, FrontierUpdate, Snapshot, TakeBack
from headrace.epochs.core.times import INTEGERS, Time, TimeShape
from headrace.errors import EpochMessageError, FrontierError, HistoryGoneError, IllegalTimeError


class HistoryStart(msgspec.Struct, frozen=True):
    """Where to begin reading, and the snapshot that stands for what came before."""

    offset: int
    snapshot: Snapshot


class EpochHistory:
    """The index of one partition's log, fed with its records in order of offset."""

    def __init__(self, shape: TimeShape = INTEGERS) -> None:
        self.shape = shape
        self.since: Frontier = (shape.bottom,)
        """Everything at or after this is still there."""
        self.end = 0
        """One past the last offset."""
        self._upper = Antichain.maximal(shape)
        self._lower: Frontier = (shape.bottom,)
        self._first: dict[Time, int] = {}
        self._rows: ActiveEpochs[int] = ActiveEpochs(shape)
        self._marker_offsets: list[int] = []
        self._marker_lowers: list[Frontier] = []
        self._base: Frontier = (shape.bottom,)

    def __repr__(self) -> str:
        return f"<EpochHistory since {list(self.since)}, lower {list(self._lower)} at {self.end}>"

    @property
    def lower(self) -> Frontier:
        """The lower frontier at the end."""
        return self._lower

    @property
    def upper(self) -> Frontier:
        """The maximal times ever published."""
        return self._upper.frontier

    @property
    def active_rows(self) -> dict[Time, int]:
        """Rows per epoch that is not complete, for a publisher that goes on from here."""
        return dict(self._rows.items())

    def append(self, offset: int, record: Data | FrontierUpdate | TakeBack) -> None:
        """Take in the record at `offset`."""
        if offset < self.end:
            raise EpochMessageError(
                "records come in the order of offsets", update=f"record at {offset}", state=self
            )
        match record:
            case Data(time=time, rows=rows):
                self.shape.check(time)
                if not Antichain.minimal(self.shape, self._lower).covers(time):
                    raise IllegalTimeError(
                        "its epoch is completed", update=f"data at {time}", state=self
                    )
                self._first.setdefault(time, offset)
                self._upper.insert(time)
                self._rows.put(time, (self._rows.get(time) or 0) + rows)
            case FrontierUpdate(changes=changes):
                self._advance(offset, changes)
            case TakeBack(held=held):
                for time in self._rows.covered(held):
                    self._rows.drop(time)
        self.end = offset + 1

    def _advance(self, offset: int, changes: Iterable[tuple[Time, int]]) -> None:
        changes = tuple(changes)
        gone = [time for time, delta in changes if delta < 0]
        lower = [time for time in self._lower if time not in gone]
        lower.extend(time for time, delta in changes if delta > 0)
        after = check_frontier(self.shape, lower)
        if not not_before(self.shape, after, self._lower) or not set(gone) <= set(self._lower):
            raise FrontierError("it goes back", update=f"frontier {list(changes)}", state=self)
        self._lower = after
        self._marker_offsets.append(offset)
        self._marker_lowers.append(after)
        self._rows.take_completed(after)

    def trim(self, offset: int) -> Frontier:
        """Everything below `offset` is gone; returns the new `since`."""
        lost = []
        for time, first in self._first.items():
            if first >= offset:
                break
            lost.append(time)
        for time in lost:
            del self._first[time]
        # Only the maximal ones matter: the rest lie at or before them.
        maximal = Antichain.maximal(self.shape, lost)
        self.since = leave_out(self.shape, self.since, maximal)
        for time in list(self._first):
            if maximal.covers(time):
                del self._first[time]
        passed = bisect_left(self._marker_offsets, offset)
        if passed:
            self._base = self._marker_lowers[passed - 1]
            del self._marker_offsets[:passed], self._marker_lowers[:passed]
        return self.since

    def start(self, frontier: Iterable[Time]) -> HistoryStart:
        """Where to begin in order to see every epoch at or after `frontier` whole."""
        wanted = check_frontier(self.shape, frontier)
        if not not_before(self.shape, wanted, self.since):
            raise HistoryGoneError(wanted, self.since, what="earlier batches were trimmed")
        covered = Antichain.minimal(self.shape, wanted)
        offset = next((o for t, o in self._first.items() if covered.covers(t)), self.end)
        passed = bisect_right(self._marker_offsets, offset)
        lower = self._marker_lowers[passed - 1] if passed else self._base
        return HistoryStart(offset, Snapshot(lower, ()))
