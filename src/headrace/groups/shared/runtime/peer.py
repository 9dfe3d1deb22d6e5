"""The peer: everything of shared groups that a process has one of.

It holds the registry, the leaders that this process has won, the listener and the connections to
other peers, and it knows the local sessions.  Messages within the process wait in two queues, one
for leaders and one for sessions, since cores are not re-entrant; when both are empty, leaders plan.

*Who empties them.*  Normally the event loop at its next turn (``post``), so that messages that come
together make one plan.  But an ack would wait for several turns, and in each of them the threads
that read ahead may take the GIL.  So there are two short cuts.  Acks are delivered to leaders of
this process within the call (``hand_over``), which is safe because leaders never call a session,
they only queue messages for it.  And a commit that is stored delivers its confirmations to the
sessions in the same turn (``run``).
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from headrace.catalog import Tx, leases
from headrace.errors import HeadraceError, LeaseLost
from headrace.groups.shared import properties
from headrace.groups.shared.core.messages import (
    FromBorrower,
    FromLeader,
    Invalidate,
    Message,
    UpdateProgress,
)
from headrace.groups.shared.core.records import StoredUnit
from headrace.groups.shared.core.registry import (
    Forward,
    LookUp,
    Registry,
    RegistryEffect,
    Reply,
    StartLeader,
    ToLocalLeader,
)
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime import directory, frames, state
from headrace.groups.shared.runtime.directory import Address
from headrace.groups.shared.runtime.leading import Leading
from headrace.host import Host
from headrace.host.timers import NEVER
from headrace.net import Links, Listener, Outbox, Secured, Target

ROUTES_MAX = 100_000
LOAD_RETRY_S = 0.2
CLOSE_MS = 2000
ADDRESS_MS = 3_600_000
DISTRUST_MS = 30_000
"""How long a process does not claim groups after TLS has kept it from speaking to a leader."""
FAR_MS = 2**62
REARM_S = 0.01
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Wildcard addresses, which nobody can dial, and what is registered in their place."""

_log = logging.getLogger(__name__)


class SharedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How this process takes part in shared groups."""

    host: str = "127.0.0.1"
    """The address to listen on; other machines need one that they can reach."""
    port: int = 0
    """0: any that is free."""
    advertise: str | None = None
    """What others dial, if it is not `host`."""
    borrower: BorrowerSettings = BorrowerSettings()
    leader: LeaderSettings = LeaderSettings()
    """Of groups that appear with their first subscriber; others keep what they were made with."""

    @property
    def dialled(self) -> str:
        """The address under which others reach this process."""
        return self.advertise or _ANY.get(self.host, self.host)


class LocalSession(Protocol):
    """What a peer needs of a session."""

    def receive(self, message: FromLeader) -> None:
        """A message of a leader."""
        ...

    def on_cut(self, peer: str) -> None:
        """The connection to a leader's peer ended."""
        ...

    @property
    def due_ms(self) -> int:
        """When ``tick`` has something to do."""
        ...

    def tick(self) -> None:
        """Do what is due."""
        ...


