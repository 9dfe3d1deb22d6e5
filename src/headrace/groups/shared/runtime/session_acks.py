"""Where the acks of a session are stored: in the catalog, or by the leaders of its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headrace.catalog import Tx
from headrace.errors import Fenced
from headrace.groups.consumer import CatalogAcks, OwnedUnit, UnitAck
from headrace.groups.consumer.acks import tell_after
from headrace.groups.consumer.types import Done
from headrace.groups.shared.runtime.borrowing import Borrowing
from headrace.host import Host


class SessionAcks:
    """Acks of a session: private ones in the catalog, shared ones by way of the leader."""

    repeats_transactions = True

    def __init__(self, host: Host) -> None:
        self._host = host
        self._private = CatalogAcks(host)
        self.borrowing: Borrowing
        self.make_durable: Callable[[], Awaitable[None]]

    def begin(self, acks: Sequence[UnitAck], done: Done, *, sync: bool) -> None:
        """Store what was acked, each where it belongs."""
        shared = [ack for ack in acks if self.borrowing.owns(ack.unit.unit)]
        if not shared:
            self._private.begin(acks, done, sync=sync)
        elif sync or len(shared) < len(acks):
            tell_after(self._host, self._commit(acks, shared, sync), done)
        else:
            self.borrowing.begin(shared, done)

    async def _commit(
        self, acks: Sequence[UnitAck], shared: list[UnitAck], sync: bool
    ) -> list[Fenced | None]:
        private = [ack for ack in acks if not self.borrowing.owns(ack.unit.unit)]
        if not private:
            return await self._commit_shared(shared, sync)
        ours, theirs = await asyncio.gather(
            self._private.commit(private, sync=sync), self._commit_shared(shared, sync)
        )
        found = {
            ack.unit.unit: fenced
            for ack, fenced in zip((*private, *shared), (*ours, *theirs), strict=True)
        }
        return [found[ack.unit.unit] for ack in acks]

    async def _commit_shared(self, acks: list[UnitAck], sync: bool) -> list[Fenced | None]:
        found = await self.borrowing.commit(acks)
        if sync:
            # A synced commit makes all earlier ones durable, the leader's too.
            await self.make_durable()
        return found

    def stage(self, tx: Tx, ack: UnitAck) -> None:
        """Ack within a transaction, under the claim; the leader merges what it knows later."""
        self._private.stage(tx, ack)

    def locks(self, unit: OwnedUnit) -> list[str]:
        """The locks that such a transaction needs."""
        return self._private.locks(unit)
