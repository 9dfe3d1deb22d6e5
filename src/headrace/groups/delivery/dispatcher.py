"""The dispatcher: decides what the owner of a unit may be handed next.

Theory of operation
-------------------
An event is an offset and an integer key; payloads stay outside.  It moves through

    buffered ── take ──▶ in flight ── ack ──────────────▶ acked
       ▲  parked            │ nack, timeout
       │  behind its key    ▼
       │                 refused ── due, take ──▶ in flight again
       │                    │ deliveries used up, or reject
       │                    ▼
       └── (next of key)  dying ── dead_lettered ───────▶ acked

*Order per key* (``key_order``).  A key is *held* by its events that are in flight, refused or
dying.  ``take`` walks the buffer once; an event whose key is held is parked behind it, so one that
is alone costs a dictionary look-up.  A refused event (``refused``) keeps holding its key, and that
is all it takes for it to come again before the next one.

*Dead letters* are two steps: the event is ``dying`` until the owner confirms that the dead
letter is stored, so a crash in between repeats the step and loses nothing.  ``dying`` is
level-triggered: it lists what is still to be done, however often it was told.

*Time* is an argument and only moves forward.  All deliveries wait equally long for their
answer, so the order in which they were handed out (which the dictionary keeps) is the order of
their deadlines, and expiry looks only at the oldest.

*Attempts.*  An answer names the offset and the attempt.  Attempt 1 of an event that timed out
and was handed out again is stale: its answer raises and changes nothing.

*Acks from elsewhere* (``pass_over``), of an owner in another region: what is not handed out is
acked, and frees its key.  What is in flight or dying stays so, and is acked by its own answer.

*Bounds.*  ``wanted`` says how many events may be fed; ``max_pending`` bounds the rest.  Refused
and dying events count towards it, else ``max_pending=1`` would not be one at a time.

The dispatcher knows neither groups nor catalogs.  Whoever loses the unit calls ``fence``;
whoever gives it up in peace calls ``pause``, waits for ``idle``, and hands over ``progress()``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from headrace.errors import FeedError, StaleDeliveryError, UnknownDeliveryError
from headrace.groups.delivery.base import UnitDispatcher
from headrace.groups.delivery.key_order import KeyOrder
from headrace.groups.delivery.messages import (
    DeadLetter,
    DeliveryConfig,
    Handout,
    Reason,
    Retry,
    Stalled,
    Statistics,
)
from headrace.groups.delivery.refused import Refused
from headrace.groups.progress import AckedRanges, Progress
from headrace.groups.progress.arrays import Int64s

_KEY = itemgetter(0)


class Dispatcher(UnitDispatcher):
    """Hands out one unit's events and keeps its progress.

    >>> dispatcher = Dispatcher(DeliveryConfig(max_deliveries=3))
    >>> dispatcher.feed([0, 1, 2], keys=[7, 7, 8], end=3) is None
    True
    >>> dispatcher.take(10, now_ms=0).offsets       # 1 waits for 0, they share a key
    [0, 2]
    >>> dispatcher.ack(0, attempt=1, now_ms=5)
    >>> dispatcher.take(10, now_ms=5).offsets
    [1]
    >>> dispatcher.progress().floor
    1
    """

    def __init__(self, config: DeliveryConfig, progress: Progress | None = None) -> None:
        super().__init__(config, progress)
        # known, not handed out: the buffer from _cursor on, and what waits for its key
        self._offsets: list[int] = []
        self._keys: list[int] = []
        self._cursor = 0
        # handed out
        self._order = KeyOrder(config.max_pending_per_key)
        self._pending: dict[int, tuple[int, int]] = {}  # offset: key, deadline; oldest first
        self._refused = Refused(self._order)
        self._dying: dict[int, DeadLetter] = {}
        self._key_of_dying: dict[int, int] = {}

    # --- reading -----------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """How many more events the buffer takes; nothing while paused or once fenced."""
        if self._paused or self._fenced is not None:
            return 0
        return self.config.buffer_events_max - self._buffered()

    @property
    def ready(self) -> bool:
        """Whether a ``take`` may find something without waiting for an answer or for time."""
        return self._cursor < len(self._offsets) or bool(self._order.freed)

    @property
    def walkable(self) -> int:
        """Events that a ``take`` may find: freed by their keys, or not looked at yet."""
        return len(self._offsets) - self._cursor + len(self._order.freed)

    @property
    def in_flight(self) -> int:
        """Events handed out and not answered."""
        return len(self._pending)

    def in_hand(self, unseen: Collection[int]) -> set[int]:
        """The offsets in flight, without those that the application has not seen yet."""
        return self._pending.keys() - unseen

    @property
    def idle(self) -> bool:
        """Nothing is in flight and no dead letter is unconfirmed: a paused unit may move."""
        return not self._pending and not self._dying

    @property
    def dying(self) -> Mapping[int, DeadLetter]:
        """Dead letters to be stored and then confirmed with :meth:`dead_lettered`."""
        return MappingProxyType(self._dying)

    @property
    def wake_at_ms(self) -> int | None:
        """When ``tick`` or ``take`` has something to do without news from outside."""
        times: list[int] = []
        if self._fenced is not None:
            return None
        if self._pending:
            times.append(next(iter(self._pending.values()))[1])
        if (due_ms := self._refused.next_due_ms) is not None and not self._paused:
            times.append(due_ms)
        if (stall_ms := self._stall_ms()) is not None:
            times.append(stall_ms)
        return min(times, default=None)

    def attempt_of(self, offset: int) -> int | None:
        """The attempt that is in flight for this offset, if one is."""
        return self._attempts.get(offset, 0) + 1 if offset in self._pending else None

    def statistics(self) -> Statistics:
        """Counts of what is where."""
        return Statistics(
            floor=self._acked.floor,
            acked_ranges=len(self._acked),
            buffered=self._buffered(),
            parked_keys=len(self._order.parked),
            in_flight=len(self._pending),
            refused=len(self._refused),
            dying=len(self._dying),
        )

    # --- events in, events out ---------------------------------------------------------

    def feed(
        self,
        offsets: Sequence[int] | Int64s,
        keys: Sequence[int] | Int64s,
        end: int,
        *,
        sifted: bool = False,
    ) -> npt.NDArray[np.bool_] | None:
        """Add the group's events among ``next_offset`` … ``end``, ascending.

        Offsets in that range that are not given hold nothing for this group (filtered out, or
        markers) and count as acked.  Those acked under an earlier owner are passed over: then the
        answer says which were taken, and None when all were.  If ``sifted``, the caller has looked:
        those that are given are not acked, and those that are not given are.
        """
        ours = np.asarray(offsets, dtype=np.int64)
        start = self._next_offset
        self._check_feed(ours, end)
        if len(keys) != ours.size:
            raise FeedError(f"a feed has {ours.size} offsets and {len(keys)} keys")
        fresh, above = ours, not sifted and self._acked.end > start
        keep = self.unacked(ours) if above else None
        if keep is not None:
            fresh, keys = ours[keep], np.asarray(keys)[keep]
        if fresh.size > self.wanted:
            raise FeedError(f"a feed of {fresh.size} events, but only {self.wanted} are wanted")
        if end - start != ours.size and not sifted:
            edges = np.concatenate(([start - 1], ours, [end]))
            holes = np.flatnonzero(np.diff(edges) > 1)
            los, his = edges[holes] + 1, edges[holes + 1]
            if above:
                new = ~self._acked.holds_many(los, his)
                los, his = los[new], his[new]
            self._acked.ack_ranges(los, his)
        self._next_offset = end
        del self._offsets[: self._cursor], self._keys[: self._cursor]
        self._cursor = 0
        self._offsets.extend(fresh.tolist())
        self._keys.extend(keys.tolist() if isinstance(keys, np.ndarray) else keys)
        return keep

    def take(self, max_events: int, now_ms: int) -> Handout:
        """Hand out up to ``max_events``: first what is due again, then in order."""
        self._check_fence()
        now = self._advance(now_ms)
        deadline = now + self.config.ack_wait_ms
        if self._paused or max_events <= 0 or not (self.ready or self._refused):
            return Handout([], [], deadline)
        offsets, keys = self._refused.take_due(max_events, now)
        while True:
            room = min(max_events, self.config.max_pending - self._unacked()) - len(offsets)
            room = self._order.take_freed(room, offsets, keys)
            self._cursor = self._order.walk(
                self._offsets, self._keys, self._cursor, room, offsets, keys
            )
            if not self._attempts or not self._set_exhausted_aside(offsets, keys):
                break
        if self._attempts:
            attempts = [self._attempts.get(offset, 0) + 1 for offset in offsets]
        else:
            attempts = [1] * len(offsets)
        self._pending.update(zip(offsets, zip(keys, repeat(deadline)), strict=False))
        if offsets and self._silent_since_ms is None:
            self._silent_since_ms = now
        return Handout(offsets, attempts, deadline)

    # --- answers -----------------------------------------------------------------------

    def ack(self, offset: int, attempt: int, now_ms: int) -> None:
        """The event is done with."""
        self._check_answer("ack", offset, attempt)
        key, _ = self._pending.pop(offset)
        self._attempts.pop(offset, None)
        self._acked.ack(offset)
        self._order.release(key)
        self._heard(now_ms)

    def ack_many(
        self, offsets: Sequence[int], now_ms: int, attempts: int | Sequence[int] = 1
    ) -> None:
        """Ack many at once, all or none; ``attempts`` is one for all, or one for each."""
        pending = self._pending
        distinct = set(offsets)
        if (
            self._fenced is not None
            or attempts != 1
            or len(distinct) != len(offsets)
            or not pending.keys() >= distinct
            or not self._attempts.keys().isdisjoint(distinct)
        ):
            self._check_answers(offsets, attempts)
        if self._attempts:
            for offset in distinct:
                self._attempts.pop(offset, None)
        self._order.release_all(map(_KEY, map(pending.pop, offsets)))
        self._acked.ack_many(offsets)
        self._heard(now_ms)

    def nack(
        self, offset: int, attempt: int, now_ms: int, delay_ms: int | None = None, detail: str = ""
    ) -> Retry | DeadLetter:
        """The consumer could not do it: it comes again after ``delay_ms`` or the back-off."""
        self._check_answer("nack", offset, attempt)
        self._check_delay(f"offset {offset}", delay_ms)
        outcome = self._refuse(offset, self._advance(now_ms), Reason.NACKED, delay_ms, detail)
        self._heard(now_ms)
        return outcome

    def reject(self, offset: int, attempt: int, now_ms: int, detail: str = "") -> DeadLetter:
        """The event can never be done: a dead letter at once."""
        self._check_answer("reject", offset, attempt)
        key, _ = self._pending.pop(offset)
        attempts = self._attempts[offset] = self._attempts.get(offset, 0) + 1
        self._heard(now_ms)
        return self._die(DeadLetter(offset, attempts, Reason.REJECTED, detail), key)

    def extend(self, offset: int, attempt: int, now_ms: int) -> int:
        """The consumer is still at it: the whole ``ack_wait_ms`` again; gives the deadline."""
        self._check_answer("extend", offset, attempt)
        now = self._advance(now_ms)
        key, _ = self._pending.pop(offset)  # to the end: the oldest deadline stays first
        self._pending[offset] = (key, now + self.config.ack_wait_ms)
        self._heard(now_ms)
        return now + self.config.ack_wait_ms

    def dead_lettered(self, offset: int, now_ms: int) -> None:
        """The dead letter is stored: the event is done with and its key continues."""
        self._check_fence()
        if offset not in self._dying:
            raise UnknownDeliveryError("confirm the dead letter of", offset, "it is not dying")
        self._advance(now_ms)
        del self._dying[offset]
        self._attempts.pop(offset, None)
        self._acked.ack(offset)
        self._order.release(self._key_of_dying.pop(offset))

    # --- time --------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Retry | DeadLetter | Stalled]:
        """Expire what was not answered in time; say once when the consumer has stalled."""
        self._check_fence()
        now = self._advance(now_ms)
        expired: list[int] = []
        for offset, (_, deadline) in self._pending.items():
            if deadline > now:
                break
            expired.append(offset)
        outcomes: list[Retry | DeadLetter | Stalled] = [
            self._refuse(offset, now, Reason.TIMED_OUT, None, "") for offset in expired
        ]
        since, stall_ms = self._silent_since_ms, self._stall_ms()
        if since is not None and stall_ms is not None and now >= stall_ms:
            self._stall_told = True
            unanswered = [*self._pending, *self._refused.events, *self._dying]
            outcomes.append(Stalled(since, len(unanswered), min(unanswered, default=-1)))
        return outcomes

    # --- events that nobody has seen ---------------------------------------------------

    def recall(self, offsets: Iterable[int]) -> None:
        """Events that the owner of a paused unit took and the consumer never saw.

        As if they had not been handed out: they come first, under the same attempt.
        """
        self._check_fence()
        given = list(offsets)
        if not self._paused:
            raise FeedError("events are recalled only from a unit that is paused")
        for offset in given:
            if offset not in self._pending:
                raise UnknownDeliveryError("recall", offset, "it is not in flight")
        for offset in given:
            key, _ = self._pending.pop(offset)
            self._refused.add(offset, key, self._now_ms)
        if not self._pending:
            self._silent_since_ms = None

    def renew(self, offsets: Iterable[int], now_ms: int) -> None:
        """Events that wait to be seen by the consumer: their time begins now.

        Unlike :meth:`extend` this is no sign of life.
        """
        self._check_fence()
        deadline = self._advance(now_ms) + self.config.ack_wait_ms
        for offset in offsets:
            if offset in self._pending:
                key, _ = self._pending.pop(offset)
                self._pending[offset] = (key, deadline)

    # --- acks from elsewhere -----------------------------------------------------------

    def pass_over(self, acked: AckedRanges, unseen: Collection[int] = ()) -> list[int] | None:
        """Others have acked this: what of it is not handed out will not be.

        ``unseen`` is in flight, but the consumer has not seen it: it counts as not handed out.
        Returns the events that were known here and are passed over; None when nothing is news.
        """
        self._check_fence()
        waiting = self._offsets[self._cursor :]
        known = [*waiting, *self._order.waiting(), *self._refused.events]
        known += [offset for offset in unseen if offset in self._pending]
        found = np.asarray(known, dtype=np.int64)
        gone = set(found[acked.contains_many(found)].tolist())
        held = [offset for offset in (*self._pending, *self._dying) if offset not in gone]
        if not self._join(acked, held) and not gone:
            return None
        if gone:
            self._drop(gone)
        return sorted(gone)

    def _drop(self, gone: set[int]) -> None:
        waiting = zip(self._offsets[self._cursor :], self._keys[self._cursor :], strict=True)
        left = [pair for pair in waiting if pair[0] not in gone]
        self._offsets = [offset for offset, _ in left]
        self._keys = [key for _, key in left]
        self._cursor = 0
        self._order.drop(gone)
        self._refused.drop(gone & self._refused.events.keys())
        seen_before = len(self._pending)
        for offset in gone & self._pending.keys():
            self._order.release(self._pending.pop(offset)[0])
        if not self._unacked() or (seen_before and not self._pending):
            self._silent_since_ms = None

    # --- internals ---------------------------------------------------------------------

    def _buffered(self) -> int:
        return len(self._offsets) - self._cursor + self._order.waiting_events

    def _unacked(self) -> int:
        return len(self._pending) + len(self._refused) + len(self._dying)

    def _heard(self, now_ms: int) -> int:
        """The consumer answered: silence begins anew, if it still holds anything."""
        now = self._advance(now_ms)
        self._silent_since_ms = now if self._pending else None
        self._stall_told = False
        return now

    def _set_exhausted_aside(self, offsets: list[int], keys: list[int]) -> bool:
        """Events whose deliveries an earlier owner used up die instead of being handed out."""
        limit = self.config.max_deliveries
        used_up = [
            index for index, offset in enumerate(offsets) if self._attempts.get(offset, 0) >= limit
        ]
        if not limit or not used_up:
            return False
        for index in reversed(used_up):
            offset, key = offsets.pop(index), keys.pop(index)
            self._die(DeadLetter(offset, self._attempts[offset], Reason.EXHAUSTED), key)
        return True

    def _refuse(
        self, offset: int, now: int, reason: Reason, delay_ms: int | None, detail: str
    ) -> Retry | DeadLetter:
        key, _ = self._pending.pop(offset)
        attempts = self._attempts[offset] = self._attempts.get(offset, 0) + 1
        if self.config.max_deliveries and attempts >= self.config.max_deliveries:
            return self._die(DeadLetter(offset, attempts, reason, detail), key)
        due = now + (self.config.backoff_ms(attempts) if delay_ms is None else delay_ms)
        self._refused.add(offset, key, due)
        return Retry(offset, attempts, due, reason)

    def _die(self, letter: DeadLetter, key: int) -> DeadLetter:
        self._dying[letter.offset] = letter
        self._key_of_dying[letter.offset] = key
        return letter

    # --- refusals ----------------------------------------------------------------------

    def _check_answer(self, verb: str, offset: int, attempt: int) -> None:
        self._check_fence()
        if offset in self._pending:
            current = self._attempts.get(offset, 0) + 1
            if attempt == current:
                return
            if not 1 <= attempt < current:
                raise UnknownDeliveryError(verb, offset, f"attempt {attempt} was never handed out")
            state = f"attempt {current} is in flight"
        elif offset in self._acked:
            state = "it is acked"
        elif offset in self._refused.events:
            state = "it was refused or timed out, and comes again"
        elif offset in self._dying:
            state = "it is a dead letter"
        else:
            raise UnknownDeliveryError(verb, offset, "it was never handed out")
        raise StaleDeliveryError(verb, offset, attempt, state)

    def _check_answers(self, offsets: Sequence[int], attempts: int | Sequence[int]) -> None:
        each: Iterable[int] = repeat(attempts) if isinstance(attempts, int) else attempts
        if not isinstance(attempts, int) and len(attempts) != len(offsets):
            raise FeedError(f"an ack of {len(offsets)} offsets names {len(attempts)} attempts")
        seen: set[int] = set()
        for offset, attempt in zip(offsets, each, strict=False):
            self._check_answer("ack", offset, attempt)
            if offset in seen:
                raise StaleDeliveryError("ack", offset, attempt, "the same call acks it twice")
            seen.add(offset)
        self._check_fence()
