"""``hr.regions``: regions for programs.

Start here::

    await hr.regions.name("eu")
    await hr.regions.link("orders", "us", catalog="postgresql://us/app", store="s3://us")
    await hr.regions.enable("orders", "billing", home="eu")
    await hr.regions.switch("orders", "billing", to="us")
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from headrace.groups.homes import ORIGIN, GroupRecord
from headrace.host import Host
from headrace.log.log import Log
from headrace.regions import (
    checking,
    enabling,
    forcing,
    leaving,
    linking,
    losing,
    moving,
    promoting,
    renewing,
    taking,
)
from headrace.regions import status as looking
from headrace.regions.checking import CheckReport
from headrace.regions.forcing import ForceReport
from headrace.regions.leaving import Removed, Unlinked
from headrace.regions.linking import Linked
from headrace.regions.losing import FailOverReport
from headrace.regions.moving import SwitchReport
from headrace.regions.promoting import PromoteReport
from headrace.regions.records import LinkRecord, Region, group_key, links
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.status import RegionsStatus
from headrace.regions.taking import ListedSnapshot, TakeReport
from headrace.subjects.arguments import checked_calls

T = TypeVar("T")


@checked_calls()
class Regions:
    """Naming, linking, moving and looking at regions."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def _do(self, call: Callable[..., T], *args: object, **options: object) -> T:
        return await self._host.in_thread(call, self._host.log, *args, **options)

    async def _near(self, call: Callable[[Log, Neighbours], T]) -> T:
        """Something that looks at other regions as well."""

        def run(log: Log) -> T:
            neighbours = Neighbours()
            try:
                return call(log, neighbours)
            finally:
                neighbours.close()

        return await self._host.in_thread(run, self._host.log)

    async def name(self, name: str) -> Region:
        """Give this catalog a region's name, once and for all."""
        return await self._do(linking.name_region, name)

    async def renew(self, *, force: bool = False) -> Region:
        """After a restore from a copy: nothing old passes for new from now on.

        The other regions are asked; ``force`` does without those that are silent.
        """
        return await self._near(lambda log, near: renewing.renew_region(log, near, force=force))

    async def link(
        self,
        stream: str,
        region: str,
        *,
        catalog: str | Path,
        store: str | Path | None = None,
        credentials: str | None = None,
        writers: str = "all",
        backfill: str | datetime = "all",
        filter: str | None = None,
        one_sided: bool = False,
        here: str | None = None,
    ) -> Linked:
        """Link a stream to another region, on both sides unless ``one_sided``.

        With ``filter``, only events whose subject passes it go to other regions; the others stay
        where they are published.
        ``credentials`` (``env:NAME``) says where the password is, which is never stored; ``here``
        is how the others reach this catalog, if not by the address it was opened with.
        """
        return await self._do(
            linking.link,
            stream,
            region,
            here=here or self._host.log.catalog.address,
            catalog=catalog,
            store=store,
            credentials=credentials,
            writers=writers,
            backfill=backfill,
            filter=filter,
            one_sided=one_sided,
        )

    async def unlink(self, stream: str) -> Unlinked:
        """Take a stream out of the other regions, on this side; its events stay.

        Linked again, it goes on where it ended, with what was published meanwhile.
        """
        return await self._do(leaving.unlink, stream)

    async def links(self) -> tuple[LinkRecord, ...]:
        """The streams that are linked, and to where."""
        found = await self._host.in_thread(self._host.log.catalog.read, links)
        return tuple(found.values())

    async def pause(self, region: str) -> list[str]:
        """Copy nothing from a region until ``resume``."""
        return await self._do(losing.set_state, region, "paused")

    async def resume(self, region: str) -> list[str]:
        """Copy from a region again."""
        return await self._do(losing.set_state, region, "active")

    async def rejoin(self, region: str) -> list[str]:
        """A region that was lost is back: its tail comes over, and it follows what was decided."""
        return await self._do(losing.set_state, region, "active")

    async def enable(
        self,
        stream: str,
        group: str | None = None,
        *,
        home: str | None = None,
        eager: bool = False,
        adopt: str | None = None,
        mode: str = ORIGIN,
    ) -> GroupRecord:
        """Let a group's progress follow its consumers to the other regions.

        ``mode``: by ``"origin"``, exactly and event by event, or by ``"snapshot"``, as far as the
        last snapshot that the group has passed.
        """
        key = group_key(stream, group)
        return await self._near(
            lambda log, near: enabling.enable(
                log, key, near, home=home, eager=eager, adopt=adopt, mode=mode
            )
        )

    async def disable(self, stream: str, group: str | None = None) -> GroupRecord:
        """Exchange a group's progress no longer, on this side."""
        return await self._do(enabling.disable, group_key(stream, group))

    async def switch(
        self,
        stream: str,
        group: str | None = None,
        *,
        to: str,
        timeout_s: float = 30.0,
        dry_run: bool = False,
    ) -> SwitchReport:
        """Move a group to another region, exactly where it was."""
        key = group_key(stream, group)
        return await self._near(
            lambda log, near: moving.switch(
                log, key, to, near, timeout_s=timeout_s, dry_run=dry_run
            )
        )

    async def unsynced(self, stream: str, group: str | None = None) -> dict[str, int]:
        """How many cursors of a group are not known in each other region; empty if all are."""
        key = group_key(stream, group)
        return await self._near(lambda log, near: moving.unsynced(log, key, near))

    async def fail_over(
        self, lost: str, *, force: bool = False, dry_run: bool = False
    ) -> FailOverReport:
        """A region is gone: its groups are at home here, at their last known place."""
        return await self._near(
            lambda log, near: losing.fail_over(log, lost, near, force=force, dry_run=dry_run)
        )

    async def promote(
        self, stream: str, *, timeout_s: float = 30.0, force: bool = False, dry_run: bool = False
    ) -> PromoteReport:
        """Write a stream in this region from now on, of those that one region writes.

        ``force``: at once, although the region that writes it is gone or has more than is here.
        """
        return await self._near(
            lambda log, near: promoting.promote(
                log, stream, near, timeout_s=timeout_s, force=force, dry_run=dry_run
            )
        )

    async def remove(self, region: str, *, force: bool = False, dry_run: bool = False) -> Removed:
        """Take a region out of all streams that it shares with this one; its events stay here."""
        return await self._near(
            lambda log, near: leaving.remove(log, region, near, force=force, dry_run=dry_run)
        )

    async def status(self) -> RegionsStatus:
        """How links and groups are doing."""
        return await self._near(looking.status)

    async def snapshot_now(self, stream: str, *, timeout_s: float = 30.0) -> TakeReport:
        """Take a snapshot of each segment of a stream now, and wait until they are complete.

        For groups in the mode of snapshots: before a planned move, say.
        """
        return await self._do(taking.take_snapshots, stream, timeout_s=timeout_s)

    async def snapshots(self, stream: str, *, limit: int = 10) -> tuple[ListedSnapshot, ...]:
        """The newest snapshots that this region's log holds, ``limit`` of each segment at most."""
        return await self._do(taking.list_snapshots, stream, limit)

    async def force_snapshots(self, stream: str, *, dry_run: bool = False) -> ForceReport:
        """Complete a stream's snapshots under way without the regions that have not answered.

        Tells which events are at risk: nobody can say that the consumers here have met them, so
        they come again elsewhere.
        """
        return await self._do(forcing.force_snapshots, stream, dry_run=dry_run)

    async def check(self, stream: str, *, deep: bool = False) -> CheckReport:
        """Whether the regions of a stream hold the same events, lane by lane."""
        return await self._near(lambda log, near: checking.check(log, stream, near, deep=deep))
