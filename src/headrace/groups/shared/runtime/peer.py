"""The peer: everything of shared groups that a process has one of.

It holds the registry, the leaders that this process has won, the listener, the connections to other
peers, and local sessions.  Messages within the process wait in its ``mail``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from headrace.catalog import entries
from headrace.errors import HeadraceError
from headrace.groups import homes
from headrace.groups.shared import properties
from headrace.groups.shared.core.messages import (
    FromBorrower,
    FromLeader,
    Invalidate,
    Ping,
    UpdateProgress,
)
from headrace.groups.shared.core.records import StoredGroup
from headrace.groups.shared.core.registry import (
    Forward,
    LookUp,
    Registry,
    RegistryEffect,
    Reply,
    StartLeader,
    ToLocalLeader,
)
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime import directory, frames
from headrace.groups.shared.runtime.directory import Address
from headrace.groups.shared.runtime.election import Election
from headrace.groups.shared.runtime.leading import Leading
from headrace.groups.shared.runtime.mail import Mail, session_key
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.groups.shared.runtime.relay import RelayOutbox
from headrace.groups.shared.runtime.sweep import SessionSweep
from headrace.groups.shared.runtime.upkeep import Upkeep
from headrace.groups.shared.runtime.ways import Ways
from headrace.host import Host
from headrace.host.timers import NEVER
from headrace.net import LARGE_FRAME_BYTES_MAX, Links, Listener, Outbox, Secured, Target

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.borrowing import Borrowing

ROUTES_MAX = 100_000
CLOSE_MS = 2000
CLOSE_POLL_MS_MAX = 20
ADDRESS_MS = 3_600_000
DISTRUST_MS = 30_000
"""How long a process does not claim groups after TLS has kept it from speaking to a leader."""
FAR_MS = 2**62
REARM_S = 0.01
_log = logging.getLogger(__name__)


class LocalPeer:
    """Shared groups in this process."""

    def __init__(self, host: Host, options: SharedOptions, secured: Secured | None = None) -> None:
        self.host = host
        self.options = options
        self.name = host.clock.name()
        self.registry = Registry(self.name, remember_ms=options.borrower.find_leader_ms)
        self.leaders: dict[str, Leading] = {}
        self.listener = Listener(self._gathers, secured, LARGE_FRAME_BYTES_MAX)
        self.listener.serve(frames.to_borrowers(), self.from_borrowers)
        wire, (cut, refused) = frames.to_leaders(), (self._on_cut, self._on_refused)
        self.peers = Links(wire, self.look_up, self._from_leader, cut, secured, refused)
        self.leads_from_ms = 0
        """Before this time it claims no group, since TLS keeps others from talking to it."""
        self._tls = secured is not None
        self._sessions: dict[str, Borrowing] = {}
        self._routes: dict[str, Outbox[FromLeader] | RelayOutbox] = {}
        self.mail = Mail(host.loop, self._deliver, self._plan)
        self.post = self.mail.post
        self.run = self.mail.run
        self.hand_over = self.mail.hand_over
        self.election = Election(self)
        self.upkeep = Upkeep(self)
        heard = {
            properties.BUCKET: self.upkeep.check_properties,
            homes.GROUPS_BUCKET: self.upkeep.check_homes,
        }
        self._listening = [host.on_news(entries.channel(b), call) for b, call in heard.items()]
        self.tasks = host.tasks("shared groups")
        self.ways = Ways(self)
        self.sweep = SessionSweep(host)
        self._timer = host.timer(self._tick)
        self._rearming = host.timer(self._rearm)
        self._address_due_ms = 0
        self._now_ms = host.now_ms
        self.closing = False
        self.closed = False

    # --- beginning and end ---

    async def open(self) -> None:
        """Listen, and register where."""
        catalog = self.host.log.catalog
        if catalog.shared:
            where = await self.host.in_thread(self.options.resolved, catalog)
        else:
            where = self.options.resolved(catalog)
        _, port = await self.listener.open(where.listen, self.options.port)
        await self.ways.relay.open()
        self.ways.own = Address(self.name, where.dialled, port, tls=self._tls)
        self.listener.admit(await self._register(self.ways.own))
        self._address_due_ms = self.now_ms + ADDRESS_MS

    async def _register(self, address: Address) -> str:
        return await self.host.in_transaction(
            lambda tx: directory.register(tx, address), directory.locks()
        )

    async def close(self) -> None:
        """Step down everywhere, tell borrowers, and close the connections."""
        self.closing = True
        for leading in list(self.leaders.values()):
            # What borrowers have reported is stored before their leader goes.
            await self._until(functools.partial(getattr, leading, "idle"))
            await leading.retire("its process is closing")
        connections = (self.peers, self.listener, self.ways.relay)
        await self._until(lambda: self.mail.empty and not any(one.unsent for one in connections))
        self.closed = True
        self._timer.clear()
        self._rearming.clear()
        self.election.stop()
        for stop in self._listening:
            stop()
        self.ways.relay.close()
        await self.sweep.close()
        await self.tasks.rest()
        await self.peers.close()
        await self.listener.close()
        try:
            await self.host.in_transaction(
                lambda tx: directory.unregister(tx, self.name),
                (*directory.locks(), entries.lock(directory.parcels_to(self.name))),
                sync=False,
            )
        except HeadraceError as error:
            _log.warning("the address of this peer stays registered: %s", error)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Poll a condition, less and less often, for about ``CLOSE_MS`` at most."""
        pause_ms, until_ms = 1, self.now_ms + CLOSE_MS
        while not done() and self.now_ms < until_ms:
            await self.host.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, CLOSE_POLL_MS_MAX)

    @property
    def now_ms(self) -> int:
        """The monotonic clock."""
        return self._now_ms()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a background task; its failure is logged."""
        if self.closed:
            work.close()
        else:
            self.tasks.spawn(work)

    # --- sessions ---

    def add_session(self, key: str, session: Borrowing) -> None:
        """A session is opened here; `key` is the prefix of its borrowers' names."""
        self._sessions[key] = session
        self.election.watch()

    def drop_session(self, key: str) -> None:
        """A session is closed."""
        self._sessions.pop(key, None)

    @property
    def led_elsewhere(self) -> set[str]:
        """The groups of local borrowers whose leaders are in other processes."""
        found = {group for session in self._sessions.values() for group in session.groups}
        return found - self.leaders.keys()

    def seek(self, group: str) -> None:
        """Nobody leads the group any more: borrowers that look for a leader ask at once."""
        self.registry.forget(group)
        for session in list(self._sessions.values()):
            session.seek(group)

    def ask(self, message: FromBorrower) -> None:
        """A borrower here looks for its leader."""
        self.post(lambda: self.do(self.registry.wanted(message, self.now_ms)))

    def tell(self, peer: str, message: FromBorrower) -> None:
        """A borrower here speaks to its leader."""
        if peer != self.name:
            self.ways.send(peer, message)
        else:
            self.post(lambda: self._to_leader(message))

    def beat(self, peer: str, pings: Sequence[Ping]) -> Sequence[Ping]:
        """The heartbeat of borrowers here; returns what was answered at once, by leaders here."""
        if peer != self.name:
            for ping in pings:
                self.ways.send(peer, ping)
            return ()
        answered = [] if self.mail.queue else self._answered(pings)
        if len(answered) < len(pings):
            known = {ping.borrower for ping in answered}
            self.post(lambda: self._receive([p for p in pings if p.borrower not in known]))
        return answered

    def _answered(self, pings: Sequence[Ping]) -> list[Ping]:
        """Those pings that leaders here answer without more."""
        leaders, now_ms = self.leaders, self.now_ms
        return [
            ping
            for ping in pings
            if (leading := leaders.get(ping.group)) is not None and leading.answers(ping, now_ms)
        ]

    # --- messages ---

    def _from_leader(self, messages: list[FromLeader], _: Outbox[FromBorrower]) -> None:
        """Leaders elsewhere speak to borrowers here."""
        self.mail.deliver_soon(messages)

    def from_borrowers(
        self, messages: list[FromBorrower], outbox: Outbox[FromLeader] | RelayOutbox
    ) -> None:
        """Borrowers elsewhere speak to leaders here; answers go back the same way."""
        routes, leaders = self._routes, self.leaders
        # Order is kept: once a message has to wait in the queue, all that follow wait, too.
        waiting = messages if self.mail.queue else []
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
            elif isinstance(message, Ping) and self._answered((message,)):
                self.to_borrowers((message.response,))
                continue
            waiting = messages[number:]
        if waiting:
            self.post(functools.partial(self._receive, waiting))

    def hear(self) -> None:
        """Read now what other peers have sent, though the listener puts off reading for a while.

        The queue is emptied, too: a report behind another message would miss the commit.  Call it
        only from a callback of the event loop, since cores are called and are not re-entrant.
        """
        self.listener.look()
        if self.mail.queue:
            self.mail.drain()

    def _gathers(self) -> bool:
        """Whether all leaders here delay their commits: then the listener may put off reading."""
        leaders = self.leaders.values()
        return bool(leaders) and all(leading.core.gathering for leading in leaders)

    def _receive(self, messages: Sequence[FromBorrower]) -> None:
        for message in messages:
            self._to_leader(message)

    def _to_leader(self, message: FromBorrower) -> None:
        leading = self.leaders.get(message.group)
        if leading is not None and isinstance(message, UpdateProgress):
            leading.receive(message)  # a short cut past the registry, for most messages
            self.mail.plan_due |= leading.unplanned
        else:
            self.do(self.registry.received(message, self.now_ms))

    def to_borrowers(self, messages: Sequence[FromLeader]) -> None:
        """Send messages to borrowers, each here or where it last spoke from."""
        routes = self._routes
        for message in messages:
            outbox = routes.get(message.borrower)
            if outbox is not None and not outbox.closed:
                outbox.put(message)
            elif session_key(message) in self._sessions:
                self.mail.deliver_soon((message,))
            # Else its borrower is neither here nor connected, and asks again if it lives.

    def unreached(self, borrower: str) -> str:
        """Why a borrower speaks to its leader here through the catalog; empty if it does not."""
        outbox = self._routes.get(borrower)
        return outbox.note if isinstance(outbox, RelayOutbox) else ""

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
        self.leads_from_ms = self.now_ms + DISTRUST_MS

    def _deliver(self, message: FromLeader) -> None:
        session = self._sessions.get(session_key(message))
        if session is not None:
            if isinstance(message, Invalidate):
                self.registry.forget(message.group)
            session.receive(message)

    def _plan(self) -> None:
        """All messages are delivered."""
        for leading in list(self.leaders.values()):
            leading.plan()
        if self.mail.empty:
            self.rearm()

    async def look_up(self, peer: str) -> Target | None:
        """Where another peer listens."""
        look = functools.partial(directory.target, peer=peer)
        return await self.host.in_thread(self.host.log.catalog.read, look)

    # --- the registry's effects ---

    def do(self, effects: list[RegistryEffect]) -> None:
        """Carry out what the registry asks for."""
        for effect in effects:
            match effect:
                case LookUp(group=group):
                    self.spawn(self.election.look_up(group))
                case Forward(peer=peer, message=message):
                    self.ways.send(peer, message)
                case ToLocalLeader(message=message):
                    if (leading := self.leaders.get(message.group)) is not None:
                        leading.receive(message)
                        self.mail.plan_due |= leading.unplanned
                case StartLeader() as start:
                    self.spawn(self.election.load(start))
                case Reply(message=message):
                    self.to_borrowers((message,))

    def start(self, start: StartLeader, found: GroupProperties, rows: StoredGroup) -> None:
        """A group was won, and what is stored of it is loaded: lead it."""
        leading = Leading(self, found, start.token, rows, lease_sent_ms=start.sent_ms)
        self.leaders[start.group] = leading
        leading.start()
        self.upkeep.started(start.group)
        if self.leaders.get(start.group) is leading:
            self.do(self.registry.started(start.group, start.token))
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
        if self._rearming.at_s == NEVER and not self.closed:
            self._rearming.after(REARM_S)

    def _rearm(self) -> None:
        due = [each.due_ms for each in self.leaders.values()]
        if due:
            due.append(self.upkeep.due_ms)
        due += [each.due_ms for each in self._sessions.values()]
        due_ms = min(due, default=FAR_MS)
        if due_ms < FAR_MS:
            self._timer.set_ms(due_ms)
        else:
            self._timer.clear()

    def _tick(self) -> None:
        now_ms = self.now_ms
        self.upkeep.tick(now_ms)
        for leading in [each for each in self.leaders.values() if each.due_ms <= now_ms]:
            leading.tick()
        for session in list(self._sessions.values()):
            session.tick()
        if self.ways.own is not None and self.now_ms >= self._address_due_ms:
            self._address_due_ms = self.now_ms + ADDRESS_MS
            self.spawn(self._register(self.ways.own))
        self._rearm()
