"""A cursor reads one segment forward: fetches batches, checks them, and joins small ones.

What it holds at a time is bounded by ``READ_BYTES`` and ``READ_ROWS``, whatever the backlog.
Blobs are checked against their checksum; files by that of their footer, Parquet's page checksums
and their row count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.catalog import Catalog, Tx, batches
from headrace.catalog.batches import Batch
from headrace.catalog.streams import Segment
from headrace.errors import DamagedBatchError, StoreError, TrimmedError, UnknownStreamError
from headrace.log import events, files, limits
from headrace.log.shelf import UNDECODABLE, Shelf, flaw
from headrace.store import Store

FETCH_MAX = 512

OnDamaged = Callable[[DamagedBatchError], None]


class FileAhead(Exception):
    """What comes next is in a file, and whoever asked has no time to open one."""


# A C library that gives the memory of every load back to the system, to ask for it again with the
# next one, spends a fifth of a read on that.  glibc stops it once a block so large was freed.
bytes(4 * limits.READ_BYTES)


class Cursor:
    """A place in one segment; ``position`` is the next offset it will return."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store | None,
        stream: str,
        segment: Segment,
        position: int,
        on_damaged: OnDamaged | None = None,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._stream = stream
        self._segment_id = segment.id
        self.number = segment.number
        self.position = position
        self._on_damaged = on_damaged
        self._batches_wanted = 8
        self._file: Iterator[pa.RecordBatch] | None = None
        self._file_end = 0
        self._file_path: str | None = None

    @property
    def in_file(self) -> bool:
        """Whether what comes next is in a file that is open."""
        return self._file is not None

    def next(self, end: int, *, brief: bool = False) -> pa.RecordBatch | None:
        """Stored columns of the next events below ``end``, with an ``offset`` column in front.

        None when what came next had to be skipped; ``position`` moves on either way.  If it has to
        be ``brief``, it raises :class:`FileAhead` instead of opening one.
        """
        if self._file is not None:
            if brief:
                raise FileAhead
            return self._next_of_file(end)
        start = self.position
        found, stop = self._catalog.read(lambda tx: self._read(tx, end))
        if found is not None:
            self.position = start + found.num_rows
            return found
        if stop is None or stop.start > start:
            self._lost(stop.start if stop is not None else end)
        elif stop.path is not None:
            if brief:
                raise FileAhead
            self._open_file(stop)
            return self._next_of_file(end)
        else:
            self._damaged(stop.start, stop.end, flaw(stop))
            self.position = min(stop.end, end)
        return None

    # -- blobs --------------------------------------------------------------------------

    def _read(self, tx: Tx, end: int) -> tuple[pa.RecordBatch | None, Batch | None]:
        """The blobs from ``position`` on, and what they stop at if that is no good blob."""
        try:
            return self._gather(tx, end, Shelf())
        except UNDECODABLE:
            # Which of them is no good is seen when each is decoded by itself.
            return self._gather(tx, end, Shelf(copies=False))

    def _gather(self, tx: Tx, end: int, shelf: Shelf) -> tuple[pa.RecordBatch | None, Batch | None]:
        begin = at = self.position
        rows_end = min(end, at + limits.READ_ROWS)
        size = count = 0
        stop = None
        for batch in batches.from_offset(
            tx, self._segment_id, at, self._batches_wanted, limits.READ_BYTES
        ):
            if batch.start > at or batch.path is not None or not shelf.put(batch):
                stop = batch
                break
            begin, at = min(begin, batch.start), batch.end
            size += batch.size_bytes
            count += 1
            if at >= rows_end or size >= limits.READ_BYTES:
                break
        if size:
            # As many as fill a load, from the sizes seen; a wrong guess costs a short one.
            wanted = limits.READ_BYTES * count // size + 1
            self._batches_wanted = max(1, min(FETCH_MAX, wanted))
        joined = shelf.joined()
        if joined is None:
            return None, stop
        found, layout = joined
        if begin < self.position or at > end:
            found = found.slice(self.position - begin, min(at, end) - self.position)
        return _with_offsets(found, layout, self.position), stop

    def _lost(self, upto: int) -> None:
        """There is no batch at ``position``: it was trimmed, or it is missing."""
        # Or it was compacted between two queries: one moment decides, and the next look finds it.
        found = self._catalog.read(
            lambda tx: next(batches.from_offset(tx, self._segment_id, self.position, 1, 1), None),
            snapshot=True,
        )
        if found is not None and found.start <= self.position < found.end:
            return
        row = self._catalog.read(
            lambda tx: tx.row("SELECT tail FROM segments WHERE id = ?", (self._segment_id,))
        )
        if row is None:
            raise UnknownStreamError(f"stream {self._stream!r} was deleted while it was read")
        tail = int(row[0])
        if self.position < tail:
            raise TrimmedError(self._stream, self.number, self.position, tail)
        self._damaged(self.position, upto, "its record is missing")
        self.position = upto

    def _damaged(self, start: int, end: int, reason: str) -> None:
        error = DamagedBatchError(self._stream, self.number, start, end, reason)
        if self._on_damaged is None:
            raise error
        self._on_damaged(error)

    # -- files --------------------------------------------------------------------------

    def _open_file(self, batch: Batch) -> None:
        self._file_end = batch.end
        self._file_path = batch.path
        self._file = self._read_file(batch, self.position - batch.start)

    def _next_of_file(self, end: int) -> pa.RecordBatch | None:
        assert self._file is not None
        start = self.position
        try:
            part = next(self._file, None)
        except FileNotFoundError:
            self._reopen(end)
            return None
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).split("\n", 1)[0]
            self._skip_file(start, f"its file cannot be read: {reason}")
            return None
        except BaseException:
            # The store's trouble, not the file's: it is opened again by whoever tries again.
            self._file = None
            raise
        count = 0 if part is None else part.num_rows
        if part is None or start + count > self._file_end:
            self._skip_file(start, "its file does not hold as many events as it should")
            return None
        if start + count >= min(end, self._file_end):
            # At the read's end the rest of the file is left; another read finds it by offset.
            part = part.slice(0, end - start)
            self._file = None
        self.position += part.num_rows
        return _with_offsets(part, events.layout_of(part.schema), start)

    def _reopen(self, end: int) -> None:
        """The file is gone: replaced or trimmed since it was looked up, or lost."""
        self._file = None
        batch = self._catalog.read(
            lambda tx: next(batches.from_offset(tx, self._segment_id, self.position, 1, 1), None)
        )
        if batch is None or batch.start > self.position:
            self._lost(end if batch is None else batch.start)
        elif batch.path == self._file_path:
            self._skip_file(self.position, f"its file {batch.path} is missing")

    def _skip_file(self, start: int, reason: str) -> None:
        self._file = None
        self._damaged(start, self._file_end, reason)
        self.position = self._file_end

    def _read_file(self, batch: Batch, skip: int) -> Iterator[pa.RecordBatch]:
        assert batch.path is not None
        if self._store is None:
            raise StoreError(
                f"stream {self._stream!r} has events in files; open the catalog with its store"
            )
        with files.open_file(self._store, batch.path, batch.size_bytes, batch.checksum) as file:
            groups: list[int] = []
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if not groups and skip >= rows:
                    skip -= rows
                else:
                    groups.append(group)
            for group in groups:
                for part in file.iter_batches(limits.READ_ROWS, row_groups=[group]):
                    if skip < part.num_rows:
                        yield part.slice(skip)
                    skip = max(0, skip - part.num_rows)


def _with_offsets(batch: pa.RecordBatch, layout: int, start: int) -> pa.RecordBatch:
    offsets = events.numbers(np.arange(start, start + batch.num_rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays([offsets, *batch.columns], schema=_numbered(layout))


@lru_cache(maxsize=1 << len(events.COLUMNS))
def _numbered(layout: int) -> pa.Schema:
    return events.schema_of(layout).insert(0, pa.field("offset", pa.int64()))
