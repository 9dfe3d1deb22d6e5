"""Blobs become one record batch.

A log of small appends is read in thousands of blobs.  To decode them one by one takes a few calls
of Python for each, and all of them have to be kept until they are joined.  Instead each is copied
behind the one before, on memory that stays, as soon as it was fetched; what has gathered there is a
stream of Arrow messages, which Arrow decodes and joins at once.  Large blobs gain nothing by that
and are decoded where they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from headrace.catalog.batches import Batch
from headrace.log import events, limits

SMALL_BYTES = 128 * 1024
"""Blobs up to this size are copied."""

UNDECODABLE = (pa.ArrowException, ValueError, OSError, EOFError)


class Shelf:
    """The blobs of one load.

    With ``copies=False`` all blobs are decoded where they are: slower, and it tells at once of
    one that cannot be.
    """

    def __init__(self, *, copies: bool = True) -> None:
        self._small_bytes = SMALL_BYTES if copies else 0
        self._parts: list[pa.RecordBatch] = []
        self._layouts: list[int] = []
        self._memory: _Memory | None = None
        self._end = 0
        self._layout = 0
        """That of the blobs that were copied, if there are any."""
        self._rows = 0
        self._first: Batch | None = None

    def put(self, batch: Batch) -> bool:
        """Take the blob of a batch; false if it is not what was stored."""
        data, size = batch.data, batch.size_bytes
        if data is None or len(data) != size or crc32(data) != batch.checksum:
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
            self._keep(_open(batch), batch.layout)
        except UNDECODABLE:
            return False
        return True

    def joined(self) -> pa.RecordBatch | None:
        """All that was put here as one record batch; None if nothing was.  To be called once.

        Raises one of ``UNDECODABLE`` if a blob is no good although its checksum is.
        """
        self._decode()
        if self._memory is not None:
            self._memory.given_back()
            self._memory = None
        parts, layouts = self._parts, self._layouts
        if len(parts) <= 1:
            return parts[0] if parts else None
        layout = int(np.bitwise_or.reduce(layouts))
        return pa.concat_batches([widen(part, layout) for part in parts])

    def _begin(self, batch: Batch) -> None:
        """Copy the first of its layout."""
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
        """What was copied becomes a part."""
        first, self._first = self._first, None
        if first is None:
            return
        if first.end - first.start == self._rows:
            # It is alone, and Arrow would not copy it: the part would change with the memory.
            self._keep(_open(first), self._layout)
        else:
            assert self._memory is not None
            with pa.ipc.open_stream(self._memory.buffer.slice(0, self._end)) as stream:
                found = stream.read_all()
            if found.num_rows != self._rows:
                raise ValueError("there are other events in it than there should be")
            self._keep(found.combine_chunks().to_batches()[0], self._layout)
        self._layout = 0

    def _keep(self, part: pa.RecordBatch, layout: int) -> None:
        self._parts.append(part)
        self._layouts.append(layout)


class _Memory:
    """Where blobs are copied to; only what was used of it is there.

    Some are kept for the next who needs one.  Of a shelf that was not joined it is simply gone.
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
        """Nobody may look at it any more."""
        if len(self._kept) < self.KEPT_MAX:
            self._kept.append(self)


def flaw(batch: Batch) -> str:
    """What is wrong with a blob that a shelf did not take."""
    if not _is_whole(batch):
        return "its checksum does not match"
    try:
        _open(batch)
    except UNDECODABLE as error:
        return f"it cannot be decoded: {error}"
    return "it is in order"


def widen(batch: pa.RecordBatch, layout: int) -> pa.RecordBatch:
    """The batch with all columns of a layout; those it does not have are null."""
    schema = events.schema_of(layout)
    names = batch.schema.names
    if names == schema.names:
        return batch
    arrays = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_whole(batch: Batch) -> bool:
    data = batch.data
    return data is not None and len(data) == batch.size_bytes and crc32(data) == batch.checksum


def _open(batch: Batch) -> pa.RecordBatch:
    assert batch.data is not None
    part = events.decode_blob(batch.data, batch.layout)
    if part.num_rows != batch.end - batch.start:
        raise ValueError(f"it holds {part.num_rows} events")
    return part


@lru_cache(maxsize=1 << len(events.COLUMNS))
def _schema_message(layout: int) -> bytes:
    """What a stream of this layout begins with."""
    return bytes(events.schema_of(layout).serialize())
