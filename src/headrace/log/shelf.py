"""Joins many blobs into one record batch.

A log of small appends is read as thousands of blobs.  Decoding them one by one takes several Python
calls each, and keeps all of them alive until they are joined.  Instead each blob is appended to a
reused buffer as soon as it is fetched.  The buffer is then an Arrow IPC stream, which Arrow decodes
and joins in one call.  Large blobs gain nothing from the copy and are decoded in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa

from headrace.catalog.batches import Batch
from headrace.log import events, limits
from headrace.log.walk import is_whole

SMALL_BYTES = 128 * 1024
"""Blobs up to this size are copied into the buffer."""

UNDECODABLE = (pa.ArrowException, ValueError, OSError, EOFError)


class Shelf:
    """The blobs of one load.

    With ``copies=False`` all blobs are decoded in place: slower, but ``put`` refuses at once one
    that cannot be decoded.
    """

    def __init__(self, *, copies: bool = True) -> None:
        self._small_bytes = SMALL_BYTES if copies else 0
        self._parts: list[pa.RecordBatch] = []
        self._memory: _Memory | None = None
        self._end = 0
        self._layout = 0
        """The layout of the blobs in the buffer; 0 if it is empty."""
        self._rows = 0
        self._first: Batch | None = None

    def put(self, batch: Batch) -> bool:
        """Take the blob of a batch; false if it is not what was stored."""
        data, size = batch.data, batch.size_bytes
        if data is None or not is_whole(batch):
            return False
        begin, end = self._end, self._end + size
        if batch.layout == self._layout and size <= self._small_bytes and end <= _Memory.SIZE:
            assert self._memory is not None
            self._memory.view[begin:end] = data
            self._end = end
            self._rows += batch.end - batch.start
            return True
        self._decode()
        if size <= self._small_bytes:
            self._begin(batch)
            return True
        try:
            self._parts.append(_open(batch))
        except UNDECODABLE:
            return False
        return True

    def joined(self) -> pa.RecordBatch | None:
        """All blobs as one record batch; None if there are none.  Call it once.

        Raises one of ``UNDECODABLE`` if a blob cannot be decoded although its checksum is right.
        """
        self._decode()
        if self._memory is not None:
            self._memory.given_back()
            self._memory = None
        return join(self._parts) if self._parts else None

    def _begin(self, batch: Batch) -> None:
        """Start a stream in the buffer with the first blob of a layout."""
        data, schema = batch.data, _schema_message(batch.layout)
        assert data is not None
        if self._memory is None:
            self._memory = _Memory.taken()
        view = self._memory.view
        begin, self._end = len(schema), len(schema) + len(data)
        view[:begin] = schema
        view[begin : self._end] = data
        self._layout, self._rows, self._first = batch.layout, batch.end - batch.start, batch

    def _decode(self) -> None:
        """Decode the stream in the buffer."""
        first, self._first = self._first, None
        if first is None:
            return
        if first.end - first.start == self._rows:
            # A single blob is not copied by the join: it would change when the buffer is reused.
            self._parts.append(_open(first))
        else:
            assert self._memory is not None
            with pa.ipc.open_stream(self._memory.buffer.slice(0, self._end)) as stream:
                found = stream.read_all()
            if found.num_rows != self._rows:
                raise ValueError("there are other events in it than there should be")
            self._parts.append(found.combine_chunks().to_batches()[0])
        self._layout = 0


class _Memory:
    """A buffer for blobs; pages of it that were never written to take no memory.

    A few are kept for reuse.  The buffer of a shelf that is never joined is garbage-collected.
    """

    SIZE = 2 * limits.READ_BYTES
    KEPT_MAX = 8
    _kept: ClassVar[list[_Memory]] = []

    def __init__(self) -> None:
        memory = bytearray(self.SIZE)
        self.view = memoryview(memory)
        self.buffer = pa.py_buffer(memory)

    @classmethod
    def taken(cls) -> _Memory:
        try:
            return cls._kept.pop()
        except IndexError:
            return cls()

    def given_back(self) -> None:
        """Keep it for reuse; nothing may refer to its bytes any more."""
        if len(self._kept) < self.KEPT_MAX:
            self._kept.append(self)


def flaw(batch: Batch) -> str:
    """What is wrong with a blob that a shelf did not take."""
    if not is_whole(batch):
        return "its checksum does not match"
    try:
        _open(batch)
    except UNDECODABLE as error:
        return f"it cannot be decoded: {error}"
    return "it is in order"


def join(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches as one; a column that is all null in one of them is not stored there."""
    if len(parts) == 1:
        return parts[0]
    layout = 0
    for part in parts:
        layout |= events.layout_of(part.schema)
    return pa.concat_batches([widen(part, layout) for part in parts])


def widen(batch: pa.RecordBatch, layout: int) -> pa.RecordBatch:
    """The batch with all columns of a layout; those it does not have are null."""
    schema = events.schema_of(layout)
    if batch.schema == schema:
        return batch
    names = batch.schema.names
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _open(batch: Batch) -> pa.RecordBatch:
    assert batch.data is not None
    part = events.decode_blob(batch.data, batch.layout)
    if part.num_rows != batch.end - batch.start:
        raise ValueError(f"it holds {part.num_rows} events")
    return part


@lru_cache(maxsize=1 << len(events.COLUMNS))
def _schema_message(layout: int) -> bytes:
    """The schema message that begins an IPC stream of this layout."""
    return bytes(events.schema_of(layout).serialize())
