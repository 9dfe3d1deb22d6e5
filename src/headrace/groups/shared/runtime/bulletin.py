"""What a leader tells others of its group, in the catalog: members, shares, and what it decides.

Members and shares are an entry that is replaced.  Decisions are added to the record of the group,
and outlive the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.catalog import Tx, leases
from headrace.errors import HeadraceError
from headrace.groups.decisions import Decision, What
from headrace.groups.shared import deciding, properties
from headrace.groups.shared.properties import BorrowerStatus, LeaderStatus
from headrace.groups.shared.runtime.state import lease_name

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.leading import Leading

STATUS_MS = 250
"""How often decisions and shares are published; joins and leaves are at once."""
UNTOLD_MAX = 256


class Bulletin:
    """Publishes the state of one group."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._home = leading.home
        self._due_ms = 0
        self._told: object = None
        """The members that were last published."""
        self._told_of = 0
        self._untold: list[Decision] = []
        """Decisions whose recording failed."""

    def update(self) -> None:
        """Publish what is new, if it is time."""
        core, now_ms = self._leading.core, self._home.now_ms
        if not self._leading.lookout.looked:
            return  # its members wait for what it will store next
        if core.deposed or (now_ms < self._due_ms and self._told_of == len(core.present)):
            return
        self._due_ms = now_ms + STATUS_MS
        members = core.members(now_ms)
        far = {m.borrower: self._home.unreached(m.borrower) for m in members}
        shown = tuple(
            (m.borrower, m.units, m.share, m.benched_ms > 0, far[m.borrower]) for m in members
        )
        decided = self._take()
        if not decided and self._told == shown:
            return
        self._told = shown
        self._told_of = len(members)
        status = LeaderStatus(
            leader=self._home.name,
            token=self._leading.token,
            at_us=0,
            members=tuple(
                BorrowerStatus(
                    member=view.borrower,
                    session=view.session,
                    units=view.units,
                    share=view.share,
                    benched_ms=view.benched_ms,
                    unreached=far[view.borrower],
                )
                for view in members
            ),
        )
        self._home.spawn(self._publish(status, decided))

    def _take(self) -> list[Decision]:
        decided, self._untold = [*self._untold, *self._leading.core.unrecorded.take()], []
        return decided[-UNTOLD_MAX:]

    async def _publish(self, status: LeaderStatus, decided: list[Decision]) -> None:
        group, asked_ms = self._leading.group, self._home.now_ms

        def run(tx: Tx) -> None:
            tx.foresee(leases.asking(lease_name(group)), *deciding.asking(group))
            properties.put_status(tx, group, status)
            deciding.led(tx, group, decided, asked_ms)

        locks = (*properties.status_locks(group), *deciding.locks(group))
        try:
            await self._home.host.in_transaction(run, locks, sync=False)
        except HeadraceError:
            self._told = None  # published again, if this one still leads
            self._untold = decided + self._untold
            self._leading.stir()

    def last_words(self, reason: str) -> list[Decision]:
        """What is left to record when the leader steps down."""
        return [
            *self._take(),
            Decision(
                what=What.DEPOSED,
                reason=reason,
                source=self._home.name,
                token=self._leading.token,
                at_us=self._home.now_ms * 1000,
            ),
        ]
