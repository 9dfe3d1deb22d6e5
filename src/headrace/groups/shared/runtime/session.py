"""A session: private and shared subscriptions of one worker, consumed as one.

A session has a name, and the one process that runs it.  Another process that opens the same name
takes it over: here every answer is refused from then on, and the loop ends with
:class:`~headrace.errors.SessionTakenOverError`.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Self

from headrace.catalog import Tx, leases
from headrace.errors import (
    HeadraceError,
    InvalidInputError,
    SessionClosedError,
    SessionTakenOverError,
    SubscriptionExistsError,
    UnknownSubscriptionError,
)
from headrace.groups.consumer import (
    Batch,
    Consumer,
    ConsumerOptions,
    Delivery,
    Handler,
)
from headrace.groups.owner import Owner
from headrace.groups.shared import ended_units, properties, sessions, starts
from headrace.groups.shared.core.settings import BorrowerSettings
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime.borrowing import Borrowing
from headrace.groups.shared.runtime.peer import LocalPeer
from headrace.groups.shared.runtime.private import Private
from headrace.groups.shared.runtime.session_acks import SessionAcks
from headrace.groups.shared.sessions import Subscription
from headrace.host import Host
from headrace.subjects import check_name, parse_filter, parse_share
from headrace.subjects.arguments import checked_calls

DRAIN_S = 1.0

_log = logging.getLogger(__name__)


@checked_calls()
class Session:
    """Subscriptions of one worker; made by ``hr.session(…)``, used with ``async with``.

    Example::

        async with hr.session("worker-1") as session:
            await session.subscribe("$share/audit/orders.>")
            async for delivery in session:
                await delivery.ack()
    """

    def __init__(
        self,
        host: Host,
        peer: Callable[[], Awaitable[LocalPeer]],
        name: str | None,
        *,
        persistent: bool | None,
        expiry_ms: int,
        options: ConsumerOptions,
        borrower: BorrowerSettings | None = None,
    ) -> None:
        self._peer: LocalPeer | None = None
        if name is None and persistent:
            raise InvalidInputError("a persistent session needs a name")
        self._unnamed = not name
        made_up = f"memory-{host.clock.random.getrandbits(48):012x}"
        self.name = check_name(name, "session name") if name else made_up
        self.persistent = name is not None if persistent is None else persistent
        self._host = host
        self._make_peer = peer
        self._expiry_ms = sessions.check_expiry(expiry_ms)
        self.options = options
        self._borrower = borrower
        self._token = 0
        self._failure: HeadraceError | None = None
        self._private: dict[str, Private] = {}
        self._starts: dict[str, str] = {}
        """Where each subscription was asked to begin."""
        self._stop_listening: Callable[[], None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._acks = SessionAcks(host)
        self._closed = False
        self.client: object = None
        """The open log that it was made by."""

    def __str__(self) -> str:
        return f"session {self.name!r}"

    # --- beginning and end ---

    async def __aenter__(self) -> Self:
        if self._peer is not None or self._closed:
            raise SessionClosedError(f"session {self.name!r} was opened before; make a new one")
        self._host.check()
        peer = await self._make_peer()

        def open_session(tx: Tx) -> tuple[sessions.SessionRecord, int]:
            return sessions.open(
                tx,
                self.name,
                peer.name,
                persistent=self.persistent,
                expiry_ms=self._expiry_ms,
                unnamed=self._unnamed,
            )

        record, self._token = await self._host.taking(
            open_session,
            sessions.locks(self.name),
            lambda tx, opened: sessions.close(tx, self.name, opened[1]),
        )
        self._peer = peer
        self._key = f"{self.name}:{self._token}"
        self._consumer = Consumer(self._host, self.options, self._acks)
        settings = self._borrower or peer.options.borrower
        self._borrowing = Borrowing(peer, self._consumer, self.name, self._token, settings)
        self._acks.borrowing = self._borrowing
        # Nothing that goes on by itself refers to the session, so that it can be dropped.
        own: weakref.ref[Session] = weakref.ref(self)
        self._acks.make_durable = partial(_touch, own)
        peer.add_session(self._key, self._borrowing)
        self._listen()
        self._heartbeat = self._host.spawn(_beat(self._host, self._changed, own))
        peer.sweep.begin()
        try:
            for each in record.subscriptions:
                await self._begin(each)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, *, grace_s: float = 0.0) -> None:
        """Store what was acked, disconnect from the leaders, and give everything back.

        What is in flight is delivered again elsewhere; its answers are waited for up to `grace_s`.
        """
        if self._closed or self._peer is None or self._host.is_forked:
            self._closed = True
            return
        self._closed = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._stop_listening is not None:
            self._stop_listening()
        try:
            if self._failure is None:
                await asyncio.gather(*(each.leave(grace_s) for each in self._owners))
                await self._store_quietly()
                self._borrowing.disconnect()
        finally:
            for each in self._owners:
                await each.close()
            await self._consumer.close()
            self._peer.drop_session(self._key)
        if self._failure is None:
            await self._host.in_transaction(
                lambda tx: sessions.close(tx, self.name, self._token), sessions.locks(self.name)
            )

    @property
    def _owners(self) -> tuple[Owner, ...]:
        return (self._borrowing, *self._private.values())

    async def _store_quietly(self) -> None:
        try:
            await self._consumer.settled()
        except HeadraceError as error:
            _log.warning("session %s: the last acks do not count: %s", self.name, error)

    # --- who runs the session ---

    def _listen(self) -> None:
        """Be notified when another process opens the session."""
        self._changed = asyncio.Event()
        channel = leases.channel(sessions.lease_name(self.name))
        self._stop_listening = self._host.on_news(channel, self._changed.set)

    def __del__(self) -> None:
        if self._peer is not None and not self._closed and self._failure is None:
            self._host.dropped(self, self.close)

    async def renew(self) -> bool:
        """Renew the lease; false if the session is over."""
        try:
            await self.touch()
        except SessionTakenOverError as error:
            await self._lose(error)
            return False
        except HeadraceError as error:
            _log.warning("session %s cannot be renewed: %s", self.name, error)
        return True

    async def touch(self) -> None:
        """Renew the lease, or raise."""
        await self._host.in_transaction(
            lambda tx: sessions.touch(tx, self.name, self._token),
            sessions.locks(self.name),
            sync=self.options.durable_acks,
        )

    async def _lose(self, error: SessionTakenOverError) -> None:
        """The session was taken over: drop everything, no answer counts any more."""
        self._failure = error
        self._consumer.fail(error)
        self._borrowing.fence()
        self._borrowing.disconnect()
        for each in self._owners:
            await each.close()
        await self._consumer.close()

    # --- subscriptions ---

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What this session is subscribed to, as it was written."""
        return (*self._borrowing.subscriptions, *self._private)

    @property
    def units(self) -> tuple[str, ...]:
        """The shared units that are here now."""
        return self._borrowing.held

    async def subscribe(self, text: str, *, start: starts.Start | None = None) -> None:
        """Subscribe to ``$share/GROUP/FILTER``, or to a filter of one's own.

        A private subscription begins at `start` (``"earliest"``, ``"now"``, a time) and keeps its
        own progress; one that is resumed goes on where it was.  A shared group that does not exist
        yet is made, and begins at `start`; one that exists stays as it is.  Without `start` that is
        ``"now"``.  What the session has already stays as it is, so a worker may subscribe whenever
        it starts; with another `start` than the first time it is an error.
        """
        self._check_open()
        given = "" if start is None else starts.describe(starts.check_start(start))
        start = start or "now"
        shared = parse_share(text)
        filter = shared[1] if shared else parse_filter(text)
        if text in self.subscriptions:
            self._check_same(text, given)
            return
        wanted = Subscription(text, filter, shared is not None, given)
        places: starts.Places = {}
        if isinstance(start, datetime):
            places = await self._host.in_thread(starts.places_at, self._host.log, filter, start)
        if shared is not None:
            await self._subscribe_shared(wanted, shared[0], start, places)
        else:
            await self._subscribe_private(wanted, start, places)
        await self._begin(wanted)

    def _check_same(self, text: str, start: str) -> None:
        """Refuse to subscribe to the same once more from elsewhere."""
        before = self._starts.get(text, "")
        if start and before and start != before:
            raise SubscriptionExistsError(
                f"session {self.name!r} is subscribed to {text!r} already, and that began at "
                f"{before!r}, not at {start!r}; leave start out to go on with it, or unsubscribe "
                "first"
            )

    async def _subscribe_shared(
        self, wanted: Subscription, group: str, start: starts.Start, places: starts.Places
    ) -> None:
        """Subscribe, and make the group in the same transaction if there is none."""
        assert self._peer is not None
        made = GroupProperties(
            group=group,
            filter=wanted.filter,
            start=starts.describe(start),
            settings=self._peer.options.leader,
        )
        known = await self._host.in_thread(
            self._host.log.catalog.read, lambda tx: properties.get(tx, made.key)
        )

        def subscribe(tx: Tx) -> None:
            if known is None:
                tx.foresee(*sessions.asking(self.name), *properties.asking_declare(made.key))
            record = sessions.owned(tx, self.name, self._token)
            if known is None:
                properties.declare(tx, made, start, places, exist_ok=True)
            sessions.add(tx, record, wanted)

        locks = properties.declare_locks(made.key) if known is None else ()
        await self._host.in_transaction(subscribe, {*locks, *sessions.locks(self.name)})

    async def _subscribe_private(
        self, wanted: Subscription, start: starts.Start, places: starts.Places
    ) -> None:
        group = sessions.private_group(self.name, wanted.filter)

        def subscribe(tx: Tx) -> None:
            sessions.subscribe(tx, self.name, self._token, wanted)
            ended_units.forget_group(tx, group)
            starts.begin(tx, group, wanted.filter, start, places)

        await self._host.in_transaction(subscribe, sessions.locks(self.name))

    async def _begin(self, subscription: Subscription) -> None:
        self._starts[subscription.text] = subscription.start
        if subscription.shared:
            self._borrowing.subscribe(subscription.text)
            return
        private = Private(self._host, self._consumer, self.name, self._token, subscription.filter)
        self._private[subscription.text] = private
        await private.start()

    async def unsubscribe(self, text: str) -> None:
        """Cancel a subscription; what is in flight is finished first.

        The progress of a private one is forgotten; that of a shared group stays with the group.
        """
        self._check_open()
        if text in self._private:
            private = self._private[text]
            await private.leave(DRAIN_S)
            await private.close()
            del self._private[text]
        elif text in self._borrowing.subscriptions:
            self._borrowing.unsubscribe(text)
        else:
            raise UnknownSubscriptionError(f"session {self.name!r} is not subscribed to {text!r}")
        await self._host.in_transaction(
            lambda tx: sessions.unsubscribe(tx, self.name, self._token, text),
            sessions.locks(self.name),
        )

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed or self._peer is None:
            raise SessionClosedError(f"session {self.name!r} is not open; use `async with`")

    # --- consuming ---

    def __aiter__(self) -> AsyncIterator[Delivery]:
        self._check_open()
        return self._consumer

    def batches(self) -> AsyncIterator[Batch]:
        """Arrow record batches instead of single events."""
        self._check_open()
        return self._consumer.batches()

    async def consume(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call `handler(delivery)` for every event, up to `concurrency` at a time; acks for it."""
        self._check_open()
        await self._consumer.consume(handler, concurrency=concurrency)
        if self._failure is not None:
            raise self._failure

    async def flush(self) -> None:
        """Wait until everything that was acked is stored."""
        self._check_open()
        await self._consumer.flush()


async def _beat(host: Host, changed: asyncio.Event, session: weakref.ref[Session]) -> None:
    alive = True  # it was opened just now
    while alive:
        await host.wait(changed, host.beat_s(sessions.HEARTBEAT_MS))
        changed.clear()
        own = session()
        alive = own is not None and await own.renew()
        del own


async def _touch(session: weakref.ref[Session]) -> None:
    if (own := session()) is not None:
        await own.touch()
