"""The leader: the one place in the system that decides who reads which unit of a shared group.

Theory of operation.  A leader exists because somebody won the group's lease; the lease's token is
on everything it says and guards everything it stores.  It is told what the durable state was,
hears which segments there are, takes borrowers in, and keeps each unit of the group assigned to
one of them, in fair shares, by the table in ``assignment``.

*Write ahead.*  Nothing is said that is not durable.  A grant is sent when its claim is stored, a
progress is confirmed when it is stored, `revoked` is sent when the final progress is stored, and
successors open when the end of all predecessors is stored.  So a leader may die at any moment,
and the next one starts from what was stored without breaking a promise of the former.

*One commit at a time.*  Whatever comes in while a commit is under way goes into the next.  An
idle leader therefore stores a report at once, and a busy one as fast as the store allows.

*Cost.*  A message costs what it mentions.  A full plan, linear in units and members, is made only
when membership or the set of units has changed, and only in ``balance``, which the runtime calls
when it has drained its queue.  A unit that becomes free meanwhile goes to the next member that is
short of its share.  ``tick`` looks at members and at assignments in transition, not at all units.

*Nobody is trusted to let go.*  Silent borrowers are dropped.  A borrower that answers but does not
finish what is revoked, or acks nothing while there is something to ack, is evicted, and its
session is left out for a while.  Whatever such a borrower still believes to own carries an old
token from the next grant on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from headrace.errors import DeposedError, StaleTokenError, UnexpectedMessageError
from headrace.groups.progress import Progress
from headrace.groups.ranges import AckedRanges
from headrace.groups.shared import balance as planning
from headrace.groups.shared.assignment import AssignmentStatus, UnitState
from headrace.groups.shared.messages import (
    NO_TOKEN,
    Disconnect,
    Grant,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Message,
    Ping,
    PingResponse,
    ProgressConfirmed,
    Revoke,
    Revoked,
    RevokeFinished,
    Unit,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.records import (
    ClaimRecord,
    Commit,
    Decision,
    LeaderEffect,
    Listing,
    ListSegments,
    ProgressRecord,
    RenewLease,
    SegmentInfo,
    StepDown,
    StoredUnit,
    ToBorrower,
)
from headrace.groups.shared.settings import Balance, LeaderSettings

_LOADED = (AssignmentStatus.GRANTING, AssignmentStatus.GRANTED)


class _Member:
    """A borrower as its leader knows it."""

    __slots__ = ("borrower", "load", "proven", "seen_ms", "session", "share", "units", "waiting")

    def __init__(self, borrower: str, session: str, now_ms: int) -> None:
        self.borrower = borrower
        self.session = session
        self.seen_ms = now_ms
        self.proven = False
        """It has answered: a repeated, late `leader_wanted` alone gets no units."""
        self.units: dict[Unit, UnitState] = {}
        self.load = 0
        """Units granted, or being granted."""
        self.share = 0
        self.waiting: dict[Unit, int] = {}
        """Units with something to ack, and since when nothing was; the longest wait first."""


class _Bench(msgspec.Struct, frozen=True):
    until_ms: int
    evictions: int


class _InFlight(msgspec.Struct, frozen=True):
    """A commit under way, and what may be said when it is durable."""

    commit: Commit
    sent_ms: int
    confirmations: tuple[tuple[str, int], ...]
    finals: tuple[tuple[Unit, int], ...]


class Leader:
    """The state machine that leads one group, for as long as it holds the lease."""

    def __init__(
        self,
        group: str,
        *,
        name: str,
        token: int,
        stored: Iterable[StoredUnit],
        settings: LeaderSettings,
        now_ms: int,
        lease_sent_ms: int | None = None,
    ) -> None:
        """`lease_sent_ms` is when the lease was asked for: its time runs from there."""
        self.group = group
        self.name = name
        self.token = token
        self.settings = settings
        self.deposed = False
        self.decisions: deque[Decision] = deque(maxlen=settings.decisions_max)
        self._units: dict[Unit, UnitState] = {}
        self._members: dict[str, _Member] = {}
        self._benched: dict[str, _Bench] = {}
        self._free: dict[Unit, UnitState] = {}
        self._short: deque[str] = deque()
        """Members with fewer units than their share."""
        self._active = 0
        """How many units somebody should own."""
        self._in_transition: dict[Unit, UnitState] = {}
        self._destined: dict[Unit, str] = {}
        """By lag: where a unit that is being revoked will go."""
        self._unbalanced = False
        # what the next commit will hold
        self._dirty: dict[Unit, UnitState] = {}
        self._claims: dict[Unit, UnitState] = {}
        self._forget: dict[Unit, None] = {}
        self._confirmations: list[tuple[str, int]] = []
        self._in_flight: _InFlight | None = None
        self._commits = 0
        self._revision = -1
        self._list_due_ms = now_ms
        self._lease_ok_ms = now_ms if lease_sent_ms is None else lease_sent_ms
        self._heartbeat_due_ms = now_ms + settings.heartbeat_ms
        for row in stored:
            self._restore(row)

    def _restore(self, row: StoredUnit) -> None:
        # Not active before it is listed: only the listing knows the predecessors.
        state = UnitState(row.unit, row.progress.acked(), row.token)
        state.attempts = dict(row.progress.attempts)
        state.finished = row.finished
        state.missing = 1
        self._units[row.unit] = state

    # --- what it knows ---

    @property
    def borrowers(self) -> dict[str, tuple[Unit, ...]]:
        """The borrowers and their units."""
        return {name: tuple(member.units) for name, member in self._members.items()}

    def shares(self) -> dict[str, int]:
        """How many units each borrower has or is being granted, of those that may have any."""
        return {name: m.load for name, m in self._members.items() if m.share or m.load}

    def progress_of(self, unit: Unit) -> Progress:
        """How far the group has come in a unit, as far as this leader knows."""
        state = self._units[unit]
        return Progress.of(state.acked, state.attempts)

    def assignment_of(self, unit: Unit) -> tuple[AssignmentStatus, str]:
        """The status of a unit's assignment, and to whom."""
        state = self._units[unit]
        return state.status, state.borrower

    @property
    def units(self) -> dict[Unit, UnitState]:
        """Every unit of the group that is known; to be looked at, not changed."""
        return self._units

    def snapshot(self) -> tuple[object, ...]:
        """Everything that decides what it will do, as comparable values."""
        return (
            self.token,
            self.deposed,
            tuple(state.snapshot() for state in self._units.values()),
            tuple(
                (
                    m.borrower,
                    m.proven,
                    m.seen_ms,
                    tuple(m.units),
                    m.load,
                    m.share,
                    tuple(m.waiting.items()),
                )
                for m in self._members.values()
            ),
            tuple(self._benched.items()),
            tuple(self._free),
            tuple(self._short),
            self._active,
            tuple(self._in_transition),
            tuple(self._destined.items()),
            self._unbalanced,
            tuple(self._dirty),
            tuple(self._claims),
            tuple(self._forget),
            tuple(self._confirmations),
            self._in_flight
            and (
                self._in_flight.commit.progress,
                self._in_flight.commit.claims,
                self._in_flight.confirmations,
                self._in_flight.finals,
            ),
            self._revision,
            self._list_due_ms,
            self._lease_ok_ms,
            self._heartbeat_due_ms,
        )

    # --- messages ---

    def receive(self, message: Message, now_ms: int) -> list[LeaderEffect]:
        """Take a message from a borrower."""
        self._check_leading()
        if message.group != self.group:
            raise self._unexpected(message, f"is for group {message.group}")
        if isinstance(message, LeaderWanted):
            return self._take_in(message, now_ms)
        member = self._sender(message)
        match message:
            case Ping():
                effects = self._pinged(member, message)
            case UpdateProgress():
                effects = self._progress(member, message, now_ms)
            case RevokeFinished():
                effects = self._revoke_finished(member, message)
            case Disconnect():
                effects = self._disconnect(member, message, now_ms)
            case _:
                raise self._unexpected(message, "is not for a leader")
        member.seen_ms = now_ms
        return effects + self._settle(now_ms)

    def _sender(self, message: Message) -> _Member:
        member = self._members.get(message.borrower)
        early_leave = (
            isinstance(message, Disconnect) and message.token == NO_TOKEN and member is not None
        )
        if message.token > self.token:
            raise self._stale(message, f"comes from the time of a newer leader, {message.token}")
        if message.token < self.token and not early_leave:
            raise self._stale(
                message, f"has the leader token {message.token}", invalidate="the leader is new"
            )
        if member is None:
            raise self._unexpected(
                message, "comes from an unknown borrower", invalidate="not known to the leader"
            )
        return member

    def _take_in(self, message: LeaderWanted, now_ms: int) -> list[LeaderEffect]:
        member = self._members.get(message.borrower)
        if member is None:
            member = _Member(message.borrower, message.session, now_ms)
            self._members[message.borrower] = member
        response = LeaderConnectResponse(self.group, message.borrower, self.token, self.name)
        return [ToBorrower(response)]

    def _pinged(self, member: _Member, message: Ping) -> list[LeaderEffect]:
        if not member.proven:
            member.proven = True
            self._unbalanced = True
        return [ToBorrower(PingResponse(self.group, member.borrower, self.token, message.number))]

    def _progress(
        self, member: _Member, message: UpdateProgress, now_ms: int
    ) -> list[LeaderEffect]:
        states = [self._reported(member, message, report) for report in message.units]
        changed = False
        for state, report in zip(states, message.units, strict=True):
            changed |= self._apply(member, state, report, now_ms)
        if changed or any(report.acked or report.final for report in message.units):
            # Confirmed when everything known about these units is durable: at once if it is.
            self._confirmations.append((member.borrower, message.report))
        return []

    def _reported(self, member: _Member, message: Message, report: UnitReport) -> UnitState:
        """The unit a report is about, if the report counts; changes nothing."""
        state = self._units.get(report.unit)
        if state is None:
            raise self._unexpected(message, f"reports {report.unit}, which is not in the group")
        if state.token != report.unit_token or state.borrower != member.borrower:
            if report.unit_token > state.token:
                raise self._unexpected(message, f"has a token of {report.unit} never given")
            raise self._stale(
                message, f"has the token {report.unit_token} of {report.unit}, not {state.token}"
            )
        if not state.claimed or state.status is AssignmentStatus.FREE:
            raise self._unexpected(message, f"reports {report.unit}, which was not granted yet")
        if report.final and state.status in _LOADED:
            raise self._unexpected(
                message,
                f"finishes {report.unit}, which is not being revoked",
                invalidate="finished a unit that was not revoked",
            )
        end = state.end
        for low, high in report.acked:
            if not 0 <= low < high or (end is not None and high > end):
                raise self._unexpected(message, f"acks [{low}, {high}) of {report.unit}")
        return state

    def _apply(self, member: _Member, state: UnitState, report: UnitReport, now_ms: int) -> bool:
        """Add a report to what is known; True if that has to be stored."""
        gained = 0
        for low, high in report.acked:
            gained += state.acked.ack_range(low, high)
        retried = False
        for offset, count in report.attempts:
            if offset not in state.acked and count > state.attempts.get(offset, 0):
                state.attempts[offset] = count
                retried = True
        if gained and state.attempts:
            state.attempts = {o: n for o, n in state.attempts.items() if o not in state.acked}
        if state.status is AssignmentStatus.GRANTING:
            state.move("progress")
            del self._in_transition[state.unit]
        finishing = report.final and not state.final
        state.final = state.final or report.final
        if gained:
            self._benched.pop(member.session, None)
        if gained or report.answered:
            member.waiting.pop(state.unit, None)
        self._watch(member, state, now_ms)
        if gained or retried or finishing:
            self._dirty[state.unit] = state
            return True
        return False

    def _watch(self, member: _Member, state: UnitState, now_ms: int) -> None:
        """Wait for progress of a unit as long as there is something to ack."""
        if state.status is AssignmentStatus.GRANTED and state.lagging:
            member.waiting.setdefault(state.unit, now_ms)
        else:
            member.waiting.pop(state.unit, None)

    def _revoke_finished(self, member: _Member, message: RevokeFinished) -> list[LeaderEffect]:
        state = self._units.get(message.unit)
        mine = state is not None and state.borrower == member.borrower
        if state is None or not mine or state.token > message.unit_token:
            return []  # late: the unit was handed over in the meantime, as it should
        if state.token < message.unit_token or state.status is not AssignmentStatus.REVOKED:
            raise self._unexpected(
                message,
                f"finishes {message.unit}, which is {state.status}",
                invalidate="finished a unit that was not revoked",
            )
        self._unassign(state, "revoke_finished")
        return []

    def _disconnect(self, member: _Member, message: Disconnect, now_ms: int) -> list[LeaderEffect]:
        # Good-bye is taken whatever it says; of its progress only what still counts.
        for report in message.units:
            try:
                state = self._reported(member, message, report)
            except (StaleTokenError, UnexpectedMessageError):
                continue
            self._apply(member, state, report, now_ms)
        if message.token != NO_TOKEN:
            self._confirmations.append((member.borrower, message.report))
        self._drop(member, "disconnected", now_ms)
        return []

    # --- answers of the runtime ---

    def segments_listed(self, listing: Listing, now_ms: int) -> list[LeaderEffect]:
        """Take in which segments there are; an older listing than the last is passed over."""
        self._check_leading()
        if listing.revision < self._revision:
            return []
        self._revision = listing.revision
        for info in listing.segments:
            self._learn(info)
        for info in listing.segments:
            self._place(self._units[info.unit], info, now_ms)
        effects: list[LeaderEffect] = []
        for unit in listing.gone:
            effects += self._lose(unit, now_ms)
        return effects + self._settle(now_ms)

    def _learn(self, info: SegmentInfo) -> None:
        state = self._units.get(info.unit)
        if state is None:
            state = self._units[info.unit] = UnitState(info.unit, AckedRanges(info.start))
            state.missing = 1
            self._dirty[info.unit] = state
        state.head = max(state.head, info.head, info.end or 0)
        state.end = info.end if state.end is None else state.end

    def _place(self, state: UnitState, info: SegmentInfo, now_ms: int) -> None:
        """Connect a unit with its predecessors, and notice what is new about it."""
        if state.missing and not state.predecessors:
            state.predecessors = info.predecessors
            pending = [
                p for p in info.predecessors if p in self._units and not self._units[p].finished
            ]
            for predecessor in pending:
                if state.unit not in self._units[predecessor].successors:
                    self._units[predecessor].successors.append(state.unit)
            state.missing = len(pending)
            if state.active:
                self._activate(state)
        if state.consumed and not state.finished:
            self._dirty[state.unit] = state
        member = self._members.get(state.borrower)
        if member is not None:
            self._watch(member, state, now_ms)

    def _activate(self, state: UnitState) -> None:
        self._active += 1
        self._unbalanced = True
        if state.consumed:
            self._dirty[state.unit] = state
        else:
            self._free[state.unit] = state

    def _lose(self, unit: Unit, now_ms: int) -> list[LeaderEffect]:
        """The log has deleted a segment: it leaves the group, and holds up nobody."""
        state = self._units.get(unit)
        if state is None:
            return []
        state.gone = True
        effects: list[LeaderEffect] = []
        if not state.finished:
            effects = self._finish(state, "deleted from the log", now_ms)
        if state.status is AssignmentStatus.FREE:
            self._forget_unit(state)
        return effects

    def _forget_unit(self, state: UnitState) -> None:
        self._dirty.pop(state.unit, None)
        del self._units[state.unit]
        self._forget[state.unit] = None

    def committed(
        self, number: int, claimed: Iterable[tuple[Unit, Progress]], now_ms: int
    ) -> list[LeaderEffect]:
        """A commit is durable; `claimed` is the merged progress of each unit it claimed."""
        self._check_leading()
        done = self._in_flight
        if done is None or done.commit.number != number:
            return []  # the answer to a commit that was sent twice
        self._in_flight = None
        progress = dict(claimed)
        effects: list[LeaderEffect] = []
        for record in done.commit.progress:
            state = self._units.get(record.unit)
            if record.finished and state is not None and not state.finished:
                effects += self._finish(state, "consumed to its end", now_ms)
        for claim in done.commit.claims:
            state = self._units.get(claim.unit)
            current = state is not None and (state.token, state.borrower) == (
                claim.unit_token,
                claim.borrower,
            )
            if state is None or not current or state.status is AssignmentStatus.FREE:
                continue
            state.claimed = True
            stored = progress[claim.unit]
            state.acked.merge(stored.acked())
            effects += self._grant(state, now_ms)
        for unit, token in done.finals:
            state = self._units.get(unit)
            if state is not None and state.token == token and state.final:
                if state.status is AssignmentStatus.REVOKING:
                    state.move("final progress durable")
                effects += self._resend(state, now_ms)
        effects += [
            ToBorrower(ProgressConfirmed(self.group, borrower, self.token, report))
            for borrower, report in done.confirmations
        ]
        return effects + self._settle(now_ms)

    def commit_failed(
        self, number: int, reason: str, *, lost: bool, now_ms: int
    ) -> list[LeaderEffect]:
        """A commit was refused: for now, or (`lost`) because somebody else leads."""
        self._check_leading()
        if self._in_flight is None or self._in_flight.commit.number != number:
            return []
        if lost:
            return self._step_down(reason)
        # Tried again by `tick`, as it is: what came in meanwhile belongs to the next one.
        self._in_flight = msgspec.structs.replace(
            self._in_flight, sent_ms=now_ms - self.settings.commit_timeout_ms
        )
        return []

    def lease_renewed(self, sent_ms: int) -> list[LeaderEffect]:
        """The lease is good for its time to live, from when the renewal was *sent*."""
        self._check_leading()
        self._lease_ok_ms = max(self._lease_ok_ms, sent_ms)
        return []

    def lease_lost(self, reason: str) -> list[LeaderEffect]:
        """Somebody else has the lease."""
        self._check_leading()
        return self._step_down(reason)

    # --- time ---

    def tick(self, now_ms: int) -> list[LeaderEffect]:
        """Do what is due: heartbeat, listing, resends, and the end of patience."""
        self._check_leading()
        if now_ms - self._lease_ok_ms >= self.settings.lease_ttl_ms:
            return self._step_down("the lease has run out")
        effects: list[LeaderEffect] = []
        if now_ms >= self._heartbeat_due_ms:
            self._heartbeat_due_ms = now_ms + self.settings.heartbeat_ms
            effects.append(RenewLease(self.token, self.settings.lease_ttl_ms, now_ms))
        if now_ms >= self._list_due_ms:
            self._list_due_ms = now_ms + self.settings.renew_segments_ms
            effects.append(ListSegments(self._revision))
        effects += self._retry_commit(now_ms)
        self._drop_silent(now_ms)
        effects += self._evict_stuck(now_ms)
        for state in list(self._in_transition.values()):
            if now_ms >= state.resend_ms:
                effects += self._resend(state, now_ms)
        self._unbench(now_ms)
        if self.settings.balance is Balance.LAG:
            self._unbalanced = True
        return effects + self.balance(now_ms)

    def _retry_commit(self, now_ms: int) -> list[LeaderEffect]:
        """Send a commit again that was refused, or not answered in time."""
        late = self._in_flight
        if late is None or now_ms - late.sent_ms < self.settings.commit_timeout_ms:
            return []
        self._in_flight = msgspec.structs.replace(late, sent_ms=now_ms)
        return [late.commit]

    def _drop_silent(self, now_ms: int) -> None:
        timeout_ms = self.settings.borrower_timeout_ms
        silent = [m for m in self._members.values() if now_ms - m.seen_ms >= timeout_ms]
        for member in silent:
            self._drop(member, "silent", now_ms)

    def drop_silent(self, borrower: str, now_ms: int) -> list[LeaderEffect]:
        """A borrower is known to be dead; what its timeout would find out."""
        self._check_leading()
        self._drop(self._members[borrower], "silent", now_ms)
        return self._settle(now_ms)

    def resend(self, unit: Unit, now_ms: int) -> list[LeaderEffect]:
        """Say again what a unit's assignment has to say, if it is in transition."""
        self._check_leading()
        return self._resend(self._units[unit], now_ms)

    def _evict_stuck(self, now_ms: int) -> list[LeaderEffect]:
        stuck: dict[str, str] = {}
        for state in self._in_transition.values():
            waits_for_store = not state.claimed or (
                state.final and state.status is AssignmentStatus.REVOKING
            )
            if now_ms >= state.deadline_ms and not waits_for_store:
                stuck[state.borrower] = f"{state.unit} is {state.status} for too long"
        for member in self._members.values():
            unit, since_ms = next(iter(member.waiting.items()), ("", now_ms))
            if now_ms - since_ms >= self.settings.stall_timeout_ms:
                stuck[member.borrower] = f"acks nothing of {unit}"
        effects: list[LeaderEffect] = []
        for borrower, reason in stuck.items():
            effects += self.evict(borrower, reason, now_ms)
        return effects

    def evict(self, borrower: str, reason: str, now_ms: int) -> list[LeaderEffect]:
        """Take everything from a borrower that answers but does not do its part."""
        member = self._members[borrower]
        evictions = self._benched.get(member.session, _Bench(0, 0)).evictions + 1
        pause_ms = self.settings.stall_timeout_ms << min(evictions - 1, 20)
        until_ms = now_ms + min(pause_ms, self.settings.bench_ms_max)
        self._benched[member.session] = _Bench(until_ms, evictions)
        self._drop(member, f"evicted: {reason}", now_ms)
        return [ToBorrower(Invalidate(self.group, borrower, self.token, reason))]

    def _unbench(self, now_ms: int) -> None:
        for member in self._members.values():
            bench = self._benched.get(member.session)
            # Its share is still zero: the plan that will give it one has not been made.
            if bench and now_ms >= bench.until_ms and not member.share:
                self._unbalanced = True
        forget_ms = now_ms - self.settings.bench_ms_max
        for session in [s for s, bench in self._benched.items() if bench.until_ms < forget_ms]:
            del self._benched[session]

    # --- balance ---

    def balance(self, now_ms: int) -> list[LeaderEffect]:
        """Make a new plan if membership or units have changed; linear in both."""
        self._check_leading()
        if not self._unbalanced:
            return self._settle(now_ms)
        self._unbalanced = False
        eligible = [m for m in self._members.values() if self._may_own(m, now_ms)]
        if self.settings.balance is Balance.COUNT:
            effects = self._balance_by_count(eligible, now_ms)
        else:
            effects = self._balance_by_lag(eligible, now_ms)
        return effects + self._settle(now_ms)

    def _may_own(self, member: _Member, now_ms: int) -> bool:
        bench = self._benched.get(member.session)
        return member.proven and (bench is None or now_ms >= bench.until_ms)

    def _balance_by_count(self, eligible: list[_Member], now_ms: int) -> list[LeaderEffect]:
        shares = planning.shares_by_count(self._active, {m.borrower: m.load for m in eligible})
        effects: list[LeaderEffect] = []
        self._short.clear()
        for member in self._members.values():
            member.share = shares.get(member.borrower, 0)
            if member.load > member.share:
                effects += self._take_from(member, member.load - member.share, now_ms)
            elif member.load < member.share:
                self._short.append(member.borrower)
        return effects

    def _take_from(self, member: _Member, count: int, now_ms: int) -> list[LeaderEffect]:
        """Revoke the units that a member has had for the shortest time."""
        effects: list[LeaderEffect] = []
        latest = [s for s in reversed(member.units.values()) if s.status in _LOADED and s.active]
        for state in latest[:count]:
            self._decide(now_ms, "move", state.unit, member.borrower, "others have less")
            effects += self._revoke(state, now_ms)
        return effects

    def _balance_by_lag(self, eligible: list[_Member], now_ms: int) -> list[LeaderEffect]:
        owned = {
            m.borrower: [(u, s.lag) for u, s in m.units.items() if s.status in _LOADED]
            for m in eligible
        }
        free = [(unit, state.lag) for unit, state in self._free.items()]
        plan = planning.plan_by_lag(owned, free, slack_percent=self.settings.lag_slack_percent)
        for unit, borrower in plan.grants:
            self._assign(self._free.pop(unit), self._members[borrower], now_ms)
        effects: list[LeaderEffect] = []
        if self._in_transition:
            return effects  # let the last moves settle before judging again
        for unit, source, target in plan.moves:
            self._destined[unit] = target
            self._decide(now_ms, "move", unit, source, f"lag: {target} has less")
            effects += self._revoke(self._units[unit], now_ms)
        return effects

    def _fill(self, now_ms: int) -> None:
        """Give free units to whoever was planned to have more."""
        for unit in [u for u in self._destined if u in self._free]:
            member = self._members.get(self._destined.pop(unit))
            if member is not None and self._may_own(member, now_ms):
                self._assign(self._free.pop(unit), member, now_ms)
        while self._free and self._short:
            member = self._members.get(self._short[0])
            if member is None or member.load >= member.share:
                self._short.popleft()
                continue
            # From the end: taking from the front of a dict walks over everything taken before.
            _, state = self._free.popitem()
            self._assign(state, member, now_ms)
            self._short.rotate(-1)

    # --- assignments ---

    def _assign(self, state: UnitState, member: _Member, now_ms: int) -> None:
        state.move("assign")
        state.borrower = member.borrower
        state.token += 1
        state.claimed = False
        state.final = False
        state.resend_ms = now_ms + self.settings.resend_ms
        state.deadline_ms = now_ms + self.settings.stall_timeout_ms
        member.units[state.unit] = state
        member.load += 1
        self._in_transition[state.unit] = state
        self._claims[state.unit] = state
        self._decide(now_ms, "grant", state.unit, member.borrower, "below its share")

    def _grant(self, state: UnitState, now_ms: int) -> list[LeaderEffect]:
        """Tell the owner of a unit that it is one."""
        if state.status is not AssignmentStatus.GRANTING:
            return self._resend(state, now_ms)
        state.resend_ms = now_ms + self.settings.resend_ms
        progress = Progress.of(state.acked, state.attempts)
        grant = Grant(self.group, state.borrower, self.token, state.unit, state.token, progress)
        return [ToBorrower(grant)]

    def _revoke(self, state: UnitState, now_ms: int) -> list[LeaderEffect]:
        if state.status is AssignmentStatus.GRANTING and not state.claimed:
            self._unassign(state, "withdraw")
            return []
        member = self._members[state.borrower]
        state.move("revoke")
        member.load -= 1
        member.waiting.pop(state.unit, None)
        state.deadline_ms = now_ms + self.settings.revoke_timeout_ms
        self._in_transition[state.unit] = state
        return self._resend(state, now_ms)

    def _resend(self, state: UnitState, now_ms: int) -> list[LeaderEffect]:
        """Say what an assignment in transition has to say, first or again."""
        if not state.claimed:
            return []  # said when the claim is durable
        state.resend_ms = now_ms + self.settings.resend_ms
        match state.status:
            case AssignmentStatus.GRANTING:
                return self._grant(state, now_ms)
            case AssignmentStatus.REVOKING:
                about = (self.group, state.borrower, self.token, state.unit, state.token)
                return [ToBorrower(Revoke(*about))]
            case AssignmentStatus.REVOKED:
                about = (self.group, state.borrower, self.token, state.unit, state.token)
                return [ToBorrower(Revoked(*about))]
        return []

    def _unassign(self, state: UnitState, cause: str) -> None:
        member = self._members[state.borrower]
        if state.status in _LOADED:
            member.load -= 1
        state.move(cause)
        member.units.pop(state.unit)
        member.waiting.pop(state.unit, None)
        state.borrower = ""
        state.claimed = False
        state.final = False
        self._in_transition.pop(state.unit, None)
        self._claims.pop(state.unit, None)
        if state.active:
            self._free[state.unit] = state
        elif state.gone:
            self._forget_unit(state)

    def _finish(self, state: UnitState, reason: str, now_ms: int) -> list[LeaderEffect]:
        """A unit is over for good: its successors may open, its owner lets go of it."""
        was_active = state.active
        state.finished = True
        self._free.pop(state.unit, None)
        if was_active:
            self._active -= 1
        self._unbalanced = True
        self._decide(now_ms, "finish", state.unit, state.borrower or None, reason)
        for successor in state.successors:
            waiting = self._units.get(successor)
            if waiting is not None and waiting.missing:
                waiting.missing -= 1
                if waiting.active:
                    self._activate(waiting)
        return self._revoke(state, now_ms) if state.status in _LOADED else []

    def _drop(self, member: _Member, reason: str, now_ms: int) -> None:
        for state in list(member.units.values()):
            self._unassign(state, "borrower gone")
        del self._members[member.borrower]
        self._unbalanced = True
        self._decide(now_ms, "drop", None, member.borrower, reason)

    # --- saying and storing ---

    def _settle(self, now_ms: int) -> list[LeaderEffect]:
        """After every event: fill what is free, let go of what is over, store what is new."""
        self._fill(now_ms)
        if self._in_flight or not (self._dirty or self._claims or self._forget):
            if not self._in_flight and self._confirmations:
                return self._confirm_now()
            return []
        self._commits += 1
        commit = Commit(
            self._commits,
            self.token,
            tuple(
                ProgressRecord(unit, Progress.of(s.acked, s.attempts), s.consumed)
                for unit, s in self._dirty.items()
            ),
            tuple(ClaimRecord(unit, s.borrower, s.token) for unit, s in self._claims.items()),
            tuple(self._forget),
        )
        finals = tuple((unit, s.token) for unit, s in self._dirty.items() if s.final)
        self._in_flight = _InFlight(commit, now_ms, tuple(self._confirmations), finals)
        self._dirty = {}
        self._claims = {}
        self._forget = {}
        self._confirmations = []
        return [commit]

    def _confirm_now(self) -> list[LeaderEffect]:
        """Reports that held nothing new, once everything before them is durable."""
        waiting, self._confirmations = self._confirmations, []
        return [
            ToBorrower(ProgressConfirmed(self.group, borrower, self.token, report))
            for borrower, report in waiting
        ]

    def _step_down(self, reason: str) -> list[LeaderEffect]:
        self.deposed = True
        effects: list[LeaderEffect] = [
            ToBorrower(Invalidate(self.group, borrower, self.token, f"stepping down: {reason}"))
            for borrower in self._members
        ]
        return [*effects, StepDown(reason)]

    def _decide(
        self, now_ms: int, what: str, unit: Unit | None, borrower: str | None, reason: str
    ) -> None:
        self.decisions.append(Decision(now_ms, what, unit, borrower, reason))

    # --- refusing ---

    def _check_leading(self) -> None:
        if self.deposed:
            raise DeposedError(
                f"leader {self.name} of {self.group} has stepped down (token {self.token})",
                state="deposed",
            )

    def _unexpected(
        self, message: Message, why: str, *, invalidate: str | None = None
    ) -> UnexpectedMessageError:
        return UnexpectedMessageError(
            self._says(message, why), state="leading", replies=self._reply(message, invalidate)
        )

    def _stale(
        self, message: Message, why: str, *, invalidate: str | None = None
    ) -> StaleTokenError:
        return StaleTokenError(
            self._says(message, why), state="leading", replies=self._reply(message, invalidate)
        )

    def _says(self, message: Message, why: str) -> str:
        return (
            f"{type(message).__name__} of {message.borrower} to leader {self.name} of {self.group} "
            f"(leading, token {self.token}) is refused: it {why}"
        )

    def _reply(self, message: Message, reason: str | None) -> tuple[Invalidate, ...]:
        if reason is None:
            return ()
        return (Invalidate(self.group, message.borrower, self.token, reason),)
