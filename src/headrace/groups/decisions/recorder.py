"""Recording what a program decides outside of any transaction: soon, and many in one.

Decisions that say the same about neighbouring units are joined, so that a step is one record and
not one per unit.  Those about units that a program takes over may be held back until it has taken
all of them, for ``HOLD_S`` at most.  What has gathered when the program is killed is lost; that it
was killed is recorded by others (:mod:`headrace.groups.lost`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.catalog import Tx
from headrace.errors import HeadraceError
from headrace.groups.decisions.core.record import Decision, UnitRange, ranges
from headrace.groups.decisions.store import locks, record_linked
from headrace.host import Host

GATHER_S = 0.1
HOLD_S = 2.0
GATHERED_MAX = 256
"""Decisions about one group that wait to be written; more push the oldest out."""

_log = logging.getLogger(__name__)

Exists = Callable[[Tx], bool]
StillTaking = Callable[[], bool]


class _Gathering:
    """Decisions that may still be joined by others that say the same."""

    __slots__ = ("decision", "held", "since_s", "units")

    def __init__(self, decision: Decision, held: StillTaking | None, now_s: float) -> None:
        self.decision = decision
        self.held = held
        self.since_s = now_s
        self.units: list[UnitRange] = list(decision.units)

    def is_due(self, now_s: float) -> bool:
        return self.held is None or now_s - self.since_s >= HOLD_S or not self.held()

    def whole(self) -> Decision:
        return msgspec.structs.replace(self.decision, units=_joined(self.units))


class Recorder:
    """Writes the decisions of one program."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._groups: dict[str, tuple[Exists, dict[object, _Gathering]]] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    def add(
        self, group: str, decision: Decision, exists: Exists, held: StillTaking | None = None
    ) -> None:
        """Record a decision soon, if the group ``exists`` then.

        With ``held`` it waits, for others like it to join it, while that says so.
        """
        now_s = self._host.now_s()
        stamped = msgspec.structs.replace(decision, at_us=int(now_s * 1_000_000))
        _, gathered = self._groups.setdefault(group, (exists, {}))
        self._count += 1
        same = msgspec.structs.replace(stamped, units=(), at_us=0) if decision.units else None
        key: object = self._count if same is None else same
        found = gathered.get(key)
        if found is not None:
            found.units.extend(decision.units)
        else:
            if len(gathered) >= GATHERED_MAX:
                del gathered[next(iter(gathered))]
            gathered[key] = _Gathering(stamped, held, now_s)
        if self._task is None:
            self._task = self._host.spawn(self._write_soon())

    async def flush(self) -> None:
        """Write everything that has gathered."""
        await self._write(lambda _: True)

    def close(self) -> None:
        """Stop writing; what has gathered is lost unless it was flushed."""
        if self._task is not None:
            self._task.cancel()

    async def _write_soon(self) -> None:
        try:
            while self._groups:
                await self._host.sleep(GATHER_S)
                try:
                    now_s = self._host.now_s()
                    await self._write(lambda each: each.is_due(now_s))  # noqa: B023
                except HeadraceError as error:
                    _log.debug("decisions were not recorded: %s", error)
        finally:
            self._task = None

    async def _write(self, due: Callable[[_Gathering], bool]) -> None:
        taken = self._take(due)
        if not taken:
            return
        asked_us = int(self._host.now_s() * 1_000_000)

        def run(tx: Tx) -> None:
            behind_us = tx.now_us() - asked_us
            for group, (exists, fresh) in taken.items():
                # Nothing is kept about a group that is not there (any more).
                if exists(tx):
                    timed = [
                        msgspec.structs.replace(each, at_us=each.at_us + behind_us)
                        for each in fresh
                    ]
                    record_linked(tx, group, timed)

        names = [lock for group in taken for lock in locks(group)]
        await self._host.in_transaction(run, names, sync=False)

    def _take(self, due: Callable[[_Gathering], bool]) -> dict[str, tuple[Exists, list[Decision]]]:
        taken: dict[str, tuple[Exists, list[Decision]]] = {}
        for group, (exists, gathered) in list(self._groups.items()):
            ready = {key: each for key, each in gathered.items() if due(each)}
            for key in ready:
                del gathered[key]
            if not gathered:
                del self._groups[group]
            if ready:
                taken[group] = exists, [each.whole() for each in ready.values()]
        return taken


def _joined(units: list[UnitRange]) -> tuple[UnitRange, ...]:
    return ranges(
        f"{each.stream}/{number}" if each.stream else number
        for each in units
        for number in range(each.first, each.last + 1)
    )
