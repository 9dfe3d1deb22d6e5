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

A partition may be added later.  One that is heard live has begun what it does not tell, so it must
begin where nothing was given yet, and that is awaited.  What was given is remembered until the
*merged* frontier has passed it: the partition that gave it may have completed it long before.  One
that is heard from its beginning, out of a log, may begin wherever nothing is complete.

Modes.  ``streaming``: batches as they come, of epochs that will be whole.  ``unfiltered``: all
batches as they come.  ``whole``: an epoch at once, when the frontier has left it behind.

A subscription to a log may start at a frontier in the past, if the log still has all from there on
(a snapshot that says otherwise is refused), and may stop at one.  Its resume token is its frontier:
what lies before it was delivered, what lies at or after it is to come.  Without a log there is no
resuming: a publisher in its second life cannot tell what its first one did.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import (
    Antichain,
    Change,
    Frontier,
    check_frontier,
    counted,
    join,
    not_before,
)
from headrace.epochs.core.arrays import Mask, Times
from headrace.epochs.core.effects import (
    Advanced,
    Deliver,
    Dropped,
    Effect,
    End,
    Ended,
    GaveUp,
    Joined,
    Mode,
    Ready,
    Skipped,
    TakenBack,
    WhenFull,
)
from headrace.epochs.core.gate import Gate
from headrace.epochs.core.held import HeldBack, HeldStep
from headrace.epochs.core.lifecycle import SUBSCRIPTION_TRANSITIONS, Cause, Standing
from headrace.epochs.core.link import Link, named
from headrace.epochs.core.messages import Data, Message, Skip, Snapshot, TakeBack
from headrace.epochs.core.pending import Pending, given_out
from headrace.epochs.core.times import INTEGERS, Time, TimeShape
from headrace.epochs.core.token import ResumeToken
from headrace.errors import (
    EpochBufferFullError,
    EpochMessageError,
    FrontierError,
    InvalidConfigError,
    UnknownPartitionError,
)

