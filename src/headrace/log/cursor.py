"""A cursor reads one segment forward: fetches batches, checks them, and joins small ones.

What it holds at a time is bounded by ``READ_BYTES`` and ``READ_ROWS``, whatever the backlog.  Blobs
are checked against their checksum; files by that of their footer, Parquet's page checksums and
their row count.  Tried and taken out: a thread that joined one load while the next was fetched,
for a tenth more events a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.catalog import Catalog, batches
from headrace.catalog.batches import Batch
from headrace.catalog.streams import Segment
from headrace.errors import StoreError
from headrace.log import events, files, limits
from headrace.log.origins import Origins
from headrace.log.picking import Pick
from headrace.log.shelf import UNDECODABLE, Shelf, flaw
from headrace.log.walk import FileAhead as FileAhead
from headrace.log.walk import OnDamaged as OnDamaged
from headrace.log.walk import Walk
from headrace.store import Store

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_ALL = Pick()

# Freeing one block above glibc's mmap threshold raises it, and loads stay in the heap: without this
# a Spark worker takes 67,000 page faults for 2 million events instead of 200, and twice the CPU.
bytes(4 * limits.READ_BYTES)


class Cursor(Walk[pa.RecordBatch]):
    """A walk that returns stored columns, with an ``offset`` column in front."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store | None,
        stream: str,
        segment: Segment,
        position: int,
        on_damaged: OnDamaged | None = None,
        *,
        origins: bool = False,
        pick: Pick | None = None,
    ) -> None:
        """``origins``: show where the events of a linked segment come from.

        ``pick``: what of files is not decoded.  Other events may come along: it only saves work.
        """
        super().__init__(catalog, store, stream, segment, position, on_damaged)
        self._origins = Origins(catalog, segment.id) if origins else None
        self._pick = pick or _ALL
        self._file: Iterator[pa.RecordBatch | int] | None = None
        self._file_end = 0
        self._file_path: str | None = None

    @property
    def in_file(self) -> bool:
        return self._file is not None

    def next(self, end: int, *, brief: bool = False) -> pa.RecordBatch | None:
        start = self.position
        found = super().next(end, brief=brief)
        if found is None or self._origins is None:
            return found
        try:
            return self._origins.fill(found)
        except BaseException:
            # They were not given: a retry reads them again.
            self.position, self._file = start, None
            raise

    def at_hand(self) -> pa.RecordBatch | None:
        # Where they come from is another question to the catalog.
        return None if self._origins is not None else super().at_hand()

    def _count(self, found: pa.RecordBatch) -> int:
        return int(found.num_rows)

    def _flaw(self, batch: Batch) -> str:
        return flaw(batch)

    # -- blobs --------------------------------------------------------------------------

    def _read(self, end: int) -> tuple[pa.RecordBatch | None, Batch | None]:
        try:
            return self._gather(end)
        except UNDECODABLE:
            # Decode each by itself, to find the damaged one.
            return self._gather(end, copies=False)

    def _gather(
        self, end: int, *, copies: bool = True
    ) -> tuple[pa.RecordBatch | None, Batch | None]:
        shelf = Shelf(copies=copies)
        begin, stop = self._catalog.read(lambda tx: self._put_all(tx, end, shelf))
        found = shelf.joined()
        if found is not None:
            start = self.position
            skip = start - begin
            if skip or found.num_rows > end - start:
                found = found.slice(skip, end - start)
            found = _with_offsets(found, start)
        return found, stop

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
            # The store failed, the file is not damaged: a retry opens it again.
            self._file = None
            raise
        count = 0 if part is None else part if isinstance(part, int) else part.num_rows
        if part is None or start + count > self._file_end:
            self._skip_file(start, "its file does not hold as many events as it should")
            return None
        if start + count >= min(end, self._file_end):
            # At the read's end the rest of the file is left; another read finds it by offset.
            self._file = None
        self.position = min(start + count, end)
        if isinstance(part, int):
            return None
        part = part.slice(0, end - start)
        schema = events.schema_of(events.layout_of(part.schema))
        return _with_offsets(pa.RecordBatch.from_arrays(part.columns, schema=schema), start)

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

    def _read_file(self, batch: Batch, skip: int) -> Iterator[pa.RecordBatch | int]:
        """The events of a file after the first ``skip``, and how many of them were left out."""
        assert batch.path is not None
        if self._store is None:
            raise StoreError(
                f"stream {self._stream!r} has events in files; open the catalog with its store"
            )
        with files.open_file(self._store, batch.path, batch.size_bytes, batch.checksum) as file:
            columns = self._pick.columns_of(file.schema_arrow.names)
            for at in range(file.num_row_groups):
                group = file.metadata.row_group(at)
                if skip >= group.num_rows:
                    skip -= group.num_rows
                elif not self._pick.may_fit(group):
                    yield group.num_rows - skip
                    skip = 0
                else:
                    yield from _events_of(file, at, columns, skip)
                    skip = 0


def _events_of(
    file: pq.ParquetFile, group: int, columns: list[str], skip: int
) -> Iterator[pa.RecordBatch]:
    """The events of a row group after the first ``skip``."""
    for part in file.iter_batches(limits.READ_ROWS, row_groups=[group], columns=columns):
        if skip < part.num_rows:
            yield part.slice(skip)
        skip = max(0, skip - part.num_rows)


def _with_offsets(batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    offsets = events.numbers(np.arange(start, start + batch.num_rows, dtype=np.int64))
    return batch.add_column(0, _OFFSET, offsets)


_OFFSET = pa.field("offset", pa.int64())
