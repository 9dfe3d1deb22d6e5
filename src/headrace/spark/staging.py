"""Staging: tasks write what they have to append; nothing of it counts yet.

A task has a ``Stager``.  It routes checked rows to the stream's open segments, gathers them per
segment, and writes a Parquet file whenever a segment has gathered enough.  What is left in the end
and is small travels to the driver as rows, so that a small batch needs no file at all.

A :class:`~headrace.spark.staged_write.StagedWrite` on the driver commits what was staged; without
that it stays orphaned, for the sweep.

Order.  Within a segment a task's files come in the order in which it wrote them, and its rows
after them.  A task keeps the route it began with, so no key of it is ever in two places.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog import Tx, batches, streams
from headrace.catalog.batches import NewBatch
from headrace.catalog.lanes import LaneStep
from headrace.epochs.core.times import TimeShape
from headrace.errors import InvalidSinkError, StoreError
from headrace.log import events, files
from headrace.log.log import Log
from headrace.log.routing import Route
from headrace.log.shares import staying
from headrace.spark.epochs.sink_rows import Counts, counts_of
from headrace.subjects import route_hash_array

ROUTE_BYTES = 8 * 1024 * 1024
"""Rows are routed in portions of about this size."""
FILE_BYTES = 32 * 1024 * 1024
"""A segment's share is written at this size in memory; compressed, the file is smaller."""
HELD_BYTES_MAX = 96 * 1024 * 1024
"""What a task holds in memory at most; beyond it the largest share is written."""
ROWS_BYTES = 256 * 1024
"""What a task may return as rows when there is a store."""
ROWS_BYTES_WITHOUT_STORE = 64 * 1024 * 1024
DIGESTS = 1 << 62
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class StagedFile(msgspec.Struct, frozen=True):
    """A file that no batch names yet, and the segment it was written for."""

    segment: int
    batch: NewBatch
    staged_s: float
    counts: Counts = ()
    """How many rows of which epochs, if the stream has epochs."""


def judged_by(file: StagedFile) -> str:
    """The filter by which it was judged which rows of a file go to other regions."""
    return "" if file.batch.step is None else file.batch.step.filter


class Part(msgspec.Struct, frozen=True):
    """What one task staged for one stream; ``rows`` is an Arrow stream, or empty."""

    stream: str
    stream_id: int
    count: int
    digest: int
    files: tuple[StagedFile, ...] = ()
    rows: bytes = b""


