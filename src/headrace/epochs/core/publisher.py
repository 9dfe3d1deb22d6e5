"""The publisher of one partition: frontiers, counts, and a queue per subscriber.

Theory of operation
-------------------
The source of a partition holds *capabilities*: times at which it may still publish.  It tells the
publisher by changes of a multiset of times, which begins with the first of all times held once.
The minimal held times are the *lower* frontier; what it does not cover is completed here.  A
batch, or a new capability, is legal only at or after a held time, since anything else would add to
an epoch that others take for completed.

The *upper* frontier is inferred from the data: the maximal times ever seen.  It never shrinks.
One of very many times becomes a single later one, which filters more and never less.
In particular it is not cut by this partition's own lower frontier: another partition may be
behind, and a subscriber of both needs to know that an epoch has begun here even if it is over.

A subscriber is sent a snapshot of both frontiers, then every batch and every visible change of the
lower frontier.  With the change that completes an epoch goes the number of rows published in it.
When no time is held any more the partition is *closed*.  A publisher that ends otherwise *aborts*,
and says so.

Nothing is kept for those who are not connected; what is stored goes through the ledger instead
(:mod:`headrace.epochs.core.ledger`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import Antichain, Change, Frontier, check_frontier, counted
from headrace.epochs.core.lifecycle import EpochState
from headrace.epochs.core.messages import (
    Aborted,
    Data,
    FrontierUpdate,
    Heartbeat,
    Message,
    Snapshot,
    TakeBack,
)
from headrace.epochs.core.queues import (
    FRONTIER_TIMES_MAX,
    QueueSettings,
    SubscriberQueue,
    bound,
)
from headrace.epochs.core.times import INTEGERS, Time, TimeShape
from headrace.errors import (
    EpochLimitError,
    EpochMessageError,
    IllegalTimeError,
    InvalidInputError,
    PublisherBlockedError,
    SubscriberExistsError,
    UnknownSubscriberError,
)


class CutOff(msgspec.Struct, frozen=True):
    """A subscriber that was cut off, and why."""

    subscriber: str
    reason: str


class Published(msgspec.Struct, frozen=True):
    """What came of an event: the message that subscribers get (None: nothing to tell)."""

    message: Data | FrontierUpdate | TakeBack | Aborted | None
    cut: tuple[CutOff, ...] = ()


class Publisher:
    """One partition, from its source to its subscribers.

    >>> publisher = Publisher()
    >>> publisher.connect("s")
    >>> _ = publisher.data(3, b"...")
    >>> publisher.progress([(0, -1), (4, 1)]).message
    FrontierUpdate(changes=((0, -1), (4, 1)), counts=((3, 1),))
    >>> [type(message).__name__ for message in publisher.take("s")]
    ['Snapshot', 'Data', 'FrontierUpdate']
    """

    def __init__(
        self,
        shape: TimeShape = INTEGERS,
        *,
        lower: Iterable[Time] | None = None,
        upper: Iterable[Time] = (),
    ) -> None:
        """Begin at the first of all times, or where an earlier life of the partition stood."""
        self.shape = shape
        first = (shape.bottom,) if lower is None else check_frontier(shape, lower)
        self._held = counted(shape, first)
        self._upper = Antichain.maximal(shape, map(shape.check, upper))
        self._rows: ActiveEpochs[int] = ActiveEpochs(shape)
        self._queues: dict[str, SubscriberQueue] = {}
        self.aborted: str | None = None
        """Why the publisher gave up, if it did."""

    def __repr__(self) -> str:
        state = "aborted, " if self.aborted is not None else ""
        return f"<Publisher {state}lower {self._held}, upper {self._upper}>"

    # --- reading ---

    @property
    def lower(self) -> Frontier:
        """The lower frontier; empty when the partition is closed."""
        return self._held.frontier

    @property
    def upper(self) -> Frontier:
        """The upper frontier: the maximal times ever published."""
        return self._upper.frontier

    @property
    def capabilities(self) -> dict[Time, int]:
        """The held times and how often each is held."""
        return dict(self._held.counts)

    @property
    def closed(self) -> bool:
        """Whether everything is complete."""
        return not self._held.counts

    @property
    def active_rows(self) -> dict[Time, int]:
        """Rows published per epoch that is not complete."""
        return dict(self._rows.items())

    @property
    def subscribers(self) -> tuple[str, ...]:
        """Who is connected, in the order of coming."""
        return tuple(self._queues)

    def queue(self, subscriber: str) -> SubscriberQueue:
        """The queue of a subscriber."""
        if subscriber not in self._queues:
            raise UnknownSubscriberError(
                "no such subscriber", update=f"subscriber {subscriber!r}", state=self.subscribers
            )
        return self._queues[subscriber]

    def blocking(self, time: Time) -> tuple[str, ...]:
        """The subscribers for which a batch at `time` would have to wait."""
        return tuple(name for name, queue in self._queues.items() if queue.blocks(time))

    def state(self, time: Time) -> EpochState:
        """How far an epoch is here."""
        if not self._held.covers(self.shape.check(time)):
            return EpochState.COMPLETED
        return EpochState.ACTIVE if time in self._rows else EpochState.LATENT

    # --- the source ---

    def progress(self, updates: Iterable[Change]) -> Published:
        """Change the held times; what is visible of it goes to everyone."""
        updates = tuple((time, delta) for time, delta in updates)
        self._must_live(f"progress {list(updates)}")
        net = self._held.check(updates)
        self._check_held(net)
        changes = self._held.apply(net)
        if not changes:
            return Published(None)
        counts = self._rows.take_completed(self._held.frontier)
        update = FrontierUpdate(changes, tuple(counts))
        cut = []
        for name, queue in list(self._queues.items()):
            if not queue.update(update, self._held.covers, self._snapshot):
                del self._queues[name]
                cut.append(CutOff(name, f"more than {queue.settings.counts_max} epochs to tell of"))
        return Published(update, tuple(cut))

    def data(self, time: Time, payload: Any, rows: int = 1) -> Published:
        """Publish a batch at a time at or after a held one."""
        if self.aborted is not None:
            self._must_live(f"data at {time}")
        self.shape.check(time)
        if rows < 0:
            raise InvalidInputError(f"data at {time}: a batch cannot have {rows} rows")
        if not self._held.covers(time):
            raise IllegalTimeError(
                "it is not at or after a held time", update=f"data at {time}", state=self
            )
        if waiting := self.blocking(time):
            raise PublisherBlockedError(waiting, update=f"data at {time}", state=self)
        self._upper.insert(time)
        bound(self._upper)
        self._rows.put(time, (self._rows.get(time) or 0) + rows)
        message = Data(time, payload, rows)
        cut = []
        for name, queue in list(self._queues.items()):
            if not queue.offer(message, self._snapshot):
                del self._queues[name]
                cut.append(CutOff(name, f"more than {queue.settings.batches_max} batches waiting"))
        return Published(message, tuple(cut))

    def take_back(self) -> Published:
        """Nothing that was published in epochs still open counts; it is published again."""
        self._must_live("take back")
        message = TakeBack(self.lower)
        for time in list(self._rows):
            self._rows.drop(time)
        for queue in self._queues.values():
            queue.take_back(message)
        return Published(message)

    def close(self) -> Published:
        """Give back every held time: everything is complete."""
        return self.progress([(time, -count) for time, count in self._held.counts.items()])

    def abort(self, reason: str) -> Published:
        """Give up; with times still held, subscribers are told that the rest never comes."""
        self._must_live("abort")
        if self.closed:
            return Published(None)
        self.aborted = reason
        message = Aborted(reason)
        for queue in self._queues.values():
            queue.push(message)
        return Published(message)

    # --- the subscribers ---

    def connect(self, subscriber: str, settings: QueueSettings | None = None) -> None:
        """Let a subscriber in; its queue begins with a snapshot of now."""
        if subscriber in self._queues:
            raise SubscriberExistsError(
                "it is connected", update=f"connect {subscriber!r}", state=self.subscribers
            )
        queue = SubscriberQueue(self.shape, settings or QueueSettings(), self._snapshot())
        if self.aborted is not None:
            queue.push(Aborted(self.aborted))
        self._queues[subscriber] = queue

    def disconnect(self, subscriber: str) -> None:
        """A subscriber has left, or its link has failed: forget it, whatever the reason."""
        self.queue(subscriber)
        del self._queues[subscriber]

    def take(self, subscriber: str, limit: int = 1024) -> list[Message]:
        """The next messages for a subscriber, in order; they count as sent."""
        return self.queue(subscriber).take(limit)

    def heartbeat(self, subscriber: str) -> Heartbeat | None:
        """What to send to a subscriber that has been sent nothing for a while.

        None while something waits for it, which will do, and after the last word of an abort.
        """
        if len(self.queue(subscriber)) or self.aborted is not None:
            return None
        return Heartbeat(self.lower)

    def _snapshot(self) -> Snapshot:
        return Snapshot(self.lower, self.upper)

    def _check_held(self, net: Mapping[Time, int]) -> None:
        before = self._held.counts
        come = sum(delta > 0 and time not in before for time, delta in net.items())
        gone = sum(before.get(time) == -delta for time, delta in net.items())
        held = len(before) + come - gone
        if come and held > FRONTIER_TIMES_MAX:
            raise EpochLimitError(
                f"a publisher would hold {held} times; {FRONTIER_TIMES_MAX} is the most. "
                "Give some up first"
            )

    def _must_live(self, update: str) -> None:
        if self.aborted is not None:
            raise EpochMessageError("the publisher has aborted", update=update, state=self)
