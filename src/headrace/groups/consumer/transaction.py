"""Transactions: output and ack commit together, or neither does.

The claim is checked in the same commit, so a fenced owner writes nothing; and what is acked
already cannot be acked by a transaction again, so an event whose delivery timed out and was
handed out twice has its output once.  Such a commit is always synced.

A transaction has one outcome, and the group knows it.  A task cancelled while the commit is under
way does not stop it: the commit goes on, and the delivery counts as in doubt (it neither times out
nor comes again) until its outcome is there.  Once committed, nothing that comes later is raised as
if it had not been.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.catalog import Tx
from headrace.errors import AlreadyAckedError, Fenced, HeadraceError
from headrace.groups.consumer.types import UnitAck
from headrace.groups.progress import Progress, store
from headrace.groups.progress.ranges import AckedRanges
from headrace.log.output import Output

if TYPE_CHECKING:
    from headrace.groups.consumer.held import Held
    from headrace.groups.consumer.run import Run


def acked(ranges: Iterable[tuple[int, int]]) -> Progress:
    """Progress that says that these ranges are acked, and nothing else."""
    found = AckedRanges()
    for lo, hi in ranges:
        found.ack_range(lo, hi)
    return Progress.of(found, {})


class AckTransaction(Output):
    """Appends that commit with an ack when the block ends; nothing happens if it raises."""

    def __init__(self, run: Run, held: Held) -> None:
        super().__init__(run.runtime.host.log, run.runtime.host.log.write_of())
        self._runtime = run.runtime
        self._run = run
        self._held = held
        self._ranges = run.ranges_of(held)

    async def __aenter__(self) -> Self:
        await self._begin(self._runtime.host.in_thread)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        run = self._run
        self._held._check("ack")
        run.extend(self._held)
        # While the commit is under way it neither times out nor takes another answer.
        self._held._answer = "acked"
        run.committing.add(self._held)
        try:
            if run.dirty or run.storing:
                # The event before it of its key may be acked and not stored yet.  If that ack
                # were lost, and this one not, the key's events would come in the wrong order.
                await run.stored()
        except BaseException:
            self._failed()
            raise
        await asyncio.shield(self._runtime.host.spawn(self._commit(), awaited=True))
        if self._runtime.acks.repeats_transactions and run.gone is None:
            # Tell a leader, too, which keeps its own record; the commit counts even if that fails.
            with suppress(HeadraceError):
                await run.stored()

    def _failed(self) -> None:
        """Nothing was stored: it can be answered again."""
        self._run.committing.discard(self._held)
        self._held._answer = ""

    async def _is_stored(self) -> bool:
        """Whether all of it is acked; of a batch, other regions may have acked a part."""
        if len(self._ranges) == 1 and self._ranges[0][1] - self._ranges[0][0] == 1:
            return True
        host, owned = self._runtime.host, self._run.owned

        def look(tx: Tx) -> Progress:
            return store.load(tx, owned.group, owned.segment_id) or Progress()

        try:
            known = (await host.in_thread(host.log.catalog.read, look)).acked()
        except HeadraceError:
            return False
        return all(list(known.between(lo, hi)) == [(lo, hi)] for lo, hi in self._ranges)

    def _committed(self) -> None:
        """The ack is stored."""
        run = self._run
        run.committing.discard(self._held)
        if run.gone is None:
            run.ack(self._held, stored=True)
            run.runtime.check_end(run)

    async def _commit(self) -> None:
        """Commit, and tell the delivery the outcome, even if nobody waits any more."""
        runtime, run = self._runtime, self._run
        ack = UnitAck(run.owned, acked(self._ranges))
        try:
            self._write.stage = lambda tx: runtime.acks.stage(tx, ack)
            self._write.stage_locks = runtime.acks.locks(run.owned)
            outcome = await runtime.host.commit(self._write)
        except AlreadyAckedError as error:
            if (error.lo, error.hi) in self._ranges and await self._is_stored():
                self._committed()  # by another commit, but stored: no redelivery
            else:
                self._failed()
            raise
        except Fenced as fenced:
            self._failed()
            runtime.lost(run, fenced)
            raise
        except BaseException:
            self._failed()
            raise
        self._told(outcome.placed)
        self._committed()
