"""``hr.reader_groups``: reader groups for programs.

Start here::

    group = await hr.reader_groups.create("report", streams=["orders", "clicks"])
    async with group.reader("r1") as reader:
        async for delivery in reader:
            ...
            await delivery.ack()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from headrace.groups.readers import admin
from headrace.groups.readers.core.settings import Retain
from headrace.groups.readers.names import ReaderGroupRecord
from headrace.groups.readers.places import GroupPlace
from headrace.groups.readers.runtime.callbacks import OnCheckpoint, OnSegments
from headrace.groups.readers.runtime.reading import GroupReader
from headrace.host import Host, Stage
from headrace.subjects.arguments import checked_calls

T = TypeVar("T")


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
    ) -> GroupReader:
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
        made = GroupReader(
            self._host,
            self.name,
            name,
            on_checkpoint=on_checkpoint,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            **options,
        )
        made.client = self._client  # is in use as long as the reader is
        self._host.serve(Stage.MEMBERS, made)
        return made


@checked_calls("create")
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
    ) -> ReaderGroup:
        """Make a reader group; making it again in the same way changes nothing.

        ``start`` is "earliest", "latest", a time, a cut, or one of these for each stream; at
        ``end``, a cut, the group ends.  ``filter`` is for the subjects of its events.  ``retain``
        is what the streams' retention keeps for it: "positions", "checkpoint" (from the last one
        on), "manual" (until ``release``) or "nothing".
        """
        config = admin.group_config(
            retain=retain,
            checkpoint_every_s=checkpoint_every_s,
            checkpoints_kept=checkpoints_kept,
            checkpoints_outstanding=checkpoints_outstanding,
        )
        record = await self._do(
            admin.create,
            name,
            given=admin.stream_names(streams),
            start=start,
            end=end,
            filter=filter,
            config=config,
        )
        return ReaderGroup(self._host, name, record, self._client)

    async def get(self, name: str) -> ReaderGroup:
        """A group that there is."""
        return ReaderGroup(self._host, name, await self._do(admin.get, name), self._client)

    async def list(self) -> tuple[ReaderGroup, ...]:
        """All groups by name."""
        found = await self._do(admin.list_groups)
        return tuple(ReaderGroup(self._host, name, each, self._client) for name, each in found)

    async def delete(self, name: str, *, force: bool = True) -> None:
        """Delete a group with its progress, checkpoints and dead letters.

        Its readers are told; without ``force`` one with readers online is left as it is.
        """
        await self._do(admin.delete, name, force=force)
