"""What a leader tells others of its group, in the catalog: members, shares, latest decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError
from headrace.groups.shared import properties
from headrace.groups.shared.properties import LeaderStatus, MemberStatus

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.leading import Leading

STATUS_MS = 250
"""How often decisions and shares are published; joins and leaves are at once."""


class Bulletin:
    """Publishes the state of one group."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._home = leading.home
        self._due_ms = 0
        self._told: tuple[object, object] | None = None
        """The last decision and the members that were last published."""
        self._told_of = 0

    def update(self) -> None:
        """Publish what is new, if it is time."""
        core, now_ms = self._leading.core, self._home.now_ms
        if core.deposed or (now_ms < self._due_ms and self._told_of == len(core.present)):
            return
        self._due_ms = now_ms + STATUS_MS
        decided = core.decisions[-1] if core.decisions else None
        members = core.members(now_ms)
        shown = tuple((m.borrower, m.units, m.share, m.benched_ms > 0) for m in members)
        if self._told is not None and self._told[0] is decided and self._told[1] == shown:
            return
        self._told = (decided, shown)
        self._told_of = len(members)
        offset_ms = self._home.host.clock.wall_us() // 1000 - now_ms
        status = LeaderStatus(
            leader=self._home.name,
            token=self._leading.token,
            at_us=0,
            members=tuple(
                MemberStatus(
                    member=view.borrower,
                    session=view.session,
                    units=view.units,
                    share=view.share,
                    benched_ms=view.benched_ms,
                )
                for view in members
            ),
            decisions=tuple(
                msgspec.structs.replace(decision, at_ms=decision.at_ms + offset_ms)
                for decision in core.decisions
            ),
        )
        self._home.spawn(self._publish(status))

    async def _publish(self, status: LeaderStatus) -> None:
        group = self._leading.group
        try:
            await self._home.host.in_transaction(
                lambda tx: properties.put_status(tx, group, status),
                properties.status_locks(group),
                sync=False,
            )
        except HeadraceError:
            self._told = None  # published again, if this one still leads
