"""A leader at work: connects its core to the catalog and the clock.

Everything happens on the event loop.  The core's requests (store this, list the segments, renew
the lease) become transactions and reads; their answers go back into the core.  A full plan is
made when the peer's queues are empty.

*Looking at the log.*  The core asks for a listing once a second, and news of a stream brings the
next one forward.  Listings are rate-limited by their measured cost: they take at most a fiftieth of
the time, and those without news (which only find news that was lost) a quarter of that.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import msgspec

from headrace.catalog import Tx, entries, leases, streams
from headrace.errors import (
    CatalogClosedError,
    Fenced,
    HeadraceError,
    LeaseLost,
    ProtocolError,
    SegmentSealedError,
)
from headrace.groups.progress import Progress
from headrace.groups.progress.store import Joining
from headrace.groups.shared import properties
from headrace.groups.shared.core.leader import Leader
from headrace.groups.shared.core.messages import (
    FromLeader,
    LeaderWanted,
    Message,
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
    StoredUnit,
    ToBorrower,
)
from headrace.groups.shared.properties import GroupProperties, LeaderStatus, MemberStatus
from headrace.groups.shared.runtime import state
from headrace.groups.shared.runtime.listing import Segments
from headrace.host import Host
from headrace.host.loads import FEW

STATUS_MS = 250
"""How often decisions and shares are published in the catalog; joins and leaves are at once."""
LOOK_MS_MIN = 50
LOOK_COST_FACTOR = 50
QUIET_COST_FACTOR = 200
"""After a look, the pause is its cost times this: the first after news, the second without."""
RETRY_MS = 5
SCALE_MS = 1000
IDLE_MS = 10_000
"""A leader without borrowers steps down after this."""

_log = logging.getLogger(__name__)


class LeaderHome(Protocol):
    """What a leader needs of its peer."""

    host: Host
    name: str

    @property
    def now_ms(self) -> int:
        """The peer's clock."""
        ...

    def to_borrowers(self, messages: Sequence[FromLeader]) -> None:
        """Send messages to borrowers, wherever they are."""
        ...

    def sending(self) -> AbstractContextManager[None]:
        """A block whose messages are sent together when it ends."""
        ...

    def hear(self) -> None:
        """Read and process now what other peers have sent, without waiting for the event loop."""
        ...

    def stopped(self, leading: Leading) -> None:
        """A leader has stepped down."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a background task."""
        ...

    def rearm(self) -> None:
        """A due time may have changed: set the timer again."""
        ...

    def run(self, work: Callable[[], None]) -> None:
        """Do something, then deliver what it sent to borrowers of this process, and plan."""
        ...