class LocalPeer:
    """Shared groups in this process."""

    def __init__(self, host: Host, options: SharedOptions, secured: Secured | None = None) -> None:
        self.host = host
        self.options = options
        self.name = host.clock.name()
        self.registry = Registry(self.name, remember_ms=options.borrower.find_leader_ms)
        self.leaders: dict[str, Leading] = {}
        self.unroutable = 0
        """Messages to borrowers that are neither here nor anywhere else."""
        self.listener = Listener(self._gathers, secured)
        self.listener.serve(frames.to_borrowers(), self._from_peer)
        self.peers = Links(
            frames.to_leaders(),
            self._look_up_peer,
            self._from_leader,
            self._on_cut,
            secured,
            self._on_refused,
        )
        self._leads_from_ms = 0
        """Before this time it claims no group, since TLS keeps others from talking to it."""
        self._tls = secured is not None
        self._loading: dict[str, StartLeader] = {}
        self._sessions: dict[str, LocalSession] = {}
        self._routes: dict[str, Outbox[FromLeader]] = {}
        self._queue: deque[Callable[[], None]] = deque()
        """Calls for leaders and for the registry, in order."""
        self._mail: deque[FromLeader] = deque()
        """Messages for sessions, in order."""
        self._drain_due = False
        self._draining = False
        self._plan_due = False
        """Whether a leader has something to plan."""
        self._tasks = host.tasks("shared groups")
        self._timer = host.timer(self._tick)
        self._rearming = host.timer(self._rearm)
        self._address_due_ms = 0
        self._address: Address | None = None
        self._loop = host.loop
        self._now_ms = host.now_ms
        self._closing = False
        self._closed = False

    # --- beginning and end ---

    async def open(self) -> None:
        """Listen, and register where."""
        _, port = await self.listener.open(self.options.host, self.options.port)
        self._address = Address(self.name, self.options.dialled, port, tls=self._tls)
        self.listener.admit(await self._register(self._address))
        self._address_due_ms = self.now_ms + ADDRESS_MS

    async def _register(self, address: Address) -> str:
        return await self.host.in_transaction(
            lambda tx: directory.register(tx, address), directory.locks()
        )

    async def close(self) -> None:
        """Step down everywhere, tell borrowers, and close the connections."""
        self._closing = True
        for leading in list(self.leaders.values()):
            # What borrowers have reported is stored before their leader goes.
            await self._until(functools.partial(getattr, leading, "idle"))
            await leading.retire("its process is closing")
        await self._until(lambda: not self._queue and not self._mail and not self._unsent)
        self._closed = True
        self._timer.clear()
        self._rearming.clear()
        await self._tasks.rest()
        await self.peers.close()
        await self.listener.close()
        try:
            await self.host.in_transaction(
                lambda tx: directory.unregister(tx, self.name), directory.locks(), sync=False
            )
        except HeadraceError as error:
            _log.warning("the address of this peer stays registered: %s", error)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Poll a condition every millisecond, for ``CLOSE_MS`` at most."""
        for _ in range(CLOSE_MS):
            if done():
                return
            await self.host.sleep(0.001)

    @property
    def _unsent(self) -> bool:
        return self.peers.unsent or self.listener.unsent

    @property
    def now_ms(self) -> int:
        """The monotonic clock."""
        return self._now_ms()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; its failure is logged."""
        if self._closed:
            work.close()
        else:
            self._tasks.spawn(work)

    # --- sessions ---

    def add_session(self, key: str, session: LocalSession) -> None:
        """A session is opened here; `key` is the prefix of its borrowers' names."""
        self._sessions[key] = session

    def drop_session(self, key: str) -> None:
        """A session is closed."""
        self._sessions.pop(key, None)

    def ask(self, message: FromBorrower) -> None:
        """A borrower here looks for its leader."""
        self.post(lambda: self._do(self.registry.wanted(message, self.now_ms)))

    def tell(self, peer: str, message: FromBorrower) -> None:
        """A borrower here speaks to its leader."""
        if peer == self.name:
            self.post(lambda: self._to_leader(message))
        else:
            self.peers.send(peer, message)

    # --- messages ---

    def post(self, work: Callable[[], None]) -> None:
        """Queue a call; the event loop makes it at its next turn."""
        self._queue.append(work)
        self._drain_soon()

    def _drain_soon(self) -> None:
        if not self._draining and not self._drain_due:
            self._drain_due = True
            self._loop.call_soon(self._drain)

    def run(self, work: Callable[[], None]) -> None:
        """Make a call, then empty both queues; if they are being emptied, only the call is made.

        Not to be called by sessions: they are not re-entrant, and this delivers their messages.
        """
        if self._draining:
            work()
            return
        self._draining = True
        try:
            work()
        finally:
            self._draining = False
            self._drain()

    def hand_over(self, work: Callable[[], None]) -> None:
        """Make a call that sends to leaders; those of this process have it when this returns."""
        if self._draining:
            work()
            return
        self._draining = True
        try:
            work()
            self._empty_queue()
        finally:
            self._draining = False
            if self._mail or self._queue or self._plan_due:
                self._drain_soon()

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        self._drain_due = False
        try:
            waiting = True
            while waiting:
                while self._queue or self._mail:
                    self._empty_queue()
                    while self._mail:
                        self._deliver(self._mail.popleft())
                self._plan_due = False
                for leading in list(self.leaders.values()):
                    leading.plan()
                waiting = bool(self._queue or self._mail)
        finally:
            self._draining = False
        self.rearm()

    def _empty_queue(self) -> None:
        while self._queue:
            work = self._queue.popleft()
            try:
                work()
            except Exception as error:  # must not reach the caller, who may be any session
                context = {"message": "shared groups: a message was lost", "exception": error}
                self._loop.call_exception_handler(context)

    def _from_leader(self, messages: list[FromLeader], _: Outbox[FromBorrower]) -> None:
        """Leaders elsewhere speak to borrowers here."""
        self._mail += messages
        self._drain_soon()

    def _from_peer(self, messages: list[FromBorrower], outbox: Outbox[FromLeader]) -> None:
        """Borrowers elsewhere speak to leaders here; answers go back the same way."""
        routes, leaders = self._routes, self.leaders
        # Order is kept: once a message has to wait in the queue, all that follow wait, too.
        waiting = messages if self._queue else []
        for number, message in enumerate(messages):
            if routes.get(message.borrower) is not outbox:
                routes.pop(message.borrower, None)
                routes[message.borrower] = outbox
                if len(routes) > ROUTES_MAX:
                    routes.pop(next(iter(routes)))
            if waiting:
                continue
            if isinstance(message, UpdateProgress):
                leading = leaders.get(message.group)
                if leading is not None and leading.keep(message):
                    continue  # the leader processes it with the commit
            waiting = messages[number:]
        if waiting:
            self.post(functools.partial(self._receive, waiting))

    def hear(self) -> None:
        """Read now what other peers have sent, though the listener puts off reading for a while.

        The queue is emptied, too: a report behind another message would miss the commit.  Call it
        only from a callback of the event loop, since cores are called and are not re-entrant.
        """
        self.listener.look()
        if self._queue:
            self._drain()

    def _gathers(self) -> bool:
        """Whether all leaders here delay their commits: then the listener may put off reading."""
        leaders = self.leaders.values()
        return bool(leaders) and all(leading.core.gathering for leading in leaders)

    def _receive(self, messages: list[FromBorrower]) -> None:
        for message in messages:
            self._to_leader(message)

    def _to_leader(self, message: FromBorrower) -> None:
        leading = self.leaders.get(message.group)
        if leading is not None and isinstance(message, UpdateProgress):
            leading.receive(message)  # a short cut past the registry, for most messages
            self._plan_due = self._plan_due or leading.unplanned
        else:
            self._do(self.registry.received(message, self.now_ms))

    def to_borrowers(self, messages: Sequence[FromLeader]) -> None:
        """Send messages to borrowers, each here or where it last spoke from."""
        routes = self._routes
        for message in messages:
            outbox = routes.get(message.borrower)
            if outbox is not None and not outbox.closed:
                outbox.put(message)
            elif _session_key(message) in self._sessions:
                self._mail.append(message)
                self._drain_soon()
            else:
                self.unroutable += 1

    def sending(self) -> AbstractContextManager[None]:
        """A block whose messages to other processes are sent together when it ends."""
        return self.listener.sending()

    def _on_cut(self, peer: str) -> None:
        """A connection broke: sessions send again at once what may be lost, without a timeout."""
        for session in self._sessions.values():
            session.on_cut(peer)
        self.rearm()

    def _on_refused(self, peer: str) -> None:  # noqa: ARG002
        """TLS failed with a peer: claim no group for a while, its borrowers could not reach us."""
        self._leads_from_ms = self.now_ms + DISTRUST_MS

    def _deliver(self, message: FromLeader) -> None:
        session = self._sessions.get(_session_key(message))
        if session is not None:
            if isinstance(message, Invalidate):
                self.registry.forget(message.group)
            session.receive(message)

    async def _look_up_peer(self, peer: str) -> Target | None:
        def look(tx: Tx) -> Target | None:
            found, secret = directory.find(tx, peer), directory.secret(tx)
            if found is None or secret is None:
                return None
            return Target(found.host, found.port, secret, found.tls)

        return await self.host.in_thread(self.host.log.catalog.read, look)

    # --- the registry's effects ---

    def _do(self, effects: list[RegistryEffect]) -> None:
        for effect in effects:
            match effect:
                case LookUp(group=group):
                    self.spawn(self._look_up(group))
                case Forward(peer=peer, message=message):
                    self.peers.send(peer, message)
                case ToLocalLeader(message=message):
                    if (leading := self.leaders.get(message.group)) is not None:
                        leading.receive(message)
                        self._plan_due = self._plan_due or leading.unplanned
                case StartLeader() as start:
                    self._loading[start.group] = start
                    self.spawn(self._load(start))
                case Reply(message=message):
                    self.to_borrowers((message,))

    async def _look_up(self, group: str) -> None:
        """Find who leads a group, and claim it if nobody does."""
        sent_ms = self.now_ms
        name = state.lease_name(group)

        def read(tx: Tx) -> tuple[GroupProperties | None, str | None]:
            held = leases.get(tx, name)
            return properties.get(tx, group), None if held is None else held.owner

        def claim(tx: Tx) -> tuple[str | None, int]:
            found, owner = read(tx)
            if found is None or owner is not None:
                return owner, 0
            taken = leases.acquire(tx, name, self.name, found.settings.lease_ttl_ms)
            return None, 0 if taken is None else taken.token

        try:
            found, owner = await self.host.in_thread(
                self.host.log.catalog.read, read, snapshot=True
            )
            token = 0
            may_lead = not self._closing and self.now_ms >= self._leads_from_ms
            if found is not None and owner is None and may_lead:
                owner, token = await self.host.in_transaction(claim, (leases.lock(name),))
        except HeadraceError as error:
            _log.warning("cannot find the leader of %s: %s", group, error)
            self.registry.failed(group)
            return
        if token:
            self.post(lambda: self._do(self.registry.won(group, token, sent_ms)))
        elif owner is not None:
            leader = owner
            self.post(lambda: self._do(self.registry.found(group, leader, self.now_ms)))
        else:
            self.registry.failed(group)  # no such group, now; borrowers ask again

    async def _load(self, start: StartLeader) -> None:
        """Read the group's state and lead it; again, until it works or the lease is gone."""
        group = start.group

        def read(tx: Tx) -> tuple[GroupProperties, list[StoredUnit]]:
            leases.check(tx, state.lease_name(group), start.token)
            found = properties.require(tx, group)
            return found, state.load(tx, group, found.filter)

        while self._loading.get(group) == start and not self._closed:
            try:
                found, rows = await self.host.in_thread(
                    self.host.log.catalog.read, read, snapshot=True
                )
            except (LeaseLost, LookupError):
                break
            except HeadraceError as error:
                _log.warning("cannot load %s: %s", group, error)
                await self.host.sleep(LOAD_RETRY_S)
                if self.now_ms - start.sent_ms > self.options.leader.lease_ttl_ms:
                    break
            else:
                self.post(functools.partial(self._start, start, found, rows))
                return
        self._loading.pop(group, None)
        self.registry.failed(group)

    def _start(self, start: StartLeader, found: GroupProperties, rows: list[StoredUnit]) -> None:
        self._loading.pop(start.group, None)
        leading = Leading(self, found, start.token, rows, lease_sent_ms=start.sent_ms)
        self.leaders[start.group] = leading
        leading.start()
        if self.leaders.get(start.group) is leading:
            self._do(self.registry.started(start.group, start.token))
        else:
            # The lease ran out while the state was loaded: this one never led.
            self.registry.failed(start.group)

    def stopped(self, leading: Leading) -> None:
        """A leader has stepped down."""
        if self.leaders.get(leading.group) is leading:
            del self.leaders[leading.group]
        self.registry.stopped(leading.group, leading.token)

    # --- time ---

    def rearm(self) -> None:
        """Set the timer anew within ``REARM_S``; many changes in that time are one."""
        if self._rearming.at_s == NEVER and not self._closed:
            self._rearming.after(REARM_S)

    def _rearm(self) -> None:
        due = [each.due_ms for each in self.leaders.values()]
        due += [each.due_ms for each in self._sessions.values()]
        due_ms = min(due, default=FAR_MS)
        if due_ms < FAR_MS:
            self._timer.set_ms(due_ms)
        else:
            self._timer.clear()

    def _tick(self) -> None:
        for leading in list(self.leaders.values()):
            leading.tick()
        for session in list(self._sessions.values()):
            session.tick()
        if self._address is not None and self.now_ms >= self._address_due_ms:
            self._address_due_ms = self.now_ms + ADDRESS_MS
            self.spawn(self._confirm(self._address))
        self._rearm()

    async def _confirm(self, address: Address) -> None:
        await self._register(address)


def _session_key(message: Message) -> str:
    """The part of a borrower's name that says which session it belongs to."""
    return message.borrower.rpartition(":")[0]
