"""A reader: what it does next, from the shared state and its own place.

Theory of operation
-------------------
The runtime reads, hands out and acks; this core decides.  It is asked again and again
(:meth:`Reader.step`) with the state as the replica has it and the *standing* of every segment
held: the acked offset, whether anything is in flight, whether it is read to its end.  It answers
with effects, at most one of which is an update for the log; until that is answered, or has been
unanswered for a while, no other is proposed.  Decisions depend on the state alone, so an update
whose answer was lost is either seen in the state or decided again.

First comes a checkpoint that is owed.  A silent one is answered with the acked offsets at once.
A normal one is a barrier: nothing more is handed out until all that was is answered and stored;
then it is acknowledged and reading goes on.  So every event lies on one side of a checkpoint: it
was acked before, or it is read after it.

Then all segments that are read to their end are completed, in one update, and last comes balance,
which waits for no checkpoint.  A reader with too much stops handing out of the segments that go,
between events; as each comes to rest it is released, together with the offsets of everything else
(its internal checkpoint).  Whoever sees something on offer claims its share, least loaded first.
What nobody takes its former owner takes back, and keeps for a while, each time for longer: the
reader that has less may be dead, and not yet known to be.

A reader that is not in the state under its token was put offline.  It must forget what it holds
and start again: join, and claim like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.groups.readers.core import balance
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.segments import Position, SegmentId, Successor
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    AcquireShare,
    CompleteSegments,
    Completion,
    RecordPositions,
    ReleaseSegments,
    ReportLag,
    Update,
)


class SegmentStanding(msgspec.Struct, frozen=True):
    """Where a held segment stands in the hands of the runtime."""

    offset: int
    """Everything below is durably acked (END: all there is, and the segment is sealed)."""
    idle: bool = True
    """Nothing of it is in flight, and every answer is stored."""
    successors: tuple[Successor, ...] | None = None
    """Set once it is read to its end: what follows, each with all its predecessors."""


class Begin(msgspec.Struct, frozen=True):
    """Read this segment; `offset` is the recorded one, stored progress may know better."""

    segment: SegmentId
    offset: int
    token: int


class Stop(msgspec.Struct, frozen=True):
    """The segment is no longer this reader's: forget it."""

    segment: SegmentId


class Pause(msgspec.Struct, frozen=True):
    """Hand out nothing more of these segments."""

    segments: tuple[SegmentId, ...]


class Resume(msgspec.Struct, frozen=True):
    """Go on handing out of these segments."""

    segments: tuple[SegmentId, ...]


class Propose(msgspec.Struct, frozen=True):
    """Put an update to the group, and call ``answered`` with what came of it."""

    update: Update


class Renew(msgspec.Struct, frozen=True):
    """Renew the lease."""


class Refresh(msgspec.Struct, frozen=True):
    """Look at the log of the group."""


class Detect(msgspec.Struct, frozen=True):
    """Look for dead readers, and call ``detected`` with when to look again."""


class StartAgain(msgspec.Struct, frozen=True):
    """This life is over: drop everything and join anew."""


ReaderEffect = Begin | Stop | Pause | Resume | Propose | Renew | Refresh | Detect | StartAgain


