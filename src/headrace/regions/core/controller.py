"""The snapshot controller of one segment in one region.

Theory of operation
-------------------
A snapshot relates a position of the local log to positions of the other regions' logs.  The
controller writes a request, which is replicated to every member.  A member answers with the
position at which the request arrived there.  Answers travel behind everything that the member
had written before, so when the last of them is here, everything that the members published up to
their positions is here as well, at or below the position of that last answer.

With more than one remote region that is not enough: one member's events may have reached another
member before that one answered, and not yet be here.  A second round settles it: its answers
travel behind those events.  Positions are those of the first round, the local position is that of
the answer that completes the last one.

``TRANSITIONS`` is the life of a snapshot.  What makes it safe:

* the members are fixed when it starts, and any change of them aborts it;
* a response counts once, for the round it names, and only while that round is under way;
* nobody is left out, unless an operator forces it and is told what stands at risk.

A periodic snapshot is not taken without traffic since the start of the last completed one (markers
are no traffic), without members, or while a member cannot be reached; the reason is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from headrace.errors import (
    SnapshotRefusedError,
    StaleResponseError,
    UnexpectedResponseError,
    UnknownRegionError,
)
from headrace.regions.core.effects import (
    AbortReason,
    Append,
    AtRisk,
    Forced,
    RegionEffect,
    SkipReason,
    SnapshotAborted,
    SnapshotSettings,
    SnapshotSkipped,
)
from headrace.regions.core.markers import (
    LaneEnd,
    RegionPosition,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
)
from headrace.regions.core.origins import lane_reaches


class SnapshotPhase(StrEnum):
    """Where a snapshot is."""

    IDLE = "idle"
    FIRST_ROUND = "first_round"
    SECOND_ROUND = "second_round"
    COMPLETE = "complete"
    ABORTED = "aborted"


class SnapshotEvent(StrEnum):
    """What can happen to a snapshot."""

    START = "start"
    LAST_OF_ONE = "last answer of one region"
    LAST_OF_MANY = "last answer of several regions"
    LAST = "last answer"
    FORCE = "forced"
    FORCE_MANY = "forced with several answers"
    MEMBERS = "members change"
    TIMEOUT = "timeout"


TRANSITIONS: dict[tuple[SnapshotPhase, SnapshotEvent], SnapshotPhase] = {
    (SnapshotPhase.IDLE, SnapshotEvent.START): SnapshotPhase.FIRST_ROUND,
    (SnapshotPhase.FIRST_ROUND, SnapshotEvent.LAST_OF_ONE): SnapshotPhase.COMPLETE,
    (SnapshotPhase.FIRST_ROUND, SnapshotEvent.LAST_OF_MANY): SnapshotPhase.SECOND_ROUND,
    (SnapshotPhase.FIRST_ROUND, SnapshotEvent.FORCE): SnapshotPhase.COMPLETE,
    (SnapshotPhase.FIRST_ROUND, SnapshotEvent.FORCE_MANY): SnapshotPhase.SECOND_ROUND,
    (SnapshotPhase.FIRST_ROUND, SnapshotEvent.MEMBERS): SnapshotPhase.ABORTED,
    (SnapshotPhase.FIRST_ROUND, SnapshotEvent.TIMEOUT): SnapshotPhase.ABORTED,
    (SnapshotPhase.SECOND_ROUND, SnapshotEvent.LAST): SnapshotPhase.COMPLETE,
    (SnapshotPhase.SECOND_ROUND, SnapshotEvent.FORCE): SnapshotPhase.COMPLETE,
    (SnapshotPhase.SECOND_ROUND, SnapshotEvent.MEMBERS): SnapshotPhase.ABORTED,
    (SnapshotPhase.SECOND_ROUND, SnapshotEvent.TIMEOUT): SnapshotPhase.ABORTED,
}


class _Pending:
    """A snapshot under way."""

    def __init__(self, snapshot_id: str, members: tuple[str, ...], now_ms: int, traffic: int):
        self.snapshot_id = snapshot_id
        self.members = members
        self.started_ms = now_ms
        self.traffic = traffic
        self.phase = TRANSITIONS[SnapshotPhase.IDLE, SnapshotEvent.START]
        self.positions: dict[str, int] = {}
        self.answered: list[str] = []
        self.last_answer = -1
        self.seen: tuple[LaneEnd, ...] = ()
        self.missing: tuple[str, ...] = ()

    @property
    def round(self) -> int:
        return 2 if self.phase is SnapshotPhase.SECOND_ROUND else 1

    @property
    def waiting_for(self) -> tuple[str, ...]:
        return tuple(member for member in self.members if member not in self.answered)

    def __str__(self) -> str:
        return (
            f"snapshot {self.snapshot_id!r} is in its {self.phase.replace('_', ' ')}, "
            f"waiting for {', '.join(self.waiting_for)}"
        )


class SnapshotController:
    """Takes snapshots of one segment for one region, and answers those of others."""

    def __init__(
        self, region: str, members: Iterable[str], settings: SnapshotSettings | None = None
    ) -> None:
        self.region = region
        self.settings = settings or SnapshotSettings()
        self._members = self._checked(members)
        self._pending: dict[str, _Pending] = {}
        self._traffic = 0
        self._traffic_covered = 0
        self._tried_ms: int | None = None
        self.completed = 0
        self.aborted = 0

    # --- reading -----------------------------------------------------------------------

    @property
    def members(self) -> tuple[str, ...]:
        """The other regions that the stream is replicated to."""
        return self._members

    def pending(self) -> dict[str, tuple[SnapshotPhase, tuple[str, ...]]]:
        """The snapshots under way: phase, and who has not answered."""
        return {p.snapshot_id: (p.phase, p.waiting_for) for p in self._pending.values()}

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to wait for, and no traffic that a snapshot would cover."""
        return not self._pending and self._traffic <= self._traffic_covered

    def _state(self, snapshot_id: str) -> str:
        pending = self._pending.get(snapshot_id)
        if pending is not None:
            return str(pending)
        return f"{self.region} has no snapshot {snapshot_id!r} under way"

    # --- events ------------------------------------------------------------------------

    def traffic(self, count: int = 1) -> None:
        """Events (not markers) were appended here, whatever their origin."""
        self._traffic += count

    def tick(self, snapshot_id: str, now_ms: int, connected: Collection[str]) -> list[RegionEffect]:
        """The periodic timer: give up what is overdue, start a snapshot where there is reason."""
        effects = self.expire(now_ms)
        skipped = self.reason_to_skip(now_ms, connected)
        if skipped is not None:
            return [*effects, skipped]
        return [*effects, *self.start(snapshot_id, now_ms)]

    def reason_to_skip(self, now_ms: int, connected: Collection[str]) -> SnapshotSkipped | None:
        """Why the timer would start no snapshot now."""
        if not self._members:
            return SnapshotSkipped(SkipReason.NO_MEMBERS)
        if self._tried_ms is not None and now_ms - self._tried_ms < self.settings.interval_ms:
            return SnapshotSkipped(SkipReason.TOO_SOON)
        if self._pending:
            waiting = {region for p in self._pending.values() for region in p.waiting_for}
            return SnapshotSkipped(SkipReason.PENDING, tuple(sorted(waiting)))
        if self._traffic <= self._traffic_covered:
            return SnapshotSkipped(SkipReason.NO_TRAFFIC)
        cut_off = tuple(member for member in self._members if member not in connected)
        return SnapshotSkipped(SkipReason.DISCONNECTED, cut_off) if cut_off else None

    def start(self, snapshot_id: str, now_ms: int) -> list[RegionEffect]:
        """Start a snapshot now, whether or not there was traffic."""
        update = f"start of snapshot {snapshot_id!r}"
        state = f"{self.region} has {len(self._pending)} under way"
        if not self._members:
            raise SnapshotRefusedError(update, state, "there is no other region to ask")
        if snapshot_id in self._pending:
            raise SnapshotRefusedError(update, state, "its id is taken")
        if len(self._pending) >= self.settings.pending_max:
            raise SnapshotRefusedError(update, state, "that is as many as may be")
        pending = _Pending(snapshot_id, self._members, now_ms, self._traffic)
        self._pending[snapshot_id] = pending
        self._tried_ms = now_ms
        return [self._request(pending)]

    def _request(self, pending: _Pending) -> Append:
        return Append(RequestMarker(pending.snapshot_id, self.region, pending.round))

    def requested(self, request: RequestMarker, position: int) -> list[RegionEffect]:
        """A request of another region was appended here at ``position``.

        Answered whenever it comes, also when it comes again: a later position is as good for the
        region that asks, which takes the first answer.
        """
        if request.source == self.region:
            return []
        return [
            Append(
                ResponseMarker(
                    snapshot_id=request.snapshot_id,
                    source=request.source,
                    round=request.round,
                    region=self.region,
                    position=position,
                )
            )
        ]

    def responded(
        self, response: ResponseMarker, position: int, seen: tuple[LaneEnd, ...]
    ) -> list[RegionEffect]:
        """A response was appended here at ``position``; ``seen`` is what the log holds by now."""
        if response.region == self.region:
            return []
        pending = self._accepting(response)
        pending.answered.append(response.region)
        pending.last_answer, pending.seen = position, seen
        if pending.phase is SnapshotPhase.FIRST_ROUND:
            pending.positions[response.region] = response.position
        if pending.waiting_for:
            return []
        if pending.phase is SnapshotPhase.SECOND_ROUND:
            return self._advance(pending, SnapshotEvent.LAST)
        many = len(pending.members) > 1
        event = SnapshotEvent.LAST_OF_MANY if many else SnapshotEvent.LAST_OF_ONE
        return self._advance(pending, event)

    def _accepting(self, response: ResponseMarker) -> _Pending:
        """The snapshot that a response counts for; an error if there is none."""
        state = self._state(response.snapshot_id)
        update = (
            f"response of {response.region} to round {response.round} of "
            f"snapshot {response.snapshot_id!r}"
        )
        if response.source != self.region:
            raise UnexpectedResponseError(update, state, f"{response.source} had asked for it")
        pending = self._pending.get(response.snapshot_id)
        if pending is None:
            raise StaleResponseError(update, state, "it was completed or aborted, or never begun")
        if response.region not in pending.members:
            raise UnknownRegionError(update, state, "the region was no member when it began")
        if response.round > pending.round:
            raise UnexpectedResponseError(update, state, "that round has not begun")
        if response.round < pending.round:
            raise StaleResponseError(update, state, "that round is over")
        if response.region in pending.answered:
            raise StaleResponseError(update, state, "the region has answered this round")
        return pending

    def _advance(self, pending: _Pending, event: SnapshotEvent) -> list[RegionEffect]:
        pending.phase = TRANSITIONS[pending.phase, event]
        if pending.phase is SnapshotPhase.SECOND_ROUND:
            pending.answered = []
            return [self._request(pending)]
        del self._pending[pending.snapshot_id]
        self.completed += 1
        self._traffic_covered = max(self._traffic_covered, pending.traffic)
        positions = tuple(
            RegionPosition(region, pending.positions[region]) for region in pending.members
        )
        return [
            Append(
                SnapshotMarker(
                    snapshot_id=pending.snapshot_id,
                    local=pending.last_answer,
                    positions=positions,
                    seen=pending.seen,
                    missing=pending.missing,
                )
            )
        ]

    # --- endings -----------------------------------------------------------------------

    def expire(self, now_ms: int) -> list[RegionEffect]:
        """Give up every snapshot that has taken too long."""
        overdue = [
            p for p in self._pending.values() if now_ms - p.started_ms >= self.settings.timeout_ms
        ]
        return [self._abort(p, SnapshotEvent.TIMEOUT, AbortReason.TIMEOUT) for p in overdue]

    def members_changed(self, members: Iterable[str]) -> list[RegionEffect]:
        """The regions that the stream is replicated to are others now."""
        changed = self._checked(members)
        if changed == self._members:
            return []
        if set(changed) - set(self._members):
            # A region that joins gets its groups by a snapshot, also where nothing is published.
            self._traffic_covered = -1
        self._members = changed
        pending = list(self._pending.values())
        return [self._abort(p, SnapshotEvent.MEMBERS, AbortReason.MEMBERS) for p in pending]

    def _checked(self, members: Iterable[str]) -> tuple[str, ...]:
        chosen = tuple(sorted(set(members)))
        if self.region in chosen:
            update = f"members {', '.join(chosen)}"
            raise UnknownRegionError(
                update, f"the region is {self.region}", "a region is no member of its own"
            )
        return chosen

    def _abort(
        self, pending: _Pending, event: SnapshotEvent, reason: AbortReason
    ) -> SnapshotAborted:
        waited_for = pending.waiting_for
        pending.phase = TRANSITIONS[pending.phase, event]
        del self._pending[pending.snapshot_id]
        self.aborted += 1
        return SnapshotAborted(pending.snapshot_id, reason, waited_for)

    def force(self, snapshot_id: str) -> Forced:
        """An operator goes on without the regions that have not answered.

        What counts as seen is what was here with the last answer that did come, since that is
        what a cursor must pass; events that arrived since then are at risk too.

        With answers of several regions to the first round the second is still held among
        those, so that only events of the missing regions are at risk.
        """
        update = f"forcing snapshot {snapshot_id!r}"
        state = self._state(snapshot_id)
        pending = self._pending.get(snapshot_id)
        if pending is None:
            raise SnapshotRefusedError(update, state, "there is nothing to force")
        if not pending.answered:
            raise SnapshotRefusedError(update, state, "no region has answered this round")
        pending.missing = tuple(sorted({*pending.missing, *pending.waiting_for}))
        pending.members = tuple(m for m in pending.members if m in pending.answered)
        again = pending.phase is SnapshotPhase.FIRST_ROUND and len(pending.members) > 1
        event = SnapshotEvent.FORCE_MANY if again else SnapshotEvent.FORCE
        at_risk = self._at_risk(pending)
        effects = tuple(self._advance(pending, event))
        return Forced(snapshot_id, pending.missing, at_risk, effects)

    @staticmethod
    def _at_risk(pending: _Pending) -> tuple[AtRisk, ...]:
        have = {end.lane: end.sequence for end in pending.seen}
        return tuple(
            AtRisk(region, pending.positions[region], lane, have.get(lane, 0))
            for region in pending.members
            for lane in sorted({*pending.missing, *have})
            if lane.partition("!")[0] in pending.missing and lane_reaches(lane, region)
        )
