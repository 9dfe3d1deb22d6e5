"""``hr.groups``: partitioned groups for programs, each call one transaction.

Start here::

    await hr.groups.create_elastic("orders", "billing", max_members=16, filter="orders.*.*",
                                   wildcards=[2], members=["m1", "m2"])
    async with hr.join("orders", "billing", member="m1") as member:
        async for delivery in member:
            ...
            await delivery.ack()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, overload

from headrace.groups import looks
from headrace.groups.decisions import Decision
from headrace.groups.partitioned import admin, explain
from headrace.groups.partitioned.admin import GroupInfo, Mappings
from headrace.groups.partitioned.core.config import Distribution
from headrace.groups.partitioned.core.status import GroupStatus
from headrace.groups.partitioned.explain import Explanation
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.units import GroupKind
from headrace.groups.shapes import GroupExplanation, GroupLag, GroupMember, GroupView
from headrace.host import Host
from headrace.log.log import Log
from headrace.log.query import Place
from headrace.subjects.arguments import checked_calls

T = TypeVar("T")


@checked_calls()
class Groups:
    """Looking at groups of every kind, and the administration of static and elastic ones."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def _do(self, call: Callable[..., T], *args: object, **options: object) -> T:
        return await self._host.in_thread(call, self._host.log, *args, **options)

    async def _look(self, look: Callable[..., T], *args: object) -> T:
        return await self._host.in_thread(look, self._host.log.catalog, *args)

    async def create_static(
        self,
        stream: str,
        group: str,
        *,
        max_members: int,
        filter: str = "",
        members: Iterable[str] = (),
        mappings: Mappings = (),
        start: Place = "earliest",
        replicated: bool = False,
        home: str | None = None,
        mode: str | None = None,
    ) -> GroupInfo:
        """Create a group whose members are fixed for its life.

        The stream has ``partitions``, or its events carry the partition as first token of their
        subject; ``max_members`` is the number of partitions.  ``filter`` is for what follows
        that token.  Give ``members``, or ``mappings`` ({member: partitions}).  ``start`` is where
        in the stream it begins: "earliest", "latest", a time, or {segment: offset}.

        ``replicated``: it is in the other regions of its stream as well, and consumed in every one,
        or in its ``home`` alone; ``mode`` is how its progress gets there: by "origin", or by
        "snapshot".
        """

        def create(log: Log) -> GroupInfo:
            return admin.create_static(
                log,
                stream,
                group,
                max_members=max_members,
                filter=filter,
                members=members,
                mappings=mappings,
                start=start,
            )

        if not (replicated or home is not None or mode is not None):
            return await self._do(create)
        from headrace.regions.creating import create_replicated

        name = GroupName(stream, group)
        return await self._do(lambda log: create_replicated(log, name, home, create, mode))

    async def create_elastic(
        self,
        stream: str,
        group: str,
        *,
        max_members: int,
        filter: str,
        wildcards: Sequence[int],
        max_buffered: int = 0,
        members: Iterable[str] = (),
        mappings: Mappings = (),
        distribution: Distribution | str = Distribution.BLOCKS,
        start: Place = "earliest",
        replicated: bool = False,
        home: str | None = None,
    ) -> GroupInfo:
        """Create a group whose members or mappings may change at any time.

        ``filter`` needs a ``*``; ``wildcards`` are the numbers (from 1) of those that make the
        key.  The events go through a work queue of at most ``max_buffered`` unconsumed ones (0:
        no limit), which the partition job fills.  ``distribution`` is "blocks" or "sticky".

        ``replicated``: it is in the other regions of its stream as well, and consumed in its
        ``home``, where its work queue is filled.
        """

        def create(log: Log) -> GroupInfo:
            return admin.create_elastic(
                log,
                stream,
                group,
                max_members=max_members,
                filter=filter,
                wildcards=wildcards,
                max_buffered=max_buffered,
                members=members,
                mappings=mappings,
                distribution=distribution,
                start=start,
            )

        if not (replicated or home is not None):
            return await self._do(create)
        from headrace.regions.creating import create_replicated

        name = GroupName(stream, group)
        return await self._do(lambda log: create_replicated(log, name, home, create, elastic=True))

    @overload
    async def get(self, stream: str) -> GroupView: ...

    @overload
    async def get(self, stream: str, group: str) -> GroupInfo: ...

    async def get(self, stream: str, group: str | None = None) -> GroupView | GroupInfo:
        """A group of any kind by its full name; by stream and group, a partitioned one's config.

        Full names are ``orders/billing``, ``$share/audit/orders.>``, or plain where only one fits.
        """
        if group is None:
            return await self._look(looks.of_one, stream)
        return await self._do(admin.get, stream, group)

    async def all(self) -> tuple[GroupView, ...]:
        """Every group of every kind, from one snapshot."""
        return await self._look(looks.of_all)

    async def list(
        self, stream: str | None = None, kind: GroupKind | None = None
    ) -> tuple[GroupInfo, ...]:
        """The groups of a stream, or of all."""
        return await self._do(admin.list_groups, stream, kind)

    async def delete(self, stream: str, group: str) -> GroupInfo:
        """Delete a group with its work queue, its places and its dead letters."""
        return await self._do(admin.delete, stream, group)

    async def add_members(self, stream: str, group: str, members: Iterable[str]) -> GroupInfo:
        """Add members to an elastic group; those it has already are passed over."""
        return await self._do(admin.add_members, stream, group, members)

    async def drop_members(self, stream: str, group: str, members: Iterable[str]) -> GroupInfo:
        """Drop members from an elastic group; those it does not have are passed over."""
        return await self._do(admin.drop_members, stream, group, members)

    async def set_mappings(self, stream: str, group: str, mappings: Mappings) -> GroupInfo:
        """Map all partitions of an elastic group to members by hand: {member: partitions}."""
        return await self._do(admin.set_mappings, stream, group, mappings)

    async def delete_mappings(
        self, stream: str, group: str, members: Iterable[str] | None = None
    ) -> GroupInfo:
        """Back to automatic distribution, over ``members`` or over those that were mapped."""
        return await self._do(admin.delete_mappings, stream, group, members)

    async def active(self, stream: str, group: str) -> GroupStatus:
        """Who is active, who is missing, and which partitions nobody consumes."""
        return await self._do(admin.status, stream, group)

    async def partitions(self, stream: str, group: str, member: str) -> tuple[int, ...]:
        """The partitions that the config gives a member."""
        return await self._do(admin.partitions, stream, group, member)

    async def step_down(self, stream: str, group: str, member: str) -> str:
        """Have the active instance of a member give way to a standby; returns which it was."""
        return await self._do(admin.step_down, stream, group, member)

    @overload
    async def explain(self, stream: str, *, limit: int = ...) -> GroupExplanation: ...

    @overload
    async def explain(self, stream: str, group: str, *, limit: int = ...) -> Explanation: ...

    async def explain(
        self, stream: str, group: str | None = None, *, limit: int = looks.DECISIONS
    ) -> GroupExplanation | Explanation:
        """What a group is doing and why, with the latest decisions; as for :meth:`get`, a full name
        or a stream and a group.
        """
        if group is None:
            return await self._look(looks.explanation, stream, limit)
        return await self._do(explain.explain, stream, group, limit)

    async def lag(self, stream: str, group: str | None = None) -> GroupLag:
        """How far a group is behind, by unit; a full name, or a stream and a group."""
        return await self._look(looks.lag_of_one, stream if group is None else f"{stream}/{group}")

    async def lag_of_all(self) -> tuple[GroupLag, ...]:
        """How far every group is behind, from one snapshot."""
        return await self._look(looks.lag_of_all)

    async def members(self, name: str) -> tuple[GroupMember, ...]:
        """Who takes part in a group of any kind, and who should."""
        return await self._look(looks.members_of_one, name)

    async def decisions(self, name: str, *, limit: int = looks.DECISIONS) -> tuple[Decision, ...]:
        """The latest decisions about a group of any kind, oldest first."""
        return await self._look(looks.decisions_of_one, name, limit)