class Leading:
    """One group led from this peer."""

    def __init__(
        self,
        home: LeaderHome,
        group: GroupProperties,
        token: int,
        stored: list[StoredUnit],
        *,
        lease_sent_ms: int,
    ) -> None:
        self.home = home
        self.properties = group
        self.group = group.key
        self.token = token
        self.core = Leader(
            group.key,
            name=home.name,
            token=token,
            stored=stored,
            settings=group.settings,
            now_ms=home.now_ms,
            lease_sent_ms=lease_sent_ms,
        )
        self.segments = Segments(group.filter)
        self.unplanned = False
        self.commits = 0
        self._tick_due_ms = home.now_ms
        self._retry_ms = RETRY_MS
        self._looking = False
        self._look_again = False
        self._look_due_ms = 0
        """The earliest time of the next look if there is news."""
        self._quiet_due_ms = 0
        """The earliest time of the next look without news."""
        self._status_due_ms = 0
        self._told: tuple[object, object] | None = None
        """The last decision and the members that were last published."""
        self._told_of = 0
        self._scale_due_ms = 0
        self._idle_since_ms: int | None = None
        self._committing: int | None = None
        """The number of the commit under way."""
        self._reading = False
        self._joining = Joining()
        self._heads: dict[Unit, int] = {}
        self._stop_listening: list[Callable[[], None]] = []
        self._listening_to: set[int] = set()

    # --- events ---

    def start(self) -> None:
        """Begin to lead: the first tick lists the segments."""
        on_news = self.home.host.on_news
        self._stop_listening += [
            on_news(leases.channel(state.lease_name(self.group)), self._check_lease),
            on_news(entries.channel(properties.BUCKET), self._check_properties),
        ]
        self.tick()

    def keep(self, report: UpdateProgress) -> bool:
        """Keep a report for the commit that is being gathered; False if none is."""
        return self.core.keep(report, self.home.now_ms)

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
            self._do(self.core.balance(self.home.now_ms))
            self._tell_status(self.home.now_ms)

    @property
    def due_ms(self) -> int:
        """When ``tick`` has something to do."""
        return self._tick_due_ms

    def tick(self) -> None:
        """Do what is due."""
        now_ms = self.home.now_ms
        if self.core.deposed or now_ms < self._tick_due_ms:
            return
        self._tick_due_ms = now_ms + self.properties.settings.tick_ms
        self._do(self.core.tick(now_ms))
        if self.core.deposed:
            return
        if self._look_again and now_ms >= self._look_due_ms:
            self._look()
        self._tell_status(now_ms)
        if self.properties.scale_for_members and now_ms >= self._scale_due_ms:
            self._scale_due_ms = now_ms + SCALE_MS
            self._scale()
        self._step_down_if_idle(now_ms)

    def _step_down_if_idle(self, now_ms: int) -> None:
        if self.core.present or not self.idle:
            self._idle_since_ms = None
        elif self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        elif now_ms - self._idle_since_ms >= IDLE_MS:
            self.home.spawn(self.retire("nobody is subscribed"))

    async def retire(self, reason: str) -> None:
        """Give the group up; the lease goes first, so that borrowers find it free at once."""
        await self._release()
        if not self.core.deposed:
            self._do(self.core.lease_lost(reason))

    @property
    def idle(self) -> bool:
        """Whether everything it was told is stored."""
        return self._committing is None and not self.core.unstored

    # --- effects ---

    def _do(self, effects: list[LeaderEffect]) -> None:
        """Carry out effects: messages to borrowers first, then the rest."""
        now_ms = self.home.now_ms
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
                    due_ms = self._look_due_ms if self._look_again else self._quiet_due_ms
                    if now_ms >= due_ms:
                        self._look()
                case RenewLease() as renewal:
                    self.home.spawn(self._renew(renewal))
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
        sync = _needs_sync(commit)
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
                    sync=_needs_sync(part),
                )
        except HeadraceError as error:
            self._stored(commit, [], error)
        else:
            self._stored(commit, claimed, None)

    def _transaction(
        self, part: Commit, number: int
    ) -> Callable[[Tx], list[tuple[Unit, Progress]]]:
        known = self.segments.keys
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
            self._tick_due_ms = min(self._tick_due_ms, self.home.now_ms + self._retry_ms)
            self.home.rearm()

    def _answer(self, fn: Callable[[], list[LeaderEffect]]) -> None:
        self._committing = None
        if not self.core.deposed:
            self.home.run(lambda: self._tell_core(fn))

    def _tell_core(self, fn: Callable[[], list[LeaderEffect]]) -> None:
        effects = fn()
        self.unplanned = self.unplanned or self.core.unbalanced
        self._do(effects)

    async def _renew(self, renewal: RenewLease) -> None:
        name = state.lease_name(self.group)

        def renew(tx: Tx) -> None:
            leases.renew(tx, name, renewal.token, renewal.ttl_ms)

        try:
            await self.home.host.in_transaction(renew, (leases.lock(name),), sync=False)
        except LeaseLost as error:
            if not self.core.deposed:
                self._do(self.core.lease_lost(str(error)))
        except HeadraceError as error:
            _log.warning("leader of %s cannot renew its lease: %s", self.group, error)
        else:
            if not self.core.deposed:
                self._do(self.core.lease_renewed(renewal.sent_ms))

    def _check_lease(self) -> None:
        """There is news of the lease: renew it, to see whether it is still ours."""
        if not self.core.deposed:
            settings, now_ms = self.properties.settings, self.home.now_ms
            renewal = RenewLease(self.token, settings.lease_ttl_ms, now_ms)
            self.home.spawn(self._renew(renewal))

    def _check_properties(self) -> None:
        """Some group was made, changed or deleted: read whether it is this one."""
        if not self._reading and not self.core.deposed:
            self._reading = True
            self.home.spawn(self._read_properties())

    async def _read_properties(self) -> None:
        self._reading = False  # what changes from here on is read again
        try:
            found = await self.home.host.in_thread(
                self.home.host.log.catalog.read, lambda tx: properties.get(tx, self.group)
            )
        except HeadraceError as error:
            _log.warning("leader of %s cannot read its settings: %s", self.group, error)
            return
        if found is None or found == self.properties or self.core.deposed:
            return
        _log.info("leader of %s goes on with other settings", self.group)
        self.properties = found
        self.core.configure(found.settings, self.home.now_ms)
        self._tick_due_ms = self.home.now_ms
        self.home.rearm()

    def _stop(self, reason: str) -> None:
        _log.info("leader of %s steps down: %s", self.group, reason)
        for stop in self._stop_listening:
            stop()
        self.home.stopped(self)
        self.home.spawn(self._release())

    async def _release(self) -> None:
        name = state.lease_name(self.group)
        try:
            await self.home.host.in_transaction(
                lambda tx: leases.release(tx, name, self.token), (leases.lock(name),), sync=False
            )
        except HeadraceError as error:
            _log.warning("the lease of %s is left to run out: %s", self.group, error)

    # --- the log ---

    def news(self) -> None:
        """A stream of the group has changed."""
        self._look_again = True
        now_ms = self.home.now_ms
        if now_ms >= self._look_due_ms and not self.core.deposed:
            self._look()

    def _look(self) -> None:
        if self._looking:
            self._look_again = True
            return
        self._looking = True
        self.home.spawn(self._list())

    async def _list(self) -> None:
        clock = self.home.host.clock
        began_s = clock.spent_s()
        self._look_again = False  # news from here on calls for another look
        catalog = self.home.host.log.catalog
        try:
            look = await self.home.host.in_thread(catalog.read, self.segments.look, snapshot=True)
        except HeadraceError as error:
            self._looking = False
            _log.warning("leader of %s cannot look at the log: %s", self.group, error)
            return
        self._looking = False
        if self.core.deposed:
            return
        listing = self.segments.changes(look, self.core.units)
        self._listen(look.streams)
        self.unplanned = True
        self._do(self.core.segments_listed(listing, self.home.now_ms))
        self.plan()
        cost_ms = (clock.spent_s() - began_s) * 1000
        now_ms = self.home.now_ms
        self._look_due_ms = now_ms + max(LOOK_MS_MIN, int(cost_ms * LOOK_COST_FACTOR))
        regular_ms = self.properties.settings.renew_segments_ms // 2
        self._quiet_due_ms = now_ms + max(regular_ms, int(cost_ms * QUIET_COST_FACTOR))

    def _listen(self, found: dict[int, str]) -> None:
        """Hear when one of the streams changes."""
        for stream_id in sorted(set(found) - self._listening_to):
            self._listening_to.add(stream_id)
            channel = streams.channel(stream_id)
            self._stop_listening.append(self.home.host.on_news(channel, self.news))

    def _scale(self) -> None:
        """More members than segments: split the one that takes most, one at a time."""
        units = self.core.units
        waiting = [u for u in units.values() if not (u.finished or u.ready)]
        active = [u for u in units.values() if u.active and u.end is None]
        grown = {u.unit: u.head - self._heads.get(u.unit, u.head) for u in active}
        self._heads = {u.unit: u.head for u in active}
        if waiting or not active or len(self.core.shares(self.home.now_ms)) <= len(active):
            return
        hottest = max(active, key=lambda u: (grown[u.unit], u.lag, u.unit))
        stream, _, number = hottest.unit.rpartition("/")
        self.home.spawn(self._split(stream, int(number)))

    async def _split(self, stream: str, number: int) -> None:
        try:
            await self.home.host.in_thread(self.home.host.log.split, stream, number, 2)
        except SegmentSealedError:
            return  # somebody else was quicker
        except HeadraceError as error:
            _log.warning("segment %s of %s cannot be split: %s", number, stream, error)
            return
        now_ms = self.home.now_ms
        reason = "more members than segments: split the one that takes most"
        self.core.note("scale", f"{stream}/{number}", reason, now_ms)
        self.news()

    # --- what others see ---

    def status(self, now_ms: int) -> LeaderStatus:
        """The state of the group, as it is published."""
        offset_ms = self.home.host.clock.wall_us() // 1000 - now_ms
        return LeaderStatus(
            leader=self.home.name,
            token=self.token,
            at_us=0,
            members=tuple(
                MemberStatus(
                    member=view.borrower,
                    session=view.session,
                    units=view.units,
                    share=view.share,
                    benched_ms=view.benched_ms,
                )
                for view in self.core.members(now_ms)
            ),
            decisions=tuple(
                msgspec.structs.replace(decision, at_ms=decision.at_ms + offset_ms)
                for decision in self.core.decisions
            ),
        )

    def _tell_status(self, now_ms: int) -> None:
        if self.core.deposed:
            return
        present = self.core.present
        if now_ms < self._status_due_ms and self._told_of == len(present):
            return
        self._status_due_ms = now_ms + STATUS_MS
        decided = self.core.decisions[-1] if self.core.decisions else None
        members = tuple(
            (m.borrower, m.units, m.share, m.benched_ms > 0) for m in self.core.members(now_ms)
        )
        if self._told is not None and self._told[0] is decided and self._told[1] == members:
            return
        self._told = (decided, members)
        self._told_of = len(present)
        self.home.spawn(self._put_status(self.status(now_ms)))

    async def _put_status(self, status: LeaderStatus) -> None:
        lock = properties.status_locks(self.group)
        try:
            await self.home.host.in_transaction(
                lambda tx: properties.put_status(tx, self.group, status), lock, sync=False
            )
        except HeadraceError:
            self._told = None  # published again, if this one still leads


def _needs_sync(commit: Commit) -> bool:
    """Whether to wait for the disk: a lost ack repeats an event, a lost claim repeats a token."""
    return bool(commit.claims or commit.forget)


def _session_of(borrower: str) -> tuple[str, int]:
    """Session and incarnation of a borrower; agents name them so."""
    session, _, rest = borrower.partition(":")
    incarnation = rest.partition(":")[0]
    return session, int(incarnation) if incarnation.isdecimal() else 0
