"""Prefetch: which unit is read next, and how far, within the bytes that a consumer may hold.

A run that has something to read and little at hand is *hungry*.  Hungry runs are fed in turn, a
few at a time, as long as what all of them hold is below ``prefetch_bytes``; so memory is bounded
whatever the backlog and however many units there are.  A fetch asks for as many events as should
fit, by the size of those before, and at least for one; what it asks for counts while it is under
way.

Where ``host/loads.py`` allows it, blobs are read on the event loop: up to ``FEW`` events at once,
of larger reads one per turn of the loop, so that others run in between.  Threads read the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from headrace.errors import HeadraceError
from headrace.groups.consumer.fetch import Fetched, Gap, UnitReader
from headrace.groups.consumer.run import Run
from headrace.groups.consumer.types import ConsumerOptions
from headrace.host import Host
from headrace.host.loads import FEW
from headrace.log import limits
from headrace.log.cursor import FileAhead

FETCHES_MAX = 4
"""Reads under way at a time."""
SCRAPS = 8
"""A unit with a backlog is read only when 1/SCRAPS of ``prefetch_bytes`` is free (hysteresis): else
an application that is slower than the log would get a tiny batch after each it lets go of."""
FIRST_ROW_BYTES = 8192
"""The assumed size of an event until one was seen, so that the first fetch is not far too large.

Used only if less than ``READ_BYTES`` is free, since a reader stops there in any case.
"""
RETRY_S = 0.5

_log = logging.getLogger(__name__)


class Prefetch:
    """Reads ahead for all runs of a consumer."""

    def __init__(
        self,
        host: Host,
        options: ConsumerOptions,
        fetched: Callable[[Run], None],
        trouble: Callable[[Run, HeadraceError], None],
    ) -> None:
        self._host = host
        self._options = options
        self._fetched = fetched
        self._trouble = trouble
        self._loop = host.loop
        self._hungry: dict[Run, None] = {}
        self._tasks = host.tasks("prefetch")
        self._stopped = False
        self._pumping = False
        self._asked_bytes = 0.0
        self.held_bytes = 0.0

    def want(self, run: Run) -> None:
        """Read on for this run, if there is something to read and room for it."""
        if not self._stopped and run.hungry():
            self._hungry[run] = None

    def forget(self, run: Run) -> None:
        """The run is gone."""
        self._hungry.pop(run, None)

    def account(self, size_bytes: float) -> None:
        """The bytes held have changed by this much."""
        self.held_bytes += size_bytes
        if size_bytes < 0 and self._hungry:
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._pumping = False
        self.pump(loads=1)

    def pump(self, *, loads: int = 0) -> None:
        """Start as many fetches as may run; up to ``loads`` large ones on the event loop itself."""
        while self._hungry and len(self._tasks) < FETCHES_MAX:
            room = self._options.prefetch_bytes - self.held_bytes - self._asked_bytes
            if room <= 0:
                return
            run = next(iter(self._hungry))
            if not run.hungry():
                del self._hungry[run]
                continue
            reader = run.reader
            assert reader is not None
            left, rows = run.head - reader.position, self._rows(run, room)
            if self._scraps(room) and rows < min(left, limits.READ_ROWS):
                return
            end = reader.position + min(left, rows)
            here = self._host.loads.may_read and not reader.in_file
            if here and end - reader.position > FEW:
                if not loads:
                    self._pump_soon()
                    return
                loads -= 1
            del self._hungry[run]
            if here and self._read_here(run, reader, end):
                continue
            run.fetching = True
            asked = min((end - reader.position) * _row_bytes(run), limits.READ_BYTES)
            self._asked_bytes += asked
            task = self._tasks.spawn(self._read(run, reader, end))
            task.add_done_callback(partial(self._done, asked))

    def _scraps(self, room: float) -> bool:
        """Whether there is little room now, and events are held whose bytes will be freed."""
        return room < self._options.prefetch_bytes / SCRAPS and self.held_bytes > 0

    def _rows(self, run: Run, room: float) -> int:
        """How many events to ask for, so that about ``room`` bytes come."""
        if not run.row_bytes and room >= limits.READ_BYTES:
            return limits.READ_ROWS
        return max(1, min(int(room / _row_bytes(run)), limits.READ_ROWS))

    def _read_here(self, run: Run, reader: UnitReader, end: int) -> bool:
        """Read blobs on the event loop; false if a file must be opened, which takes a thread."""
        try:
            found = self._host.loads.read(partial(reader.next, end, brief=True))
        except FileAhead:
            return False
        except HeadraceError as error:
            self._failed(run, error)
        else:
            self._keep(run, found)
        return True

    async def _read(self, run: Run, reader: UnitReader, end: int) -> None:
        try:
            load = partial(reader.next, end)
            found = await self._host.in_thread(self._host.loads.read_all, load)
        except HeadraceError as error:
            self._failed(run, error)
        else:
            run.fetching = False
            self._keep(run, found)

    def _done(self, asked_bytes: float, _: asyncio.Task[None]) -> None:
        self._asked_bytes -= asked_bytes
        self.pump()

    def _keep(self, run: Run, found: Fetched | Gap) -> None:
        if isinstance(found, Gap) and found.trimmed:
            _log.warning(
                "group %s, unit %s: events below offset %d were trimmed before they were delivered",
                run.owned.group,
                run.owned.unit,
                found.end,
            )
        run.fetched(found)
        self._fetched(run)
        self.want(run)

    def _failed(self, run: Run, error: HeadraceError) -> None:
        """Report the failure, and read again in a while."""
        run.fetching = True
        if self._stopped or run.gone is not None:
            return
        self._trouble(run, error)
        self._host.after(RETRY_S, partial(self._again, run))

    def _again(self, run: Run) -> None:
        run.fetching = False
        self.want(run)
        self.pump()

    def stop(self) -> None:
        """Start no more."""
        self._stopped = True
        self._hungry.clear()

    async def close(self) -> None:
        """Stop, and wait for what is under way."""
        self.stop()
        await self._tasks.rest()


def _row_bytes(run: Run) -> float:
    return run.row_bytes or FIRST_ROW_BYTES
