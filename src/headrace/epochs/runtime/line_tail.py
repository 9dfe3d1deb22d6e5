"""The lines of a progress log as they come: a read that follows, woken by news.

A load may hold hundreds of lines, and a line thousands of epochs.  So a load is kept as it was
read, and a few lines of it are decoded at a time: what a replay holds in memory stays the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from headrace.epochs.core.lines import Line
from headrace.epochs.runtime.progress_log import ProgressLog, last_stored
from headrace.errors import TrimmedError
from headrace.host.host import Host
from headrace.log import events
from headrace.log.cursor import FileAhead
from headrace.log.query import Query
from headrace.log.read import Reader
from headrace.log.walk import FETCH_MAX

DECODED_BYTES = 16 * 1024
"""About so much of a load is decoded at a time, and one line at least."""


class LineTail:
    """Lines from a number on.  Loads are small enough for the event loop, where it may read."""

    def __init__(self, host: Host, progress: ProgressLog, start: int) -> None:
        self._host = host
        self._progress = progress
        self.next_line = start
        self._before: pa.RecordBatch | None = None
        """The line before the next one, as it was when it was read."""
        self._rest: pa.RecordBatch | None = None
        """Lines that were read, and are not decoded yet."""
        self._loaded: list[tuple[int, Line]] = []
        self._loaded_last: pa.RecordBatch | None = None
        self._reader: Reader | None = None
        self.news = asyncio.Event()
        self._leave: Callable[[], None] | None = None

    async def open(self) -> None:
        """Subscribe to news first, look second."""
        host = self._host
        self._leave = await host.listen(self._progress.channel, self.news.set)
        self._reader = await host.in_thread(self._opened)

    def _opened(self) -> Reader:
        # Without it, nothing could be told after the catalog's history changed.
        with suppress(TrimmedError):
            if self._progress.bounds()[0] < self.next_line:
                self._before = next(self._progress.batches(self.next_line - 1, self.next_line))
        # Not as applications see rows: that adds columns, which nobody looks at here.
        query = Query(start={0: self.next_line}, follow=True, markers=True)
        reader = self._host.log.reader(self._progress.name, query)
        reader.expect(FETCH_MAX)
        return reader

    def close(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None
        self.news.set()

    async def load(self) -> list[tuple[int, Line]]:
        """The next lines, in order; empty if there are none yet (wait for ``news``).

        Repeats its answer until those lines were taken (:meth:`take`).
        """
        if not self._loaded:
            if self._rest is None:
                self.news.clear()
                batch = await self._load()
                self._rest = batch if batch is not None and batch.num_rows else None
            if self._rest is not None:
                self._decode(self._rest)
        return self._loaded

    def _decode(self, batch: pa.RecordBatch) -> None:
        part, self._rest = batch, None
        if batch.num_rows > 1:
            ends = events.ends_of(batch.column("value"))
            count = max(1, int(ends.searchsorted(ends[0] + DECODED_BYTES, "right")) - 1)
            if count < batch.num_rows:
                part, self._rest = batch.slice(0, count), batch.slice(count)
        self._loaded = list(self._progress.decoded(part))
        self._loaded_last = part.slice(part.num_rows - 1)

    @property
    def has_more(self) -> bool:
        """Whether the next lines are at hand, without a look at the log."""
        return self._rest is not None

    def take(self) -> None:
        """What was loaded is taken in, and follows what was read before."""
        if self._loaded:
            self.next_line, self._before = self._loaded[-1][0] + 1, self._loaded_last
            self._loaded, self._loaded_last = [], None

    def is_as_known(self) -> bool:
        """Whether the log still has what was read of it, after the catalog's history changed.

        What was read and not taken may be of either history, so both are looked at: what it is to
        follow, and the last of it.
        """
        known = [(self.next_line - 1, self._before)] if self.next_line else []
        if self._loaded:
            known.append((self._loaded[-1][0], self._loaded_last))
        if self._rest is not None:
            known.append((self._rest.column("offset")[-1].as_py(), self._rest))
        tail, head = self._progress.bounds()
        with suppress(TrimmedError):
            return all(
                tail <= number < head
                and line is not None
                and self._progress.stored(number) == last_stored(line)
                for number, line in known
            )
        return False

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


async def any_news(host: Host, tails: Sequence[LineTail]) -> None:
    """Wait until one of them may have new lines."""
    waits = [tail.news.wait() for tail in tails]
    if len(waits) == 1:
        await waits[0]
        return
    tasks = [host.spawn(wait, awaited=True) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
