"""The subscriber of an epoch stream: what of many partitions is delivered, and what is complete.

Theory of operation
-------------------
An epoch that was latent in every partition when its snapshot was taken can be seen whole; one that
had begun anywhere cannot.  So nothing is judged before the snapshots of all partitions are in
hand.  What early partitions send meanwhile is checked and held back.  Then the upper frontiers
make one maximal antichain, the *filter*, and data at or before one of its times is dropped.  Times
that are incomparable to all of them pass: had they begun, they would be in an upper frontier.

The lower frontiers are added up as counts, and the minimal times of the sum are the frontier of the
subscription.  A time of the filter is of use as long as that merged frontier covers it, since some
partition may still publish at or before it.  It leaves the filter when no partition can: not at
equality, and never by the frontier of one partition alone.

Whether a batch is delivered depends on its time only; its payload is handed on or dropped unread.

Modes.  ``streaming``: batches as they come, of epochs that will be whole.  ``unfiltered``: all
batches as they come.  ``whole``: an epoch at once, when the frontier has left it behind.

A subscription may start at a frontier in the past, given a publisher or a log that still has all
from there on (a snapshot that says otherwise is refused), and may stop at one.  Its resume token is
its frontier: what lies before it was delivered, what lies at or after it is to come.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import (
    Antichain,
    Change,
    Frontier,
    check_frontier,
    counted,
    join,
    leave_out,
    not_before,
)
from headrace.epochs.core.effects import (
    Advanced,
    Deliver,
    Drop,
    Dropped,
    Effect,
    End,
    Ended,
    Epoch,
    Joined,
    Mode,
    Ready,
    Skipped,
)
from headrace.epochs.core.lifecycle import SUBSCRIPTION_TRANSITIONS, Cause, Standing
from headrace.epochs.core.link import Link, Times, at_or_after, at_or_before, named
from headrace.epochs.core.messages import Data, Message, Skip, Snapshot
from headrace.epochs.core.times import INTEGERS, Time, TimeShape
from headrace.epochs.core.token import ResumeToken
from headrace.errors import (
    EpochBufferFullError,
    EpochMessageError,
    FrontierError,
    HistoryGoneError,
    InvalidConfigError,
    UnknownPartitionError,
)

_ENDS = {
    Standing.CLOSED: End.CLOSED,
    Standing.REACHED: End.REACHED,
    Standing.ABORTED: End.ABORTED,
}

_Step = tuple[str, Message, tuple[Change, ...]]


class Subscriber:
    """One subscription to all partitions of a stream.

    >>> subscriber = Subscriber(["p0"], mode=Mode.WHOLE)
    >>> _ = subscriber.receive("p0", Snapshot((3,), (5,)))
    >>> subscriber.receive("p0", Data(5, b"late"))[0].why, subscriber.frontier
    (<Drop.FILTERED: 'filtered'>, (3,))
    """

    def __init__(
        self,
        partitions: Iterable[str],
        shape: TimeShape = INTEGERS,
        *,
        mode: Mode = Mode.STREAMING,
        start: Iterable[Time] | None = None,
        until: Iterable[Time] | None = None,
        batches_max: int | None = None,
    ) -> None:
        """`batches_max` bounds what is held back and, in mode ``whole``, what is incomplete."""
        self.shape = shape
        self.mode = mode
        self.standing = Standing.AWAITING
        self.resumed = start is not None
        bottom: Frontier = (shape.bottom,)
        self._start = Antichain.minimal(
            shape, check_frontier(shape, bottom if start is None else start)
        )
        self._until = Antichain.minimal(shape, check_frontier(shape, until or ()))
        self._batches_max = batches_max
        self._links = {name: self._link(name, bottom) for name in partitions}
        if not self._links:
            raise InvalidConfigError("a subscription needs at least one partition")
        self._filter = Antichain.maximal(shape)
        self._lower = counted(shape)
        self._pending: ActiveEpochs[list[Deliver]] = ActiveEpochs(shape)
        self._pending_batches = 0
        self._ready = False
        self._snapshots: dict[str, Snapshot] = {}
        self._held: list[_Step] = []
        self._late: list[tuple[Antichain, Antichain]] = []
        """Per partition that was added: where it began, and what had begun there when it spoke."""
        self._joining = Antichain.minimal(shape)
        """Where partitions that were added later may have begun; empty when all have spoken."""
        self._frontier: Frontier = self._start.frontier
        self.delivered = 0
        self.dropped = 0

    def _link(self, name: str, at: Frontier) -> Link:
        return Link(name, self.shape, self._start.frontier, at)

    def __repr__(self) -> str:
        return (
            f"<Subscriber {self.mode} {self.end}, frontier {list(self._frontier)}, "
            f"filter {self._filter}>"
        )

    # --- reading ---

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions, in the order of coming."""
        return tuple(self._links)

    @property
    def end(self) -> End:
        """Whether the subscription has ended, and how."""
        return _ENDS.get(self.standing, End.OPEN)

    @property
    def ready(self) -> bool:
        """Whether all first snapshots are there, so that messages are judged."""
        return self._ready

    @property
    def frontier(self) -> Frontier:
        """What is still to come; empty when everything is complete."""
        return self._frontier

    @property
    def filter(self) -> Frontier:
        """The times at or before which data is dropped (beside what late partitions had begun)."""
        return self._filter.frontier

    @property
    def held_back(self) -> int:
        """How many messages wait for a snapshot of another partition."""
        return len(self._held)

    @property
    def pending_batches(self) -> int:
        """How many batches of incomplete epochs are kept for mode ``whole``."""
        return self._pending_batches

    def completed(self, time: Time) -> bool:
        """Whether an epoch will get no more data."""
        self.shape.check(time)
        return self._ready and not (self._start.covers(time) and self._lower.covers(time))

    def lower_of(self, partition: str) -> Frontier:
        """The lower frontier of one partition."""
        return self._known(partition, "lower frontier").lower

    def waiting_for(self) -> tuple[str, ...]:
        """The partitions whose snapshot is missing."""
        return tuple(name for name, link in self._links.items() if not link.begun)

    def token(self, stream: str) -> ResumeToken:
        """What to keep in order to go on from here."""
        return ResumeToken(stream, self.shape, self._frontier)

    # --- messages ---

    def receive(self, partition: str, message: Message) -> list[Effect]:
        """Take in a message of a partition; raises, and changes nothing, if it is not legal."""
        link = self._links.get(partition) or self._known(partition, named(message))
        if self.standing is Standing.CLOSED or self.standing is Standing.REACHED:
            return []  # what was under way when the end came
        if self._batches_max is not None:
            self._check_room(link, message)
        if type(message) is Data and self._ready and not len(self._joining):
            link.accept_data(message)
            return self._judge_data(partition, message)
        if self.resumed and isinstance(message, Snapshot):
            self._check_history(message)
        step = (partition, message, link.accept(message))
        if not self._ready:
            return self._hold(link, step)
        effects: list[Effect] = []
        if isinstance(message, Snapshot):
            self._join(partition, message, step[2], effects)
        else:
            self._judge(step, effects)
        return effects

    def judge_many(
        self, partition: str, times: Times, rows: Times | None = None
    ) -> npt.NDArray[np.bool_]:
        """Which of many batches of a partition to deliver, at once.

        For the two streaming modes, when all partitions have sent their snapshots.  `times` has
        one integer per batch, or one row of integers per batch for tuples.
        """
        link = self._known(partition, f"{len(times)} batches")
        if self.mode is Mode.WHOLE or not self._ready or len(self._joining):
            raise EpochMessageError(
                "only a streaming subscription with all snapshots judges many at once",
                update=f"{len(times)} batches of {partition}",
                state=self,
            )
        if self.end in (End.CLOSED, End.REACHED):
            return np.zeros(len(times), dtype=np.bool_)
        link.accept_many(times, rows)
        passed = np.ones(len(times), dtype=np.bool_)
        if self.mode is not Mode.UNFILTERED and len(self._filter):
            passed &= ~at_or_before(times, self._filter.frontier)
        for at, upper in self._late if self.mode is not Mode.UNFILTERED else ():
            begun = at_or_before(times, upper.frontier)
            passed &= ~(begun & at_or_after(times, at.frontier))
        if self.resumed:
            passed &= at_or_after(times, self._start.frontier)
        if len(self._until):
            passed &= ~at_or_after(times, self._until.frontier)
        delivered = int(np.count_nonzero(passed))
        self.delivered += delivered
        self.dropped += len(times) - delivered
        return passed

    def lost(self, partition: str, reason: str) -> list[Effect]:
        """The link of a partition has ended, cleanly or not."""
        link = self._known(partition, "end of the link")
        effects: list[Effect] = []
        if link.lost(reason) and self.end is End.OPEN:
            self._finish(Cause.LOSS, f"partition {partition}: {reason}", effects)
        return effects

    def add_partition(self, partition: str, at: Iterable[Time]) -> list[Effect]:
        """A partition is new, and publishes only at or after `at`.

        `at` must lie in the future: not completed, and nothing at or after it delivered.
        Data at or after it is held back until the partition's snapshot tells what has begun.
        """
        future = check_frontier(self.shape, at)
        what = f"partition {partition} added at {list(future)}"
        if partition in self._links or self.end is not End.OPEN or not self._ready:
            raise EpochMessageError("it is known, or it is not the time", update=what, state=self)
        covered = Antichain.minimal(self.shape, future)
        if not all(self._lower.covers(time) for time in future):
            raise FrontierError("it is completed", update=what, state=self)
        if (seen := self._seen(covered)) is not None:
            raise FrontierError(f"data at {seen} was seen", update=what, state=self)
        self._links[partition] = self._link(partition, future)
        self._joining.insert_all(future)
        self._lower.update([(time, 1) for time in future])
        return []

    def _seen(self, covered: Antichain) -> Time | None:
        """A time that is covered and at which data was delivered.

        What is completed cannot be covered by a legal future; what was dropped, or is held back,
        has not been seen.
        """
        for link in self._links.values():
            for time in link.active:
                if not covered.covers(time) or self._joining.covers(time):
                    continue
                if self._verdict(time) is None:
                    return time
        return None

    # --- steps ---

    def _known(self, partition: str, update: object) -> Link:
        link = self._links.get(partition)
        if link is None:
            raise UnknownPartitionError(
                f"partition {partition!r} is not one of {list(self._links)}",
                update=update,
                state=self,
            )
        return link

    def _check_room(self, link: Link, message: Message) -> None:
        room = self._batches_max
        if room is None or not isinstance(message, Data):
            return
        if self._pending_batches + len(self._held) >= room:
            raise EpochBufferFullError(
                f"{room} batches are held already", update=f"data at {message.time}",
                state=f"{self!r}, {link!r}",
            )  # fmt: skip

    def _check_history(self, message: Snapshot) -> None:
        """A start in the past needs all that came since: a snapshot may not show otherwise."""
        missed = [time for time in message.upper if self._start.covers(self.shape.check(time))]
        if missed:
            since = leave_out(self.shape, (self.shape.bottom,), missed)
            raise HistoryGoneError(
                self._start.frontier, since, what=f"data up to {missed} was published before"
            )

    def _hold(self, link: Link, step: _Step) -> list[Effect]:
        """Before all snapshots are there: keep everything, in the order of coming."""
        partition, message, _ = step
        effects: list[Effect] = []
        if isinstance(message, Snapshot):
            self._snapshots[partition] = message
        else:
            self._held.append(step)
        if link.aborted is not None and self.end is End.OPEN:
            self._finish(Cause.LOSS, f"partition {partition}: {link.aborted}", effects)
        if not self.waiting_for():
            self._begin(effects)
        return effects

    def _begin(self, effects: list[Effect]) -> None:
        for snapshot in self._snapshots.values():
            self._filter.insert_all(snapshot.upper)
            lower = Antichain.minimal(self.shape, snapshot.lower)
            self._lower.update([(time, 1) for time in lower])
        self._snapshots.clear()
        self._ready = True
        self._move(Cause.SNAPSHOTS)
        effects.append(Ready(self._lower.frontier, self._filter.frontier))
        self._settle(effects)
        self._release(effects)

    def _join(
        self,
        partition: str,
        snapshot: Snapshot,
        changes: tuple[Change, ...],
        effects: list[Effect],
    ) -> None:
        """A partition that was added has sent its snapshot."""
        at = self._links[partition].at
        effects.append(Joined(partition, at, snapshot.upper))
        # Epochs before `at` never had data there, and may be half delivered: they stay whole.
        begun = Antichain.maximal(self.shape, snapshot.upper)
        self._late.append((Antichain.minimal(self.shape, at), begun))
        self._lower.update(changes)
        ahead = [link.at for link in self._links.values() if not link.begun]
        self._joining = Antichain.minimal(self.shape, (time for at in ahead for time in at))
        self._release(effects)
        self._settle(effects)

    def _release(self, effects: list[Effect]) -> None:
        held, self._held = self._held, []
        for step in held:
            self._judge(step, effects)

    def _judge(self, step: _Step, effects: list[Effect]) -> None:
        partition, message, changes = step
        match message:
            case Data(time=time) if self._joining.covers(time):
                self._held.append(step)
            case Data():
                effects.extend(self._judge_data(partition, message))
            case Skip(upper=upper):
                self._void(upper)
                effects.append(Skipped(partition, upper))
            case _:
                pass
        if changes:
            self._lower.update(changes)
            self._settle(effects)
        link = self._links[partition]
        if link.aborted is not None and self.end is End.OPEN:
            self._finish(Cause.LOSS, f"partition {partition}: {link.aborted}", effects)

    def _judge_data(self, partition: str, data: Data) -> list[Effect]:
        why = self._verdict(data.time)
        if why is not None:
            self.dropped += 1
            return [Dropped(partition, data, why)]
        self.delivered += 1
        deliver = Deliver(partition, data)
        if self.mode is not Mode.WHOLE:
            return [deliver]
        batches = self._pending.get(data.time)
        if batches is None:
            batches = []
            self._pending.put(data.time, batches)
        batches.append(deliver)
        self._pending_batches += 1
        return []

    def _verdict(self, time: Time) -> Drop | None:
        """Why data at `time` is not delivered, or None."""
        if self.mode is not Mode.UNFILTERED and (
            self._filter.covers(time)
            or any(at.covers(time) and upper.covers(time) for at, upper in self._late)
        ):
            return Drop.FILTERED
        if self.resumed and not self._start.covers(time):
            return Drop.BEFORE_START
        if self._until.covers(time):
            return Drop.AFTER_END
        return None

    def _void(self, upper: Frontier) -> None:
        """Part of what is at or before `upper` is lost: none of it is to be seen."""
        self._filter.insert_all(upper)
        lost = Antichain.maximal(self.shape, upper)
        for time in [time for time in self._pending if lost.covers(time)]:
            self._pending_batches -= len(self._pending.drop(time))

    def _settle(self, effects: list[Effect]) -> None:
        """After the merged frontier has moved: prune, release, tell."""
        self._filter.prune(self._lower.covers)
        for _, upper in self._late:
            upper.prune(self._lower.covers)
        self._late = [late for late in self._late if len(late[1])]
        frontier = (
            join(self.shape, self._start, self._lower.frontier)
            if self.resumed
            else self._lower.frontier
        )
        complete = self._pending.take_completed(self._lower.covers)
        if complete:
            self._give(complete, frontier, effects)
        if frontier != self._frontier:
            self._frontier = frontier
            effects.append(Advanced(frontier))
        if self.end is not End.OPEN:
            return
        if not self._lower.counts:
            self._finish(Cause.COMPLETE, "every partition is complete", effects)
        elif len(self._until) and not_before(self.shape, frontier, self._until):
            self._finish(Cause.UNTIL, f"everything before {self._until} is complete", effects)

    def _give(
        self,
        complete: list[tuple[Time, list[Deliver]]],
        frontier: Frontier,
        effects: list[Effect],
    ) -> None:
        """Give out whole epochs; after each, what is still to come includes the rest of them."""
        rest = Antichain.minimal(self.shape, frontier)
        epochs = []
        for time, batches in reversed(complete):
            epochs.append(Epoch(time, tuple(batches), rest.frontier))
            rest.insert(time)
            self._pending_batches -= len(batches)
        effects.extend(reversed(epochs))

    def _finish(self, cause: Cause, reason: str, effects: list[Effect]) -> None:
        self._move(cause)
        effects.append(Ended(self.end, reason))

    def _move(self, cause: Cause) -> None:
        self.standing = SUBSCRIPTION_TRANSITIONS[self.standing, cause]