_ENDS = {Standing(end): end for end in End if end is not End.OPEN}
OVER = (Standing.CLOSED, Standing.REACHED, Standing.FULL)
_OPEN = (Standing.LIVE, Standing.AWAITING)


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
        when_full: WhenFull = WhenFull.GIVE_UP,
        stored: bool = False,
        counts: bool = True,
    ) -> None:
        """`batches_max` bounds what is held back and, in mode ``whole``, what is incomplete.

        With `stored` the partitions are logs, and a start in the past is possible.  Without
        `counts` nobody tells how many rows an epoch has; whoever reads them checks.
        """
        self.shape = shape
        self.mode = mode
        self.standing = Standing.AWAITING
        self.stored = stored
        self.resumed = start is not None
        self._counts = counts
        bottom: Frontier = (shape.bottom,)
        self._start: Frontier = bottom if start is None else self._checked_start(start)
        self._gate = Gate(
            shape,
            start=self._start if self.resumed else None,
            until=check_frontier(shape, until or ()),
            filtered=mode is not Mode.UNFILTERED,
            stored=stored,
        )
        self._when_full = when_full
        self._links = {name: self._link(name, bottom) for name in partitions}
        if not self._links:
            raise InvalidConfigError("a subscription needs at least one partition")
        self._lower, self._pending = counted(shape), Pending(shape, batches_max)
        # Streaming: epochs of which something was given, until the merged frontier has passed.
        self._given: ActiveEpochs[None] = ActiveEpochs(shape)
        self._ready = False
        self._hopeless = False  # a partition was lost before its snapshot: nothing will be judged
        self._snapshots: dict[str, Snapshot] = {}
        self._held = HeldBack(shape, batches_max)
        self._joining = Antichain.minimal(shape)
        """Where partitions that were added later may have begun; empty when all have spoken."""
        self._frontier: Frontier = self._start
        self.delivered = 0
        self.dropped = 0

    def _checked_start(self, start: Iterable[Time]) -> Frontier:
        self._check_stored()
        return check_frontier(self.shape, start)

    def _link(self, name: str, at: Frontier, *, complete: bool = False) -> Link:
        return Link(name, self.shape, self._start, at, counts=self._counts, complete=complete)

    def __repr__(self) -> str:
        return (
            f"<Subscriber {self.mode} {self.end}, frontier {list(self._frontier)}, "
            f"filter {self._gate.filter}>"
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
        return self._gate.filter.frontier

    @property
    def held_back(self) -> int:
        """How many messages wait for a snapshot of another partition."""
        return len(self._held)

    @property
    def pending_batches(self) -> int:
        """How many batches of incomplete epochs are kept for mode ``whole``."""
        return self._pending.batches

    def completed(self, time: Time) -> bool:
        """Whether an epoch will get no more data."""
        self.shape.check(time)
        wanted = (start := self._gate.start) is None or start.covers(time)
        return self._ready and not (wanted and self._lower.covers(time))

    def lower_of(self, partition: str) -> Frontier:
        """The lower frontier of one partition."""
        return self._known(partition, "lower frontier").lower

    def heard_from_beginning(self, partition: str) -> bool:
        """Whether a partition was added to be heard from its beginning."""
        return self._known(partition, "beginning").complete

    def waiting_for(self) -> tuple[str, ...]:
        """The partitions whose snapshot is missing."""
        return tuple(name for name, link in self._links.items() if not link.begun)

    def token(self, catalog: str, streams: Iterable[tuple[str, str]]) -> ResumeToken:
        """What to keep in order to go on from here; `streams` are names and ids."""
        self._check_stored()
        return ResumeToken(catalog, tuple(streams), self.shape, self._frontier)

    # --- messages ---

    def receive(self, partition: str, message: Message) -> list[Effect]:
        """Take in a message of a partition; raises, and changes nothing, if it is not legal."""
        effects: list[Effect] = []
        self.receive_all(partition, (message,), effects)
        return effects

    def receive_all(self, partition: str, messages: Iterable[Message], to: list[Effect]) -> None:
        """Take in messages up to the first that is not legal, as :meth:`receive` takes one."""
        first, end = self._plain(partition)
        for message in messages:
            if (
                type(message) is Data and type(message.time) is int
                and first <= message.time < end and message.rows >= 0
            ):  # fmt: skip
                self.delivered += 1  # what is below would find the same
                self._pending.put(Deliver(partition, message))
                continue
            first = end = 0
            link = self._links.get(partition) or self._known(partition, named(message))
            if self.standing in OVER or self._hopeless:
                return  # what was under way when the end came
            if type(message) is Data and self._ready and not len(self._joining):
                link.accept_data(message)
                self._judge_data(partition, message, to)
                continue
            self._check_room(link, message)
            if self.resumed and isinstance(message, Snapshot):
                self._gate.check_history(message)
            step = (partition, message, link.accept(message))
            if not self._ready:
                to += self._hold(link, step)
            elif isinstance(message, Snapshot):
                self._join(partition, message, step[2], to)
            else:
                self._judge(step, to)

    def judge_many(self, partition: str, times: Times, rows: Times | None = None) -> Mask:
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
        if self.standing in OVER:
            return np.zeros(len(times), dtype=np.bool_)
        distinct = link.accept_many(times, rows)
        passed = self._gate.passes(times)
        for time in distinct:
            if time not in self._given and self._gate.verdict(time) is None:
                self._given.put(time, None)
        delivered = int(np.count_nonzero(passed))
        self.delivered += delivered
        self.dropped += len(times) - delivered
        return passed

    def lost(self, partition: str, reason: str) -> list[Effect]:
        """The link of a partition has ended, cleanly or not."""
        link = self._known(partition, "end of the link")
        effects: list[Effect] = []
        if not link.lost(reason):
            return effects
        if self.standing in _OPEN:
            self._finish(Cause.LOSS, f"partition {partition}: {reason}", effects)
        if link.begun:
            return effects
        # What it had begun is never told.
        if self._ready:
            self._gate.unheard.insert_all(link.at)
            self._await_joining()
            self._release(effects)
        else:
            self._hopeless = True
            self._held.take()
            self._snapshots.clear()
        return effects

    def add_partition(
        self, partition: str, at: Iterable[Time], *, from_beginning: bool = False
    ) -> list[Effect]:
        """A partition is new, and publishes only at or after `at`, which must not be completed.

        Nothing at or after it may have been given, and data at or after it is held back until the
        partition's snapshot tells what has begun.  A partition that is heard `from_beginning` has
        begun nothing, and needs neither.
        """
        future = check_frontier(self.shape, at)
        what = f"partition {partition} added at {list(future)}"
        if partition in self._links or self.standing in OVER or not self._ready:
            raise EpochMessageError("it is known, or it is not the time", update=what, state=self)
        if not all(self._lower.covers(time) for time in future):
            raise FrontierError("it is completed", update=what, state=self)
        if not from_beginning and (seen := self._seen(future)) is not None:
            raise FrontierError(f"data at {seen} was seen", update=what, state=self)
        self._links[partition] = self._link(partition, future, complete=from_beginning)
        if not from_beginning:
            self._joining.insert_all(future)
        self._lower.update([(time, 1) for time in future])
        return []

    def _seen(self, future: Frontier) -> Time | None:
        """A time at or after `future` at which data was given, or waits for its epoch.

        What was void by then is not to be seen by anyone.
        """
        known = self._pending if self.mode is Mode.WHOLE else self._given
        for time in known.covered(future):
            if self._gate.verdict(time) is None:
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

    def _plain(self, partition: str) -> tuple[int, int]:
        """Between which integers batches of a partition just wait for their epochs."""
        link = self._links.get(partition)
        judging = self._ready and not len(self._joining) and self.standing not in OVER
        whole = self.mode is Mode.WHOLE and self._pending.unbounded and not self._hopeless
        if link is None or not judging or not whole:
            return 0, 0
        return self._gate.plain(link.plain_from)

    def _check_room(self, link: Link, message: Message) -> None:
        waits = not self._ready or (type(message) is Data and self._joining.covers(message.time))
        if waits and type(message) is not Snapshot and self._held.full(message):
            raise EpochBufferFullError(
                f"{len(self._held)} batches are held already", update=named(message),
                state=f"{self!r}, {link!r}",
            )  # fmt: skip

    def _check_stored(self) -> None:
        if not self.stored:
            raise InvalidConfigError(
                "a stream that stores nothing cannot be resumed; subscribe from now"
            )

    def _hold(self, link: Link, step: HeldStep) -> list[Effect]:
        """Before all snapshots are there: keep everything, in the order of coming."""
        partition, message, _ = step
        effects: list[Effect] = []
        if isinstance(message, Snapshot):
            self._snapshots[partition] = message
        else:
            self._held.append(step)
        if link.aborted is not None and self.standing in _OPEN:
            self._finish(Cause.LOSS, f"partition {partition}: {link.aborted}", effects)
        if not self.waiting_for():
            self._begin(effects)
        return effects

    def _begin(self, effects: list[Effect]) -> None:
        for snapshot in self._snapshots.values():
            self._gate.begun(snapshot.upper)
            least = Antichain.minimal(self.shape, snapshot.lower)
            self._lower.update([(time, 1) for time in least])
        self._snapshots.clear()
        self._ready = True
        self._move(Cause.SNAPSHOTS)
        effects.append(Ready(self._gate.bounded(self._lower.frontier), self._gate.filter.frontier))
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
        link = self._links[partition]
        effects.append(Joined(partition, link.at, snapshot.upper))
        # Epochs before `at` never had data there, and may be half delivered: they stay whole.
        if not link.complete:
            self._gate.joined(link.at, snapshot.upper)
        self._lower.update(changes)
        self._await_joining()
        self._release(effects)
        self._settle(effects)

    def _await_joining(self) -> None:
        ahead = [
            time
            for link in self._links.values()
            if not (link.begun or link.complete or link.aborted is not None)
            for time in link.at
        ]
        self._joining = Antichain.minimal(self.shape, ahead)

    def _release(self, effects: list[Effect]) -> None:
        for step in self._held.take():
            if self.standing not in OVER:  # else: what was held when the end came
                self._judge(step, effects)

    def _judge(self, step: HeldStep, effects: list[Effect]) -> None:
        partition, message, changes = step
        match message:
            case Data(time=time) if self._joining.covers(time):
                self._held.append(step)
            case Data():
                self._judge_data(partition, message, effects)
            case TakeBack(held=held, source=source):
                self._pending.take_back(partition, source, held)
                self._held.take_back(partition, source, held)
                wanted = join(self.shape, self._start, held) if self.resumed else held
                effects.append(TakenBack(partition, source, wanted))
            case Skip(upper=upper):
                self._void(upper)
                effects.append(Skipped(partition, upper))
        if changes:
            self._lower.update(changes)
            self._settle(effects)
        link = self._links[partition]
        if link.aborted is not None and self.standing in _OPEN:
            self._finish(Cause.LOSS, f"partition {partition}: {link.aborted}", effects)

    def _judge_data(self, partition: str, data: Data, effects: list[Effect]) -> None:
        if (why := self._gate.verdict(data.time)) is not None:
            self.dropped += 1
            effects.append(Dropped(partition, data, why))
            return
        self.delivered += 1
        if self.mode is not Mode.WHOLE:
            if data.time not in self._given:
                self._given.put(data.time, None)
            effects.append(Deliver(partition, data))
            return
        self._pending.put(Deliver(partition, data))
        while (time := self._pending.too_many()) is not None:
            if self._when_full is WhenFull.END:
                over = f"{self._pending.batches} batches of incomplete epochs do not fit"
                self._finish(Cause.FULL, over, effects)
                return
            self._gate.give_up(time)
            effects.append(GaveUp(time, self._pending.give_up(time)))

    def _void(self, upper: Frontier) -> None:
        """Part of what is at or before `upper` is lost: none of it is to be seen."""
        self._gate.begun(upper)
        self._pending.void(upper)

    def _settle(self, effects: list[Effect]) -> None:
        """After the merged frontier has moved: prune, release, tell."""
        if self.standing in OVER:
            return
        self._gate.settle(self._lower)
        lower = self._lower.frontier
        frontier = self._gate.bounded(join(self.shape, self._start, lower))
        self._given.take_completed(lower)
        if complete := self._pending.take_completed(lower):
            effects.extend(given_out(self.shape, complete, frontier))
        if frontier != self._frontier:
            self._frontier = frontier
            effects.append(Advanced(frontier))
        if self.standing not in _OPEN:
            return
        if not self._lower.counts:
            self._finish(Cause.COMPLETE, "every partition is complete", effects)
        elif len(until := self._gate.until) and not_before(self.shape, frontier, until):
            self._finish(Cause.UNTIL, f"everything before {until} is complete", effects)

    def _finish(self, cause: Cause, reason: str, effects: list[Effect]) -> None:
        self._move(cause)
        effects.append(Ended(self.end, reason))

    def _move(self, cause: Cause) -> None:
        self.standing = SUBSCRIPTION_TRANSITIONS[self.standing, cause]
