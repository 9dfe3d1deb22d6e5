"""The owner: the one runtime of "I own units", whoever decides which units those are.

Theory of operation
-------------------
What an owner is for is its *policy*, a subclass: a partition of a pinned member, what leaders
grant to a session, the segments of a private subscription.  The policy decides which units are
opened; the owner carries that out in a consumer, and tells what became of each unit:

    open ──▶ at work ◀── pause, resume ──▶ paused ──▶ rested
                │ finished                   │
                └──────────── drain ◀────────┘
                                └──▶ given back
    at any time: refused (an ack found that somebody else owns it), drop (the policy knows so)

*Rested*, *finished* and *given back* mean that nothing is in flight (below its end) and that every
answer is stored.  Several owners may share a consumer, and each hears only of its own units, under
the tokens with which it opened them.

*Following.*  Units come up at moments of their own: a segment was split and is read to its end, a
leader has granted something, somebody made a stream.  At such a moment a policy asks for a look
(``follow``).  Looks are made one at a time, and one that failed is made again.

*The end.*  ``leave`` opens and hands out nothing more, and waits a while for answers; ``close``
drops what is left.  For a clean end, let the consumer store the last answers in between: else
``close`` refuses acks whose commit is under way, though they count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from headrace.errors import CatalogClosedError, Fenced, HeadraceError
from headrace.groups.consumer import OwnedUnit, UnitEvents
from headrace.groups.delivery import Stalled
from headrace.groups.progress import Progress
from headrace.host import Host

_log = logging.getLogger(__name__)


class UnitSink(Protocol):
    """What an owner needs of a consumer; see :class:`~headrace.groups.consumer.units.Units`."""

    @property
    def closed(self) -> bool: ...
    def open(self, unit: OwnedUnit, owner: UnitEvents) -> None: ...
    def pause(self, units: Mapping[str, int]) -> None: ...
    def resume(self, units: Mapping[str, int]) -> None: ...
    def drain(self, units: Mapping[str, int]) -> None: ...
    def abandon(self, unit: str, token: int, why: Fenced) -> None: ...
    def fail(self, error: HeadraceError) -> None: ...


class Owner:
    """Owns units in a consumer; what a kind of group decides and hears is in its subclass."""

    look_every_s: float | None = None
    """A look is due this long after the last one, even if nothing asks for it."""
    retry_s = 0.2
    """A look that failed is made again after this time."""

    def __init__(self, host: Host, consumer: UnitSink) -> None:
        self._host = host
        self._consumer = consumer
        self.units: dict[str, OwnedUnit] = {}
        """Those that are open in the consumer, by name."""
        self.over = False
        """Nothing more is opened."""
        self._empty = asyncio.Event()
        self._wanted = False
        self._looking = False
        self._task: asyncio.Task[None] | None = None
        self._timer = host.timer(self._timed)

    # -- what a policy does with units ----------------------------------------------------

    def open(self, unit: OwnedUnit) -> None:
        """Begin to consume a unit; once this is over, it is given back as it is."""
        if self.over or self._consumer.closed:
            self.given_back(unit, unit.progress)
        else:
            self._consumer.open(unit, self)
            self.units[unit.unit] = unit

    def pause(self, units: Iterable[OwnedUnit]) -> None:
        """Hand out nothing more of many units; each is ``rested`` when it is at rest."""
        self._consumer.pause(_tokens(units))

    def resume(self, units: Iterable[OwnedUnit]) -> None:
        """Go on where units were paused."""
        self._consumer.resume(_tokens(units))

    def drain(self, units: Iterable[OwnedUnit]) -> None:
        """Hand out nothing more of many units; each is ``given_back`` when it is at rest."""
        self._consumer.drain(_tokens(units))

    def drop(self, unit: OwnedUnit, why: Fenced | None = None) -> None:
        """Somebody else owns a unit: if it is open here, every answer is refused from now on."""
        if self.units.get(unit.unit) is unit:
            self._closed(unit)
            why = why or Fenced(unit.group, unit.unit, unit.token)
            self._consumer.abandon(unit.unit, unit.token, why)

    # -- what a policy hears of units -----------------------------------------------------

    def given_back(self, unit: OwnedUnit, progress: Progress) -> None:
        """A unit was drained, or the consumer is closed: it may go to somebody else."""

    def refused(self, unit: OwnedUnit) -> None:
        """Somebody else owns a unit, and the consumer has dropped it."""

    def rested(self, unit: OwnedUnit, progress: Progress) -> None:
        """A paused unit is at rest, until it is resumed."""

    def finished(self, unit: OwnedUnit) -> None:
        """A unit is read to its end; it stays open until it is drained or dropped."""

    def stalled(self, unit: OwnedUnit, stall: Stalled) -> None:
        """The application holds events of a unit and answers none."""
        _log.warning(
            "%s: %d events are not answered, the oldest at offset %d of unit %s",
            self,
            stall.unanswered,
            stall.oldest_offset,
            unit.unit,
        )

    def stream_gone(self, unit: OwnedUnit, error: HeadraceError) -> None:  # noqa: ARG002
        """The stream of a unit was deleted or made anew; the application is told."""
        self._consumer.fail(error)

    def drained(self, unit: OwnedUnit, progress: Progress) -> None:
        """For the consumer: it has let go of a unit."""
        self._closed(unit)
        self.given_back(unit, progress)

    def fenced(self, unit: OwnedUnit) -> None:
        """For the consumer: it has dropped a unit that is somebody else's."""
        self._closed(unit)
        self.refused(unit)

    def _closed(self, unit: OwnedUnit) -> None:
        del self.units[unit.unit]
        if not self.units:
            self._empty.set()

    # -- following ------------------------------------------------------------------------

    async def look(self) -> Iterable[OwnedUnit]:
        """Units that can be opened now, claimed if they have to be."""
        return ()

    def pause_s(self, cost_s: float) -> float:  # noqa: ARG002
        """How long to wait after a look that took ``cost_s``."""
        return 0.0

    def may_have_changed(self) -> bool:
        """Whether a look that nothing asked for may find anything."""
        return True

    def follow(self) -> None:
        """Look soon, and again until it succeeds."""
        self._wanted = True
        if not self._looking and not self.over:
            self._looking = True
            self._task = self._host.spawn(self._follow())

    async def start(self) -> None:
        """Make the first look, and raise if it fails."""
        self._looking = True
        try:
            await self._look()
        finally:
            self._looking = False
        self._rearm()

    async def _follow(self) -> None:
        try:
            while self._wanted and not self.over:
                began_s = self._host.clock.spent_s()
                try:
                    await self._look()
                except CatalogClosedError:
                    return
                except HeadraceError as error:
                    _log.warning("%s: %s", self, error)
                    self._wanted = True
                    await self._host.sleep(self.retry_s)
                else:
                    cost_s = self._host.clock.spent_s() - began_s
                    await self._host.sleep(self.pause_s(cost_s))
        finally:
            self._looking = False
        self._rearm()

    async def _look(self) -> None:
        self._wanted = False
        for unit in await self.look():
            self.open(unit)

    def _timed(self) -> None:
        if self.may_have_changed():
            self.follow()
        else:
            self._rearm()

    def _rearm(self) -> None:
        if self._wanted:
            self.follow()
        elif self.look_every_s is not None and not self.over:
            # Many that idle wake the program together.
            self._timer.after(self._host.beat_s(int(self.look_every_s * 1000)))

    # -- the end --------------------------------------------------------------------------

    async def leave(self, grace_s: float) -> None:
        """Open and hand out nothing more; wait up to ``grace_s`` for answers in flight."""
        self.stop()
        self.drain(self.units.values())
        await asyncio.sleep(0)  # what is at rest is given back by then
        if self.units and grace_s > 0:
            self._empty.clear()
            await self._host.wait(self._empty, grace_s)

    def stop(self) -> None:
        """Open nothing more; a look that is under way is not waited for."""
        self.over = True
        self._timer.clear()

    async def close(self) -> None:
        """End a look that is under way, and drop what is open: it counts no more."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for unit in list(self.units.values()):
            self.drop(unit)


def _tokens(units: Iterable[OwnedUnit]) -> dict[str, int]:
    return {unit.unit: unit.token for unit in units}
