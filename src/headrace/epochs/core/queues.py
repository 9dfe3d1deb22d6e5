"""The queue between a publisher and one subscriber: bounded, whatever the subscriber does.

Only data counts against the limit.  Frontier updates that follow one another are joined into one,
so that at most one stands between two batches, and progress never has to wait.

When a batch finds no room, the policy decides:

* ``block``: the publisher must not take the batch; it may try again when there is room;
* ``skip``: everything in the queue is given up for one :class:`Skip`, which tells the subscriber
  which epochs it can no longer see whole; batches at or before those times are not queued any
  more, since they would be dropped at the other end;
* ``disconnect``: the subscriber is cut off, and can come back with its resume token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from headrace.epochs.core.antichains import Antichain
from headrace.epochs.core.messages import Aborted, Data, FrontierUpdate, Message, Skip, Snapshot
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import InvalidConfigError


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

    def __post_init__(self) -> None:
        if self.batches_max < 1:
            raise InvalidConfigError(f"batches_max must be 1 or more, not {self.batches_max}")


class SubscriberQueue:
    """What one subscriber has still to be sent of one partition."""

    def __init__(self, shape: TimeShape, settings: QueueSettings, snapshot: Snapshot) -> None:
        self.shape = shape
        self.settings = settings
        self._messages: deque[Message] = deque([snapshot])
        self._batches = 0
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
        return self._batches >= self.settings.batches_max

    def blocks(self, time: Time) -> bool:
        """Whether a batch at `time` has to wait for room."""
        blocking = self.settings.policy is QueuePolicy.BLOCK
        return blocking and self.full and not self._pointless.covers(time)

    def take(self, limit: int) -> list[Message]:
        """The next messages, at most `limit`, in order."""
        taken = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
        self._batches -= sum(isinstance(message, Data) for message in taken)
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
            return True
        if self.settings.policy is QueuePolicy.DISCONNECT:
            self._messages.clear()
            self._batches = 0
            return False
        assert self.settings.policy is QueuePolicy.SKIP, "a publisher asks before it blocks"
        self._skip(data, snapshot())
        return True

    def _skip(self, data: Data, now: Snapshot) -> None:
        self.skips += 1
        fresh = isinstance(self._messages[0], Snapshot)
        left_out = Antichain.maximal(self.shape, [data.time])
        counts: list[tuple[Time, int]] = []
        for message in self._messages:
            match message:
                case Data(time=time):
                    left_out.insert(time)
                case FrontierUpdate(counts=told):
                    counts.extend(told)
                case Skip(upper=skipped, counts=told):
                    left_out.insert_all(skipped)
                    counts.extend(told)
                case _:
                    pass
        self._messages.clear()
        self._batches = 0
        if fresh:
            # Nothing has been sent yet: the subscriber simply begins later.
            self._messages.append(now)
            if self.settings.filtered:
                self._pointless.insert_all(now.upper)
            return
        whole = tuple(count for count in counts if not left_out.covers(count[0]))
        self._messages.append(Skip(now.lower, left_out.frontier, whole))
        self._pointless.insert_all(left_out)

    def update(self, update: FrontierUpdate, covers: Callable[[Time], bool]) -> None:
        """Queue a change of the frontier, joined with one just before it.

        `covers` is the partition's lower frontier after the change.
        """
        # This partition's own frontier is the right one here: it says what it can still publish.
        self._pointless.prune(covers)
        last = self._messages[-1] if self._messages else None
        if isinstance(last, FrontierUpdate):
            self._messages[-1] = joined(last, update)
        else:
            self._messages.append(update)

    def push(self, message: Aborted) -> None:
        """Queue the last word of a publisher."""
        self._messages.append(message)


def joined(first: FrontierUpdate, second: FrontierUpdate) -> FrontierUpdate:
    """One update that does what two do."""
    net: dict[Time, int] = {}
    for time, delta in (*first.changes, *second.changes):
        net[time] = net.get(time, 0) + delta
    changes = tuple((time, delta) for time, delta in net.items() if delta)
    return FrontierUpdate(changes, first.counts + second.counts)
