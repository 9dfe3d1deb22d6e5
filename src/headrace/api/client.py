"""The public API, asynchronous: everything a program does with streams.

Start here::

    async with headrace.open("./data") as hr:
        await hr.create_stream("orders", subjects=["orders.>"], segments=4)
        await hr.publish("orders.eu.42", b"12 apples", key="42")
        async for batch in hr.read("orders"):
            print(batch.to_pylist())
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from headrace.api.appender import Appender
from headrace.api.epochs import EpochCalls
from headrace.api.housekeeping import Housekeeper
from headrace.api.live_calls import LiveCalls
from headrace.api.operations import Operations
from headrace.api.reading import Reading
from headrace.catalog.producers import Placed
from headrace.catalog.streams import Epochs, Fixed, Limits, Retention, Scaling, Stream, StreamConfig
from headrace.errors import InvalidInputError
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.consumer.asking import Answering
from headrace.groups.deletion import delete_stream
from headrace.groups.lost import Watchman
from headrace.groups.operations import trim as trimming
from headrace.groups.partitioned.groups import Groups
from headrace.groups.partitioned.runtime.member import Member, MemberInstance
from headrace.groups.readers.group import ReaderGroups
from headrace.groups.shared.admin import SharedGroups
from headrace.groups.shared.runtime.options import SharedOptions
from headrace.groups.shared.runtime.program import SharedRuntime
from headrace.groups.shared.runtime.session import Session
from headrace.groups.shared.sessions import EXPIRY_MS as SESSION_EXPIRY_MS
from headrace.groups.shared.sessions import SessionInfo
from headrace.host import Host, Stage
from headrace.log import limits
from headrace.log.append import Write
from headrace.log.compact import Compacted
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.cursor import OnDamaged
from headrace.log.events import Event, Events, Headers, batch_of, check_event, now_us
from headrace.log.fetch import fetch_event
from headrace.log.log import Log, Scaled
from headrace.log.open import open_log
from headrace.log.output import Output
from headrace.log.position import Position
from headrace.log.query import Place, Query
from headrace.log.sweep import Swept
from headrace.net import TLS
from headrace.regions.linking import step_for
from headrace.regions.service import Regions
from headrace.subjects.arguments import checked, checked_calls

P = ParamSpec("P")
T = TypeVar("T")


@checked
def open(
    url: str | Path = "./headrace-data",
    *,
    store: str | Path | None = None,
    store_options: Mapping[str, str] | None = None,
    create: bool = True,
    housekeeping: bool = True,
    shared: SharedOptions | None = None,
    tls: TLS | None = None,
    loop_io: bool = True,
) -> Headrace:
    """A log on a folder (``"./data"``) or on PostgreSQL (``"postgresql://…"``).

    Large batches go to ``store``: a folder, ``s3://bucket/prefix`` and the like; by default a
    folder beside the catalog.  Use the result with ``async with``.  While it is open, one of the
    programs on a catalog does retention, scaling and sweep, and records who was lost;
    ``housekeeping=False`` leaves all of that to others.  ``shared`` says how this program takes
    part in shared groups, and with ``tls`` it does so over verified and encrypted connections
    only.  With ``loop_io=False`` the event loop never commits or reads by itself, however quick
    the disk is; ``HEADRACE_LOOP_IO=0`` in the environment does the same.
    """
    for name, place in (("url", url), ("store", store)):
        if place == "":
            raise InvalidInputError(f"{name} is empty; it has to be a folder or an address")
    opener = partial(open_log, url, store, store_options=store_options, create=create)
    options = shared or SharedOptions()
    return Headrace(
        opener,
        housekeeping=housekeeping,
        shared=options,
        tls=tls,
        loop_io=loop_io,
        dialled=options.known(str(url)),
    )


@checked_calls("publish", "append", "in_thread")
class Headrace(Operations, EpochCalls, LiveCalls):
    """An open log; made by :func:`headrace.open`."""

    def __init__(
        self,
        opener: Callable[[], Log],
        *,
        housekeeping: bool = True,
        shared: SharedOptions | None = None,
        tls: TLS | None = None,
        loop_io: bool = True,
        dialled: str | None = None,
    ) -> None:
        self._opener = opener
        self._housekeeping = housekeeping
        self.host = Host(loop_io=loop_io)
        """What this program gives its parts: clock, timers, tasks, threads, writes, news."""
        self.groups = Groups(self.host)
        """Static and elastic groups: create, change, look at and delete them."""
        self.reader_groups = ReaderGroups(self.host, self)
        """Reader groups: create, get, list and delete them."""
        self.regions = Regions(self.host)
        """Regions: name this one, link streams to others, move groups between them."""
        self._shared = SharedRuntime(self.host, shared or SharedOptions(), tls, dialled)

    async def __aenter__(self) -> Self:
        await self._shared.secure_early()
        await self.host.open(self._opener)
        await self._shared.secure()
        self.host.serve(Stage.LEADERS, self._shared)
        Answering(self.host)
        if self._housekeeping:
            self._housekeeper = Housekeeper(self.host)
            self._watchman = Watchman(self.host)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more, finish what was published, end reads, leave groups, and release everything.

        In a forked child this does nothing: all of it is the parent's.
        """
        await self.host.close()

    def __del__(self) -> None:
        if self.host.is_open:
            self.host.drop()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)

    @property
    def log(self) -> Log:
        """The synchronous log underneath, for threads and Spark tasks."""
        return self.host.log

    # -- streams ------------------------------------------------------------------------

    async def create_stream(
        self,
        name: str,
        subjects: Iterable[str],
        *,
        segments: int | None = None,
        key_tokens: Iterable[int] = (),
        retention: Retention | None = None,
        scaling: Scaling | None = None,
        partitions: int = 0,
        epochs: Epochs | None = None,
    ) -> Stream:
        """Create a stream that captures ``subjects``.

        ``partitions=N`` makes one segment for each partition, numbered like it; the partition of
        an event is the FNV-1a hash of its key modulo N, and such a stream is never scaled.
        ``key_tokens`` are the places (from 1) of the subject tokens that make the key of events
        that have none of their own; without them it is the whole subject.  With ``epochs`` it is
        published by epochs (:meth:`epoch_publisher`), now and for good.  Without ``segments`` it
        has one.  Creating a stream that exists in the same form changes nothing.
        """
        config = StreamConfig(
            subjects=tuple(subjects),
            key_tokens=tuple(key_tokens),
            retention=retention or Limits(),
            scaling=scaling or Fixed(),
            partitions=partitions,
            epochs=epochs,
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
        regions: Sequence[str] | None = None,
    ) -> Position:
        """Publish one event to the stream that captures its subject; durable when this returns.

        Events that are published at the same time share a commit.  With ``producer`` and
        ``sequence`` a repeat returns the first one's position and writes nothing.  An event of a
        linked stream goes to every region, or with ``regions`` to some; with ``[]`` it stays here.
        """
        self.host.check()
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
        if producer is None and sequence is None and regions is None:
            (placed,) = (await self.host.writes.publish(event)).placed
        else:
            write = self.log.write_of(producer=producer, sequence=sequence)
            routes = self.log.routes
            stream = routes.find(subject)
            if stream is None:
                stream = await self.in_thread(routes.stream_for, subject)
            if regions is None:
                write.add_events(stream, [event], now_us())
            else:
                step = await self.in_thread(step_for, self.log, stream, regions)
                write.add(stream, batch_of([event], now_us()), captured=True, step=step)
            placed = (await self.host.commit(write)).placed[0]
        return Position(placed.stream, placed.segment, placed.start)

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
        self.host.check()
        write = self.log.write_of(producer=producer, sequence=sequence)
        write.add(stream, await self.host.writes.checked(data), expected=expected_heads)
        return (await self.host.commit(write)).placed

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
        self.host.serve(Stage.APPENDERS, appender)
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
        self.host.serve(Stage.READS, reading)
        return reading

    def tail(self, stream: str, *, start: Place = "latest", subject: str | None = None) -> Reading:
        """Events as they arrive."""
        return self.read(stream, start=start, follow=True, subject=subject)

    async def fetch(self, position: Position) -> Event:
        """The event at a position, such as ``delivery.position``; raises if it is not kept."""
        return await self.in_thread(fetch_event, self.log, position)

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
        session = self._shared.session(
            name, persistent=persistent, expiry_ms=expiry_ms, options=options
        )
        session.client = self  # is in use as long as the session is
        self.host.serve(Stage.MEMBERS, session)
        return session

    async def sessions(self) -> tuple[SessionInfo, ...]:
        """Every session: its subscriptions, who runs it, and until when it is kept."""
        return await self.shared_groups.sessions()

    async def remove_session(self, name: str, *, force: bool = False) -> int:
        """Delete a session and the progress of its private subscriptions.

        Their dead letters go with it; returns how many there were.  One that somebody runs is
        deleted only with ``force``.
        """
        return await self.shared_groups.remove_session(name, force=force)

    @property
    def shared_groups(self) -> SharedGroups:
        """Declare, list, look at, explain and delete shared groups."""
        return SharedGroups(self.host)

    # -- consuming ----------------------------------------------------------------------

    def join(self, /, stream: str, group: str, member: str, **options: Any) -> Member:
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
        ``prefetch_bytes``, ``durable_acks``, ``ack_delay_ms``, ``batch_events_max``,
        ``outage_ms`` (60000; how long a catalog or store that is away is waited for).
        """
        joined = MemberInstance(self.host, stream, group, member, **options)
        self.host.serve(Stage.MEMBERS, joined)
        return Member(joined, self)

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
        """Remove what the stream's policy lets go, or all below ``before``.

        Returns {segment: first offset that is left}.  What groups had not acked is gone for them
        too, and stands in their decisions; :meth:`plan_trim` tells beforehand.
        """
        done = await self.in_thread(trimming.trim, self.log, stream, before)
        return {cut.segment: cut.first for cut in done.cuts}

    async def plan_trim(
        self, stream: str, before: Mapping[int, int] | datetime | None = None
    ) -> trimming.TrimPlan:
        """What :meth:`trim` would remove, and which groups would lose what; changes nothing."""
        return await self.in_thread(trimming.plan, self.log, stream, before)

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
        """Run a blocking function on one of this log's threads."""
        self.host.check()
        return await self.host.in_thread(fn, *args, **kwargs)


class Transaction(Output):
    """Appends that commit together when the block ends, or not at all."""

    def __init__(self, client: Headrace, write: Write) -> None:
        super().__init__(client.log, write)
        self._client = client

    async def __aenter__(self) -> Self:
        await self._begin(self._client.in_thread)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._client.host.check()
            self._told((await self._client.host.commit(self._write)).placed)
