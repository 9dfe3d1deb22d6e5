"""The queue between a publisher and one subscriber: bounded, whatever the subscriber does.

Batches count against limits in number and bytes.  Frontier updates that follow one another are
joined into one, so that at most one stands between two batches, and progress never has to wait.
With an update go the row counts of the epochs it completes, of batches that were sent before: those
are limited as well.  What is too large for one message is cut when it is taken.

A batch that alone is larger than all room passes when nothing else waits.

When there is no room, the policy decides:

* ``block``: the publisher must not take the batch; it may try again when there is room (counts are
  no more than there were active epochs when the subscriber stopped, and are kept);
* ``skip``: everything in the queue is given up for one :class:`Skip`, which tells the subscriber
  which epochs it can no longer see whole; batches at or before those times are not queued any
  more, since they would be dropped at the other end;
* ``disconnect``: the subscriber is cut off, and can come back with its resume token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import reduce

import msgspec

from headrace.epochs.core.antichains import Antichain
from headrace.epochs.core.messages import (
    Aborted,
    Data,
    EpochCount,
    FrontierUpdate,
    Message,
    Skip,
    Snapshot,
    TakeBack,
)
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import InvalidConfigError

PIECE_TIMES = 8192
"""This many times of eight parts, each with a count, fit into the largest head."""
FRONTIER_TIMES_MAX = 4096
"""Times of one frontier, of which a message has two: a frontier is not cut."""


class QueuePolicy(StrEnum):
    """What happens to a subscriber that does not keep up."""

    BLOCK = "block"
    SKIP = "skip"
    DISCONNECT = "disconnect"


class QueueSettings(msgspec.Struct, frozen=True):
    """How a subscriber is served.

    With `filtered` the publisher leaves out what the subscriber's filter would drop anyway.
    """

    policy: QueuePolicy = QueuePolicy.BLOCK
    batches_max: int = 1024
    filtered: bool = False
    bytes_max: int = 64 * 1024 * 1024
    counts_max: int = 65_536

    def __post_init__(self) -> None:
        for name in ("batches_max", "bytes_max", "counts_max"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} must be 1 or more, not {getattr(self, name)}")


class SubscriberQueue:
    """What one subscriber has still to be sent of one partition."""

    def __init__(self, shape: TimeShape, settings: QueueSettings, snapshot: Snapshot) -> None:
        self.shape = shape
        self.settings = settings
        self._messages: deque[Message] = deque([snapshot])
        self._batches = 0
        self._bytes = 0
        self._counts = 0
        self._pointless = Antichain.maximal(shape, snapshot.upper if settings.filtered else ())
        """Times at or before which the subscriber would drop what is sent."""
        self.skips = 0
        """How often the subscriber was made to skip."""

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def batches(self) -> int:
        """How many batches wait."""
        return self._batches

    @property
    def full(self) -> bool:
        """Whether there is no room for a batch."""
        settings = self.settings
        return self._batches >= settings.batches_max or self._bytes >= settings.bytes_max

    @property
    def counts(self) -> int:
        """How many row counts of completed epochs wait."""
        return self._counts

    def blocks(self, time: Time) -> bool:
        """Whether a batch at `time` has to wait for room."""
        blocking = self.settings.policy is QueuePolicy.BLOCK
        return blocking and self.full and not self._pointless.covers(time)

    def take(self, limit: int) -> list[Message]:
        """The next messages, at most `limit`, in order."""
        taken: list[Message] = []
        messages = self._messages
        while messages and len(taken) < limit:
            message = messages.popleft()
            match message:
                case Data(payload=payload):
                    self._batches -= 1
                    self._bytes -= size_of(payload)
                case FrontierUpdate() | Skip() if len(pieces := cut(message)) > 1:
                    messages.extendleft(reversed(pieces))
                    message = messages.popleft()
                case _:
                    pass
            if isinstance(message, FrontierUpdate | Skip):
                self._counts -= len(message.counts)
            taken.append(message)
        return taken

    def offer(self, data: Data, snapshot: Callable[[], Snapshot]) -> bool:
        """Queue a batch; `snapshot` is the publisher's.  False: cut the subscriber off.

        Under ``block`` the caller asks :meth:`blocks` first.
        """
        if self._pointless.covers(data.time):
            return True
        if not self.full:
            self._messages.append(data)
            self._batches += 1
            self._bytes += size_of(data.payload)
            return True
        if self.settings.policy is QueuePolicy.DISCONNECT:
            self._clear()
            return False
        assert self.settings.policy is QueuePolicy.SKIP, "a publisher asks before it blocks"
        self._skip([data.time], snapshot())
        return True

    def _clear(self) -> None:
        self._messages.clear()
        self._batches = self._bytes = self._counts = 0

    def _skip(self, missed: Iterable[Time], now: Snapshot) -> None:
        self.skips += 1
        fresh = isinstance(self._messages[0], Snapshot)
        left_out = Antichain.maximal(self.shape, missed)
        counts: list[tuple[Time, int]] = []
        taken_back: TakeBack | None = None
        for message in self._messages:
            match message:
                case TakeBack():
                    # Of several the first takes back all that was sent.
                    taken_back = taken_back or message
                case Data(time=time):
                    left_out.insert(time)
                case FrontierUpdate(counts=told):
                    counts.extend(told)
                case Skip(upper=skipped, counts=told):
                    left_out.insert_all(skipped)
                    counts.extend(told)
                case _:
                    pass
        bound(left_out)
        self._clear()
        if fresh:
            # Nothing has been sent yet: the subscriber simply begins later.
            self._messages.append(now)
            if self.settings.filtered:
                self._pointless.insert_all(now.upper)
            return
        if taken_back is not None:
            self._messages.append(taken_back)
        whole = tuple(count for count in counts if not left_out.covers(count[0]))
        self._messages.append(Skip(now.lower, left_out.frontier, whole))
        self._counts = len(whole)
        self._pointless.insert_all(left_out)

    def update(
        self,
        update: FrontierUpdate,
        covers: Callable[[Time], bool],
        snapshot: Callable[[], Snapshot],
    ) -> bool:
        """Queue a change of the frontier, joined with one just before it.

        `covers` is the partition's lower frontier after the change.  False: cut the subscriber off.
        """
        if update.counts and len(self._pointless):
            # Nobody at the other end counts what is left out here.
            counts = tuple(one for one in update.counts if not self._pointless.covers(one[0]))
            update = FrontierUpdate(update.changes, counts)
        # This partition's own frontier is the right one here: it says what it can still publish.
        self._pointless.prune(covers)
        last = self._messages[-1] if self._messages else None
        if isinstance(last, FrontierUpdate):
            self._messages[-1] = joined(last, update)
        else:
            self._messages.append(update)
        self._counts += len(update.counts)
        if self._counts <= self.settings.counts_max:
            return True
        match self.settings.policy:
            case QueuePolicy.DISCONNECT:
                self._clear()
                return False
            case QueuePolicy.SKIP:
                told = (m.counts for m in self._messages if isinstance(m, FrontierUpdate | Skip))
                self._skip([time for counts in told for time, _ in counts], snapshot())
            case QueuePolicy.BLOCK:
                pass
        return True

    def take_back(self, message: TakeBack) -> None:
        """Queue a source's word that its rows do not count; twice in a row is once."""
        if not self._messages or self._messages[-1] != message:
            self._messages.append(message)

    def push(self, message: Aborted) -> None:
        """Queue the last word of a publisher."""
        self._messages.append(message)


