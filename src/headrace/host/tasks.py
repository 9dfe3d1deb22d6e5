"""Tasks that belong to one part of a program, and end with it.

A failure that nobody waits for is written to the log with the name of the part.  That a catalog
was closed under a task is no failure: the program is ending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.errors import CatalogClosedError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one part; made by ``host.tasks(…)``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, part: str) -> None:
        self._loop = loop
        self._part = part
        # A dict keeps the order; that of a set would be random.
        self._running: dict[asyncio.Task[Any], None] = {}
        self._awaited: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, T], *, awaited: bool = False) -> asyncio.Task[T]:
        """Run a coroutine as a task.

        The failure of an `awaited` one is its awaiter's business, and it is not cancelled with the
        others, since that would cancel the awaiter, too.
        """
        task = self._loop.create_task(work)
        if awaited:
            self._awaited[task] = None
            task.add_done_callback(self._heard)
        else:
            self._running[task] = None
            task.add_done_callback(self._ended)
        return task

    def _heard(self, task: asyncio.Task[Any]) -> None:
        del self._awaited[task]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, CatalogClosedError):
            _log.error("%s: %s", self._part, error, exc_info=error)

    def cancel(self) -> None:
        """Tell all of them to end."""
        for task in list(self._running):
            task.cancel()

    async def rest(self) -> None:
        """Wait until all have ended, also those that begin meanwhile."""
        while self._running:
            await asyncio.wait(list(self._running))

    async def close(self) -> None:
        """Cancel all of them, and wait for their end."""
        self.cancel()
        await self.rest()
