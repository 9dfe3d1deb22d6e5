"""The public API, asynchronous: everything a program does with streams.

Start here::

    async with headrace.open("./data") as hr:
        await hr.create_stream("orders", subjects=["orders.>"], segments=4)
        await hr.publish("orders.eu.42", b"12 apples", key="42")
        async for batch in hr.read("orders"):
            print(batch.to_pylist())
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from headrace.api.appender import Appender
from headrace.api.appends import Apart, Appends, checked
from headrace.api.housekeeping import Housekeeper
from headrace.api.publisher import Publisher
from headrace.api.reading import Reading
from headrace.catalog import Tx
from headrace.catalog.committer import Done, Operation, nobody
from headrace.catalog.producers import Placed
from headrace.catalog.streams import Fixed, Limits, Retention, Scaling, Stream, StreamConfig
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.deletion import delete_stream
from headrace.groups.partitioned.groups import Groups
from headrace.groups.partitioned.runtime.member import Member
from headrace.groups.shared.admin import SharedGroups
from headrace.groups.shared.runtime.peer import SharedOptions
from headrace.groups.shared.runtime.program import SharedRuntime
from headrace.groups.shared.runtime.session import Session
from headrace.groups.shared.sessions import EXPIRY_MS as SESSION_EXPIRY_MS
from headrace.host.commit import SMALL_BYTES, commit
from headrace.log import limits
from headrace.log.append import Outcome, Stale, Write
from headrace.log.compact import Compacted, CompactionPolicy
from headrace.log.cursor import OnDamaged
from headrace.log.events import Event, Events, Headers, check_event
from headrace.log.log import Log, Scaled
from headrace.log.open import open_log
from headrace.log.output import Output
from headrace.log.position import Position
from headrace.log.read import Place, Query
from headrace.log.sweep import Swept

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8

_log = logging.getLogger(__name__)


def open(
    url: str | Path = "./headrace-data",
    *,
    store: str | Path | None = None,
    store_options: Mapping[str, str] | None = None,
    create: bool = True,
    housekeeping: bool = True,
    shared: SharedOptions | None = None,
) -> Headrace:
    """A log on a folder (``"./data"``) or on PostgreSQL (``"postgresql://…"``).

    Large batches go to ``store``: a folder, ``s3://bucket/prefix`` and the like; by default a
    folder beside the catalog.  Use the result with ``async with``.  While it is open, one of the
    programs on a catalog applies the retention of its streams; ``housekeeping=False`` leaves that
    to others.  ``shared`` says how this program takes part in shared groups.
    """
    opener = partial(open_log, url, store, store_options=store_options, create=create)
    return Headrace(opener, housekeeping=housekeeping, shared=shared)


class Headrace:
    """An open log; made by :func:`headrace.open`."""

    def __init__(
        self,
        opener: Callable[[], Log],
        *,
        housekeeping: bool = True,
        shared: SharedOptions | None = None,
    ) -> None:
        self._opener = opener
        self._housekeeping = housekeeping
        self._housekeeper: Housekeeper | None = None
        self._log: Log | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._publisher: Publisher | None = None
        self._readings: weakref.WeakSet[Reading] = weakref.WeakSet()
        self._gathered: list[tuple[Operation, bool]] = []
        self._appends = Appends()
        self._appenders: weakref.WeakSet[Appender] = weakref.WeakSet()
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()
        self.groups = Groups(self)
        """Static and elastic groups: create, change, look at and delete them."""
        self._shared = SharedRuntime(self, shared or SharedOptions())

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headrace")
        try:
            self._log = await self.in_thread(self._opener)
        except BaseException:
            self._pool.shutdown(wait=False)
            self._pool = None
            raise
        self._log.catalog.serve_on(self._loop)
        self._publisher = Publisher(self)
        if self._housekeeping:
            self._housekeeper = Housekeeper(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was published, leave groups, and release everything."""
        for appender in list(self._appenders):
            try:
                await appender.close()
            except HeadraceError as error:
                # Whoever waited for its end has heard of it; others may look here.
                _log.warning("appends were not stored: %s", error)
        for member in list(self._members):
            await member.close()
        await self._shared.close()
        if self._housekeeper is not None:
            await self._housekeeper.close()
            self._housekeeper = None
        if self._publisher is not None:
            await self._publisher.drain()
            self._publisher = None
        if self._log is not None and self._pool is not None:
            self._hand_over()
            log, self._log = self._log, None
            log.catalog.leave_loop()
            await self.in_thread(log.catalog.close)
            for reading in list(self._readings):
                reading.wake()
            self._pool.shutdown(wait=True)
            self._pool = None

    @property
    def log(self) -> Log:
        """The synchronous log underneath, for threads and Spark tasks."""
        if self._log is None:
            raise CatalogClosedError("this log is not open; use `async with headrace.open(…)`")
        return self._log

    # -- streams ------------------------------------------------------------------------

    async def create_stream(
        self,
        name: str,
        subjects: Iterable[str],
        *,
        segments: int = 1,
        key_tokens: Iterable[int] = (),
        retention: Retention | None = None,
        scaling: Scaling | None = None,
        partitions: int = 0,
    ) -> Stream:
        """Create a stream that captures ``subjects``.

        ``partitions=N`` makes one segment for each partition, numbered like it; the partition of
        an event is the FNV-1a hash of its key modulo N, and such a stream is never scaled.
        ``key_tokens`` are the places (from 1) of the subject tokens that make the key of events
        that have none of their own; without them it is the whole subject.  Creating a stream that
        exists with the same configuration changes nothing.
        """
        config = StreamConfig(
            subjects=tuple(subjects),
            key_tokens=tuple(key_tokens),
            retention=retention or Limits(),
            scaling=scaling or Fixed(),
            partitions=partitions,
        )
        return await self.in_thread(self.log.create_stream, name, config, segments)

    async def configure_stream(
        self, name: str, *, retention: Retention | None = None, scaling: Scaling | None = None
    ) -> Stream:
        """Change how a stream is kept or scaled."""
        return await self.in_thread(
            self.log.configure_stream, name, retention=retention, scaling=scaling
        )

    async def streams(self, *, internal: bool = False) -> tuple[Stream, ...]:
        """All streams, by name; with ``internal`` those that belong to groups as well."""
        return await self.in_thread(self.log.streams, internal=internal)

    async def stream(self, name: str) -> Stream:
        """One stream with its segments."""
        return await self.in_thread(self.log.stream, name)

    async def delete_stream(self, name: str, *, force: bool = False) -> None:
        """Delete a stream with all its events.

        One that groups consume is left alone, unless by ``force``: then its static and elastic
        groups are deleted with it, and shared groups go on without it.
        """
        await self.in_thread(delete_stream, self.log, name, force=force)

    # -- writing ------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        epoch: tuple[int, ...] | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Position:
        """Publish one event to the stream that captures its subject; durable when this returns.

        Events that are published at the same time share a commit.  With ``producer`` and
        ``sequence`` a repeat returns the first one's position and writes nothing.
        """
        event = check_event(
            Event(
                subject=subject,
                value=value,
                key=key,
                headers=headers,
                timestamp=timestamp,
                epoch=epoch,
            )
        )
        if producer is None and sequence is None:
            return Position(*await self._require_publisher().publish(event))
        placed = await self.in_thread(self.log.publish, event, producer=producer, sequence=sequence)
        return Position(placed.stream, placed.segment, placed.start)

    def _require_publisher(self) -> Publisher:
        if self._publisher is None:
            raise CatalogClosedError("this log is not open; use `async with headrace.open(…)`")
        return self._publisher

    async def append(
        self,
        stream: str,
        data: Events,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        expected_heads: Mapping[int, int] | None = None,
    ) -> tuple[Placed, ...]:
        """Append an event, an iterable of them or an Arrow table; all or nothing.

        With ``expected_heads`` ({segment: offset}) it raises
        :class:`~headrace.errors.HeadMoved` if somebody else appended there first.
        """
        write = self.log.write_of(producer=producer, sequence=sequence)
        write.add(stream, await checked(self, data), expected=expected_heads)
        if write.is_plain and expected_heads is None and write.is_small(SMALL_BYTES):
            try:
                return await self._appended(write)
            except Apart:
                pass
            except Stale as stale:
                await self.in_thread(write.again, stale)
        return (await self.commit(write)).placed

    def appender(self, stream: str) -> Appender:
        """Append in a loop without waiting for every commit::

            async with hr.appender("orders") as orders:
                for table in tables:
                    await orders.append(table)

        All of it is durable when the block ends, or after ``await orders.flush()``.  It is stored
        in the order in which it was given.  If an append cannot be stored, nothing behind it is
        written, and the next call or the end of the block raises what went wrong.  Arrow data is
        not copied: memory of your own under a table has to stay as it is until then.
        """
        appender = Appender(self, stream)
        self._appenders.add(appender)
        return appender

    def transaction(
        self, *, producer: str | None = None, sequence: int | None = None
    ) -> Transaction:
        """Appends to any streams that commit together::

        async with hr.transaction() as tx:
            tx.publish("orders.eu.42", b"…")
            tx.append("audit", table)
        """
        return Transaction(self, self.log.write_of(producer=producer, sequence=sequence))

    async def commit(self, write: Write) -> Outcome:
        """Prepare and commit a write, again if its segments were sealed meanwhile."""
        return await commit(self, write)

    # -- reading ------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        *,
        start: Place = "earliest",
        until: Place | None = None,
        follow: bool = False,
        subject: str | None = None,
        segments: Sequence[int] | None = None,
        limit: int | None = None,
        on_damaged: OnDamaged | None = None,
    ) -> Reading:
        """Arrow record batches of a stream, in order per key.

        ``start`` and ``until`` are ``"earliest"``, ``"latest"``, a time, or {segment: offset};
        without ``until`` the read ends where the stream ends now, and with ``follow`` it goes on
        as events arrive.  A damaged batch raises, or is handed to ``on_damaged`` and skipped.
        """
        query = Query(
            start=start,
            until=until,
            follow=follow,
            subject=subject,
            segments=segments,
            limit=limit,
        )
        reading = Reading(self, stream, query, on_damaged)
        self._readings.add(reading)
        return reading

    def tail(self, stream: str, *, start: Place = "latest", subject: str | None = None) -> Reading:
        """Events as they arrive."""
        return self.read(stream, start=start, follow=True, subject=subject)

    # -- shared groups ------------------------------------------------------------------

    def session(
        self,
        name: str | None = None,
        *,
        persistent: bool | None = None,
        expiry_ms: int = SESSION_EXPIRY_MS,
        options: ConsumerOptions | None = None,
    ) -> Session:
        """A session: private and shared subscriptions, consumed as one::

            async with hr.session("worker-1") as session:
                await session.subscribe("$share/audit/orders.>")
                async for delivery in session:
                    await delivery.ack()

        One with a name is kept for ``expiry_ms`` while nobody runs it, unless it is not
        ``persistent``; opening it again takes it over.
        """
        return self._shared.session(
            name, persistent=persistent, expiry_ms=expiry_ms, options=options
        )

    @property
    def shared_groups(self) -> SharedGroups:
        """Declare, list, look at, explain and delete shared groups."""
        return SharedGroups(self)

    # -- consuming ----------------------------------------------------------------------

    def join(self, stream: str, group: str, member: str, **options: Any) -> Member:
        """Consume from a static or elastic group as one of its members::

            async with hr.join("orders", "billing", member="m1") as member:
                async for delivery in member:
                    ...
                    await delivery.ack()

        Several programs may join as the same member: one is active, the others stand by and take
        over.  A name that is not (yet) a member waits; ``member.status`` says so.

        Options: ``pin_ttl_ms`` (5000; how soon a standby takes over from a program that died),
        ``drain_limit_ms`` (10000; how long events in hand may hold up a hand-over), and those of
        delivery: ``max_pending``, ``max_pending_per_key``, ``ack_wait_ms``, ``max_deliveries``,
        ``backoff_min_ms``, ``backoff_max_ms``, ``stall_after_ms``, ``buffer_events_max``,
        ``prefetch_bytes``, ``durable_acks``, ``ack_delay_ms``, ``batch_events_max``.
        """
        joined = Member(self, stream, group, member, **options)
        self._members.add(joined)
        return joined

    # -- scaling and keeping ------------------------------------------------------------

    async def split(self, stream: str, segment: int, into: int = 2) -> Scaled:
        """Seal a segment and open ``into`` equal parts of it."""
        return await self.in_thread(self.log.split, stream, segment, into)

    async def merge(self, stream: str, segments: Sequence[int]) -> Scaled:
        """Seal neighbouring segments and open one that covers them."""
        return await self.in_thread(self.log.merge, stream, segments)

    async def retile(
        self, stream: str, segments: Sequence[int], ranges: Sequence[tuple[int, int]]
    ) -> Scaled:
        """Seal segments and open one for each key range; both must cover the same keys."""
        return await self.in_thread(self.log.retile, stream, segments, ranges)

    async def autoscale(self, stream: str, *, dry_run: bool = False) -> list[Scaled]:
        """Apply the stream's scaling policy once."""
        return await self.in_thread(self.log.autoscale, stream, dry_run=dry_run)

    async def trim(
        self, stream: str, before: Mapping[int, int] | datetime | None = None
    ) -> dict[int, int]:
        """Remove what the stream's policy lets go, or all below ``before``."""
        return await self.in_thread(self.log.trim, stream, before)

    async def compact(
        self, stream: str, policy: CompactionPolicy | None = None, *, dry_run: bool = False
    ) -> Compacted:
        """Make large files of a stream's small batches; offsets stay, readers notice nothing.

        Without ``policy`` the stream's own decides, and without that the usual one.
        """
        return await self.in_thread(self.log.compact, stream, policy, dry_run=dry_run)

    async def set_compaction(self, stream: str, policy: CompactionPolicy | None) -> None:
        """Have a stream compacted by ``headrace pipeline``; None: no longer."""
        await self.in_thread(self.log.set_compaction, stream, policy)

    async def sweep(
        self, *, older_than_s: float = limits.SWEEP_GRACE_S, dry_run: bool = False
    ) -> Swept:
        """Remove files in the store that nothing names any more."""
        return await self.in_thread(self.log.sweep, older_than_s=older_than_s, dry_run=dry_run)

    # -- bridges to threads -------------------------------------------------------------

    async def in_thread(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something that blocks on one of this log's threads."""
        if self._pool is None or self._loop is None:
            raise CatalogClosedError("this log is not open; use `async with headrace.open(…)`")
        return await self._loop.run_in_executor(self._pool, partial(fn, *args, **kwargs))

    def in_transaction(
        self,
        fn: Callable[[Tx], T],
        locks: Iterable[str] = (),
        *,
        sync: bool = True,
        small: bool = False,
    ) -> asyncio.Future[T]:
        """Run ``fn`` in a write transaction, in a group with others.

        Writes of one turn of the event loop are handed over together, so that they share a
        commit and none is being prepared while another one is committed.  What is ``small`` may
        be committed by the event loop itself, where that is quick.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: T, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._hand_over_soon()
        self._close_appends()
        self._gathered.append((Operation(fn, tuple(locks), sync, finish), small))
        return future

    async def _appended(self, write: Write) -> tuple[Placed, ...]:
        """Where a small append is, which shares a commit with all that come in this turn.

        The first of them hands over for all, and goes on with its answer in the same turn.
        """
        first = not self._gathered and not self._appends
        answer = self._appends.add(write)
        if first:
            try:
                await asyncio.sleep(0)
            finally:
                self._hand_over()
        return await answer

    def _hand_over_soon(self) -> None:
        if not self._gathered and not self._appends:
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _close_appends(self) -> None:
        """What comes next is not to overtake the appends that wait here."""
        self._gathered += [(operation, True) for operation in self._appends.take()]

    def _hand_over(self) -> None:
        self._close_appends()
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        operations = [operation for operation, _ in gathered]
        small = self._log is not None and all(small for _, small in gathered)
        if small and self.log.catalog.attempt(operations):
            return
        for operation in operations:
            try:
                self.submit(operation.fn, operation.locks, operation.done, sync=operation.sync)
            except HeadraceError as error:
                operation.done(None, error)

    def attempt(
        self, fn: Callable[[Tx], object], locks: Iterable[str], *, sync: bool = True
    ) -> Operation | None:
        """Commit something small at once, if that is quick; None: nothing was done."""
        operation = Operation(fn, tuple(locks), sync, nobody)
        return operation if self.log.catalog.attempt([operation]) else None

    def submit(
        self,
        fn: Callable[[Tx], object],
        locks: Iterable[str],
        done: Done,
        *,
        sync: bool = True,
        small: bool = False,
    ) -> None:
        """Queue a write; ``done(result, error)`` is called on the event loop, never at once."""
        loop = asyncio.get_running_loop()
        if small:

            def tell_soon(result: object, error: BaseException | None) -> None:
                loop.call_soon(done, result, error)

            operation = Operation(fn, tuple(locks), sync, tell_soon)
            if self.log.catalog.attempt([operation]):
                return

        def tell(result: object, error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, result, error)

        self.log.catalog.submit(fn, tell, locks=locks, sync=sync)


class Transaction(Output):
    """Appends that commit together when the block ends, or not at all."""

    def __init__(self, client: Headrace, write: Write) -> None:
        super().__init__(client.log, write)
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.placed = (await self._client.commit(self._write)).placed
