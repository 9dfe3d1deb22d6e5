"""One life of a reader, from joining until it leaves or is put offline.

The core (:class:`headrace.groups.readers.core.reader.Reader`) decides what a life does, the
consumer hands events out, and this stands between them.  Whenever something changed (the state, a
segment that rested or came to its end, the time) the core is asked once, and what it wants is
carried out.  Nothing is done here per event.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from headrace.catalog import Tx
from headrace.errors import CatalogClosedError, Fenced, HeadraceError
from headrace.groups.consumer import OwnedUnit
from headrace.groups.delivery import Stalled
from headrace.groups.owner import Owner
from headrace.groups.progress import Progress
from headrace.groups.readers.core.reader import (
    Begin,
    Detect,
    Pause,
    Propose,
    Reader,
    ReaderEffect,
    Refresh,
    Renew,
    Resume,
    SegmentStanding,
    StartAgain,
    Stop,
)
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.updates import AckCheckpoint, ReportLag, Update
from headrace.groups.readers.runtime.hub import Following, ReaderHub
from headrace.groups.readers.runtime.lagging import Lagging
from headrace.groups.readers.runtime.life_events import LifeEvents, LifeUnits
from headrace.groups.readers.runtime.liveness import JoinedAs
from headrace.groups.readers.runtime.moment import GroupMoment
from headrace.groups.readers.runtime.transaction import Committed

WAKES_APART = 3
"""Lives that idle wake up at this many moments in the time between two heartbeats."""

_log = logging.getLogger(__name__)


class ReaderLife(Owner):
    """See the module's text."""

    def __init__(
        self,
        owner: LifeEvents,
        consumer: LifeUnits,
        hub: ReaderHub,
        following: Following,
        joined: JoinedAs,
        settings: ReaderSettings,
    ) -> None:
        super().__init__(owner.host, consumer)
        self._owner = owner
        self._hub = hub
        self._following = following
        self._member = consumer
        self._lease = following.name.lease(owner.reader)
        self.lease_token = joined.lease_token
        self.token = joined.token
        self.core = Reader(owner.reader, joined.token, settings, owner.host.now_ms())
        self._taken: dict[SegmentId, OwnedUnit] = {}
        """Claimed, and not yet begun."""
        self._missing: dict[SegmentId, int] = {}
        """To be begun, under a token; what they are is not known yet."""
        self.held: dict[SegmentId, OwnedUnit] = {}
        self._through: set[SegmentId] = set()
        self._putting = 0
        self._loading = False
        self._due = False
        self._hands_over = False
        self._lagging = Lagging(owner.host, following.name)
        self._ticking = owner.host.timer(self.step)
        self.took(joined.committed)
        hub.begins(self._lease)

    def __str__(self) -> str:
        return f"reader {self._owner.reader} of group {self._following.name.group}"

    # -- stepping -------------------------------------------------------------------------

    def soon(self) -> None:
        """Something changed: ask the core in this turn of the event loop, once."""
        if not self._due and not self.over:
            self._due = True
            self._host.loop.call_soon(self.step)

    def step(self) -> None:
        """Ask the core what to do, and do it."""
        self._due = False
        if self.over or self._following.record is None:
            return
        now_ms = self._host.now_ms()
        effects = self.core.step(self._following.state, self._standings(), 0, now_ms)
        gone = [each.segment for each in effects if isinstance(each, Stop)]
        self._stop_reading(gone)
        begun = {each.segment: each.token for each in effects if isinstance(each, Begin)}
        self._missing |= begun
        if begun:
            self._begin()
        for effect in effects:
            self._carry_out(effect)
        if not self.over:
            self._ticking.set_ms(self._wake_at_ms(now_ms))

    def _wake_at_ms(self, now_ms: int) -> int:
        """Lives that idle wake up together, so that what they do shares a commit and a look."""
        if not self.core.idles(now_ms) or self._host.log.catalog.heard is None:
            return self.core.wake_at_ms(now_ms)
        at_ms = self.core.wake_at_ms(now_ms, lag=not self._lagging.unchanged)
        apart_ms = max(1, self.core.settings.heartbeat_ms // WAKES_APART)
        return -(-at_ms // apart_ms) * apart_ms

    def _standings(self) -> dict[SegmentId, SegmentStanding]:
        found = self._member.standings(self.units)
        return {
            segment: SegmentStanding(
                found[unit.unit].floor,
                found[unit.unit].at_rest,
                () if segment in self._through else None,
            )
            for segment, unit in self.held.items()
            if unit.unit in found
        }

    def _carry_out(self, effect: ReaderEffect) -> None:
        match effect:
            case Pause(segments=segments):
                self.pause(self._open(segments))
            case Resume(segments=segments):
                self.resume(self._open(segments))
            case Propose(update=ReportLag() as update) if self._lagging.unchanged and self._is_told(
                update
            ):
                self.core.answered(self._host.now_ms())
            case Propose(update=update):
                self._host.spawn(self._put(update))
            case Renew():
                ttl_ms = self.core.settings.lease_ttl_ms
                self._hub.renew(self, self._lease, self.lease_token, ttl_ms)
            case Refresh():
                self._hub.refresh(self._following)
            case Detect():
                self._look_for_dead()
            case StartAgain():
                self.end()
                self._owner.life_over(self)
            case Begin() | Stop():
                pass

    def _open(self, segments: Iterable[SegmentId]) -> list[OwnedUnit]:
        return [self.held[segment] for segment in segments if segment in self.held]

    # -- what it reads --------------------------------------------------------------------

    def took(self, committed: Committed) -> None:
        """What an update of this life has claimed."""
        for unit in committed.units:
            self._taken[SegmentId.parse(unit.unit)] = unit

    def _begin(self) -> None:
        """Open what is to be begun, as far as it is known what it is."""
        opened = []
        for segment, token in list(self._missing.items()):
            unit = self._taken.get(segment)
            if unit is None or unit.token != token or self.over:
                continue
            del self._taken[segment], self._missing[segment]
            self.held[segment] = unit
            self.open(unit)
            opened.append(unit)
        paused = [unit for segment, unit in self.held.items() if segment in self.core.paused]
        if opened and paused:
            self.pause([unit for unit in opened if unit in paused])
        if opened:
            self._lagging.forget()
            self._owner.assigned(tuple(unit.unit for unit in opened))
        if self._missing and not self._putting and not self._loading:
            # The answer that told of these was lost.
            self._loading = True
            self._host.spawn(self._load(dict(self._missing)))

    async def _load(self, wanted: dict[SegmentId, int]) -> None:
        record, state = self._following.record, self._following.state
        name, catalog = self._following.name, self._host.log.catalog

        def look(tx: Tx) -> list[OwnedUnit]:
            assert record is not None
            return GroupMoment(tx, name, record).units(state, wanted)

        try:
            for unit in await self._host.in_thread(catalog.read, look, snapshot=True):
                self._taken[SegmentId.parse(unit.unit)] = unit
        except HeadraceError as error:
            _log.warning("%s: %s", self, error)
        finally:
            self._loading = False
            self._missing = {
                segment: token
                for segment, token in self._missing.items()
                if segment in self._taken or segment not in wanted
            }
        if not self.over:
            self._begin()
            self.soon()

    def _stop_reading(self, segments: Iterable[SegmentId]) -> None:
        gone = []
        for segment in segments:
            self._through.discard(segment)
            self._missing.pop(segment, None)
            unit = self.held.pop(segment, None)
            if unit is not None:
                gone.append(unit.unit)
                self.drop(unit)
        if gone:
            self._owner.revoked(tuple(gone))

    def end(self, why: Fenced | None = None) -> None:
        """This life is over: nothing that is held counts any more."""
        self.stop()
        units = list(self.held.values())
        self.held.clear()
        for unit in units:
            self.drop(unit, why)
        if units:
            self._owner.revoked(tuple(unit.unit for unit in units))

    async def hand_over(self, limit_s: float) -> None:
        """Give back what is answered within a time, and drop the rest; the name is kept alive."""
        self._hands_over = True
        try:
            settings = self.core.settings
            until_s, beat_s = self._host.now_s() + limit_s, settings.heartbeat_ms / 1000
            while True:
                left_s = until_s - self._host.now_s()
                await self.leave(max(0.0, min(left_s, beat_s)))
                if not self.units or left_s <= beat_s:
                    break
                self._hub.renew(self, self._lease, self.lease_token, settings.lease_ttl_ms)
        finally:
            self._hands_over = False
        self.end()

    def stop(self) -> None:
        super().stop()
        self._hub.ends(self._lease)
        self._ticking.clear()

    # -- what it hears of its segments ----------------------------------------------------

    def finished(self, unit: OwnedUnit) -> None:
        self._through.add(SegmentId.parse(unit.unit))
        self.soon()

    def rested(self, unit: OwnedUnit, progress: Progress) -> None:  # noqa: ARG002
        self.soon()

    def refused(self, unit: OwnedUnit) -> None:
        self.held.pop(SegmentId.parse(unit.unit), None)
        self._owner.revoked((unit.unit,))
        self._following.look()

    def stalled(self, unit: OwnedUnit, stall: Stalled) -> None:
        super().stalled(unit, stall)
        self._owner.stalls(self, stall, unit)

    def stream_gone(self, unit: OwnedUnit, error: HeadraceError) -> None:  # noqa: ARG002
        self._owner.stream_gone(error)

    # -- updates --------------------------------------------------------------------------

    async def _put(self, update: Update) -> None:
        """Put an update to the group; the core hears that it was answered."""
        self._putting += 1
        try:
            if isinstance(update, AckCheckpoint) and not await self._may_answer(update):
                return
            if isinstance(update, ReportLag):
                update = msgspec.structs.replace(update, lag_ms=await self._lag_ms())
            if self.over:
                return
            if not self._is_told(update):
                self.took(await self._hub.update(self._following.name, update))
        except CatalogClosedError:
            return
        except HeadraceError as error:
            _log.info("%s: %s", self, error)
            self._following.look()
        finally:
            self._putting -= 1
        self.core.answered(self._host.now_ms())
        if self._missing:
            self._begin()
        self.soon()

    async def _may_answer(self, update: AckCheckpoint) -> bool:
        state = self._following.state
        checkpoint = state.checkpoints.get(update.name)
        if checkpoint is None:
            return False
        positions = {str(position.segment): position.offset for position in update.positions}
        return await self._owner.may_answer(update.name, positions)

    def _is_told(self, update: Update) -> bool:
        """Whether this reader is not behind, and the group knows it already."""
        member = self._following.state.member(self.core.name, self.token)
        if member is None or not isinstance(update, ReportLag) or update.lag_ms:
            return False
        return member.lag_ms == 0 and not member.far_behind and not member.streak

    async def _lag_ms(self) -> int:
        found = self._member.standings(self.units)
        floors = {
            segment: found[unit.unit].floor
            for segment, unit in self.held.items()
            if unit.unit in found
        }
        return await self._lagging.ms(self._following.record, floors)

    def _look_for_dead(self) -> None:
        known_ms = self._hub.known_ms(self._following)
        if known_ms is None:
            self._host.spawn(self._detect())
        else:
            self._detected(known_ms)

    async def _detect(self) -> None:
        try:
            expires_in_ms = await self._hub.detect(self._following)
        except HeadraceError as error:
            if not isinstance(error, CatalogClosedError):
                _log.warning("%s: %s", self, error)
            return
        if not self.over:
            self._detected(expires_in_ms)
            self.soon()

    def _detected(self, expires_in_ms: int | None) -> None:
        self.core.detected(self._following.state, expires_in_ms, self._host.now_ms())

    # -- the lease ------------------------------------------------------------------------

    def renewed(self, token: int, asked_ms: int | None) -> None:
        """The lease was prolonged at ``asked_ms``; None: somebody else has it, or took it away."""
        if token != self.lease_token or (self.over and not (self._hands_over and asked_ms)):
            return
        if asked_ms is None:
            self.end()
            self._owner.life_over(self)
        else:
            self._member.valid_until_s = (asked_ms + self.core.settings.lease_ttl_ms) / 1000
