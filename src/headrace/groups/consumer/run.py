"""A run: one unit in the hands of a consumer, from ``open`` until it is given up or lost.

A run is never reused.  When the unit comes back, under a new token, it gets a new one; what the
application still holds of the old one refers to the old one, which refuses every answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError
from headrace.groups.consumer.fetch import Fetched, Gap, UnitReader
from headrace.groups.consumer.news import Reach, StreamNews
from headrace.groups.consumer.types import OwnedUnit, UnitEvents
from headrace.groups.delivery import (
    BatchDispatcher,
    DeadLetter,
    Dispatcher,
    DyingPiece,
    Stalled,
)
from headrace.groups.progress import AckedRanges
from headrace.log.events import Event

if TYPE_CHECKING:
    from headrace.groups.consumer.units import Units

AHEAD_MAX = 2
"""Fetched parts that a unit may have waiting; with this many it is not hungry."""


class Dying(msgspec.Struct, frozen=True):
    """Events that are to become dead letters."""

    letters: list[Event]
    ranges: list[tuple[int, int]]
    confirm: Callable[[], None]
    """To be called when they are stored."""

    def apart(self) -> list[Dying]:
        """Each of them alone."""
        offsets = [offset for lo, hi in self.ranges for offset in range(lo, hi)]
        return [
            Dying([letter], [(offset, offset + 1)], self.confirm)
            for letter, offset in zip(self.letters, offsets, strict=True)
        ]


class Run(ABC):
    """What runs of events and of batches share: reading ahead, and the end."""

    dispatcher: Dispatcher | BatchDispatcher
    """The core: decides what may be handed out."""

    def __init__(self, runtime: Units, owned: OwnedUnit, owner: UnitEvents) -> None:
        self.runtime = runtime
        self.now_ms = runtime.host.now_ms
        self.owned = owned
        self.owner = owner
        self.turns = runtime.host.turns
        """The history of the catalog that it began in."""
        self.gone: HeadraceError | None = None
        """Why answers no longer count."""
        self.reader: UnitReader | None = None
        self.news: StreamNews | None = None
        self.head = 0
        self.sealed = False
        self.fetching = False
        self.paused = False
        """Nothing more is handed out."""
        self.draining = False
        """Paused for good."""
        self.rest_told = False
        self.finished_told = owned.at_end
        self.dirty = False
        """There is something to store."""
        self.storing = False
        """A commit of it is under way."""
        self.refused = False
        """The application has refused something since the last commit was begun."""
        self.soon_unstored = False
        """Some of what is to be stored are acks that nobody waits for (``ack_soon``)."""
        self.offered = False
        self.committing: set[Any] = set()
        """What transactions that are under way ack."""
        self.ahead: deque[Fetched | Gap] = deque()
        self.held_bytes = 0.0
        self.row_bytes = 0.0
        """The size of an event of this unit, as seen so far."""

    # -- what the two kinds do differently ----------------------------------------------

    @abstractmethod
    def name_of(self, held: Any) -> str:
        """What the application holds, in words."""

    @abstractmethod
    def ranges_of(self, held: Any) -> list[tuple[int, int]]:
        """The offsets of its events."""

    @abstractmethod
    def ack(self, held: Any, *, stored: bool = False) -> None:
        """It is done with; to be stored with the next commit, or ``stored`` by a transaction."""

    @abstractmethod
    def nack(self, held: Any, delay_ms: int | None, reason: str) -> Awaitable[None]:
        """Refuse it; it comes again, or dies.  Waits until that is stored."""

    @abstractmethod
    def reject(self, held: Any, reason: str) -> Awaitable[None]:
        """Let it die; waits until it is stored as dead letters."""

    @abstractmethod
    def extend(self, held: Any) -> None:
        """Its time begins anew."""

    def settle(self) -> None:  # noqa: B027
        """Pass gathered answers on to the core."""

    @abstractmethod
    def tick(self, now: int, unseen: list[int]) -> list[Stalled]:
        """Expire what was not answered in time; what is still ``unseen`` does not expire."""

    @abstractmethod
    def recall(self, unseen: list[int]) -> None:
        """What was taken, and is ``unseen``, goes back."""

    @abstractmethod
    def pass_over(self, acked: AckedRanges, unseen: list[int]) -> set[int] | None:
        """Others have acked this: what of it is not handed out, or ``unseen``, will not be.

        Returns what of ``unseen`` was taken back; None when nothing is news.
        """

    @abstractmethod
    def dying(self) -> Dying | None:
        """Dead letters to store, if there are any."""

    @abstractmethod
    def may_take(self) -> bool:
        """Whether a take may find something."""

    # -- the core's state ---------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is in the application's hands and no dead letter is unconfirmed."""
        return self.dispatcher.idle and not self.committing

    @property
    def caught_up(self) -> bool:
        """Everything that was fed is acked, and everything that was fetched is fed."""
        return not self.committing and self.dispatcher.caught_up

    def _refused(self, outcome: object) -> None:
        """A refusal is to be stored; ``outcome`` is a retry or a dead letter."""
        self.runtime.commits.later(self, self.runtime.options.ack_delay_ms)
        self.runtime.elsewhere.again(self)
        if isinstance(outcome, DeadLetter | DyingPiece):
            self.runtime.burials.begin(self)
        else:
            self.runtime.wake_at(self.dispatcher.wake_at_ms)

    def _refused_and_stored(self, outcome: object) -> Awaitable[None]:
        """Note a refusal by the application, and wait until that (or a dead letter) is stored."""
        self.refused = True
        self._refused(outcome)
        if isinstance(outcome, DeadLetter | DyingPiece):
            return self.runtime.burials.wait(self)
        return self.stored()

    def _expire(self, now: int) -> list[Stalled]:
        """What was not answered in time is refused; tells what has stalled."""
        found: list[Stalled] = []
        for outcome in self.dispatcher.tick(now):
            if isinstance(outcome, Stalled):
                found.append(outcome)
            else:
                self._refused(outcome)
        due = self.dispatcher.wake_at_ms
        if due is not None and due <= now:
            self.runtime.offer(self)
        return found

    # -- reading ahead ------------------------------------------------------------------

    def hungry(self) -> bool:
        """Whether there is something to fetch and room for it."""
        return (
            self.reader is not None
            and not self.fetching
            and self.gone is None
            and not self.paused
            and len(self.ahead) < AHEAD_MAX
            and self.reader.position < self.head
        )

    def fetched(self, found: Fetched | Gap) -> None:
        """Keep what was read until it is asked for."""
        if self.gone is not None or self.draining:
            return
        self.ahead.append(found)
        if isinstance(found, Fetched):
            self.row_bytes = found.size_bytes / found.rows
            self.hold(found.size_bytes)

    def hold(self, size_bytes: float) -> None:
        """Account for bytes that are held now, or no longer."""
        self.held_bytes += size_bytes
        self.runtime.prefetch.account(size_bytes)

    def drop_ahead(self) -> None:
        """Forget what was read and not fed."""
        self.ahead.clear()

    # -- rest, and the end --------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Nothing is in flight, and every answer is stored."""
        return self.idle and not self.dirty and not self.storing

    def pause(self, unseen: list[int]) -> None:
        """Hand out nothing more; what was taken and is ``unseen`` goes back."""
        self.paused = True
        self.dispatcher.pause()
        self.recall(unseen)

    def resume(self) -> None:
        """Go on where it was paused."""
        self.paused = self.rest_told = False
        self.dispatcher.resume()

    def drain(self) -> None:
        """Paused for good: what was read ahead is not needed."""
        self.draining = True
        self.drop_ahead()

    def reach(self, reach: Reach) -> None:
        """The head of the segment has moved; a unit with an ``end`` stops there."""
        end = self.owned.end
        ended = end is not None and reach.head >= end
        self.head = end if end is not None and ended else reach.head
        self.sealed = reach.sealed or ended

    @property
    def through(self) -> bool:
        """Whether the segment is sealed (or the unit has an end) and all of it is acked."""
        return (
            self.sealed
            and self.reader is not None
            and not self.ahead
            and not self.fetching
            and self.reader.position >= self.head
            and self.caught_up
        )

    def end(self, why: HeadraceError) -> None:
        """No answer counts any more."""
        if self.gone is None:
            self.gone = why
        self.drop_ahead()
        self.hold(-self.held_bytes)
        if self.news is not None:
            self.news.leave(self.owned.segment, self)
            self.news.close()
            self.news = None

    def stored(self) -> Awaitable[None]:
        """Waits until what is known now is stored."""
        return self.runtime.commits.now(self)