class Reader:
    """One life of a reader, from joining until it leaves or is put offline."""

    def __init__(self, name: str, token: int, settings: ReaderSettings, now_ms: int) -> None:
        self.name = name
        self.token = token
        self.settings = settings
        self.held: dict[SegmentId, int] = {}
        """Segments that the runtime was told to read, with the tokens of their claims."""
        self.over = False
        self.paused: dict[SegmentId, None] = {}
        """Segments that must hand out nothing, also those that the runtime has yet to begin."""
        self._leaving: dict[SegmentId, None] = {}
        self._proposed: Update | None = None
        self._answer_by_ms = 0
        self._acquire_at_ms: int | None = now_ms + settings.join_delay_ms
        self._held_back_from: SegmentId | None = None
        """What has waited longest for a reader, if it is left to others who have less."""
        self._release_at_ms: int | None = None
        self._released: frozenset[SegmentId] = frozenset()
        self._keep_ms = self._keep_until_ms = 0
        self._kept_with: frozenset[int] = frozenset()
        """The lives among which nobody took what was released."""
        self._lag_at_ms = now_ms + settings.lag_unit_ms
        self._record_at_ms = now_ms + settings.record_ms
        self._renew_at_ms = now_ms + settings.heartbeat_ms
        self._refresh_at_ms = now_ms + settings.refresh_ms
        self._detect_at_ms = now_ms

    # --- what the runtime tells ---------------------------------------------------------

    def answered(self, now_ms: int) -> None:
        """The update was applied, refused, or came to nothing; the replica shows which."""
        if isinstance(self._proposed, AcquireShare | ReleaseSegments):
            # The delay of the next attempt is computed anew, from the load by then.
            self._acquire_at_ms = self._release_at_ms = None
        self._proposed = None
        self._answer_by_ms = now_ms

    def detected(self, state: ReaderGroupState, expires_in_ms: int | None, now_ms: int) -> None:
        """Dead readers were looked for; the next lease runs out in ``expires_in_ms``."""
        order = list(state.members).index(self.name) if self.name in state.members else 0
        turn_ms = self.settings.detect_spread_ms * order // max(1, len(state.members))
        wait_ms = self.settings.lease_ttl_ms if expires_in_ms is None else expires_in_ms
        self._detect_at_ms = now_ms + 1 + max(0, wait_ms) + turn_ms

    # --- what it does -------------------------------------------------------------------

    def step(
        self,
        state: ReaderGroupState,
        standings: Mapping[SegmentId, SegmentStanding],
        lag_ms: int,
        now_ms: int,
    ) -> list[ReaderEffect]:
        """What to do now."""
        if self.over:
            return []
        if state.member(self.name, self.token) is None:
            self.over = True
            return [StartAgain()]
        effects = self._reconcile(state)
        effects += self._timers(now_ms)
        if self._proposed is not None and now_ms < self._answer_by_ms:
            return effects
        self._proposed = None
        at_hand = {segment: standings[segment] for segment in self.held if segment in standings}
        update = self._decide(state, at_hand, lag_ms, now_ms)
        effects += self._pauses(state)
        if update is not None:
            self._proposed = update
            self._answer_by_ms = now_ms + self.settings.answer_ms
            effects.append(Propose(update))
        return effects

    def idles(self, now_ms: int) -> bool:
        """Whether nothing is to come but what comes again and again."""
        return (
            self._acquire_at_ms is None
            and self._release_at_ms is None
            and max(self._answer_by_ms, self._keep_until_ms) <= now_ms
        )

    def wake_at_ms(self, now_ms: int, *, lag: bool = True) -> int:
        """When to step again if nothing is heard before; called right after a step.

        What was due by then had its turn: if it could not be done, news will come of what it
        waits for.  Without ``lag`` it is not woken up to report its lag, and does so in passing.
        """
        times = (
            *(self._renew_at_ms, self._refresh_at_ms, self._detect_at_ms),
            *(self._record_at_ms, self._answer_by_ms, self._keep_until_ms),
            *((self._lag_at_ms,) if lag else ()),
            *(at for at in (self._acquire_at_ms, self._release_at_ms) if at is not None),
        )
        return min((at for at in times if at > now_ms), default=now_ms + self.settings.refresh_ms)

    def _reconcile(self, state: ReaderGroupState) -> list[ReaderEffect]:
        """Begin and stop reading, so that it is what the state says is ours."""
        effects: list[ReaderEffect] = []
        owned = state.owned(self.name)
        for segment, token in list(self.held.items()):
            holding = owned.get(segment)
            if holding is None or holding.token != token:
                del self.held[segment]
                self.paused.pop(segment, None)
                self._leaving.pop(segment, None)
                effects.append(Stop(segment))
        for segment, holding in owned.items():
            if segment not in self.held:
                self.held[segment] = holding.token
                effects.append(Begin(segment, holding.offset, holding.token))
        return effects

    def _timers(self, now_ms: int) -> list[ReaderEffect]:
        effects: list[ReaderEffect] = []
        if now_ms >= self._renew_at_ms:
            self._renew_at_ms = now_ms + self.settings.heartbeat_ms
            effects.append(Renew())
        if now_ms >= self._refresh_at_ms:
            self._refresh_at_ms = now_ms + self.settings.refresh_ms
            effects.append(Refresh())
        if now_ms >= self._detect_at_ms:
            self._detect_at_ms = now_ms + self.settings.answer_ms
            effects.append(Detect())
        return effects

    def _decide(
        self,
        state: ReaderGroupState,
        standings: Mapping[SegmentId, SegmentStanding],
        lag_ms: int,
        now_ms: int,
    ) -> Update | None:
        owed = state.checkpoints.next_for(self.name)
        if owed is not None:
            return self._checkpoint(state, owed, standings)
        through = tuple(
            Completion(segment, standing.successors)
            for segment, standing in standings.items()
            if standing.successors is not None and standing.idle
        )
        if through:
            return CompleteSegments(self.name, self.token, through)
        return self._balance(state, standings, now_ms) or self._tell(
            state, standings, lag_ms, now_ms
        )

    def _checkpoint(
        self, state: ReaderGroupState, name: str, standings: Mapping[SegmentId, SegmentStanding]
    ) -> Update | None:
        checkpoint = state.checkpoints.get(name)
        if checkpoint is None:
            return None
        # What has no standing could not be opened, or not yet: nothing of it is in flight.
        settled = all(standing.idle for standing in standings.values())
        if checkpoint.kind is CheckpointKind.SILENT or settled:
            return AckCheckpoint(self.name, self.token, name, _offsets(standings))
        return None

    def _balance(
        self, state: ReaderGroupState, standings: Mapping[SegmentId, SegmentStanding], now_ms: int
    ) -> Update | None:
        overloaded = balance.release_count(state, self.name) > 0
        if overloaded and now_ms < self._keep_until_ms and self._kept_with == _lives(state):
            overloaded = False
        if not overloaded:
            self._release_at_ms = None
            self._leaving.clear()
        elif self._release_at_ms is None:
            delay_ms = balance.release_delay_ms(state, self.name, self.settings)
            self._release_at_ms = now_ms + delay_ms
        if self._release_at_ms is not None and now_ms >= self._release_at_ms:
            self._leaving = dict.fromkeys(balance.segments_to_release(state, self.name))
            at_rest = [s for s in self._leaving if s in standings and standings[s].idle]
            if at_rest and all(s in self.paused for s in at_rest):
                self._released = frozenset(at_rest)
                offsets = _offsets(standings)
                return ReleaseSegments(self.name, self.token, tuple(at_rest), offsets)
        if overloaded or not state.unassigned:
            self._acquire_at_ms = None
            return None
        held_ms = balance.held_back_ms(state, self.name, self.settings)
        left = next(iter(state.unassigned)) if held_ms else None
        if self._acquire_at_ms is None or left != self._held_back_from:
            self._held_back_from = left
            delay_ms = balance.acquire_delay_ms(state, self.name, self.settings)
            self._acquire_at_ms = now_ms + delay_ms + held_ms
        if now_ms >= self._acquire_at_ms:
            self._take_back(state, now_ms)
            return AcquireShare(self.name, self.token)
        return None

    def _take_back(self, state: ReaderGroupState, now_ms: int) -> None:
        """What is on offer is claimed: keep for a while what was released in vain."""
        in_vain = self._released and self._released <= state.unassigned.keys()
        self._released = frozenset()
        if not in_vain or self._kept_with != _lives(state):
            self._keep_ms = 0
        if in_vain:
            longer_ms = max(4 * self.settings.balance_ms, 2 * self._keep_ms)
            self._keep_ms = min(longer_ms, self.settings.lease_ttl_ms)
            self._keep_until_ms = now_ms + self._keep_ms
            self._kept_with = _lives(state)

    def _tell(
        self,
        state: ReaderGroupState,
        standings: Mapping[SegmentId, SegmentStanding],
        lag_ms: int,
        now_ms: int,
    ) -> Update | None:
        if now_ms >= self._record_at_ms:
            self._record_at_ms = now_ms + balance.record_period_ms(state, self.settings)
            owned = state.owned(self.name)
            moved = {s: t for s, t in standings.items() if owned[s].offset != t.offset}
            if moved:
                return RecordPositions(self.name, self.token, _offsets(moved))
        if now_ms >= self._lag_at_ms:
            self._lag_at_ms = now_ms + balance.lag_period_ms(state, self.settings)
            return ReportLag(self.name, self.token, lag_ms)
        return None

    def _pauses(self, state: ReaderGroupState) -> list[ReaderEffect]:
        """Pause segments that must come to rest, and resume those that need not any more."""
        owed = state.checkpoints.next_for(self.name)
        checkpoint = None if owed is None else state.checkpoints.get(owed)
        barrier = checkpoint is not None and checkpoint.kind is CheckpointKind.NORMAL
        wanted = dict.fromkeys(self.held) if barrier else self._leaving
        if not wanted and not self.paused:
            return []
        resting = tuple(segment for segment in wanted if segment not in self.paused)
        going_on = tuple(segment for segment in self.paused if segment not in wanted)
        self.paused = dict.fromkeys(wanted)
        effects: list[ReaderEffect] = []
        if resting:
            effects.append(Pause(resting))
        if going_on:
            effects.append(Resume(going_on))
        return effects


def _lives(state: ReaderGroupState) -> frozenset[int]:
    """The tokens of all readers: another one tells that a reader came, went or began anew."""
    return frozenset(member.token for member in state.members.values())


def _offsets(standings: Mapping[SegmentId, SegmentStanding]) -> tuple[Position, ...]:
    return tuple(Position(segment, standing.offset) for segment, standing in standings.items())
