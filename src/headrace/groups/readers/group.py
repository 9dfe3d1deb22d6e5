"""``hr.reader_groups``: reader groups for programs.

Start here::

    group = await hr.reader_groups.create("report", streams=["orders", "clicks"])
    async with group.reader("r1") as reader:
        async for delivery in reader:
            ...
            await delivery.ack()
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from headrace.catalog import Catalog
from headrace.catalog.streams import LOCK_ALL
from headrace.groups.decisions import Decision, following
from headrace.groups.readers import admin, operations, waiting
from headrace.groups.readers import info as info_
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.settings import Retain
from headrace.groups.readers.core.updates import CancelCheckpoints, ResetToCheckpoint
from headrace.groups.readers.info import (
    CheckpointInfo,
    ReaderExplanation,
    ReaderGroupInfo,
    ReaderGroupLag,
)
from headrace.groups.readers.names import GroupStream, ReaderGroupName, ReaderGroupRecord
from headrace.groups.readers.places import GroupPlace
from headrace.groups.readers.positions import GroupCheckpoint, StreamCut
from headrace.groups.readers.runtime import streams as of_group
from headrace.groups.readers.runtime.callbacks import OnCheckpoint, OnSegments
from headrace.groups.readers.runtime.hub import ReaderHub, hub_of
from headrace.groups.readers.runtime.reading import ReaderInstance
from headrace.groups.readers.runtime.segment_reader import SegmentReader
from headrace.groups.readers.runtime.transaction import Committed
from headrace.host import Host, Stage
from headrace.subjects.arguments import checked_calls

T = TypeVar("T")


@checked_calls()
class ReaderGroup:
    """A reader group; made by ``hr.reader_groups.create`` or ``get``."""

    def __init__(self, host: Host, name: str, record: ReaderGroupRecord, client: object) -> None:
        self._host = host
        self.name = name
        self.record = record
        """What was said when it was made."""
        self._client = client

    def __repr__(self) -> str:
        return f"ReaderGroup({self.name!r}, streams={list(self.streams)})"

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it read when this was made."""
        return tuple(stream.name for stream in self.record.streams)

    def reader(
        self,
        name: str,
        *,
        on_checkpoint: OnCheckpoint | None = None,
        on_assigned: OnSegments | None = None,
        on_revoked: OnSegments | None = None,
        **options: object,
    ) -> SegmentReader:
        """Read as a reader of this name::

            async with group.reader("r1") as reader:
                async for delivery in reader:
                    ...
                    await delivery.ack()

        ``on_checkpoint(name, positions)`` is called when nothing of this reader is in flight, and
        before it answers a checkpoint.  ``on_assigned(segments)`` and ``on_revoked(segments)`` tell
        what it reads.  Options: ``lease_ttl_ms`` (10000; how soon others take over from a program
        that died), ``heartbeat_ms``, ``balance_ms``, ``join_delay_ms``, and those of delivery as in
        :meth:`headrace.Headrace.join`.
        """
        made = ReaderInstance(
            self._host,
            self.name,
            name,
            on_checkpoint=on_checkpoint,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            **options,
        )
        self._host.serve(Stage.MEMBERS, made)
        return SegmentReader(made, self._client)

    # -- checkpoints and cuts -------------------------------------------------------------

    async def checkpoint(self, name: str, *, timeout_s: float = 30.0) -> GroupCheckpoint:
        """Take a checkpoint: a place at which all readers stood, with nothing in flight.

        A name that exists is waited for, or found.  Raises after ``timeout_s``, with the readers
        that block it and why; it may complete later::

            checkpoint = await group.checkpoint("nightly", timeout_s=30)
            kept = str(checkpoint)  # anywhere, for as long as you like
            await group.reset(headrace.Checkpoint.parse(kept))
        """
        taken = await waiting.take(self._host, self.name, name, CheckpointKind.NORMAL, timeout_s)
        return await self._do(operations.checkpoint_value, self._full, await self._read(), taken)

    async def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        """The checkpoints that are known by name, oldest first::

        for each in await group.checkpoints():
            print(each.name, each.status, each.blockers)
        """
        return (await self.info()).checkpoints

    async def cancel_checkpoint(self, name: str | None = None) -> None:
        """Give up a checkpoint that waits for readers, or all that do::

        await group.cancel_checkpoint("nightly")
        """
        names = () if name is None else (name,)
        await self._hub.update(self._full, CancelCheckpoints(names))

    async def cut(self, *, timeout_s: float = 30.0) -> StreamCut:
        """Where all readers are now; it moves nothing and waits for nobody's events::

        cut = await group.cut()
        print(cut.positions, str(cut))
        """
        name = f"cut {self._host.clock.local_name()}"
        taken = await waiting.take(self._host, self.name, name, CheckpointKind.SILENT, timeout_s)
        return await self._do(operations.cut_value, self._full, await self._read(), taken.positions)

    async def reset(self, to: GroupPlace | None = None) -> int:
        """Begin again at a checkpoint (or its name), a cut, a time, "earliest" or "latest".

        Without a place: at the last checkpoint, else where the group began.  Whatever readers hold
        raises ``Fenced``, and they go on from there.  Exactly what was acked at the checkpoint is
        acked again.  Returns the revision that it made; tokens from then on are higher::

            await group.reset("earliest")
        """
        made = await self._reset(to)
        return made.outcome.revision

    async def _reset(self, to: GroupPlace | None) -> Committed:
        if to is None:
            return await self._hub.transact(self._full, operations.reset_to_last)
        if isinstance(to, GroupCheckpoint):
            checkpoint = to
            await self._do(operations.check_value, await self._read(), checkpoint)
            return await self._hub.transact(
                self._full, lambda commit: operations.reset_to_value(commit, checkpoint)
            )
        if isinstance(to, str) and to not in ("earliest", "latest"):
            return await self._hub.update(self._full, ResetToCheckpoint(to))
        cut = await self._do(operations.cut_of_place, await self._read(), to)
        return await self._hub.transact(
            self._full, lambda commit: operations.reset_to_cut(commit, cut)
        )

    async def plan_reset(self, to: GroupPlace | None = None) -> dict[str, int]:
        """Where a reset would put the group, ``{"orders/3": offset}``; changes nothing::

        print(await group.plan_reset("latest"))
        """
        return await self._do(operations.plan_reset, self._full, to)

    # -- readers --------------------------------------------------------------------------

    async def offline(
        self,
        reader: str,
        *,
        positions: Mapping[str, int] | None = None,
        rewind: bool = False,
    ) -> bool:
        """Put a reader offline; others read on where it has acked to.  Whether it was online.

        With ``positions`` (``{"orders/3": offset}``) they go on there; only with ``rewind`` may
        that take acks back::

            await group.offline("r1")
        """
        return await self._hub.transact(
            self._full,
            lambda commit: operations.put_offline(commit, reader, positions, rewind=rewind),
        )

    # -- config and streams ---------------------------------------------------------------

    async def configure(
        self,
        *,
        retain: str | None = None,
        checkpoint_every_s: float | None = None,
        checkpoints_kept: int | None = None,
        checkpoints_outstanding: int | None = None,
    ) -> None:
        """Change what the group keeps, and how; what is not given stays as it is::

        await group.configure(retain="checkpoint", checkpoint_every_s=60)
        """
        now = await self.info()

        def wanted(given: T | None, there: T) -> T:
            return there if given is None else given

        config = admin.group_config(
            retain=wanted(retain, now.retain),
            checkpoint_every_s=wanted(checkpoint_every_s, now.checkpoint_every_s),
            checkpoints_kept=wanted(checkpoints_kept, now.checkpoints_kept),
            checkpoints_outstanding=wanted(checkpoints_outstanding, now.checkpoints_outstanding),
        )
        await self._hub.transact(
            self._full,
            lambda commit: operations.configure(commit, config),
            locks=operations.CONFIGURE_LOCKS,
        )

    async def add_streams(self, streams: Iterable[str], *, start: GroupPlace = "earliest") -> None:
        """Read more streams; nobody is interrupted::

        await group.add_streams(["returns"], start="latest")
        """
        added, cut = await self._do(operations.streams_at, admin.stream_names(streams), start)
        await self._hub.transact(
            self._full,
            lambda commit: operations.add_streams(commit, added, cut),
            locks=(LOCK_ALL,),
        )

    async def drop_streams(self, streams: Iterable[str]) -> None:
        """Read streams no longer; what the group knew of them is forgotten::

        await group.drop_streams(["returns"])
        """
        names = admin.stream_names(streams)
        await self._hub.transact(self._full, lambda commit: of_group.drop(commit, names))

    async def release(self, cut: StreamCut | GroupCheckpoint | Mapping[str, int]) -> None:
        """With retain="manual": let go of everything before a cut::

        await group.configure(retain="manual")
        await group.release(await group.cut())
        """
        wanted = await self._do(operations.cut_of_place, await self._read(), cut)
        await self._hub.transact(self._full, lambda commit: operations.release(commit, wanted))

    # -- looking --------------------------------------------------------------------------

    async def info(self) -> ReaderGroupInfo:
        """Who reads what, what waits for whom, and the checkpoints::

        info = await group.info()
        print(info.unassigned, [(each.reader, each.segments) for each in info.readers])
        """
        return await self._look(info_.read_info)

    async def lag(self) -> ReaderGroupLag:
        """How far the group is behind: in all, by reader and by segment::

        lag = await group.lag()
        print(lag.events, lag.bytes, lag.seconds)
        """
        return await self._look(info_.read_lag)

    async def explain(self) -> ReaderExplanation:
        """What the group is doing and why, with its last decisions::

        why = await group.explain()
        print(*why.lines, sep="\\n")
        """
        return await self._look(info_.explain)

    async def watch(self) -> AsyncIterator[Decision]:
        """What is decided from now on: who joins and leaves, what moves, checkpoints, resets::

        async for decision in group.watch():
            print(decision)
        """
        async for decision in following.follow(self._host, str(self._full)):
            yield decision

    @property
    def _full(self) -> ReaderGroupName:
        return ReaderGroupName(self.name)

    @property
    def _hub(self) -> ReaderHub:
        self._host.check()
        return hub_of(self._host)

    async def _read(self) -> tuple[GroupStream, ...]:
        self.record = await self._do(admin.get, self.name)
        return self.record.streams

    async def _do(self, call: Callable[..., T], *args: object) -> T:
        self._host.check()
        log = self._host.log
        return await self._host.in_thread(call, log, *args)

    async def _look(self, call: Callable[[Catalog, str], T]) -> T:
        self._host.check()
        return await self._host.in_thread(call, self._host.log.catalog, self.name)


