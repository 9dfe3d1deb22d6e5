"""A cursor reads one segment forward: fetches batches, checks them, and joins small ones.

What it holds at a time is bounded by ``READ_BYTES`` and ``READ_ROWS``, whatever the backlog.
Blobs are checked against their checksum, files by Parquet's page checksums and their row count.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.catalog import Catalog, Tx, batches
from headrace.catalog.batches import Batch
from headrace.catalog.streams import Segment
from headrace.errors import DamagedBatchError, StoreError, TrimmedError
from headrace.log import events, limits
from headrace.store import Store

FETCH_MAX = 512

OnDamaged = Callable[[DamagedBatchError], None]


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
        self._fetch = 8
        self._file: Iterator[pa.RecordBatch] | None = None

    def next(self, end: int) -> pa.RecordBatch | None:
        """Stored columns of the next events below ``end``, with an ``offset`` column in front.

        None when all of what was fetched had to be skipped; ``position`` moves on either way.
        """
        if self._file is None:
            joined = self._next_blobs(end)
            if joined is not None or self._file is None:
                return joined
        return self._next_of_file(end)

    # -- blobs --------------------------------------------------------------------------

    def _next_blobs(self, end: int) -> pa.RecordBatch | None:
        fetched = self._catalog.read(self._read)
        self._expect(fetched[0] if fetched else None, end)
        start = self.position
        found: list[pa.RecordBatch] = []
        for batch in fetched:
            if self.position >= end or batch.start > self.position:
                break
            if batch.path is not None:
                if not found:
                    self._open_file(batch)
                break
            decoded = self._decode(batch)
            if decoded is None:
                if found:
                    break
                self.position = start = min(batch.end, end)
                continue
            skip = self.position - batch.start
            take = min(batch.end, end) - self.position
            found.append(
                decoded.slice(skip, take) if (skip, take) != (0, len(decoded)) else decoded
            )
            self.position += take
        return _with_offsets(_join(found), start) if found else None

    def _read(self, tx: Tx) -> list[Batch]:
        found: list[Batch] = []
        size = rows = 0
        for batch in batches.from_offset(tx, self._segment_id, self.position, self._fetch):
            found.append(batch)
            if batch.path is not None:
                break
            size += batch.size_bytes
            rows += batch.end - batch.start
            if size >= limits.READ_BYTES or rows >= limits.READ_ROWS:
                break
        if size:
            # As many as fill a read, from the sizes seen; a wrong guess costs one short read.
            self._fetch = max(1, min(FETCH_MAX, limits.READ_BYTES * len(found) // size))
        return found

    def _expect(self, first: Batch | None, end: int) -> None:
        """The batch at ``position`` must be there: trimmed and lost are different errors."""
        if first is not None and first.start <= self.position:
            return
        row = self._catalog.read(
            lambda tx: tx.row("SELECT tail FROM segments WHERE id = ?", (self._segment_id,))
        )
        tail = int(row[0]) if row is not None else end
        if self.position < tail:
            raise TrimmedError(self._stream, self.number, self.position, tail)
        missing_end = first.start if first is not None else end
        self._damaged(self.position, missing_end, "its record is missing")
        self.position = missing_end

    def _decode(self, batch: Batch) -> pa.RecordBatch | None:
        data = batch.data
        if data is None or len(data) != batch.size_bytes or zlib.crc32(data) != batch.checksum:
            self._damaged(batch.start, batch.end, "its checksum does not match")
            return None
        try:
            decoded = events.decode_blob(data, batch.layout)
        except (pa.ArrowInvalid, ValueError, OSError) as error:
            self._damaged(batch.start, batch.end, f"it cannot be decoded: {error}")
            return None
        if decoded.num_rows != batch.end - batch.start:
            self._damaged(batch.start, batch.end, f"it holds {decoded.num_rows} events")
            return None
        return decoded

    def _damaged(self, start: int, end: int, reason: str) -> None:
        error = DamagedBatchError(self._stream, self.number, start, end, reason)
        if self._on_damaged is None:
            raise error
        self._on_damaged(error)

    # -- files --------------------------------------------------------------------------

    def _open_file(self, batch: Batch) -> None:
        self._file_end = batch.end
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
        count = 0 if part is None else part.num_rows
        if part is None or start + count > self._file_end:
            self._skip_file(start, "its file does not hold as many events as it should")
            return None
        if start + count >= min(end, self._file_end):
            # At the read's end the rest of the file is left; another read finds it by offset.
            part = part.slice(0, end - start)
            self._file = None
        self.position += part.num_rows
        return _with_offsets(part, start)

    def _reopen(self, end: int) -> None:
        """The file is gone: replaced or trimmed since it was looked up, or lost."""
        self._file = None
        found = self._catalog.read(self._read)
        self._expect(found[0] if found else None, end)
        batch = found[0] if found else None
        if batch is None or batch.path is None or self._store is None:
            return
        try:
            self._store.open(batch.path)
        except FileNotFoundError:
            self._file_end = batch.end
            self._skip_file(batch.start, f"its file {batch.path} is missing")

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
        with pq.ParquetFile(
            self._store.open(batch.path), page_checksum_verification=True, pre_buffer=False
        ) as file:
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


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    layouts = [events.layout_of(part.schema) for part in parts]
    if any(layout != layouts[0] for layout in layouts):
        union = int(np.bitwise_or.reduce(layouts))
        parts = [
            part if layout == union else _widen(part, union)
            for part, layout in zip(parts, layouts, strict=True)
        ]
    return pa.concat_batches(parts)


def _widen(batch: pa.RecordBatch, layout: int) -> pa.RecordBatch:
    schema = events.schema_of(layout)
    names = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _with_offsets(batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    offsets = pa.array(np.arange(start, start + batch.num_rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays([offsets, *batch.columns], ["offset", *batch.schema.names])
