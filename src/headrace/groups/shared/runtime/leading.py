"""A leader at work: connects its core to the catalog and the clock.

Everything happens on the event loop.  The core's requests (store this, list the segments, renew
the lease) become transactions and reads; their answers go back into the core.  A full plan is
made when the peer's queues are empty.

``lookout`` looks at the log for it, ``bulletin`` publishes what it does, ``retiring`` is its end.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.catalog import Tx, leases
from headrace.errors import (
    CatalogClosedError,
    Fenced,
    HeadraceError,
    LeaseLost,
    ProtocolError,
)
from headrace.groups.progress import Progress
from headrace.groups.progress.store import Joining
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import (
    LeaderWanted,
    Message,
    Ping,
    Unit,
    UpdateProgress,
)
from headrace.groups.shared.core.records import (
    Commit,
    Gather,
    LeaderEffect,
    ListSegments,
    RenewLease,
    StepDown,
    StoredGroup,
    ToBorrower,
)
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime import state
from headrace.groups.shared.runtime.bulletin import STATUS_MS, Bulletin
from headrace.groups.shared.runtime.listing import Look
from headrace.groups.shared.runtime.lookout import Lookout
from headrace.groups.shared.runtime.retiring import Retiring
from headrace.host.loads import FEW

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.peer import LocalPeer

RETRY_MS = 5
STIRRED_MS = 2 * STATUS_MS
"""A leader to which nothing happens ticks on for this, and then only when something is due: of
hundreds of idle groups each tick would cost as much as all their pings."""

_log = logging.getLogger(__name__)


class Leading:
    """One group led from this peer."""

    def __init__(
        self,
        home: LocalPeer,
        group: GroupProperties,
        token: int,
        stored: StoredGroup,
        *,
        lease_sent_ms: int,
    ) -> None:
        self.home = home
        self.properties = group
        self.group = group.key
        self.lease = state.lease_name(group.key)
        self.token = token
        self.core = Leader(
            group.key,
            name=home.name,
            token=token,
            stored=stored.units,
            floor=stored.floor,
            settings=group.settings,
            now_ms=home.now_ms,
            lease_sent_ms=lease_sent_ms,
        )
        self.lookout = Lookout(self)
        self.bulletin = Bulletin(self)
        self.unplanned = False
        self.commits = 0
        self.due_ms = home.now_ms
        """When ``tick`` has something to do."""
        self._resting = False
        """Whether ``due_ms`` is later than the next tick, since nothing happens."""
        self._stirred_ms = home.now_ms
        self._retry_ms = RETRY_MS
        self._committing: int | None = None
        """The number of the commit under way."""
        self._joining = Joining()
        self._stop_listening: Callable[[], None] | None = None
        self._retiring = Retiring(self)

    # --- events ---

    def start(self) -> None:
        """Begin to lead: the first tick lists the segments."""
        upkeep, channel = self.home.upkeep, leases.channel(self.lease)
        self._stop_listening = self.home.host.on_news(channel, lambda: upkeep.check_lease(self))
        self.tick()

    def keep(self, report: UpdateProgress) -> bool:
        """Keep a report for the commit that is being gathered; False if none is."""
        return self.core.keep(report, self.home.now_ms)

    def answers(self, ping: Ping, now_ms: int) -> bool:
        """Whether a ping is answered; False: it has to be received like any message."""
        return not self.core.deposed and self.core.answers(ping, now_ms)

    def receive(self, message: Message) -> None:
        """A message of a borrower."""
        if self.core.deposed:
            return
        if isinstance(message, LeaderWanted):
            self._replace_former(message)
        try:
            effects = self.core.receive(message, self.home.now_ms)
        except ProtocolError as error:
            _log.debug("%s", error)
            if error.replies:
                self.home.to_borrowers(error.replies)  # type: ignore[arg-type]
            return
        self.unplanned = self.unplanned or self.core.unbalanced
        if self._resting or not isinstance(message, UpdateProgress):
            self.stir()
        if effects:
            self._do(effects)

    def _replace_former(self, message: LeaderWanted) -> None:
        """A session that was taken over loses its units at once: its successor asks for them."""
        session, incarnation = _session_of(message.borrower)
        for borrower in list(self.core.present):
            other, before = _session_of(borrower)
            if other == session and before < incarnation:
                self._do(self.core.drop_silent(borrower, self.home.now_ms))

    def plan(self) -> None:
        """The queues are empty: make a new plan if one is needed."""
        if self.unplanned and not self.core.deposed:
            self.unplanned = False
            self.stir()
            self._do(self.core.balance(self.home.now_ms))
            self.bulletin.update()
        if self._retiring.leaving:
            self._retiring.go_if_left()

    def tick(self) -> None:
        """Do what is due."""
        now_ms = self.home.now_ms
        if self.core.deposed or now_ms < self.due_ms or self._beat(now_ms):
            return
        self._do(self.core.tick(now_ms))
        if self.core.deposed:
            return
        self.lookout.tick(now_ms)
        if not self._resting:
            self.bulletin.update()
        self._retiring.tick(now_ms)
        self.due_ms = self._next_tick(now_ms)
        if self._retiring.idle_since_ms is None and now_ms - self._stirred_ms >= STIRRED_MS:
            rest_ms = min(self.core.rest_ms(now_ms), self.lookout.rest_ms(now_ms))
            self._resting = rest_ms > now_ms
            self.due_ms = max(self.due_ms, self._next_tick(rest_ms - 1))

    def _beat(self, now_ms: int) -> bool:
        """While it rests: renew the lease, and nothing else; False if there is more to do."""
        looks_ms = self.lookout.rest_ms(now_ms) if self._resting else now_ms
        if looks_ms <= now_ms or (found := self.core.beat(now_ms)) is None:
            return False
        renewal, rest_ms = found
        self.home.upkeep.renew(self, renewal)
        self.due_ms = self._next_tick(min(rest_ms, looks_ms) - 1)
        return True

    def _next_tick(self, after_ms: int) -> int:
        """The first time after ``after_ms`` at which leaders tick, all of a process together."""
        tick_ms = self.properties.settings.tick_ms
        return after_ms - after_ms % tick_ms + tick_ms

    def stir(self) -> None:
        """Something has happened that ``tick`` may have to see to: stop resting."""
        self._stirred_ms = self.home.now_ms
        if self._resting:
            self._resting = False
            self.due_ms = min(self.due_ms, self._next_tick(self._stirred_ms))
            self.home.rearm()

    def leave(self, reason: str) -> None:
        """The group is to be consumed elsewhere: its members finish what they have, then retire."""
        if self._retiring.leave(reason):
            now_ms = self.home.now_ms
            self.home.run(lambda: self._tell_core(lambda: self.core.leave(reason, now_ms)))

    async def retire(self, reason: str) -> None:
        """Give the group up; the lease goes first, so that borrowers find it free at once."""
        await self._retiring.release(reason)
        if not self.core.deposed:
            self._do(self.core.lease_lost(reason))

    @property
    def idle(self) -> bool:
        """Whether everything it was told is stored."""
        return self._committing is None and not self.core.unstored

    # --- effects ---

    def _do(self, effects: list[LeaderEffect]) -> None:
        """Carry out effects: messages to borrowers first, then the rest."""
        messages = [effect.message for effect in effects if isinstance(effect, ToBorrower)]
        if messages:
            self.home.to_borrowers(messages)
        if len(messages) == len(effects):
            return
        for effect in effects:
            match effect:
                case Commit(number=number) as commit:
                    # The catalog always answers, so a commit under way need not be sent again.
                    if self._committing != number:
                        self._committing = number
                        self._store(commit)
                case Gather(for_ms=for_ms, judging=judging):
                    self.home.host.after(for_ms / 1000, self._gathered)
                    if judging:
                        self.home.host.after(for_ms / 2000, self.home.hear)
                case ListSegments():
                    self.lookout.look_if_due(self.home.now_ms)
                case RenewLease() as renewal:
                    self.home.upkeep.renew(self, renewal)
                case StepDown(reason=reason):
                    self._stop(reason)

    def _gathered(self) -> None:
        with self.home.sending():
            try:
                self.home.hear()
            finally:  # even if a message fails: without this there is no next commit
                if not self.core.deposed:
                    effects = self.core.gathered(self.home.now_ms)
                    self.unplanned = self.unplanned or self.core.unbalanced
                    self._do(effects)
            if not self.core.gathering:
                self.home.hear()  # commits are no longer spaced out: nothing may wait in sockets

    def _store(self, commit: Commit) -> None:
        """Store a commit, in parts if it is long; sent again by the core when it fails."""
        if state.is_long(commit):
            self.home.spawn(self._store_parts(commit))
            return
        host = self.home.host
        run = self._transaction(commit, 0)
        sync = _needs_sync(commit) or host.log.catalog.acks_need_sync
        small = len(commit.progress) <= FEW and not commit.claims
        stored = functools.partial(self._stored, commit)
        with suppress(CatalogClosedError):
            locks = state.locks(self.group, commit) if host.log.catalog.locking else ()
            host.submit(run, locks, stored, sync=sync, small=small)

    async def _store_parts(self, commit: Commit) -> None:
        claimed: list[tuple[Unit, Progress]] = []
        try:
            for number, part in enumerate(state.parts(commit)):
                claimed += await self.home.host.in_transaction(
                    self._transaction(part, number),
                    state.locks(self.group, part),
                    sync=_needs_sync(part) or self.home.host.log.catalog.acks_need_sync,
                )
        except HeadraceError as error:
            self._stored(commit, [], error)
        else:
            self._stored(commit, claimed, None)

    def _transaction(
        self, part: Commit, number: int
    ) -> Callable[[Tx], list[tuple[Unit, Progress]]]:
        known = self.lookout.segments.keys
        segments = {r.unit: known[r.unit] for r in part.progress if r.unit in known}
        if part.claims:
            segments |= {r.unit: known[r.unit] for r in part.claims if r.unit in known}
        return functools.partial(
            state.run_commit,
            group=self.group,
            commit=part,
            segments=segments,
            part=number,
            joining=self._joining,
        )

    def _stored(
        self, commit: Commit, claimed: list[tuple[Unit, Progress]], error: BaseException | None
    ) -> None:
        """A commit has succeeded or failed: tell the core."""
        number = commit.number
        if error is None:
            self.commits += 1
            self._retry_ms = RETRY_MS
            self._answer(lambda: self.core.committed(number, claimed, self.home.now_ms))
        elif isinstance(error, LeaseLost | Fenced):
            lost = str(error)
            self._answer(lambda: self.core.commit_failed(number, lost, lost=True))
        elif not isinstance(error, CatalogClosedError):
            reason = str(error)
            _log.warning("leader of %s cannot store its progress: %s", self.group, reason)
            self._answer(lambda: self.core.commit_failed(number, reason, lost=False))
            # Tried again by ``tick``, soon at first: most often a connection was lost and is back.
            self._retry_ms = min(self._retry_ms * 2, self.properties.settings.tick_ms)
            self.due_ms = min(self.due_ms, self.home.now_ms + self._retry_ms)
            self.home.rearm()

    def _answer(self, fn: Callable[[], list[LeaderEffect]]) -> None:
        self._committing = None
        if not self.core.deposed:
            self.home.run(lambda: self._tell_core(fn))

    def _tell_core(self, fn: Callable[[], list[LeaderEffect]]) -> None:
        effects = fn()
        self.unplanned = self.unplanned or self.core.unbalanced
        self.stir()
        self._do(effects)

    def renewed(self, renewal: RenewLease, lost: LeaseLost | None) -> None:
        """The lease was extended, or is somebody else's."""
        if lost is not None:
            self.lose(lost)
        elif not self.core.deposed:
            self._do(self.core.lease_renewed(renewal.sent_ms))

    def lose(self, lost: LeaseLost) -> None:
        """The lease is not ours any more."""
        if not self.core.deposed:
            self._do(self.core.lease_lost(str(lost)))

    def configure(self, found: GroupProperties) -> None:
        """Go on with what is stored of the group now."""
        if found == self.properties or self.core.deposed:
            return
        _log.info("leader of %s goes on with other settings", self.group)
        self.properties = found
        self.core.configure(found.settings, self.home.now_ms)
        self.due_ms = self.home.now_ms
        self.home.rearm()

    def listed(self, look: Look) -> None:
        """The log was looked at: tell the core what is new."""
        listing = self.lookout.segments.changes(look, self.core.units)
        self.unplanned = True
        self._do(self.core.segments_listed(listing, self.home.now_ms))
        self.plan()

    def _stop(self, reason: str) -> None:
        _log.info("leader of %s steps down: %s", self.group, reason)
        self.lookout.stop()
        if self._stop_listening is not None:
            self._stop_listening()
        self.home.stopped(self)
        self.home.spawn(self._retiring.release(reason))


def _needs_sync(commit: Commit) -> bool:
    """Whether to wait for the disk: a lost ack repeats an event, a lost claim repeats a token."""
    return bool(commit.claims or commit.forget)


def _session_of(borrower: str) -> tuple[str, int]:
    """Session and incarnation of a borrower; agents name them so."""
    session, _, rest = borrower.partition(":")
    incarnation = rest.partition(":")[0]
    return session, int(incarnation) if incarnation.isdecimal() else 0
