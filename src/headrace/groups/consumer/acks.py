"""Acks in the catalog: the claim is checked and the progress joined in one transaction.

A consumer writes the progress of a unit on two ways: in the group commits of its acks, and in
transactions that join an ack with a publish.  They may overlap, so neither replaces what the
other stored: :func:`join` reads the row and adds to it.  Reading costs little, and decoding is
spared as long as the row is still what this store wrote last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from headrace.catalog import Tx, claims
from headrace.catalog import progress as stored
from headrace.errors import AlreadyAckedError, Fenced
from headrace.groups.consumer.types import Done, OwnedUnit, UnitAck
from headrace.groups.progress import Progress
from headrace.host.host import Host

FEW = 8
"""Acks of so many units at most are a small write."""


def load(tx: Tx, group: str, segment_id: int) -> Progress | None:
    """A group's progress in a segment, as it is stored."""
    row = stored.get(tx, group, segment_id)
    return None if row is None else decode(row)


def decode(row: stored.Progress) -> Progress:
    """A stored row as the record that it holds; a row of a floor alone has no more."""
    return Progress.decode(row.state) if row.state else Progress(row.floor)


def store(tx: Tx, group: str, segment_id: int, progress: Progress) -> None:
    """Write a group's progress in a segment, in place of what is there."""
    stored.put(tx, stored.Progress(group, segment_id, progress.floor, progress.encode()))


def join(tx: Tx, group: str, segment_id: int, progress: Progress) -> Progress:
    """Add ``progress`` to what is stored, and return what is stored now."""
    before = load(tx, group, segment_id)
    after = progress if before is None else before.merge(progress)
    store(tx, group, segment_id, after)
    return after


class CatalogAcks:
    """The ack store of groups whose members own their units in the catalog."""

    repeats_transactions = False

    def __init__(self, host: Host) -> None:
        self._host = host
        self._written: dict[tuple[str, int], bytes] = {}

    def locks(self, unit: OwnedUnit) -> list[str]:
        return [claims.lock(unit.group, unit.unit)]

    async def commit(self, acks: Sequence[UnitAck], *, sync: bool) -> list[Fenced | None]:
        """The same as :meth:`begin`; waits for the results."""
        return await told(partial(self.begin, acks, sync=sync))

    def begin(self, acks: Sequence[UnitAck], done: Done, *, sync: bool) -> None:
        """Store progress under the claims of its units; ``done(results, error)`` is told."""
        encoded = [ack.progress.encode() for ack in acks]

        def run(tx: Tx) -> list[Fenced | None]:
            return [self._put(tx, ack, state) for ack, state in zip(acks, encoded, strict=True)]

        def remember(results: list[Fenced | None], error: BaseException | None) -> None:
            if error is None:
                for ack, state, fenced in zip(acks, encoded, results, strict=True):
                    place = (ack.unit.group, ack.unit.segment_id)
                    if fenced is None:
                        self._written[place] = state
                    else:
                        self._written.pop(place, None)
            done(results, error)

        locks = _sorted_locks(ack.unit for ack in acks)
        self._host.submit(run, locks, remember, sync=sync, small=len(acks) <= FEW)

    def _put(self, tx: Tx, ack: UnitAck, state: bytes) -> Fenced | None:
        unit = ack.unit
        try:
            claims.check(tx, unit.group, unit.unit, unit.token)
        except Fenced as fenced:
            return fenced
        row = stored.get(tx, unit.group, unit.segment_id)
        if row is None or row.state == self._written.get((unit.group, unit.segment_id)):
            fresh = stored.Progress(unit.group, unit.segment_id, ack.progress.floor, state)
            stored.put(tx, fresh)
        else:
            store(tx, unit.group, unit.segment_id, decode(row).merge(ack.progress))
        return None

    def stage(self, tx: Tx, ack: UnitAck) -> None:
        unit = ack.unit
        claims.check(tx, unit.group, unit.unit, unit.token)
        stage_progress(tx, unit, ack.progress)

    def forget(self, unit: OwnedUnit) -> None:
        """The unit is given up: another owner may write its row from now on."""
        self._written.pop((unit.group, unit.segment_id), None)


def stage_progress(tx: Tx, unit: OwnedUnit, acked: Progress) -> None:
    """Join what a transaction acks to what is stored; what is acked already is refused."""
    before = load(tx, unit.group, unit.segment_id) or unit.progress
    known = before.acked()
    below = ((0, acked.floor),) if acked.floor else ()
    for lo, hi in below + acked.ranges:
        if known.ack_range(lo, hi) != hi - lo:
            raise AlreadyAckedError(unit.group, unit.unit, lo, hi)
    attempts = dict(before.attempts)
    store(tx, unit.group, unit.segment_id, Progress.of(known, attempts))


async def told(begin: Callable[[Done], None]) -> list[Fenced | None]:
    """Begin a commit, and wait for what it tells."""
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


def tell_after(work: Coroutine[Any, Any, list[Fenced | None]], done: Done) -> None:
    """Run a commit as a task, and tell how it went."""

    def tell(task: asyncio.Future[list[Fenced | None]]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        done([] if error is not None else task.result(), error)

    asyncio.ensure_future(work).add_done_callback(tell)


def _sorted_locks(units: Iterable[OwnedUnit]) -> list[str]:
    return sorted({claims.lock(unit.group, unit.unit) for unit in units})
