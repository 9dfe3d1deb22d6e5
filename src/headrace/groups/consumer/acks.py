"""Acks in the catalog: each commit checks the claims of its units, and merges their progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from headrace.catalog import Tx, claims
from headrace.catalog.calls import AckCall
from headrace.errors import Fenced
from headrace.groups.consumer.types import Done, OwnedUnit, UnitAck
from headrace.groups.progress.store import Joining, Write, ack_once, write_of
from headrace.host import Host
from headrace.host.loads import FEW

Partly = Callable[[Sequence[int]], None]
"""Told which of several acks were stored, if not all."""


class CatalogAcks:
    """The ack store of groups whose members own their units in the catalog."""

    repeats_transactions = False

    def __init__(self, host: Host) -> None:
        self._host = host
        self._joining = Joining()

    def locks(self, unit: OwnedUnit) -> list[str]:
        return [claims.lock(unit.group, unit.unit)]

    async def commit(self, acks: Sequence[UnitAck], *, sync: bool) -> list[Fenced | None]:
        """Store progress under the claims of its units; waits for the results."""
        return await told(partial(self.begin, acks, sync=sync))

    def begin(self, acks: Sequence[UnitAck], done: Done, *, sync: bool) -> None:
        """Store progress under the claims of its units, then call ``done(results, error)``."""
        writes = [_write(ack) for ack in acks]
        units = [ack.unit.unit for ack in acks]
        stored: Sequence[int] = ()
        """Which of them a call has stored, if not all."""

        def run(tx: Tx) -> list[Fenced | None]:
            if not any(stored):
                return self._put(tx, writes, units)
            left = [at for at, is_stored in enumerate(stored) if not is_stored]
            put = self._put(tx, [writes[at] for at in left], [units[at] for at in left])
            found = dict(zip(left, put, strict=True))
            return [found.get(at) for at in range(len(writes))]

        def partly(by_call: Sequence[int]) -> None:
            nonlocal stored
            stored = by_call

        def tell(results: list[Fenced | None], error: BaseException | None) -> None:
            if error is not None:
                self._joining.forget(writes)
            done(results, error)

        def saying() -> AckCall | None:
            return self._saying(writes, units, partly)

        locks = sorted({lock for ack in acks for lock in self.locks(ack.unit)})
        small = len(acks) <= FEW
        self._host.submit(run, locks, tell, sync=sync, small=small, saying=saying)

    def _saying(
        self, writes: Sequence[Write], units: Sequence[str], partly: Partly
    ) -> AckCall | None:
        """What :meth:`_put` does, if it can be said."""
        return self._joining.saying(writes, units, lambda: [None] * len(writes), partly)

    def _put(self, tx: Tx, writes: Sequence[Write], units: Sequence[str]) -> list[Fenced | None]:
        return self._joining.put_if_mine(tx, writes, units)

    def stage(self, tx: Tx, ack: UnitAck) -> None:
        ack_once(tx, ack.unit.unit, _write(ack), ack.unit.progress)


def _write(ack: UnitAck) -> Write:
    return write_of(ack.unit.group, ack.unit.segment_id, ack.unit.token, ack.progress)


async def told(begin: Callable[[Done], None]) -> list[Fenced | None]:
    """Begin a commit that takes a callback, and wait for its results."""
    found: asyncio.Future[list[Fenced | None]] = asyncio.get_running_loop().create_future()

    def tell(results: list[Fenced | None], error: BaseException | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(results)
        else:
            found.set_exception(error)

    begin(tell)
    return await found


def tell_after(host: Host, work: Coroutine[Any, Any, list[Fenced | None]], done: Done) -> None:
    """Run a commit as a task, and call ``done`` with its results or its error."""

    def tell(task: asyncio.Future[list[Fenced | None]]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        done([] if error is not None else task.result(), error)

    host.spawn(work, awaited=True).add_done_callback(tell)
