"""Who holds what: the units and members of a group, and the assignments between them.

This is the part of a leader that knows no messages from borrowers, only their consequences: a
member comes or goes, a unit is found, finished or lost, an assignment moves on by its table.  Units
become ready by :mod:`headrace.log.order`, one after the end of another is stored.

*Cost.*  A full plan, linear in units and members, is made only when membership or the set of units
has changed.  A unit that becomes free meanwhile goes to the next member that is short of its
share.  What is in transition, and what waits for progress, is kept apart, so that nobody has to
look at all units to find it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from headrace.groups.decisions.core import lineage
from headrace.groups.decisions.core.record import What
from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.shared.core import balance as planning
from headrace.groups.shared.core.assignment import (
    GRANTED,
    GRANTING,
    AssignmentStatus,
    UnitState,
)
from headrace.groups.shared.core.ledger import Ledger
from headrace.groups.shared.core.messages import Grant, Revoke, Revoked, Unit
from headrace.groups.shared.core.records import (
    LeaderDecision,
    LeaderEffect,
    SegmentInfo,
    StoredUnit,
    ToBorrower,
)
from headrace.groups.shared.core.settings import Balance, LeaderSettings
from headrace.groups.shared.core.unrecorded import Unrecorded
from headrace.log.order import Order

LOADED = (GRANTING, GRANTED)


class LedMember:
    """A borrower as its leader knows it."""

    __slots__ = ("borrower", "load", "proven", "seen_ms", "session", "share", "units", "waiting")

    def __init__(self, borrower: str, session: str, now_ms: int) -> None:
        self.borrower = borrower
        self.session = session
        self.seen_ms = now_ms
        self.proven = False
        """It has answered; a `leader_wanted` alone may be an old one, and gets no units."""
        self.units: dict[Unit, UnitState] = {}
        self.load = 0
        """Units granted, or being granted."""
        self.share = 0
        self.waiting: dict[Unit, int] = {}
        """Units with something to ack, and since when nothing was acked; longest wait first."""

    def snapshot(self) -> tuple[object, ...]:
        """Everything about it as comparable values."""
        return (
            self.borrower,
            self.proven,
            self.seen_ms,
            tuple(self.units),
            self.load,
            self.share,
            tuple(self.waiting.items()),
        )


class MemberView(msgspec.Struct, frozen=True):
    """A member as others may see it."""

    borrower: str
    session: str
    units: int
    share: int
    benched_ms: int


class Bench(msgspec.Struct, frozen=True):
    """A session that was evicted gets nothing for a while."""

    until_ms: int
    evictions: int


class Holdings:
    """Units, members, and which member has which unit."""

    def __init__(
        self, group: str, token: int, settings: LeaderSettings, ledger: Ledger, floor: int = 0
    ) -> None:
        self._group = group
        self._token = token
        self._floor = floor
        """Units that are gone had tokens up to it, and their names may come again."""
        self._settings = settings
        self._ledger = ledger
        self.decisions: deque[LeaderDecision] = deque(maxlen=settings.decisions_max)
        self.unrecorded = Unrecorded(settings.decisions_max)
        self.units: dict[Unit, UnitState] = {}
        self._order: Order[Unit] = Order()
        self.members: dict[str, LedMember] = {}
        self.in_transition: dict[Unit, UnitState] = {}
        self.unbalanced = False
        """Membership or units have changed since the last plan."""
        self._benched: dict[str, Bench] = {}
        self._free: dict[Unit, UnitState] = {}
        self._short: deque[str] = deque()
        """Members with fewer units than their share."""
        self._active = 0
        """How many units somebody should own."""
        self._destined: dict[Unit, str] = {}
        """By lag: where a unit that is being revoked will go."""
        self.leaving = ""
        """Why the group is given up: everything is taken back, and nothing is granted any more."""

    def snapshot(self) -> tuple[object, ...]:
        """Everything that decides what will happen, as comparable values."""
        return (
            tuple(state.snapshot() for state in self.units.values()),
            tuple(member.snapshot() for member in self.members.values()),
            tuple(self.in_transition),
            self.unbalanced,
            tuple(self._benched.items()),
            tuple(self._free),
            tuple(self._short),
            self._active,
            tuple(self._destined.items()),
            tuple(self._order.waiting.items()),
            self._floor,
            self.leaving,
        )

    def configure(self, settings: LeaderSettings) -> None:
        """Go on with other settings."""
        if settings.balance is not self._settings.balance:
            self.unbalanced = True
            self._destined.clear()
        self._settings = settings

    def views(self, now_ms: int) -> tuple[MemberView, ...]:
        """Every member, for people who ask."""
        found = []
        for member in self.members.values():
            bench = self._benched.get(member.session)
            benched_ms = max(0, bench.until_ms - now_ms) if bench else 0
            view = (member.borrower, member.session, len(member.units), member.share, benched_ms)
            found.append(MemberView(*view))
        return tuple(found)

    # --- units come and go ---

    def restore(self, row: StoredUnit) -> None:
        """Take a unit over from storage; it waits until a listing tells its predecessors."""
        state = UnitState(row.unit, row.progress.acked(), row.token)
        state.attempts = dict(row.progress.attempts)
        state.finished = state.ready = row.finished
        self.units[row.unit] = state
        if not row.finished:
            self._order.expect(row.unit)

    def learn(self, found: Sequence[SegmentInfo], now_ms: int) -> None:
        """Hear of segments; one that is new to the group is stored before it is granted."""
        waiting = {}
        follows = {}
        for info in found:
            state = self.units.get(info.unit)
            if state is None:
                state = UnitState(info.unit, AckedRanges(info.start), self._floor)
                self.units[info.unit] = state
                self._ledger.save(state)
                if info.predecessors:
                    follows[info.unit] = info.predecessors
            state.head = max(state.head, info.head, info.end or 0)
            state.end = info.end if state.end is None else state.end
            state.markers = info.markers
            if not (state.ready or state.finished):
                waiting[info.unit] = info.predecessors
        for step in lineage.told(follows):
            for unit in step.units_listed():
                self.decide(now_ms, step.what, unit, None, step.reason)
        self._activate(self._order.join(waiting))
        for info in found:
            state = self.units[info.unit]
            if state.consumed and not state.finished:
                self._ledger.save(state)
            if state.borrower:
                self.watch(self.members[state.borrower], state, now_ms)

    def _activate(self, ready: list[Unit]) -> None:
        for unit in ready:
            state = self.units[unit]
            state.ready = True
            self._active += 1
            self.unbalanced = True
            if state.consumed:
                self._ledger.save(state)
            else:
                self._free[unit] = state

    def lose(self, unit: Unit, now_ms: int) -> list[LeaderEffect]:
        """The log has deleted a segment: it leaves the group, and holds up nobody."""
        state = self.units.get(unit)
        if state is None:
            return []
        state.gone = True
        effects: list[LeaderEffect] = []
        if not state.finished:
            effects = self.finish(state, "deleted from the log", now_ms)
        if state.status is AssignmentStatus.FREE and unit in self.units:
            self._forget_unit(state)
        return effects

    def _forget_unit(self, state: UnitState) -> None:
        del self.units[state.unit]
        self._floor = max(self._floor, state.token)
        self._ledger.forget(state)

    def finish(self, state: UnitState, reason: str, now_ms: int) -> list[LeaderEffect]:
        """A unit is over for good: its successors may open, its owner lets go of it."""
        was_active = state.active
        state.finished = True
        self._free.pop(state.unit, None)
        if was_active:
            self._active -= 1
        self.unbalanced = True
        self.decide(now_ms, What.FINISHED, state.unit, state.borrower or None, reason)
        unit = state.unit
        self._activate(self._order.leave(unit) if state.gone else self._order.finish(unit))
        return self.revoke(state, now_ms) if state.status in LOADED else []

    # --- members come and go ---

    def join(self, borrower: str, session: str, now_ms: int) -> None:
        """Take a borrower in; it gets nothing before it has ``proven`` itself."""
        if borrower not in self.members:
            self.members[borrower] = LedMember(borrower, session, now_ms)

    def proven(self, member: LedMember, now_ms: int) -> None:
        """A member has answered."""
        if not member.proven:
            member.proven = True
            self.decide(now_ms, What.JOINED, None, member.borrower, "it has subscribed")
            self.unbalanced = True

    def worked(self, member: LedMember) -> None:
        """A member has acked something: whatever it was evicted for is forgotten."""
        self._benched.pop(member.session, None)

    def bench(self, session: str, now_ms: int) -> None:
        """Leave a session out for a while, each time for longer."""
        evictions = self._benched.get(session, Bench(0, 0)).evictions + 1
        pause_ms = self._settings.stall_timeout_ms << min(evictions - 1, 20)
        until_ms = now_ms + min(pause_ms, self._settings.bench_ms_max)
        self._benched[session] = Bench(until_ms, evictions)

    def unbench(self, now_ms: int) -> None:
        """Let those back in whose time on the bench is over."""
        for member in self.members.values():
            bench = self._benched.get(member.session)
            # Its share is still zero: the plan that will give it one has not been made.
            if bench and now_ms >= bench.until_ms and not member.share:
                self.unbalanced = True
        forget_ms = now_ms - self._settings.bench_ms_max
        for session in [s for s, bench in self._benched.items() if bench.until_ms < forget_ms]:
            del self._benched[session]

    def may_own(self, member: LedMember, now_ms: int) -> bool:
        """Whether a member may have units: it has answered, and is not on the bench."""
        bench = self._benched.get(member.session)
        return member.proven and (bench is None or now_ms >= bench.until_ms)

    def drop(self, member: LedMember, what: What, reason: str, now_ms: int) -> None:
        """A member is gone; its units are free, under tokens that the next grant outdates."""
        for state in list(member.units.values()):
            self.unassign(state, "borrower gone")
        del self.members[member.borrower]
        self.unbalanced = True
        self.decide(now_ms, what, None, member.borrower, reason)

    def watch(self, member: LedMember, state: UnitState, now_ms: int) -> None:
        """Wait for progress of a unit as long as there is something to ack."""
        if state.status is GRANTED and state.lagging:
            member.waiting.setdefault(state.unit, now_ms)
        elif member.waiting:
            member.waiting.pop(state.unit, None)

    def stuck(self, now_ms: int) -> dict[str, str]:
        """Members that answer but do not do their part, and what they do not do."""
        found: dict[str, str] = {}
        for state in self.in_transition.values():
            waits_for_store = not state.claimed or (
                state.final and state.status is AssignmentStatus.REVOKING
            )
            if now_ms >= state.deadline_ms and not waits_for_store:
                found[state.borrower] = f"{state.unit} is {state.status} for too long"
        for member in self.members.values():
            unit, since_ms = next(iter(member.waiting.items()), ("", now_ms))
            if now_ms - since_ms >= self._settings.stall_timeout_ms:
                found[member.borrower] = f"acks nothing of {unit}"
        return found

    @property
    def restless(self) -> bool:
        """Whether the passing of time alone may call for something, other than a silent member."""
        if self.unbalanced or self.in_transition or self._benched:
            return True
        return any(member.waiting for member in self.members.values())

    # --- fair shares ---

    def plan(self, now_ms: int) -> list[LeaderEffect]:
        """Decide anew who should have how much, and take away what is too much."""
        self.unbalanced = False
        if self.leaving:
            return self._take_all(now_ms)
        if self._benched:
            eligible = [m for m in self.members.values() if self.may_own(m, now_ms)]
        else:
            eligible = [m for m in self.members.values() if m.proven]
        if self._settings.balance is Balance.COUNT:
            return self._plan_by_count(eligible, now_ms)
        return self._plan_by_lag(eligible, now_ms)

    def _plan_by_count(self, eligible: list[LedMember], now_ms: int) -> list[LeaderEffect]:
        shares = planning.shares_by_count(self._active, {m.borrower: m.load for m in eligible})
        effects: list[LeaderEffect] = []
        self._short.clear()
        for member in self.members.values():
            member.share = shares.get(member.borrower, 0)
            if member.load > member.share:
                effects += self._take_from(member, member.load - member.share, now_ms)
            elif member.load < member.share:
                self._short.append(member.borrower)
        return effects

    def _take_from(
        self, member: LedMember, count: int, now_ms: int, reason: str = "others have less"
    ) -> list[LeaderEffect]:
        """Revoke the units that a member has had for the shortest time."""
        effects: list[LeaderEffect] = []
        latest = [s for s in reversed(member.units.values()) if s.status in LOADED and s.active]
        for state in latest[:count]:
            self.decide(now_ms, What.MOVES, state.unit, member.borrower, reason)
            effects += self.revoke(state, now_ms)
        return effects

    # --- giving the group up ---

    def leave(self, reason: str) -> None:
        """Take everything back with the next plan, and grant nothing from now on."""
        self.leaving = reason
        self.unbalanced = True
        self._short.clear()
        self._destined.clear()

    def _take_all(self, now_ms: int) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for member in self.members.values():
            member.share = 0
            effects += self._take_from(member, member.load, now_ms, self.leaving)
        return effects

    @property
    def left(self) -> bool:
        """Whether a group that is given up is in nobody's hands any more."""
        return bool(self.leaving) and not any(member.units for member in self.members.values())

    def _plan_by_lag(self, eligible: list[LedMember], now_ms: int) -> list[LeaderEffect]:
        owned = {
            m.borrower: [(u, s.lag) for u, s in m.units.items() if s.status in LOADED]
            for m in eligible
        }
        free = [(unit, state.lag) for unit, state in self._free.items()]
        plan = planning.plan_by_lag(owned, free, slack_percent=self._settings.lag_slack_percent)
        for unit, borrower in plan.grants:
            self.assign(self._free.pop(unit), self.members[borrower], now_ms)
        effects: list[LeaderEffect] = []
        if self.in_transition:
            return effects  # let the last moves settle before judging again
        for unit, source, target in plan.moves:
            self._destined[unit] = target
            reason = f"lag: {target} has less"
            self.decide(now_ms, What.MOVES, unit, source, reason, target)
            effects += self.revoke(self.units[unit], now_ms)
        return effects

    def fill(self, now_ms: int) -> None:
        """Give free units to whoever was planned to have more."""
        if not self._free or self.leaving:
            return
        for unit in [u for u in self._destined if u in self._free]:
            member = self.members.get(self._destined.pop(unit))
            if member is not None and self.may_own(member, now_ms):
                self.assign(self._free.pop(unit), member, now_ms)
        while self._free and self._short:
            member = self.members.get(self._short[0])
            if member is None or member.load >= member.share:
                self._short.popleft()
                continue
            # From the end: the front of a dict is slow, it walks over every entry removed before.
            _, state = self._free.popitem()
            self.assign(state, member, now_ms)
            self._short.rotate(-1)

    # --- assignments ---

    def assign(self, state: UnitState, member: LedMember, now_ms: int) -> None:
        """Give a free unit to a member, under a new token; told when the claim is durable."""
        state.move("assign")
        state.borrower = member.borrower
        state.token += 1
        state.claimed = False
        state.final = False
        state.resend_ms = now_ms + self._settings.resend_ms
        state.deadline_ms = now_ms + self._settings.stall_timeout_ms
        member.units[state.unit] = state
        member.load += 1
        self.in_transition[state.unit] = state
        self._ledger.claim(state)
        self.decide(now_ms, What.ASSIGNED, state.unit, member.borrower, "below its share")

    def grant(self, state: UnitState, now_ms: int) -> list[LeaderEffect]:
        """Send the grant of a unit to its owner."""
        if state.status is not GRANTING:
            return self.resend(state, now_ms)
        state.resend_ms = now_ms + self._settings.resend_ms
        about = (self._group, state.borrower, self._token, state.unit, state.token)
        return [ToBorrower(Grant(*about, state.progress.whole()))]

    def revoke(self, state: UnitState, now_ms: int) -> list[LeaderEffect]:
        """Ask for a unit back; one whose grant was not announced is simply withdrawn."""
        if state.status is AssignmentStatus.GRANTING and not state.claimed:
            self.unassign(state, "withdraw")
            return []
        member = self.members[state.borrower]
        state.move("revoke")
        member.load -= 1
        member.waiting.pop(state.unit, None)
        state.deadline_ms = now_ms + self._settings.revoke_timeout_ms
        self.in_transition[state.unit] = state
        return self.resend(state, now_ms)

    def resend(self, state: UnitState, now_ms: int) -> list[LeaderEffect]:
        """Send the grant or revocation of an assignment in transition, first or again."""
        if not state.claimed:
            return []  # said when the claim is durable
        state.resend_ms = now_ms + self._settings.resend_ms
        match state.status:
            case AssignmentStatus.GRANTING:
                return self.grant(state, now_ms)
            case AssignmentStatus.REVOKING:
                about = (self._group, state.borrower, self._token, state.unit, state.token)
                return [ToBorrower(Revoke(*about))]
            case AssignmentStatus.REVOKED:
                about = (self._group, state.borrower, self._token, state.unit, state.token)
                return [ToBorrower(Revoked(*about))]
        return []

    def unassign(self, state: UnitState, cause: str) -> None:
        """An assignment is over; the unit is free again unless it is finished."""
        member = self.members[state.borrower]
        if state.status in LOADED:
            member.load -= 1
        state.move(cause)
        member.units.pop(state.unit)
        member.waiting.pop(state.unit, None)
        state.borrower = ""
        state.claimed = False
        state.final = False
        self.in_transition.pop(state.unit, None)
        self._ledger.withdraw(state)
        if state.active:
            self._free[state.unit] = state
        elif state.gone:
            self._forget_unit(state)

    def decide(
        self,
        now_ms: int,
        what: What,
        unit: Unit | None,
        borrower: str | None,
        reason: str,
        other: str = "",
    ) -> None:
        """Remember why something was done."""
        decision = LeaderDecision(now_ms, what, unit, borrower, reason, other)
        self.decisions.append(decision)
        self.unrecorded.add(decision)
