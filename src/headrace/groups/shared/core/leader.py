"""The leader: the one place in the system that decides who reads which unit of a shared group.

Theory of operation.  A leader exists because somebody won the group's lease; the lease's token is
on everything it says and guards everything it stores.  It is told what the durable state was,
hears which segments there are, takes borrowers in, and keeps each unit of the group assigned to
one of them, in fair shares, by the table in ``assignment``.

*Write-ahead.*  Nothing is said before it is durable.  A grant is sent when its claim is stored, a
progress is confirmed when it is stored, `revoked` is sent when the final progress is stored, and
successors open when the end of all predecessors is stored.  So a leader may die at any moment,
and the next one starts from what was stored without breaking a promise of the former.

*One commit at a time.*  Whatever comes in while a commit is under way goes into the next.  An
idle leader therefore stores a report at once, and a busy one as fast as the store allows.  Under
many reports commits are spaced out, so that each serves many (``pace``); reports that come in
between are kept unprocessed until then (``keep``).

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

from collections.abc import Iterable, Sequence

from headrace.errors import (
    DeposedError,
    ProtocolError,
    StaleTokenError,
    UnexpectedMessageError,
)
from headrace.groups.progress import Progress
from headrace.groups.progress.ranges import OFFSET_MAX
from headrace.groups.shared.core.assignment import FREE, GRANTING, AssignmentStatus, UnitState
from headrace.groups.shared.core.gathering import Gathering
from headrace.groups.shared.core.holdings import LOADED, Holdings, Member
from headrace.groups.shared.core.leader_view import LeaderView
from headrace.groups.shared.core.ledger import Ledger
from headrace.groups.shared.core.messages import (
    NO_TOKEN,
    Disconnect,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Message,
    Ping,
    PingResponse,
    ProgressConfirmed,
    RevokeFinished,
    Unit,
    UnitReport,
    UpdateProgress,
)
from headrace.groups.shared.core.pace import Pace
from headrace.groups.shared.core.records import (
    Gather,
    LeaderEffect,
    Listing,
    ListSegments,
    RenewLease,
    StepDown,
    StoredUnit,
    ToBorrower,
)
from headrace.groups.shared.core.settings import Balance, LeaderSettings


class Leader(LeaderView):
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
        pace: Pace | None = None,
    ) -> None:
        """`lease_sent_ms` is when the lease was asked for: its time runs from there."""
        self.group = group
        self.name = name
        self.token = token
        self.settings = settings
        self.deposed = False
        ledger = Ledger(token)
        super().__init__(Holdings(group, token, settings, ledger), ledger)
        self._gathering = Gathering(pace or Pace())
        self._revision = -1
        self._list_due_ms = now_ms
        self._lease_ok_ms = now_ms if lease_sent_ms is None else lease_sent_ms
        self._lease_ttl_ms = settings.lease_ttl_ms
        """Of the lease as it was last renewed."""
        self._configured_ms = now_ms
        self._heartbeat_due_ms = now_ms + settings.heartbeat_ms
        for row in stored:
            self._holdings.restore(row)

    @property
    def unstored(self) -> bool:
        """Whether something was reported or noted that is in no commit yet."""
        return super().unstored or bool(self._gathering.kept)

    @property
    def gathering(self) -> bool:
        """Whether the next commit waits for more reports."""
        return self._gathering.on

    def snapshot(self) -> tuple[object, ...]:
        """Everything that decides what it will do, as comparable values; without its pace, which
        decides only when commits are delayed."""
        return (
            self.token,
            self.deposed,
            self.settings,
            self._gathering.on,
            tuple(self._gathering.kept),
            self._holdings.snapshot(),
            self._ledger.snapshot(),
            self._revision,
            self._list_due_ms,
            self._lease_ok_ms,
            self._lease_ttl_ms,
            self._configured_ms,
            self._heartbeat_due_ms,
        )

    def note(self, what: str, unit: Unit, reason: str, now_ms: int) -> None:
        """Remember something that the runtime has done for the group."""
        self._holdings.decide(now_ms, what, unit, None, reason)

    # --- messages ---

    def receive(self, message: Message, now_ms: int) -> list[LeaderEffect]:
        """Take a message from a borrower, after the reports that were kept before it."""
        self._check_leading()
        if isinstance(message, UpdateProgress):
            self._gathering.reported(message, now_ms)
        if not self._gathering.kept:
            return self._receive(message, now_ms)
        refused = self._take_kept(now_ms)
        try:
            return [*map(ToBorrower, refused), *self._receive(message, now_ms)]
        except ProtocolError as error:
            error.replies = (*refused, *error.replies)
            raise

    def _receive(self, message: Message, now_ms: int) -> list[LeaderEffect]:
        if message.group != self.group:
            raise self._unexpected(message, f"is for group {message.group}")
        if isinstance(message, LeaderWanted):
            return self._take_in(message, now_ms)
        member = self._sender(message)
        effects: list[LeaderEffect] = []
        match message:
            case UpdateProgress():
                self._progress(member, message, now_ms)
            case Ping():
                effects = self._pinged(member, message)
            case RevokeFinished():
                self._revoke_finished(member, message)
            case Disconnect():
                self._disconnect(member, message, now_ms)
            case _:
                raise self._unexpected(message, "is not for a leader")
        member.seen_ms = now_ms
        return effects + self._settle(now_ms)

    def _sender(self, message: Message) -> Member:
        member = self._holdings.members.get(message.borrower)
        if member is not None and message.token == self.token:
            return member  # nearly always
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
        self._holdings.join(message.borrower, message.session, now_ms)
        response = LeaderConnectResponse(self.group, message.borrower, self.token, self.name)
        return [ToBorrower(response)]

    def _pinged(self, member: Member, message: Ping) -> list[LeaderEffect]:
        self._holdings.proven(member)
        return [ToBorrower(PingResponse(self.group, member.borrower, self.token, message.number))]

    def _progress(self, member: Member, message: UpdateProgress, now_ms: int) -> None:
        # All are checked before any of them is applied.
        found = []
        for report in message.units:
            found.append((self._reported(member, message, report), report))
        to_confirm = False
        for state, report in found:
            if self._apply(member, state, report, now_ms) or report.acked or report.final:
                to_confirm = True
        if to_confirm:
            # Confirmed when everything known about these units is durable: at once if it is.
            self._ledger.confirm(member.borrower, message.report)

    def _reported(self, member: Member, message: Message, report: UnitReport) -> UnitState:
        """The unit a report is about, if the report counts; changes nothing."""
        state = self._holdings.units.get(report.unit)
        if state is None:
            raise self._unexpected(message, f"reports {report.unit}, which is not in the group")
        if state.token != report.unit_token or state.borrower != member.borrower:
            if report.unit_token > state.token:
                raise self._unexpected(message, f"has a token of {report.unit} never given")
            raise self._stale(
                message, f"has the token {report.unit_token} of {report.unit}, not {state.token}"
            )
        if not state.claimed or state.status is FREE:
            raise self._unexpected(message, f"reports {report.unit}, which was not granted yet")
        if report.final and state.status in LOADED:
            raise self._unexpected(
                message,
                f"finishes {report.unit}, which is not being revoked",
                invalidate="finished a unit that was not revoked",
            )
        end = OFFSET_MAX if state.end is None else state.end
        for low, high in report.acked:
            if not 0 <= low < high <= end:
                raise self._unexpected(message, f"acks [{low}, {high}) of {report.unit}")
        for offset, count in report.attempts:
            if not (0 <= offset < end and count > 0):
                raise self._unexpected(message, f"counts {count} attempts at {offset}")
        return state

    def _apply(self, member: Member, state: UnitState, report: UnitReport, now_ms: int) -> bool:
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
        if state.status is GRANTING:
            state.move("progress")
            del self._holdings.in_transition[state.unit]
        finishing = report.final and not state.final
        state.final = state.final or report.final
        if gained:
            self._holdings.worked(member)
        if (gained or report.answered) and member.waiting:
            member.waiting.pop(state.unit, None)
        self._holdings.watch(member, state, now_ms)
        if gained or retried or finishing:
            self._ledger.save(state)
            return True
        return False

    def _revoke_finished(self, member: Member, message: RevokeFinished) -> None:
        state = self._holdings.units.get(message.unit)
        mine = state is not None and state.borrower == member.borrower
        if state is None or not mine or state.token > message.unit_token:
            return  # late: the unit was handed over in the meantime, as it should
        if state.token < message.unit_token or state.status is not AssignmentStatus.REVOKED:
            raise self._unexpected(
                message,
                f"finishes {message.unit}, which is {state.status}",
                invalidate="finished a unit that was not revoked",
            )
        self._holdings.unassign(state, "revoke_finished")

    def _disconnect(self, member: Member, message: Disconnect, now_ms: int) -> None:
        # Good-bye is taken whatever it says; of its progress only what still counts.
        for report in message.units:
            try:
                state = self._reported(member, message, report)
            except (StaleTokenError, UnexpectedMessageError):
                continue
            self._apply(member, state, report, now_ms)
        if message.token != NO_TOKEN:
            self._ledger.confirm(member.borrower, message.report)
        self._holdings.drop(member, "disconnected", now_ms)

    # --- answers of the runtime ---

    def segments_listed(self, listing: Listing, now_ms: int) -> list[LeaderEffect]:
        """Take in which segments there are; an older listing than the last is passed over.

        Only what is said to be gone is forgotten: to conclude it from a segment's absence would
        make an incomplete listing cost a group its progress.
        """
        self._check_leading()
        if listing.revision < self._revision:
            return []
        holdings = self._holdings
        self._revision = listing.revision
        for info in listing.segments:
            holdings.learn(info)
        for info in listing.segments:
            holdings.place(holdings.units[info.unit], info, now_ms)
        effects: list[LeaderEffect] = []
        for unit in listing.gone:
            effects += holdings.lose(unit, now_ms)
        return effects + self._settle(now_ms)

    def committed(
        self, number: int, claimed: Iterable[tuple[Unit, Progress]], now_ms: int
    ) -> list[LeaderEffect]:
        """A commit is durable; `claimed` is the merged progress of each unit it claimed."""
        self._check_leading()
        done = self._ledger.done(number)
        if done is None:
            return []  # the answer to a commit that was sent twice
        holdings = self._holdings
        stored = dict(claimed)
        effects: list[LeaderEffect] = []
        for record in done.commit.progress:
            if record.finished:
                state = holdings.units.get(record.unit)
                if state is not None and state.consumed and not state.finished:
                    effects += holdings.finish(state, "consumed to its end", now_ms)
        for claim in done.commit.claims:
            state = holdings.units.get(claim.unit)
            if state is not None and state.is_claimed_by(claim.borrower, claim.unit_token):
                state.claimed = True
                state.add(stored[claim.unit])
                if state.consumed:
                    # Its last events were acked in transactions that were not reported.
                    self._ledger.save(state)
                effects += holdings.grant(state, now_ms)
        for unit, token in done.finals:
            state = holdings.units.get(unit)
            if state is not None and state.token == token and state.final:
                if state.status is AssignmentStatus.REVOKING:
                    state.move("final progress durable")
                effects += holdings.resend(state, now_ms)
        return [*effects, *self._confirm(done.confirmations, now_ms), *self._settle(now_ms)]

    def _confirm(self, reports: Sequence[tuple[str, int]], now_ms: int) -> list[LeaderEffect]:
        self._gathering.confirmed(reports, now_ms)
        return [
            ToBorrower(ProgressConfirmed(self.group, borrower, self.token, report))
            for borrower, report in reports
        ]

    def commit_failed(self, number: int, reason: str, *, lost: bool) -> list[LeaderEffect]:
        """A commit was refused: for now, or (`lost`) because somebody else leads."""
        self._check_leading()
        if self._ledger.refused(number) and lost:
            return self._step_down(reason)
        return []  # tried again by `tick`, as it is

    def lease_renewed(self, sent_ms: int) -> list[LeaderEffect]:
        """The lease is good for its time to live, from when the renewal was *sent*."""
        self._check_leading()
        self._lease_ok_ms = max(self._lease_ok_ms, sent_ms)
        if sent_ms >= self._configured_ms:
            self._lease_ttl_ms = self.settings.lease_ttl_ms
        return []

    def lease_lost(self, reason: str) -> list[LeaderEffect]:
        """Somebody else has the lease."""
        self._check_leading()
        return self._step_down(reason)

    # --- time ---

    def tick(self, now_ms: int) -> list[LeaderEffect]:
        """Do what is due: lease renewal, listing, resends, timeouts."""
        self._check_leading()
        if now_ms - self._lease_ok_ms >= self._lease_ttl_ms:
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
        for state in list(self._holdings.in_transition.values()):
            if now_ms >= state.resend_ms:
                effects += self._holdings.resend(state, now_ms)
        self._holdings.unbench(now_ms)
        if self.settings.balance is Balance.LAG:
            self._holdings.unbalanced = True
        return effects + self.balance(now_ms)

    def _retry_commit(self, now_ms: int) -> list[LeaderEffect]:
        late = self._ledger.retry(now_ms, self.settings.commit_timeout_ms)
        return [] if late is None else [late]

    def _drop_silent(self, now_ms: int) -> None:
        timeout_ms = self.settings.borrower_timeout_ms
        silent = [m for m in self._holdings.members.values() if now_ms - m.seen_ms >= timeout_ms]
        for member in silent:
            self._holdings.drop(member, "silent", now_ms)

    def drop_silent(self, borrower: str, now_ms: int) -> list[LeaderEffect]:
        """A borrower is known to be dead: act as on its timeout."""
        self._check_leading()
        self._holdings.drop(self._member(borrower), "silent", now_ms)
        return self._settle(now_ms)

    def resend(self, unit: Unit, now_ms: int) -> list[LeaderEffect]:
        """Send again the grant or revocation of a unit, if it is in transition."""
        self._check_leading()
        return self._holdings.resend(self._holdings.units[unit], now_ms)

    def _evict_stuck(self, now_ms: int) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for borrower, reason in self._holdings.stuck(now_ms).items():
            effects += self.evict(borrower, reason, now_ms)
        return effects

    def evict(self, borrower: str, reason: str, now_ms: int) -> list[LeaderEffect]:
        """Take everything from a borrower that answers but does not do its part."""
        self._check_leading()
        member = self._member(borrower)
        self._holdings.bench(member.session, now_ms)
        self._holdings.drop(member, f"evicted: {reason}", now_ms)
        return [ToBorrower(Invalidate(self.group, borrower, self.token, reason))]

    def configure(self, settings: LeaderSettings, now_ms: int) -> None:
        """Go on with other timers; the lease keeps its time until it is renewed, which is due."""
        self._check_leading()
        self.settings = settings
        self._configured_ms = now_ms
        self._heartbeat_due_ms = now_ms
        self._holdings.configure(settings)

    # --- gathering ---

    def gather(self) -> Gather:
        """Make no commit before ``gathered``: more reports are on their way."""
        return self._gathering.begin()

    def keep(self, report: UpdateProgress, now_ms: int) -> bool:
        """Keep a report for the commit that is being gathered; False if none is.

        A report has no effect before it is stored, so it need not be processed before.  Any other
        message of the group is processed after the reports that came before it.
        """
        return not self.deposed and self._gathering.keep(report, now_ms)

    def gathered(self, now_ms: int) -> list[LeaderEffect]:
        """Store what has come meanwhile."""
        self._check_leading()
        refused = self._take_kept(now_ms)
        self._gathering.on = False
        return [*map(ToBorrower, refused), *self._settle(now_ms)]

    def _take_kept(self, now_ms: int) -> list[Invalidate]:
        """Process the reports that were kept; returns the replies to those that do not count."""
        refused: list[Invalidate] = []
        for report in self._gathering.take(now_ms):
            try:
                self._receive(report, now_ms)  # says nothing: no commit is made while it gathers
            except ProtocolError as error:
                refused += [each for each in error.replies if isinstance(each, Invalidate)]
        return refused

    def balance(self, now_ms: int) -> list[LeaderEffect]:
        """Make a new plan if membership or units have changed; linear in both."""
        self._check_leading()
        effects = self._holdings.plan(now_ms) if self._holdings.unbalanced else []
        return effects + self._settle(now_ms)

    def _settle(self, now_ms: int) -> list[LeaderEffect]:
        """After every event: give away what is free, and store what is new."""
        self._holdings.fill(now_ms)
        if self._gathering.on:
            return []
        commit = self._ledger.next_commit(now_ms)
        if commit is None:
            return self._confirm(self._ledger.settled_confirmations(), now_ms)
        return [*self._gathering.begin_if_busy(), commit]

    def _step_down(self, reason: str) -> list[LeaderEffect]:
        self.deposed = True
        effects: list[LeaderEffect] = [
            ToBorrower(Invalidate(self.group, borrower, self.token, f"stepping down: {reason}"))
            for borrower in self._holdings.members
        ]
        return [*effects, StepDown(reason)]

    # --- refusing ---

    def _member(self, borrower: str) -> Member:
        member = self._holdings.members.get(borrower)
        if member is None:
            raise UnexpectedMessageError(
                f"leader {self.name} of {self.group} knows no borrower {borrower}", state="leading"
            )
        return member

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