@checked_calls()
class ReaderGroups:
    """Create, get, list and delete reader groups."""

    def __init__(self, host: Host, client: object = None) -> None:
        self._host = host
        self._client = client

    async def _do(self, call: Callable[..., T], *args: object, **options: object) -> T:
        self._host.check()
        return await self._host.in_thread(call, self._host.log, *args, **options)

    async def create(
        self,
        name: str,
        streams: Iterable[str],
        *,
        start: GroupPlace = "earliest",
        end: GroupPlace | None = None,
        filter: str | None = None,
        retain: str | Retain = Retain.POSITIONS,
        checkpoint_every_s: float | None = None,
        checkpoints_kept: int = 3,
        checkpoints_outstanding: int = 3,
        replicated: bool = False,
        home: str | None = None,
    ) -> ReaderGroup:
        """Make a reader group; making it again in the same way changes nothing.

        ``start`` is "earliest", "latest", a time, a cut, or one of these for each stream; at
        ``end``, a cut, the group ends.  ``filter`` is for the subjects of its events.  ``retain``
        is what the streams' retention keeps for it: "positions", "checkpoint" (from the last one
        on), "manual" (until ``release``) or "nothing".

        ``replicated``: it is in the other regions of its streams as well, and read in its ``home``;
        readers in other regions wait until it moves there::

            streams = ["orders", "clicks"]
            group = await hr.reader_groups.create("report", streams, start={"clicks": "latest"})
        """
        config = admin.group_config(
            retain=retain,
            checkpoint_every_s=checkpoint_every_s,
            checkpoints_kept=checkpoints_kept,
            checkpoints_outstanding=checkpoints_outstanding,
        )
        given = admin.stream_names(streams)
        made = partial(admin.create, start=start, end=end, filter=filter, config=config)
        make = partial(made, group=name, given=given)
        if replicated or home is not None:
            from headrace.regions.creating import create_replicated_readers

            record = await self._do(create_replicated_readers, name, given, home, make)
        else:
            record = await self._do(make)
        return ReaderGroup(self._host, name, record, self._client)

    async def get(self, name: str) -> ReaderGroup:
        """A group that there is::

        group = await hr.reader_groups.get("report")
        """
        return ReaderGroup(self._host, name, await self._do(admin.get, name), self._client)

    async def list(self) -> tuple[ReaderGroup, ...]:
        """All groups by name::

        for group in await hr.reader_groups.list():
            print(group.name, group.streams)
        """
        found = await self._do(admin.list_groups)
        return tuple(ReaderGroup(self._host, name, each, self._client) for name, each in found)

    async def delete(self, name: str, *, force: bool = True) -> None:
        """Delete a group with its progress, checkpoints and dead letters.

        Its readers are told; without ``force`` one with readers online is left as it is::

            await hr.reader_groups.delete("report")
        """
        await self._do(admin.delete, name, force=force)
