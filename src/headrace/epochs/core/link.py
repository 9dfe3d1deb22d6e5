"""One partition as a subscriber sees it: is what it says legal, and did all of it arrive?

A link checks every message on arrival, before anything is judged and long before other partitions
may have sent their snapshots, so that a refused message changes nothing anywhere.  It knows the
partition's own lower frontier and counts the rows of its active epochs.  An epoch that was latent
when the link began is seen in full here, so the number of its rows must be the one that the
publisher tells when it completes it.

`partial` holds the times at or before which rows may be missing: the upper frontier of the
snapshot, and of what was skipped.  It is pruned by this partition's own lower frontier, which is
right for counting and would be wrong for the filter of a subscriber of several partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import Antichain, Change, CountedAntichain, Frontier, counted
from headrace.epochs.core.messages import (
    Aborted,
    Data,
    EpochCount,
    FrontierUpdate,
    Heartbeat,
    Message,
    Skip,
    Snapshot,
)
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import (
    EpochCountError,
    EpochMessageError,
    FrontierError,
    IllegalTimeError,
    TimeShapeError,
)

Times = npt.NDArray[np.int64]


def named(message: Message) -> str:
    """A message as errors show it: its payload is nobody's business."""
    if isinstance(message, Data):
        return f"Data at {message.time} with {message.rows} rows"
    return str(message)


class Link:
    """The messages of one partition, checked."""

    def __init__(self, partition: str, shape: TimeShape, start: Frontier, at: Frontier) -> None:
        """Rows are counted at or after `start`; the snapshot must not be before `at`."""
        self.partition = partition
        self.shape = shape
        self.at = at
        # With a start at the first of all times there is nothing to compare.
        self._start = None if start == (shape.bottom,) else Antichain.minimal(shape, start)
        self._lower: CountedAntichain | None = None
        self._partial = Antichain.maximal(shape)
        self._rows: ActiveEpochs[int] = ActiveEpochs(shape)
        self.aborted: str | None = None

    def __repr__(self) -> str:
        if self._lower is None:
            return f"partition {self.partition} without a snapshot"
        state = "" if self.aborted is None else f", aborted ({self.aborted})"
        return f"partition {self.partition} at lower frontier {self._lower}{state}"

    @property
    def begun(self) -> bool:
        """Whether the snapshot is in hand."""
        return self._lower is not None

    @property
    def closed(self) -> bool:
        """Whether everything of this partition is complete."""
        return self._lower is not None and not self._lower.counts

    @property
    def lower(self) -> Frontier:
        """The partition's own lower frontier; before the snapshot, the promised one."""
        return self.at if self._lower is None else self._lower.frontier

    def accept(self, message: Message) -> tuple[Change, ...]:
        """Check a message and take it in; the changes of the partition's lower frontier."""
        if self.aborted is not None:
            raise EpochMessageError("the partition has aborted", update=named(message), state=self)
        if isinstance(message, Snapshot):
            return self._begin(message)
        lower = self._lower
        if lower is None:
            raise EpochMessageError("a snapshot comes first", update=named(message), state=self)
        match message:
            case Data():
                self.accept_data(message)
                return ()
            case FrontierUpdate(changes=changes, counts=counts):
                return self._advance(lower, message, changes, counts)
            case Skip():
                return self._skip(lower, message)
            case Heartbeat(lower=told):
                if told != lower.frontier:
                    raise FrontierError("a message is missing", update=named(message), state=self)
                return ()
            case Aborted(reason=reason):
                self.aborted = reason
                return ()

    def accept_data(self, data: Data) -> None:
        """Take in one batch."""
        lower, time = self._lower, data.time
        if lower is None or self.aborted is not None:
            raise EpochMessageError("the link is not live", update=named(data), state=self)
        if not lower.covers(self.shape.check(time)) or data.rows < 0:
            raise IllegalTimeError("its epoch is completed", update=named(data), state=self)
        if self._counts(time):
            self._rows.put(time, (self._rows.get(time) or 0) + data.rows)

    @property
    def active(self) -> Iterator[Time]:
        """The epochs of which all was seen so far, and which are not complete."""
        return iter(self._rows)

    def accept_many(self, times: Times, rows: Times | None) -> None:
        """Take in many batches at once: one time per row of `times`."""
        lower = self._lower
        what = f"{len(times)} batches"
        if self.aborted is not None or lower is None:
            raise EpochMessageError("the link is not live", update=what, state=self)
        if (
            times.dtype.kind != "i"
            or times.ndim != (1 if self.shape.length == 0 else 2)
            or (self.shape.length and times.shape[1] != self.shape.length)
        ):
            raise TimeShapeError(f"an array of shape {times.shape} does not hold times: {self}")
        if rows is not None and (rows.shape != times.shape[:1] or (rows < 0).any()):
            raise EpochMessageError("rows do not fit the times", update=what, state=self)
        if not len(times):
            return
        legal = at_or_after(times, lower.frontier)
        if not legal.all():
            at = times[int(np.argmin(legal))].tolist()
            raise IllegalTimeError("its epoch is completed", update=f"data at {at}", state=self)
        for time, total in rows_per_time(times, rows):
            if self._counts(time):
                self._rows.put(time, (self._rows.get(time) or 0) + total)

    def lost(self, reason: str) -> bool:
        """The link has ended; whether anything is missing because of that."""
        if self.closed or self.aborted is not None:
            return False
        self.aborted = reason
        return True

    def _counts(self, time: Time) -> bool:
        return not self._partial.covers(time) and (self._start is None or self._start.covers(time))

    def _begin(self, message: Snapshot) -> tuple[Change, ...]:
        if self._lower is not None:
            raise EpochMessageError("there was one already", update=named(message), state=self)
        for time in (*message.lower, *message.upper):
            self.shape.check(time)
        promised = Antichain.minimal(self.shape, self.at)
        if not all(promised.covers(time) for time in message.lower):
            raise FrontierError(f"it is before {list(self.at)}", update=named(message), state=self)
        self._lower = counted(self.shape, message.lower)
        self._partial.insert_all(message.upper)
        self._partial.prune(self._lower.covers)
        left = tuple((time, -1) for time in self.at)
        return (*left, *((time, 1) for time in self._lower.frontier))

    def _advance(
        self,
        lower: CountedAntichain,
        message: Message,
        changes: tuple[Change, ...],
        counts: tuple[EpochCount, ...],
    ) -> tuple[Change, ...]:
        try:
            net = lower.check(changes)
        except (FrontierError, IllegalTimeError) as error:
            raise FrontierError(
                "the frontier goes back", update=named(message), state=self
            ) from error
        if counts or len(self._rows):
            after = {time: lower.counts.get(time, 0) + delta for time, delta in net.items()}
            held = [time for time, count in (lower.counts | after).items() if count]
            ahead = Antichain.minimal(self.shape, held)
            self._verify(message, ahead.covers, counts, self._partial)
        shown = lower.apply(net)
        self._complete(lower)
        return shown

    def _skip(self, lower: CountedAntichain, message: Skip) -> tuple[Change, ...]:
        for time in (*message.lower, *message.upper):
            self.shape.check(time)
        if not all(lower.covers(time) for time in message.lower):
            raise FrontierError("the frontier goes back", update=named(message), state=self)
        partial = self._partial.copy()
        partial.insert_all(message.upper)
        ahead = Antichain.minimal(self.shape, message.lower)
        self._verify(message, ahead.covers, message.counts, partial)
        self._partial = partial
        for time in [time for time in self._rows if partial.covers(time)]:
            self._rows.drop(time)
        net = {time: -count for time, count in lower.counts.items()}
        for time in ahead:
            net[time] = net.get(time, 0) + 1
        shown = lower.apply(net)
        self._complete(lower)
        return shown

    def _verify(
        self,
        message: Message,
        covers: Callable[[Time], bool],
        counts: tuple[EpochCount, ...],
        partial: Antichain,
    ) -> None:
        """Every epoch that is now complete has the rows that it is told to have."""
        told: dict[Time, int] = {}
        for time, rows in counts:
            if covers(self.shape.check(time)):
                raise EpochCountError(f"{time} is not complete", update=named(message), state=self)
            told[time] = rows
        for time in self._rows.completed(covers):
            told.setdefault(time, 0)
        for time, rows in told.items():
            if partial.covers(time) or (self._start is not None and not self._start.covers(time)):
                continue
            got = self._rows.get(time) or 0
            if got != rows:
                raise EpochCountError(
                    f"epoch {time} has {rows} rows and {got} have arrived",
                    update=named(message),
                    state=self,
                )

    def _complete(self, lower: CountedAntichain) -> None:
        self._rows.take_completed(lower.covers)
        self._partial.prune(lower.covers)