class Stager:
    """Takes the rows of one task for one stream; see the module's text."""

    def __init__(self, log: Log, route: Route, *, rows_bytes: int | None = None) -> None:
        self._log = log
        self._route = route
        most = ROWS_BYTES if log.store is not None else ROWS_BYTES_WITHOUT_STORE
        self._rows_bytes = most if rows_bytes is None else rows_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._held_bytes: dict[int, int] = {}
        self._files: list[StagedFile] = []
        self._count = self._digest = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take checked rows; all that are added have the same columns."""
        if not batch.num_rows:
            return
        self._count += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROUTE_BYTES:
            self._spread()

    def finish(self) -> Part:
        """Write what is too large to travel; the rest goes along as rows."""
        self._spread()
        for index in sorted(self._held, key=self._held_bytes.__getitem__, reverse=True):
            if sum(self._held_bytes.values()) <= self._rows_bytes:
                break
            self._write(index)
        return Part(
            stream=self._route.stream.name,
            stream_id=self._route.stream.id,
            count=self._count,
            digest=self._digest,
            files=tuple(self._files),
            rows=_pack([part for parts in self._held.values() for part in parts]),
        )

    def discard(self) -> None:
        """Remove the files of a task that failed; the sweep finds what this misses."""
        remove(self._log, [file.batch.path for file in self._files])

    def _spread(self) -> None:
        if not self._waiting:
            return
        batch = join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._digest = (self._digest + digest(batch)) % DIGESTS
        places = None if len(self._route.segments) == 1 else self._route.segments_of(batch)
        for index, share in shares(batch, places):
            self._held.setdefault(index, []).append(share)
            self._held_bytes[index] = self._held_bytes.get(index, 0) + share.nbytes
        if self._log.store is None:
            self._refuse_what_needs_a_store()
            return
        for index in [i for i, held in self._held_bytes.items() if held >= FILE_BYTES]:
            self._write(index)
        while sum(self._held_bytes.values()) > HELD_BYTES_MAX:
            self._write(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def _refuse_what_needs_a_store(self) -> None:
        if sum(self._held_bytes.values()) > self._rows_bytes:
            raise InvalidSinkError(
                f"a task has more than {self._rows_bytes} bytes for stream "
                f"{self._route.stream.name!r}, and its catalog has no store for files: open the "
                "catalog with a store, or repartition the data frame into more tasks"
            )

    def _write(self, index: int) -> None:
        segment = self._route.segments[index]
        batch = join(self._held.pop(index))
        del self._held_bytes[index]
        made = write_file(self._log, self._route.stream.id, segment.number, segment.id, batch)
        if self._route.filter:
            stays = staying(self._route.crossing(batch.column("subject")))
            step = LaneStep(filter=self._route.filter, stays=stays)
            made = msgspec.structs.replace(made, step=step)
        config = self._route.stream.config.epochs
        counts = () if config is None else counts_of(TimeShape(config.length), batch)
        self._files.append(StagedFile(segment.number, made, time.time(), counts))


def digest(batch: pa.RecordBatch) -> int:
    """A digest of rows that ignores their order, from their keys and the sizes of values."""
    keys = batch.column("key") if "key" in batch.schema.names else None
    found = route_hash_array(keys, batch.column("subject")).astype(np.uint64)
    found *= _SPREAD
    found ^= pc.binary_length(batch.column("value")).to_numpy().astype(np.uint64)
    found *= _SPREAD
    found ^= found >> np.uint64(32)
    return int(found.sum()) % DIGESTS


def shares(
    batch: pa.RecordBatch, places: npt.NDArray[np.integer] | None
) -> Iterable[tuple[int, pa.RecordBatch]]:
    """The rows of a batch by place, in their order; without places all have place 0."""
    if places is None:
        yield 0, batch
        return
    counts = np.bincount(places)
    if counts.max() == batch.num_rows:
        yield int(places[0]), batch
        return
    # numpy sorts 16-bit integers by radix, several times faster.
    keys = places.astype(np.uint16) if len(counts) <= 1 << 16 else places
    ordered = batch.take(pa.array(np.argsort(keys, kind="stable")))
    at = 0
    for place in np.flatnonzero(counts).tolist():
        count = int(counts[place])
        yield place, ordered.slice(at, count)
        at += count


def write_file(
    log: Log, stream_id: int, segment: int, segment_id: int, batch: pa.RecordBatch
) -> NewBatch:
    """Write a batch to the store; nothing names the file yet."""
    (made,) = write_same(log, [Home(stream_id, segment, segment_id)], batch)
    return made


class Home(NamedTuple):
    """A segment that a file is written for."""

    stream_id: int
    segment: int
    segment_id: int


def write_same(log: Log, homes: Sequence[Home], batch: pa.RecordBatch) -> list[NewBatch]:
    """Write a batch to the store, encoded once, as a file for each home."""
    assert log.store is not None
    slim = without_empty_columns(batch)
    data, checksum = files.encode(slim)
    paths = [files.new_path(log.prefix, home.stream_id, home.segment) for home in homes]
    try:
        log.store.put_same(paths, data)
    except BaseException:
        remove(log, paths)
        raise
    return [
        NewBatch(
            segment_id=home.segment_id,
            rows=slim.num_rows,
            size_bytes=len(data),
            max_ts_us=int(events.stamps_of(slim).max()),
            layout=events.layout_of(slim.schema),
            checksum=checksum,
            path=path,
        )
        for home, path in zip(homes, paths, strict=True)
    ]


def without_empty_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that are stored: a column that is all null is not."""
    kept = [
        name
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name in events.REQUIRED or column.null_count < batch.num_rows
    ]
    return batch if len(kept) == batch.num_columns else batch.select(kept)


def remove(log: Log, paths: Iterable[str | None]) -> None:
    """Remove files that were never named; what the store refuses is left to the sweep."""
    if log.store is None:
        return
    for path in paths:
        if path is not None:
            try:
                log.store.delete(path)
            except StoreError:
                continue


def remove_unnamed(log: Log, stream_ids: Iterable[int], paths: Sequence[str | None]) -> None:
    """Remove staged files, but none that a commit named, even one whose answer was lost.

    A commit that is under way holds the locks of its streams, so under them the answer is final.
    """

    def unnamed(tx: Tx) -> list[str]:
        return [
            path
            for path in paths
            if path is not None
            and not batches.is_referenced(tx, path)
            and not batches.is_buried(tx, path)
        ]

    locks = sorted({streams.lock(stream_id) for stream_id in stream_ids})
    remove(log, log.catalog.write(unnamed, locks=locks))


def join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of the same columns as one."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _pack(parts: list[pa.RecordBatch]) -> bytes:
    if not parts:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, parts[0].schema) as writer:
        for part in parts:
            writer.write_batch(part)
    return bytes(sink.getvalue())


def unpack(data: bytes) -> list[pa.RecordBatch]:
    """The rows of a part."""
    if not data:
        return []
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return list(reader)
