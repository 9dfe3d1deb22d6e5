"""Writes in a plain loop at full speed: pipelined, with back-pressure.

A program that waits for each append pays for a commit each time.  What is pipelined takes the next
one while the last one is being stored, and all that gathers during a commit shares the next one
(group commit).  Events are stored in the order of the calls; when a write fails, no later one is
written.  So the log always holds a prefix of what was given.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Self

from headrace.errors import AppenderClosedError, HeadraceError
from headrace.host.host import Host
from headrace.host.loads import GROUP_BYTES, SMALL_BYTES
from headrace.host.packages import Waiting
from headrace.log.append import Outcome, Write

WAITING_BYTES = 2 * GROUP_BYTES
WAITING_APPENDS = 128
"""Back-pressure: beyond this much unstored, a call waits.  Room for a group being stored and one
that gathers."""


class Pipelined:
    """Writes to one stream that are on their way."""

    def __init__(self, host: Host, stream: str) -> None:
        self._host = host
        self._stream = stream
        # ``headrace.sync`` appends on its caller's thread.
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._given = self._stored = 0
        """How many writes there were, and how many of them are durable."""
        self._moved = asyncio.Event()
        self.failure: BaseException | None = None
        """The first error; after it nothing more is written."""
        self._told = False
        self._closed = False

    async def room(self) -> None:
        """Wait until there is room for more."""
        await self._until(lambda: not self._is_full)

    async def flush(self) -> None:
        """Wait until all that was appended so far is durable."""
        given = self._given
        await self._until(lambda: self._stored >= given)
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Flush, and take no more."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.close()
        except HeadraceError:
            # An error of the block itself came first: do not hide it.
            if kind is None:
                raise

    # -- giving -------------------------------------------------------------------------

    async def _put(self, write: Write) -> None:
        """Hand over a write once it is checked, and there is room for it."""
        if write.size_bytes > SMALL_BYTES or not write.is_routed:
            await self._host.in_thread(self._check_subjects, write)
        else:
            self._check_subjects(write)
        await self._host.writes.prepare(write)
        await self.room()
        self._host.writes.put(self._give(write))

    def _put_from_thread(self, write: Write) -> None:
        """Hand over a write from another thread than the loop's; there is room."""
        self._check_subjects(write)
        if write.size_bytes > SMALL_BYTES:
            write.prepare()
        self._host.writes.put_from_thread(self._give(write))

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise AppenderClosedError("this appender is closed; make another to append more")

    def _check_subjects(self, write: Write) -> None:
        if write.plain.rows:
            self._host.log.routes.get(self._stream).check_subjects(write.plain.given)

    @property
    def _is_full(self) -> bool:
        on_their_way = self._given - self._stored
        return self._waiting_bytes >= WAITING_BYTES or on_their_way >= WAITING_APPENDS

    def _give(self, write: Write) -> Waiting:
        with self._lock:
            self._check()
            self._waiting_bytes += write.size_bytes
            self._given += 1
        return Waiting(told=partial(self._answered, write), write=write, lane=self)

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait until ``reached()`` is true or an append has failed."""
        self._host.check_fork()
        while self.failure is None and not reached():
            self._moved.clear()
            await self._moved.wait()

    def _answered(self, write: Write, outcome: Outcome, error: BaseException | None) -> None:
        del outcome
        with self._lock:
            if error is None:
                self._stored += 1
                self._waiting_bytes -= write.size_bytes
            elif not self._told:
                self._fail(error)
        self._moved.set()

    def _fail(self, error: BaseException) -> None:
        self._told = True
        missing = self._given - self._stored
        error.add_note(f"{missing} appends were on their way and are not known to be stored")
        if not isinstance(error, Exception):
            error = AppenderClosedError("this appender was stopped in its work")
        self.failure = error
