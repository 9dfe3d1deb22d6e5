"""The batch dispatcher: decides which batch of a unit its owner may be handed next.

Theory of operation
-------------------
A *piece* is a run of events that is handed out, answered and counted as one.  The pieces of a
unit stand in a queue in the order of their offsets, and only the first of them moves:

    queued ── take ──▶ out ── ack ────────────────────────▶ acked, the next piece is first
                ▲       │ nack, timeout
                │       ▼
                └──── resting          deliveries used up: one event ─▶ dying ─▶ acked
                                       several ─▶ halved, and queued again

*Order.*  One piece is out at a time, so a refused one comes again before all that follow it,
and every key is in order whatever the batches hold.

*Ranges.*  A piece covers offsets from its start to its end, those between its events included:
they hold nothing for this group.  An ack therefore acks a plain range, and progress is exact.

*Poison.*  A batch that fails may hold one bad event among thousands.  When a piece has used up
its deliveries it is halved, and each half counts anew; a single event that has used them up is a
dead letter.  One bad event is so found in as many rounds as the batch has powers of two, and all
others are delivered.  Attempts are part of the progress only for pieces of a single event: those
of a larger one say nothing about any one of its events.  Events that an earlier owner refused
stand alone from the beginning.

*Acks from elsewhere* (``pass_over``), of an owner in another region: the events leave the pieces
that are not out, and a piece without any is done with.  What is out or dying stays whole.

Time is an argument, as in :mod:`headrace.groups.delivery.dispatcher`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from enum import Enum
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import (
    FeedError,
    StaleBatchError,
    UnknownDeliveryError,
    UnknownTicketError,
)
from headrace.groups.delivery.base import UnitDispatcher
from headrace.groups.delivery.messages import DeliveryConfig, Reason, Stalled
from headrace.groups.delivery.pieces import Piece, halves, left_of
from headrace.groups.progress import AckedRanges, Progress
from headrace.groups.progress.arrays import Int64s


class _State(Enum):
    QUEUED = "queued"
    OUT = "out"
    RESTING = "resting"
    DYING = "dying"


class BatchHandout(msgspec.Struct, frozen=True, eq=False):
    """A piece to hand to the consumer; ``attempt`` counts from 1.

    Answers name the ``ticket``, which is new for every handout: half a piece begins where the
    whole one did, and must not be answered by somebody who still holds that.
    """

    piece: Piece
    ticket: int
    attempt: int
    deadline_ms: int


class BatchRetry(msgspec.Struct, frozen=True):
    """A refused piece comes again at ``due_ms``; ``halved`` when it does so in two."""

    start: int
    attempts: int
    due_ms: int
    reason: Reason
    halved: bool


class DyingPiece(msgspec.Struct, frozen=True, eq=False):
    """Events to be stored as dead letters; then confirm with ``dead_lettered``."""

    piece: Piece
    attempts: int
    reason: Reason
    detail: str = ""


class BatchDispatcher(UnitDispatcher):
    """Hands out one unit's events in pieces and keeps its progress.

    >>> dispatcher = BatchDispatcher(DeliveryConfig())
    >>> dispatcher.feed(np.array([0, 1, 4]), end=6) is None
    True
    >>> handout = dispatcher.take(now_ms=0)
    >>> handout.piece.events, handout.attempt
    (3, 1)
    >>> dispatcher.ack(handout.ticket, now_ms=1)
    >>> dispatcher.progress().floor
    6
    """

    def __init__(self, config: DeliveryConfig, progress: Progress | None = None) -> None:
        super().__init__(config, progress)
        self._queue: deque[Piece] = deque()  # the first one is in _state
        self._state = _State.QUEUED
        self._ticket = 0  # of the last handout
        self._until_ms = 0  # deadline when out, due time when resting
        self._dying: DyingPiece | None = None

    # --- reading -----------------------------------------------------------------------

    def in_hand(self, unseen: Collection[int]) -> set[int]:
        """The offsets of what is out; none if the application has not seen the piece yet."""
        if self._state is not _State.OUT or self._queue[0].start in unseen:
            return set()
        return set(self._queue[0].offsets.tolist())

    @property
    def idle(self) -> bool:
        """Nothing is out and no dead letter is unconfirmed: a paused unit may move."""
        return self._state not in (_State.OUT, _State.DYING)

    @property
    def ready(self) -> bool:
        """Whether a ``take`` finds something without waiting for an answer or for time."""
        return bool(self._queue) and self._state is _State.QUEUED and not self._paused

    @property
    def empty(self) -> bool:
        """Nothing that was fed is left, whether handed out or not."""
        return not self._queue

    @property
    def dying(self) -> DyingPiece | None:
        """What is to be stored as dead letters and then confirmed."""
        return self._dying

    @property
    def wake_at_ms(self) -> int | None:
        """When ``tick`` or ``take`` has something to do without news from outside."""
        if self._fenced is not None:
            return None
        times: list[int] = []
        if self._state is _State.OUT or (self._state is _State.RESTING and not self._paused):
            times.append(self._until_ms)
        if (stall_ms := self._stall_ms()) is not None:
            times.append(stall_ms)
        return min(times, default=None)

    # --- events in, pieces out ---------------------------------------------------------

    def feed(self, offsets: Int64s, end: int) -> npt.NDArray[np.bool_] | None:
        """Add the group's events among ``next_offset`` … ``end``, ascending, as one piece.

        Returns which of them are taken when an earlier owner has acked some, else None: all.
        """
        start = self._next_offset
        self._check_feed(offsets, end)
        keep = None
        if self._acked.end > start and offsets.size:
            keep = ~self._acked.contains_many(offsets)
            offsets = offsets[keep]
            keep = None if bool(keep.all()) else keep
        self._next_offset = end
        if offsets.size:
            self._queue.extend(self._pieces(Piece(start, end, offsets)))
        else:
            self._acked.ack_range(start, end)
        return keep

    def take(self, now_ms: int) -> BatchHandout | None:
        """Hand out the first piece, if it may go."""
        self._check_fence()
        now = self._advance(now_ms)
        if self._state is _State.RESTING and self._until_ms <= now:
            self._state = _State.QUEUED
        while not self._paused and self._queue and self._state is _State.QUEUED:
            piece = self._queue[0]
            limit = self.config.max_deliveries
            if limit and piece.attempts >= limit:  # used up under an earlier owner
                self._die(piece, Reason.EXHAUSTED, "")
                break
            self._state = _State.OUT
            self._until_ms = now + self.config.ack_wait_ms
            if self._silent_since_ms is None:
                self._silent_since_ms = now
            self._ticket += 1
            return BatchHandout(piece, self._ticket, piece.attempts + 1, self._until_ms)
        return None

    # --- answers -----------------------------------------------------------------------

    def ack(self, ticket: int, now_ms: int) -> None:
        """The piece that was handed out under this ticket is done with."""
        self._check_answer("ack", ticket)
        self._finish()
        self._heard(now_ms)

    def nack(
        self, ticket: int, now_ms: int, delay_ms: int | None = None, detail: str = ""
    ) -> BatchRetry | DyingPiece:
        """The consumer could not do it: the piece comes again before all that follow it."""
        self._check_answer("nack", ticket)
        self._check_delay("a batch", delay_ms)
        outcome = self._refuse(self._advance(now_ms), Reason.NACKED, delay_ms, detail)
        self._heard(now_ms)
        return outcome

    def reject(self, ticket: int, now_ms: int, detail: str = "") -> DyingPiece:
        """None of its events can ever be done: dead letters at once."""
        self._check_answer("reject", ticket)
        piece = self._queue[0]
        tried = msgspec.structs.replace(piece, attempts=piece.attempts + 1)
        dying = self._die(tried, Reason.REJECTED, detail)
        self._heard(now_ms)
        return dying

    def extend(self, ticket: int, now_ms: int) -> int:
        """The consumer is still at it: the whole ``ack_wait_ms`` again; gives the deadline."""
        self._check_answer("extend", ticket)
        self._heard(now_ms)
        self._until_ms = self._now_ms + self.config.ack_wait_ms
        return self._until_ms

    def renew(self, now_ms: int) -> None:
        """The piece that is out waits to be seen by the consumer: its time begins now."""
        self._check_fence()
        if self._state is _State.OUT:
            self._until_ms = self._advance(now_ms) + self.config.ack_wait_ms

    def dead_lettered(self, start: int, now_ms: int) -> None:
        """The dead letters of a piece are stored: the unit continues."""
        self._check_fence()
        if self._dying is None or self._dying.piece.start != start:
            raise UnknownDeliveryError("confirm the dead letters of", start, "it is not dying")
        self._advance(now_ms)
        self._dying = None
        self._finish()

    # --- time --------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[BatchRetry | DyingPiece | Stalled]:
        """Expire what was not answered in time; say once when the consumer has stalled."""
        self._check_fence()
        now = self._advance(now_ms)
        outcomes: list[BatchRetry | DyingPiece | Stalled] = []
        since, stall_ms = self._silent_since_ms, self._stall_ms()
        if since is not None and stall_ms is not None and now >= stall_ms and self._queue:
            self._stall_told = True
            first = self._queue[0]
            outcomes.append(Stalled(since, first.events, int(first.offsets[0])))
        if self._state is _State.OUT and self._until_ms <= now:
            outcomes.append(self._refuse(now, Reason.TIMED_OUT, None, ""))
        return outcomes

    # --- a piece that nobody has seen --------------------------------------------------

    def recall(self) -> None:
        """The consumer never saw the piece that is out: as if it had not been handed out."""
        self._check_fence()
        if not self._paused or self._state is not _State.OUT:
            raise FeedError("a batch is recalled only from a unit that is paused")
        self._state = _State.QUEUED
        self._silent_since_ms = None

    # --- acks from elsewhere -----------------------------------------------------------

    def pass_over(self, acked: AckedRanges, *, unseen: bool = False) -> bool:
        """Others have acked this: what of it is not out will not be; whether anything is news.

        If ``unseen``, the consumer has not seen the piece that is out: it goes back if it has any.
        """
        self._check_fence()
        held = self._state in (_State.OUT, _State.DYING)
        unseen = unseen and self._state is _State.OUT
        if unseen and bool(acked.contains_many(self._queue[0].offsets).any()):
            self._state = _State.QUEUED
            self._silent_since_ms = None
            held = False
        news = self._join(acked, self._queue[0].offsets.tolist() if held else ())
        queue, self._queue = self._queue, deque()
        for at, piece in enumerate(queue):
            left = piece if at == 0 and held else left_of(piece, acked)
            if left is not None:
                self._queue.append(left)
                continue
            self._acked.ack_range(piece.start, piece.end)
            if at == 0:
                self._state = _State.QUEUED
                self._silent_since_ms = None
        return news

    # --- internals ---------------------------------------------------------------------

    def _pieces(self, piece: Piece) -> list[Piece]:
        """The piece, cut so that every event that was refused before stands alone."""
        if not self._attempts:
            return [piece]
        known = np.array(sorted(self._attempts), dtype=np.int64)
        at = np.searchsorted(piece.offsets, known)
        there = at < piece.events
        rows = [
            int(r) for r, k in zip(at[there], known[there], strict=True) if piece.offsets[r] == k
        ]
        cuts = sorted({cut for row in rows for cut in (row, row + 1)} - {0, piece.events})
        bounds = [0, *cuts, piece.events]
        found = []
        for lo, hi in pairwise(bounds):
            part = piece.offsets[lo:hi]
            found.append(
                Piece(
                    piece.start if lo == 0 else int(part[0]),
                    piece.end if hi == piece.events else int(piece.offsets[hi]),
                    part,
                    self._attempts.get(int(part[0]), 0) if part.size == 1 else 0,
                )
            )
        return found

    def _finish(self) -> None:
        piece = self._queue.popleft()
        self._acked.ack_range(piece.start, piece.end)
        if self._attempts and piece.events == 1:
            self._attempts.pop(int(piece.offsets[0]), None)
        self._state = _State.QUEUED
        self._silent_since_ms = None

    def _refuse(
        self, now: int, reason: Reason, delay_ms: int | None, detail: str
    ) -> BatchRetry | DyingPiece:
        piece = self._queue.popleft()
        attempts = piece.attempts + 1
        tried = msgspec.structs.replace(piece, attempts=attempts)
        if piece.events == 1:
            self._attempts[int(piece.offsets[0])] = attempts
        limit = self.config.max_deliveries
        used_up = bool(limit) and attempts >= limit
        if used_up and piece.events == 1:
            self._queue.appendleft(tried)
            return self._die(tried, reason, detail)
        if used_up:
            self._queue.extendleft(reversed(halves(piece)))
        else:
            self._queue.appendleft(tried)
        rest_ms = self.config.backoff_ms(attempts) if delay_ms is None else delay_ms
        self._state = _State.RESTING
        self._until_ms = now + (0 if used_up and delay_ms is None else rest_ms)
        return BatchRetry(piece.start, attempts, self._until_ms, reason, used_up)

    def _die(self, piece: Piece, reason: Reason, detail: str) -> DyingPiece:
        self._state = _State.DYING
        self._dying = DyingPiece(piece, piece.attempts, reason, detail)
        return self._dying

    def _heard(self, now_ms: int) -> None:
        now = self._advance(now_ms)
        self._silent_since_ms = now if self._state is _State.OUT else None
        self._stall_told = False

    def _check_answer(self, verb: str, ticket: int) -> None:
        self._check_fence()
        if ticket == self._ticket and self._state is _State.OUT:
            return
        if not 1 <= ticket <= self._ticket:
            raise UnknownTicketError(verb, ticket)
        raise StaleBatchError(verb)