def bound(upper: Antichain) -> None:
    """Keep a maximal antichain small enough for the wire.

    One that is too large becomes the join of its times, which is at or after all of them: whoever
    filters by it leaves out more, never less.
    """
    if len(upper) > FRONTIER_TIMES_MAX:
        upper.insert(reduce(upper.shape.join, upper))


def size_of(payload: object) -> int:
    """How many bytes a payload takes; 0 for what is not made of bytes."""
    if isinstance(payload, bytes | bytearray):
        return len(payload)
    return int(getattr(payload, "nbytes", 0))


def cut(message: FrontierUpdate | Skip) -> list[Message]:
    """A message as those, each small enough for the wire, that do the same.

    Counts are told ahead; times are held anew before others are given up, so that no step in
    between completes more than the whole does.
    """
    counts = message.counts
    if isinstance(message, Skip):
        if len(counts) <= PIECE_TIMES:
            return [message]
        return [*_ahead(counts), Skip(message.lower, message.upper)]
    if len(counts) + len(message.changes) <= PIECE_TIMES:
        return [message]
    later = sorted(message.changes, key=lambda change: -change[1])
    steps = [FrontierUpdate(tuple(later[n : n + PIECE_TIMES])) for n in _pieces(later)]
    return [*_ahead(counts), *steps]


def _ahead(counts: tuple[EpochCount, ...]) -> list[Message]:
    return [FrontierUpdate((), counts[n : n + PIECE_TIMES]) for n in _pieces(counts)]


def _pieces(times: Sequence[object]) -> range:
    return range(0, len(times), PIECE_TIMES)


def joined(first: FrontierUpdate, second: FrontierUpdate) -> FrontierUpdate:
    """One update that does what two do."""
    net: dict[Time, int] = {}
    for time, delta in (*first.changes, *second.changes):
        net[time] = net.get(time, 0) + delta
    changes = tuple((time, delta) for time, delta in net.items() if delta)
    return FrontierUpdate(changes, first.counts + second.counts)
