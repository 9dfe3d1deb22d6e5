"""Appending in a plain loop at full speed.

Whoever waits for each append pays for a commit each time.  An appender takes the next table while
the one before is stored: what gathers during a commit shares the next one.  One commit is under
way at a time, so everything is stored in the order in which it was given; and when one fails,
nothing behind it is written.  What the log holds is always what was given first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from headrace.api.appends import checked
from headrace.errors import AppenderClosedError, HeadraceError
from headrace.host.commit import SMALL_BYTES, commit
from headrace.log import limits
from headrace.log.append import Write
from headrace.log.joined import Joined, join
from headrace.log.log import to_batch

if TYPE_CHECKING:
    from headrace.api.client import Headrace
    from headrace.log.events import Events

WAITING_BYTES = limits.INLINE_BYTES
WAITING_APPENDS = 64
"""With so much waiting, whoever appends has to wait too."""

HERE_BYTES = limits.INLINE_BYTES
"""What needs no file is prepared on the event loop, in a millisecond or two: a thread that did it
would take turns with whoever makes the next table, since both run Python."""


class Appender:
    """Appends to one stream that are on their way; see :meth:`Headrace.appender`."""

    def __init__(self, client: Headrace, stream: str) -> None:
        self._client = client
        self._stream = stream
        # Scripts give from threads of their own.
        self._lock = threading.Lock()
        self._waiting: list[Write] = []
        self._waiting_bytes = 0
        self._given = self._stored = 0
        """How many appends there were, and how many of them are durable."""
        self._moved = asyncio.Event()
        self._storing: asyncio.Task[None] | None = None
        self._busy = False
        self._failure: BaseException | None = None
        self._closed = False

    async def append(self, data: Events) -> None:
        """Append events; returns once they are checked and there is room for more.

        Events that break a rule raise here, and nothing of this call is written.  If an earlier
        append could not be stored, that raises too, now and at every call that follows.
        """
        self._check()
        write = self._write_of(await checked(self._client, data))
        if write.is_small(SMALL_BYTES):
            self._check_subjects(write)
        else:
            await self._client.in_thread(self._check_subjects, write)
        await self.room()
        if self._give(write):
            self._start()

    def append_from(self, loop: asyncio.AbstractEventLoop, data: Events) -> bool:
        """The same on another thread than the loop's; false, and nothing is done, without room."""
        self._check()
        if self._is_full:
            return False
        write = self._write_of(to_batch(data))
        self._check_subjects(write)
        if self._give(write):
            loop.call_soon_threadsafe(self._start)
        return True

    async def room(self) -> None:
        """Wait until there is room for more."""
        await self._until(lambda: not self._is_full)

    async def flush(self) -> None:
        """Wait until all that was appended so far is durable."""
        given = self._given
        await self._until(lambda: self._stored >= given)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Flush, and take no more."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except HeadraceError:
            # What went wrong first is what the caller has to hear of.
            if error is None:
                raise

    # -- giving -------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise AppenderClosedError("this appender is closed; make another to append more")

    def _write_of(self, batch: pa.RecordBatch) -> Write:
        write = self._client.log.write_of()
        write.add(self._stream, batch, captured=True)
        return write

    def _check_subjects(self, write: Write) -> None:
        self._client.log.routes.get(self._stream).check_subjects(write.plain.batch)

    @property
    def _is_full(self) -> bool:
        return self._waiting_bytes >= WAITING_BYTES or len(self._waiting) >= WAITING_APPENDS

    def _give(self, write: Write) -> bool:
        """Have a write wait; true if nobody is at work, which is for the caller to change."""
        with self._lock:
            self._check()
            self._waiting.append(write)
            self._waiting_bytes += write.plain.size_bytes
            self._given += 1
            idle, self._busy = not self._busy, True
            return idle

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait for that, or for a failure."""
        while self._failure is None and not reached():
            self._moved.clear()
            await self._moved.wait()

    # -- storing ------------------------------------------------------------------------

    def _start(self) -> None:
        self._storing = asyncio.create_task(self._store())

    async def _store(self) -> None:
        """Store what waits, a group after the other, until nothing does."""
        try:
            while group := self._take():
                self._moved.set()
                await commit(self._client, Joined(group).write, small_bytes=HERE_BYTES)
                self._stored += len(group)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._moved.set()

    def _take(self) -> Sequence[Write]:
        """What is stored together next; nothing, if nothing waits."""
        with self._lock:
            group: Sequence[Write] = next(join(self._waiting), ())
            del self._waiting[: len(group)]
            self._waiting_bytes -= sum(write.plain.size_bytes for write in group)
            self._busy = bool(group)
            return group

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            missing = self._given - self._stored
            error.add_note(f"{missing} appends were on their way and are not known to be stored")
            stopped = AppenderClosedError("this appender was stopped in its work")
            self._failure = error if isinstance(error, Exception) else stopped
            self._waiting.clear()
            self._waiting_bytes = 0
