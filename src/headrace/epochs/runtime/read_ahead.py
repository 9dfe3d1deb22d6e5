"""Rows of whole epochs: many small ones in one go, large ones load by load.

Small epochs that wait in the queue together are read in one pass, up to ``AHEAD_ROWS`` rows and
about ``AHEAD_BYTES``, or twice that where an epoch shares commits with those before it, which would
be read again for it; what was read of each is dropped when it was given.  Lines tell numbers of
rows and not of bytes, so how many rows that is follows from those that were read last; a pass
that gets too large all the same is given up, and the epoch is read load by load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from headrace.epochs.core.arrays import Times
from headrace.epochs.core.feed import Reference
from headrace.epochs.core.times import Time
from headrace.epochs.runtime.by_time import ByTime, TooLarge
from headrace.epochs.runtime.epoch_rows import EpochRows, RowReading
from headrace.epochs.runtime.given import EpochItem, WholeEpoch
from headrace.host.host import Host
from headrace.host.loads import LOOP_ROWS
from headrace.log.cursor import FileAhead

AHEAD_ROWS = 65_536
FIRST_ROWS = 4096
"""How many rows are read ahead while the size of a row is not known."""
AHEAD_BYTES = 8 * 1024 * 1024
ALONE_LOADS = 4
"""An epoch behind which none waits is read at one go if it has no more loads than that."""
LOOP_EPOCHS = 512
"""Rows of up to so many epochs are put apart by the event loop, a load at a time.

A thread takes a seventh longer for epochs of 1,000 rows, since its memory is another.
"""


class ReadAhead:
    """Reads what is asked for, and the small epochs behind it in the queue."""

    def __init__(
        self, host: Host, rows: EpochRows, queue: deque[EpochItem], *, whole: bool
    ) -> None:
        self._host = host
        self._rows = rows
        self._queue = queue
        self._whole = whole
        self._most = FIRST_ROWS
        self._ahead: dict[Time, list[pa.RecordBatch]] = {}

    async def read(
        self, times: Sequence[Time], references: Sequence[Reference]
    ) -> AsyncIterator[pa.RecordBatch]:
        """The rows at `times`, of these references."""
        found: list[pa.RecordBatch] | None = None
        alone = False
        if len(times) == 1 and self._whole:
            found = self._ahead.pop(times[0], None)
            if found is None and sum([one.rows for one in references]) <= self._most:
                if self._queue:
                    with suppress(TooLarge):
                        found = await self._epoch(times[0], references)
                else:
                    alone = True
        if found is not None:
            for batch in found:
                yield batch
            return
        reading = self._rows.reading(references, times)
        if alone and self._host.loads.may_read:
            # At one go, as those that are read ahead; nothing of it is put apart.
            for batch in self._host.loads.read(partial(_first_loads, reading)):
                yield batch
            if reading.done:
                return
        while (load := await self._load(reading)) is not None:
            yield load[0]

    async def _load(self, reading: RowReading) -> tuple[pa.RecordBatch, Times] | None:
        """The next load, by the event loop itself where it may."""
        loads = self._host.loads
        if loads.may_read:
            # Yield between two loads, so that other tasks run.
            await asyncio.sleep(0)
            with suppress(FileAhead):
                return loads.read(partial(reading.next, brief=True))
        return await self._host.in_thread(loads.read_all, reading.next)

    async def _epoch(self, time: Time, references: Sequence[Reference]) -> list[pa.RecordBatch]:
        """The rows of a small epoch, and with them those of the next ones in the queue."""
        wanted, times = list(references), [time]
        count = sum(one.rows for one in references)
        for item in self._queue:
            assert isinstance(item, WholeEpoch)
            shared = item.references[0].line <= wanted[-1].line
            if count + item.rows > (2 * self._most if shared else self._most):
                break
            count += item.rows
            times.append(item.time)
            wanted += item.references
        try:
            self._ahead, size = await self._by_time(wanted, times, count)
        except TooLarge:
            self._most = max(1, self._most // 8)
            if len(times) == 1:
                raise
            return await self._epoch(time, references)
        if count:
            self._most = max(1, min(AHEAD_ROWS, AHEAD_BYTES // max(1, size // count)))
        return self._ahead.pop(time)

    async def _by_time(
        self, references: list[Reference], times: list[Time], count: int
    ) -> tuple[dict[Time, list[pa.RecordBatch]], int]:
        loads, rows, most = self._host.loads, self._rows, 4 * AHEAD_BYTES
        few = count <= LOOP_ROWS
        if loads.may_read and few:
            # At one go: what is given to a program that was frozen meanwhile is too late.
            with suppress(FileAhead):
                return loads.read(
                    lambda: rows.by_time(references, times, brief=True, bytes_max=most)
                )
        if few or not loads.may_read or len(times) > LOOP_EPOCHS:
            return await self._host.in_thread(rows.by_time, references, times, bytes_max=most)
        apart = ByTime(rows.shape, times, bytes_max=most)
        reading = rows.reading(references, times)
        while (load := await self._load(reading)) is not None:
            apart.add(*load)
        return apart.found, apart.size


def _first_loads(reading: RowReading) -> list[pa.RecordBatch]:
    """All of it, or a few loads before the next one or before a file."""
    found: list[pa.RecordBatch] = []
    with suppress(FileAhead):
        while len(found) < ALONE_LOADS and (load := reading.next(brief=True)) is not None:
            found.append(load[0])
    return found
