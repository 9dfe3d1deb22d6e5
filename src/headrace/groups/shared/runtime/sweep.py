"""Forgetting the sessions that are over: in the background, when others are opened."""

from __future__ import annotations

import functools
import itertools
import logging

from headrace.errors import HeadraceError
from headrace.groups.shared import sessions
from headrace.host import Host

SWEEP_MS = 60_000
SWEEP_MAX = 100
"""Sessions that are forgotten in one transaction."""

_log = logging.getLogger(__name__)


class SessionSweep:
    """Sweeps at most once in ``SWEEP_MS``."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tasks = host.tasks("sessions that are over")
        self._due_ms = 0

    def begin(self) -> None:
        """Sweep, if that was not done lately."""
        if self._host.now_ms() >= self._due_ms:
            self._due_ms = self._host.now_ms() + SWEEP_MS
            self._tasks.spawn(self._sweep())

    async def _sweep(self) -> None:
        host = self._host
        try:
            over = await host.in_thread(host.log.catalog.read, sessions.over, snapshot=True)
            if over:
                await host.sleep(sessions.TTL_MS / 1000)
            left = iter(over.values())
            while part := list(itertools.islice(left, SWEEP_MAX)):
                locks = {lock for each in part for lock in sessions.locks(each.record.name)}
                await host.in_transaction(functools.partial(sessions.sweep, seen=part), locks)
        except HeadraceError as error:
            _log.warning("sessions that are over cannot be forgotten: %s", error)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()
