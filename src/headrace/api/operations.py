"""What people do to groups of every kind: ``hr.seek``, dead letters, ``hr.find_key``."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from headrace.groups.chores import ChoreRecord, last_done
from headrace.groups.consumer.in_hand import in_hand
from headrace.groups.operations import dead_letters as dead
from headrace.groups.operations import seek as seeking
from headrace.groups.operations.dead_letters import LIVES_MAX, LetterReason, PutBack
from headrace.groups.operations.find_key import SCAN_EVENTS, FoundKey, find_key
from headrace.groups.operations.letters import LIMIT, LIMIT_MAX, Letter, Selection
from headrace.groups.operations.seek import Sought
from headrace.groups.operations.seek_places import To
from headrace.host import Host
from headrace.subjects.arguments import checked_calls


@checked_calls()
class Operations:
    """The part of an open log that steers groups; a name is ``orders/billing`` and the like."""

    host: Host

    async def seek(
        self,
        group: str,
        to: To,
        *,
        units: Collection[str | int] | None = None,
        dry_run: bool = False,
    ) -> Sought:
        """Put a group elsewhere: ``"earliest"``, ``"latest"``, a time, or {segment: offset}.

        It takes the units from their owners, so nothing is acked across it; running members go on
        at the new place.  ``units`` are those that are meant, if not all.  With ``dry_run`` it
        only tells how many events would come again and how many would be skipped.
        """
        self.host.check()
        return await self.host.in_thread(
            seeking.seek, self.host.log, group, to, units=units, dry_run=dry_run
        )

    async def dead_letters(
        self,
        group: str,
        *,
        ids: Collection[int] | None = None,
        reason: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = LIMIT,
    ) -> tuple[Letter, ...]:
        """The dead letters of a group that fit everything given, oldest first.

        ``reason`` is a part of the reason or of the last error; ``since`` and ``until`` are about
        the time of death.
        """
        chosen = _chosen(ids, reason, key, since, until, limit)
        self.host.check()
        return await self.host.in_thread(dead.letters, self.host.log, group, chosen)

    async def dead_letter_reasons(self, group: str) -> tuple[LetterReason, ...]:
        """What the dead letters of a group died of, most frequent first."""
        self.host.check()
        return await self.host.in_thread(dead.reasons, self.host.log, group)

    async def put_back(
        self,
        group: str,
        *,
        ids: Collection[int] | None = None,
        reason: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = LIMIT_MAX,
        lives_max: int = LIVES_MAX,
        dry_run: bool = False,
    ) -> PutBack:
        """Have dead letters delivered again: each comes back once, whoever repeats this.

        Those of an elastic group go to its work queue; others are published to their subjects once
        more, and ``seen_by`` of the result names the other groups that see them.  Letters that have
        died ``lives_max`` times stay where they are.
        """
        chosen = _chosen(ids, reason, key, since, until, limit)
        self.host.check()
        return await self.host.in_thread(
            dead.put_back, self.host.log, group, chosen, lives_max=lives_max, dry_run=dry_run
        )

    async def discard(
        self,
        group: str,
        *,
        ids: Collection[int] | None = None,
        reason: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = LIMIT_MAX,
        dry_run: bool = False,
    ) -> PutBack:
        """Forget dead letters for good."""
        chosen = _chosen(ids, reason, key, since, until, limit)
        self.host.check()
        return await self.host.in_thread(
            dead.discard, self.host.log, group, chosen, dry_run=dry_run
        )

    async def find_key(
        self, key: str, *, stream: str | None = None, scan_events: int = SCAN_EVENTS
    ) -> FoundKey:
        """Where a key lies, who consumes it, what is unacked, refused or dead, its last events.

        What other programs have in flight they are asked; ``in_flight`` of a unit is None if its
        owner did not answer within a second.
        """
        self.host.check()
        return await self.host.in_thread(
            find_key,
            self.host.log,
            key,
            stream=stream,
            scan_events=scan_events,
            in_hand=in_hand(self.host),
        )

    async def chores(self) -> dict[str, ChoreRecord]:
        """When retention, scaling policies and the sweep were last applied, and by whom."""
        self.host.check()
        return await self.host.in_thread(self.host.log.catalog.read, last_done)


def _chosen(
    ids: Collection[int] | None,
    reason: str | None,
    key: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> Selection:
    numbers = None if ids is None else tuple(ids)
    return Selection(ids=numbers, reason=reason, key=key, since=since, until=until, limit=limit)
