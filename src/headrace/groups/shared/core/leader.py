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

from headrace.errors import ProtocolError
from headrace.groups.decisions.core.record import What
from headrace.groups.progress import Progress
from headrace.groups.shared.core.assignment import AssignmentStatus
from headrace.groups.shared.core.holdings import Holdings
from headrace.groups.shared.core.ledger import Ledger
from headrace.groups.shared.core.messages import (
    Invalidate,
    Message,
    ProgressConfirmed,
    Unit,
    UpdateProgress,
)
from headrace.groups.shared.core.pace import Pace
from headrace.groups.shared.core.reception import Reception
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

HEARTBEATS_APART = 3
"""Leases are renewed at this many moments in the time between two heartbeats, not at others."""


class Leader(Reception):
    """The state machine that leads one group, for as long as it holds the lease."""

    def __init__(
        self,
        group: str,
        *,
        name: str,
        token: int,
        stored: Iterable[StoredUnit],
        floor: int = 0,
        settings: LeaderSettings,
        now_ms: int,
        lease_sent_ms: int | None = None,
    ) -> None:
        """`lease_sent_ms` is when the lease was asked for: its time runs from there.

        Tokens of new units begin above `floor`.
        """
        ledger = Ledger(token)
        holdings = Holdings(group, token, settings, ledger, floor)
        super().__init__(group, name, token, holdings, ledger)
        self.settings = settings
        self._pace = Pace()
        self._revision = -1
        self._list_due_ms = now_ms
        self._lease_ok_ms = now_ms if lease_sent_ms is None else lease_sent_ms
        self._lease_ttl_ms = settings.lease_ttl_ms
        """The time to live of the lease, as it was last renewed."""
        self._configured_ms = now_ms
        self._heartbeat_due_ms = now_ms + settings.heartbeat_ms
        for row in stored:
            self._holdings.restore(row)

    @property
    def unstored(self) -> bool:
        """Whether something was reported or noted that is in no commit yet."""
        return super().unstored or bool(self._pace.kept)

    @property
    def gathering(self) -> bool:
        """Whether the next commit waits for more reports."""
        return self._pace.gathering

    def snapshot(self) -> tuple[object, ...]:
        """Everything that decides what it will do, as comparable values; without its pace, which
        decides only when commits are delayed."""
        return (
            self.token,
            self.deposed,
            self.settings,
            self._pace.gathering,
            tuple(self._pace.kept),
            self._holdings.snapshot(),
            self._ledger.snapshot(),
            self._revision,
            self._list_due_ms,
            self._lease_ok_ms,
            self._lease_ttl_ms,
            self._configured_ms,
            self._heartbeat_due_ms,
        )

    def note(self, what: What, unit: Unit, reason: str, now_ms: int) -> None:
        """Remember something that the runtime has done for the group."""
        self._holdings.decide(now_ms, what, unit, None, reason)

    # --- messages ---

    def receive(self, message: Message, now_ms: int) -> list[LeaderEffect]:
        """Take a message from a borrower, after the reports that were kept before it."""
        if self.deposed:
            self._check_leading()
        pace = self._pace
        if type(message) is UpdateProgress:
            pace.reported(message.borrower, now_ms)
        if not pace.kept:
            effects = self._take(message, now_ms)
            effects += self._settle(now_ms)
            return effects
        refused = self._take_kept(now_ms)
        try:
            answers = self._take(message, now_ms)
        except ProtocolError as error:
            error.replies = (*refused, *error.replies)
            raise
        return [*map(ToBorrower, refused), *answers, *self._settle(now_ms)]

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
        holdings.learn(listing.segments, now_ms)
        effects: list[LeaderEffect] = []
        for unit in listing.gone:
            effects += holdings.lose(unit, now_ms)
        return effects + self._settle(now_ms)

    def committed(
        self, number: int, claimed: Iterable[tuple[Unit, Progress]], now_ms: int
    ) -> list[LeaderEffect]:
        """A commit is durable; `claimed` is the merged progress of each unit it claimed."""
        if self.deposed:
            self._check_leading()
        done = self._ledger.done(number)
        if done is None:
            return []  # the answer to a commit that was sent twice
        holdings, commit = self._holdings, done.commit
        effects: list[LeaderEffect] = []
        for record in commit.progress:
            if record.finished:
                state = holdings.units.get(record.unit)
                if state is not None and state.consumed and not state.finished:
                    effects += holdings.finish(state, "consumed to its end", now_ms)
        stored = dict(claimed) if commit.claims else {}
        for claim in commit.claims:
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
        effects += self._confirm(done.confirmations, now_ms)
        effects += self._settle(now_ms)
        return effects

    def _confirm(self, reports: Sequence[tuple[str, int]], now_ms: int) -> list[LeaderEffect]:
        self._pace.confirmed(reports, now_ms)
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
            self._heartbeat_due_ms = self._next_heartbeat_ms(now_ms)
            effects.append(RenewLease(self.token, self.settings.lease_ttl_ms, now_ms))
        if now_ms >= self._list_due_ms:
            self._list_due_ms = now_ms + self.settings.renew_segments_ms
            effects.append(ListSegments())
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

    def _next_heartbeat_ms(self, now_ms: int) -> int:
        """A little early, at a moment that leaders of one program have in common."""
        due_ms = now_ms + self.settings.heartbeat_ms
        return due_ms - due_ms % max(1, self.settings.heartbeat_ms // HEARTBEATS_APART)

    def beat(self, now_ms: int) -> tuple[RenewLease, int] | None:
        """The renewal, if that and listing is all that is due, and then ``rest_ms``."""
        calm_ms = self._calm_ms(now_ms)
        if now_ms < self._heartbeat_due_ms or now_ms >= calm_ms:
            return None
        self._heartbeat_due_ms = due_ms = self._next_heartbeat_ms(now_ms)
        return RenewLease(self.token, self.settings.lease_ttl_ms, now_ms), min(due_ms, calm_ms)

    def rest_ms(self, now_ms: int) -> int:
        """Until when ``tick`` finds nothing to do but listing, unless a message comes before.

        A ping only makes it later.  Not after `now_ms` while there is anything to watch.
        """
        return min(self._heartbeat_due_ms, self._calm_ms(now_ms))

    def _calm_ms(self, now_ms: int) -> int:
        holdings = self._holdings
        by_lag = self.settings.balance is Balance.LAG
        if by_lag or self.unstored or self._ledger.busy or holdings.restless:
            return now_ms
        seen_ms = min((member.seen_ms for member in holdings.members.values()), default=now_ms)
        lease_ms = self._lease_ok_ms + self._lease_ttl_ms
        return min(lease_ms, seen_ms + self.settings.borrower_timeout_ms)

    def _retry_commit(self, now_ms: int) -> list[LeaderEffect]:
        late = self._ledger.retry(now_ms, self.settings.commit_timeout_ms)
        return [] if late is None else [late]

    def _drop_silent(self, now_ms: int) -> None:
        timeout_ms = self.settings.borrower_timeout_ms
        silent = [m for m in self._holdings.members.values() if now_ms - m.seen_ms >= timeout_ms]
        for member in silent:
            self._lost(member, now_ms)

    def drop_silent(self, borrower: str, now_ms: int) -> list[LeaderEffect]:
        """A borrower is known to be dead: act as on its timeout."""
        self._check_leading()
        self._lost(self._member(borrower), now_ms)
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
        self._holdings.drop(member, What.EVICTED, f"evicted: {reason}", now_ms)
        return [ToBorrower(Invalidate(self.group, borrower, self.token, reason))]

    def configure(self, settings: LeaderSettings, now_ms: int) -> None:
        """Go on with other timers; the lease keeps its time until it is renewed, which is due."""
        self._check_leading()
        self.settings = settings
        self._configured_ms = now_ms
        self._heartbeat_due_ms = now_ms
        self._holdings.configure(settings)

    def leave(self, reason: str, now_ms: int) -> list[LeaderEffect]:
        """Give the group up in order: members finish what they have in hand, and get nothing new.

        Who does not answer is dropped, who does not finish is evicted, as always; so ``left`` is
        true in the end, and nobody who runs at all still hands out anything then.
        """
        self._check_leading()
        if self._holdings.leaving:
            return []
        self._holdings.leave(reason)
        return self.balance(now_ms)

    # --- gathering ---

    def gather(self) -> Gather:
        """Make no commit before ``gathered``: more reports are on their way."""
        return self._pace.gather()

    def keep(self, report: UpdateProgress, now_ms: int) -> bool:
        """Keep a report for the commit that is being gathered; False if none is.

        A report has no effect before it is stored, so it need not be processed before.  Any other
        message of the group is processed after the reports that came before it.
        """
        return not self.deposed and self._pace.keep(report, now_ms)

    def gathered(self, now_ms: int) -> list[LeaderEffect]:
        """Store what has come meanwhile."""
        self._check_leading()
        refused = self._take_kept(now_ms)
        self._pace.gathering = False
        return [*map(ToBorrower, refused), *self._settle(now_ms)]

    def _take_kept(self, now_ms: int) -> list[Invalidate]:
        """Process the reports that were kept; returns the replies to those that do not count."""
        refused: list[Invalidate] = []
        for report in self._pace.take(now_ms):
            try:
                self._take(report, now_ms)  # a report is answered when it is stored
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
        if self._pace.gathering:
            return []
        commit = self._ledger.next_commit(now_ms)
        if commit is not None:
            gather = self._pace.gather_if_busy()
            return [commit] if gather is None else [gather, commit]
        settled = self._ledger.settled_confirmations()
        return self._confirm(settled, now_ms) if settled else []

    def _step_down(self, reason: str) -> list[LeaderEffect]:
        self.deposed = True
        effects: list[LeaderEffect] = [
            ToBorrower(Invalidate(self.group, borrower, self.token, f"stepping down: {reason}"))
            for borrower in self._holdings.members
        ]
        return [*effects, StepDown(reason)]
