"""One partition as a subscriber sees it: is what it says legal, and did all of it arrive?

A link checks every message on arrival, before anything is judged and long before other partitions
may have sent their snapshots, so that a refused message changes nothing anywhere.  It knows the
partition's own lower frontier and counts the rows of its active epochs.  An epoch that was latent
when the link began is seen in full here, so the number of its rows must be the one that the
publisher tells when it completes it.

Rows may be missing at or before the upper frontier of the snapshot, and of what was skipped.  This
is pruned by the partition's own lower frontier, which is right for counting and would be wrong for
the filter of a subscriber of several partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.epochs.core.antichains import Antichain, Change, CountedAntichain, Frontier, counted
from headrace.epochs.core.arrays import Times, at_or_after, rows_per_time
from headrace.epochs.core.messages import (
    Aborted,
    Data,
    EpochCount,
    FrontierUpdate,
    Heartbeat,
    Message,
    Skip,
    Snapshot,
    TakeBack,
)
from headrace.epochs.core.rows import RowCounts
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import (
    EpochCountError,
    EpochMessageError,
    FrontierError,
    IllegalTimeError,
    TimeShapeError,
)


def named(message: Message) -> str:
    """A message as errors show it: its payload is nobody's business."""
    if isinstance(message, Data):
        return f"Data at {message.time} with {message.rows} rows"
    return str(message)


class Link:
    """The messages of one partition, checked."""

    def __init__(
        self,
        partition: str,
        shape: TimeShape,
        start: Frontier,
        at: Frontier,
        *,
        counts: bool = True,
        complete: bool = False,
    ) -> None:
        """Rows are counted at or after `start`; the snapshot must not be before `at`.

        Without `counts`, whoever reads the rows counts them.  With `complete` the partition is
        heard from its beginning: nothing had begun there before.
        """
        self.partition = partition
        self.shape = shape
        self.at = at
        self.complete = complete
        self._lower: CountedAntichain | None = None
        self._rows = RowCounts(shape, start) if counts else None
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

    @property
    def plain_from(self) -> int | None:
        """The integer from which batches are taken without another look; None if there is none."""
        lower = self._lower
        if lower is None or self.aborted is not None or self._rows is not None:
            return None
        first = lower.frontier[0] if lower.counts else None
        return first if isinstance(first, int) else None

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
            case TakeBack(held=held, source=source):
                self._take_back(lower, message, held, source)
                return ()
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
        if self._rows is not None:
            if self._rows.over(time):
                raise EpochCountError("its rows were told", update=named(data), state=self)
            self._rows.add(time, data.rows, data.source)

    def accept_many(self, times: Times, rows: Times | None) -> list[Time]:
        """Take in many batches at once: one time per row of `times`; the distinct ones."""
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
            return []
        legal = at_or_after(times, lower.frontier)
        if not legal.all():
            at = times[int(np.argmin(legal))].tolist()
            raise IllegalTimeError("its epoch is completed", update=f"data at {at}", state=self)
        totals = list(rows_per_time(times, rows))
        if self._rows is not None:
            if any(self._rows.over(time) for time, _ in totals):
                raise EpochCountError("its rows were told", update=what, state=self)
            for time, total in totals:
                self._rows.add(time, total)
        return [time for time, _ in totals]

    def lost(self, reason: str) -> bool:
        """The link has ended; whether anything is missing because of that."""
        if self.closed or self.aborted is not None:
            return False
        self.aborted = reason
        return True

    def _begin(self, message: Snapshot) -> tuple[Change, ...]:
        if self._lower is not None:
            raise EpochMessageError("there was one already", update=named(message), state=self)
        for time in (*message.lower, *message.upper):
            self.shape.check(time)
        promised = Antichain.minimal(self.shape, self.at)
        if not all(promised.covers(time) for time in message.lower):
            raise FrontierError(f"it is before {list(self.at)}", update=named(message), state=self)
        if self.complete and message.upper:
            raise EpochMessageError(
                "it is to be heard from its beginning", update=named(message), state=self
            )
        self._lower = counted(self.shape, message.lower)
        if self._rows is not None:
            self._rows.partial.insert_all(message.upper)
            self._rows.partial.prune(self._lower.covers)
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
        if self._rows is not None and not changes:
            self._tell_ahead(self._rows, lower, message, counts)
            return ()
        if self._rows is not None and (counts or self._rows.any()):
            after = {time: lower.counts.get(time, 0) + delta for time, delta in net.items()}
            held = [time for time, count in (lower.counts | after).items() if count]
            ahead = Antichain.minimal(self.shape, held)
            self._verify(self._rows, message, ahead, counts, self._rows.partial)
        return self._move(lower, net)

    def _tell_ahead(
        self,
        rows: RowCounts,
        lower: CountedAntichain,
        message: Message,
        counts: tuple[EpochCount, ...],
    ) -> None:
        for time, _ in counts:
            if not lower.covers(self.shape.check(time)) or rows.over(time):
                raise EpochCountError(f"{time} is over", update=named(message), state=self)
        rows.tell(counts)

    def _take_back(
        self, lower: CountedAntichain, message: Message, held: Frontier, source: str
    ) -> None:
        if not all(lower.covers(self.shape.check(time)) for time in held):
            raise FrontierError("it is not held any more", update=named(message), state=self)
        if self._rows is not None:
            self._rows.take_back(source, held)

    def _skip(self, lower: CountedAntichain, message: Skip) -> tuple[Change, ...]:
        for time in (*message.lower, *message.upper):
            self.shape.check(time)
        if not all(lower.covers(time) for time in message.lower):
            raise FrontierError("the frontier goes back", update=named(message), state=self)
        ahead = Antichain.minimal(self.shape, message.lower)
        if self._rows is not None:
            partial = self._rows.partial.copy()
            partial.insert_all(message.upper)
            self._verify(self._rows, message, ahead, message.counts, partial)
            self._rows.skip(partial)
        net = {time: -count for time, count in lower.counts.items()}
        for time in ahead:
            net[time] = net.get(time, 0) + 1
        return self._move(lower, net)

    def _verify(
        self,
        rows: RowCounts,
        message: Message,
        ahead: Antichain,
        counts: tuple[EpochCount, ...],
        partial: Antichain,
    ) -> None:
        """Every epoch that is now complete has the rows that it is told to have."""
        for time, _ in counts:
            if ahead.covers(self.shape.check(time)):
                raise EpochCountError(f"{time} is not complete", update=named(message), state=self)
        if (wrong := rows.wrong(ahead.frontier, counts, partial)) is not None:
            time, told, got = wrong
            raise EpochCountError(
                f"epoch {time} has {told} rows and {got} have arrived",
                update=named(message),
                state=self,
            )

    def _move(self, lower: CountedAntichain, net: Mapping[Time, int]) -> tuple[Change, ...]:
        shown = lower.apply(net)
        if self._rows is not None and shown:
            self._rows.complete(lower.frontier)
            self._rows.partial.prune(lower.covers)
        return shown