def rows_per_time(times: Times, rows: Times | None) -> Iterator[tuple[Time, int]]:
    """The rows of every time in `times` (one each if `rows` is None).

    Times close to one another are counted in one pass; others are sorted first.
    """
    lows = times.min(axis=0)
    # In Python's integers: the span of all times does not fit in 64 bits.
    ends = zip(np.atleast_1d(lows).tolist(), np.atleast_1d(times.max(axis=0)).tolist(), strict=True)
    spans = tuple(high - low + 1 for low, high in ends)
    keys, size = times - lows, math.prod(spans)
    if times.ndim == 2 and size >= 2**62:
        # Too far apart for one number per time.
        found, where = np.unique(times, axis=0, return_inverse=True)
        totals = np.bincount(where.reshape(-1), weights=rows)
        yield from zip(map(tuple, found.tolist()), map(int, totals.tolist()), strict=True)
        return
    if times.ndim == 2:
        keys = np.ravel_multi_index(tuple(keys.T), spans)
    if size <= 4 * len(times):
        counts = np.bincount(keys, weights=rows)
        seen = np.bincount(keys) if rows is not None else counts
        unique = np.flatnonzero(seen)
        counts = counts[unique]
    else:
        unique, where = np.unique(keys, return_inverse=True)
        counts = np.bincount(where, weights=rows)
    if times.ndim == 1:
        values: list[Any] = (unique + lows).tolist()
    else:
        parts = np.stack(np.unravel_index(unique, spans), axis=1)
        values = list(map(tuple, (parts + lows).tolist()))
    yield from zip(values, map(int, counts.tolist()), strict=True)


def at_or_after(times: Times, frontier: Frontier) -> npt.NDArray[np.bool_]:
    """Which of many times a lower frontier covers."""
    covered = np.zeros(len(times), dtype=np.bool_)
    for time in frontier:
        reached = times >= np.asarray(time)
        covered |= reached if times.ndim == 1 else reached.all(axis=1)
    return covered


def at_or_before(times: Times, frontier: Frontier) -> npt.NDArray[np.bool_]:
    """Which of many times a filter covers."""
    covered = np.zeros(len(times), dtype=np.bool_)
    for time in frontier:
        reached = times <= np.asarray(time)
        covered |= reached if times.ndim == 1 else reached.all(axis=1)
    return covered
