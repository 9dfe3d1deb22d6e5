"""The lines of a progress log as they come: a read that follows, woken by news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pyarrow as pa

from headrace.epochs.core.lines import Line
from headrace.epochs.runtime.progress_log import ProgressLog
from headrace.errors import TrimmedError
from headrace.host.host import Host
from headrace.log.cursor import FileAhead
from headrace.log.read import Query, Reader


class LineTail:
    """Lines from a number on.  Loads are small enough for the event loop, where it may read."""

    def __init__(self, host: Host, progress: ProgressLog, start: int) -> None:
        self._host = host
        self._progress = progress
        self.next_line = start
        self._last: Line | None = None
        self._reader: Reader | None = None
        self.news = asyncio.Event()
        self._leave: Callable[[], None] | None = None

    async def open(self) -> None:
        """Subscribe to news first, look second."""
        host = self._host
        self._leave = await host.listen(self._progress.channel, self.news.set)
        query = Query(start={0: self.next_line}, follow=True)
        self._reader = await host.in_thread(host.log.reader, self._progress.name, query)

    def close(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None
        self.news.set()

    async def load(self) -> list[tuple[int, Line]]:
        """The next lines, in order; empty if there are none yet (wait for ``news``)."""
        self.news.clear()
        batch = await self._load()
        if batch is None or not batch.num_rows:
            return []
        found = list(self._progress.decoded(batch))
        self.next_line, self._last = found[-1][0] + 1, found[-1][1]
        return found

    def is_as_known(self) -> bool:
        """Whether the log still has what was read of it, after the catalog's history changed.

        A line tells its publisher's token, which is never the same in another history.
        """
        tail, head = self._progress.bounds()
        if self._last is None or head < self.next_line:
            return head >= self.next_line
        return tail < self.next_line and self._progress.line(self.next_line - 1) == self._last

    async def _load(self) -> pa.RecordBatch | None:
        assert self._reader is not None
        loads = self._host.loads
        try:
            if loads.may_read:
                with suppress(FileAhead):
                    while True:
                        batch = loads.read(partial(self._reader.next, brief=True))
                        if batch is None or batch.num_rows:
                            return batch
            return await self._host.in_thread(loads.read_all, self._reader.next)
        except TrimmedError:
            # Lines go when no row of theirs is left: whoever was that slow starts anew.
            raise
