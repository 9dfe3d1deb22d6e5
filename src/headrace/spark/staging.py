"""Staging: tasks write what they have to append, and one transaction on the driver counts it.

A task has a ``Stager``.  It routes checked rows to the stream's open segments, gathers them per
segment, and writes a Parquet file whenever a segment has gathered enough.  What is left in the end
and is small travels to the driver as rows, so that a small batch needs no file at all.

The driver has a ``StagedWrite``.  It places the files and the rows of all tasks at the heads of
their segments, in one transaction that also records (producer, sequence): a batch that comes again
finds its record and writes nothing.  The record holds a digest of the rows, whatever their order,
so that a batch that comes again with others is told from one that is the same.

Files for a segment that was sealed meanwhile are read and staged again for its successors; so are
files that lay about for long, because a sweep takes unnamed files that are older than any append
may be.

Order.  Within a segment a task's files come in the order in which it wrote them, and its rows
after them.  A task keeps the route it began with, so no key of it is ever in two places.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog import Tx, batches, producers, streams
from headrace.catalog.batches import NewBatch
from headrace.catalog.producers import Placed
from headrace.errors import (
    AppendTooLargeError,
    CatalogUnavailableError,
    HeadraceError,
    InvalidSinkError,
    StagedFileLostError,
    StoreError,
    UnknownStreamError,
)
from headrace.log import events, files, limits
from headrace.log.append import ATTEMPTS_MAX, TOGETHER_MAX, Stale, Write
from headrace.log.log import Log
from headrace.log.routing import Route
from headrace.subjects import route_hash_array

ROUTE_BYTES = 8 * 1024 * 1024
"""Rows are routed in portions of about this size."""
FILE_BYTES = 32 * 1024 * 1024
"""A segment's share is written once it has so many bytes; they are fewer in the file."""
HELD_BYTES_MAX = 96 * 1024 * 1024
"""What a task holds in memory at most; beyond it the largest share is written."""
ROWS_BYTES = 256 * 1024
"""What a task may return as rows when there is a store."""
ROWS_BYTES_WITHOUT_STORE = 64 * 1024 * 1024
DIGESTS = 1 << 62
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_DIGEST = "digest"
FRESH_S = limits.APPEND_DEADLINE_S / 2
"""Staged files older than this are staged again; half, because clocks of machines differ."""


class StagedFile(msgspec.Struct, frozen=True):
    """A file that no batch names yet, and the segment it was written for."""

    segment: int
    batch: NewBatch
    staged_s: float


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
        batch = _join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._digest = (self._digest + digest(batch)) % DIGESTS
        for index, share in shares(batch, self._places(batch)):
            self._held.setdefault(index, []).append(share)
            self._held_bytes[index] = self._held_bytes.get(index, 0) + share.nbytes
        if self._log.store is None:
            self._refuse_what_needs_a_store()
            return
        for index in [i for i, held in self._held_bytes.items() if held >= FILE_BYTES]:
            self._write(index)
        while sum(self._held_bytes.values()) > HELD_BYTES_MAX:
            self._write(max(self._held_bytes, key=self._held_bytes.__getitem__))

    def _places(self, batch: pa.RecordBatch) -> npt.NDArray[np.intp] | None:
        return None if len(self._route.segments) == 1 else self._route.segments_of(batch)

    def _refuse_what_needs_a_store(self) -> None:
        if sum(self._held_bytes.values()) > self._rows_bytes:
            raise InvalidSinkError(
                f"a task has more than {self._rows_bytes} bytes for stream "
                f"{self._route.stream.name!r}, and its catalog has no store for files: open the "
                "catalog with a store, or repartition the data frame into more tasks"
            )

    def _write(self, index: int) -> None:
        segment = self._route.segments[index]
        batch = _join(self._held.pop(index))
        del self._held_bytes[index]
        made = write_file(self._log, self._route.stream.id, segment.number, segment.id, batch)
        self._files.append(StagedFile(segment.number, made, time.time()))


def digest(batch: pa.RecordBatch) -> int:
    """A number for the rows of a batch in any order, from their keys and the sizes of values."""
    keys = batch.column("key") if "key" in batch.schema.names else None
    found = route_hash_array(keys, batch.column("subject")).astype(np.uint64)
    found *= _SPREAD
    found ^= pc.binary_length(batch.column("value")).to_numpy().astype(np.uint64)
    found *= _SPREAD
    found ^= found >> np.uint64(32)
    return int(found.sum()) % DIGESTS


def shares(
    batch: pa.RecordBatch, places: npt.NDArray[np.intp] | None
) -> Iterable[tuple[int, pa.RecordBatch]]:
    """The rows of a batch by place, in their order; without places all have place 0."""
    if places is None:
        yield 0, batch
        return
    counts = np.bincount(places)
    if counts.max() == batch.num_rows:
        yield int(places[0]), batch
        return
    # Numbers this short are sorted by radix, several times faster.
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
    assert log.store is not None
    slim = without_empty_columns(batch)
    data, checksum = files.encode(slim)
    path = files.new_path(log.prefix, stream_id, segment)
    log.store.put(path, data)
    return NewBatch(
        segment_id=segment_id,
        rows=slim.num_rows,
        size_bytes=len(data),
        max_ts_us=max_ts_us(slim),
        layout=events.layout_of(slim.schema),
        checksum=checksum,
        path=path,
    )


def without_empty_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that are stored: a column that is all null is not."""
    kept = [
        name
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name in events.REQUIRED or column.null_count < batch.num_rows
    ]
    return batch if len(kept) == batch.num_columns else batch.select(kept)


def max_ts_us(batch: pa.RecordBatch) -> int:
    return int(batch.column("timestamp").view(pa.int64()).to_numpy().max())


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


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _pack(parts: list[pa.RecordBatch]) -> bytes:
    if not parts:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, parts[0].schema) as writer:
        for part in parts:
            writer.write_batch(part)
    return bytes(sink.getvalue())


def _unpack(data: bytes) -> list[pa.RecordBatch]:
    if not data:
        return []
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return list(reader)


# --- on the driver ---------------------------------------------------------------------------


class Committed(msgspec.Struct, frozen=True):
    """Where the rows are; of a ``repeat`` where they have been, and the digest they had then."""

    placed: tuple[Placed, ...]
    digest: int
    repeat: bool

    @property
    def count(self) -> int:
        return sum(spot.count for spot in self.placed)


class StagedWrite:
    """What all tasks staged, committed once under (producer, sequence)."""

    def __init__(self, log: Log, parts: Sequence[Part], producer: str, sequence: int) -> None:
        self._log = log
        self._producer = producer
        self._sequence = sequence
        self.count = sum(part.count for part in parts)
        self.digest = sum(part.digest for part in parts) % DIGESTS
        self._ids = {part.stream: part.stream_id for part in parts}
        self._files = {
            name: [file for part in parts if part.stream == name for file in part.files]
            for name in self._ids
        }
        self._rows = {
            name: [b for part in parts if part.stream == name for b in _unpack(part.rows)]
            for name in self._ids
        }
        self._numbers: dict[str, dict[int, int]] = {}
        self._own: set[str] = set()
        self._write = Write(log.routes, log.store, log.prefix)
        for name, held in self._rows.items():
            if not held:
                continue
            rows = without_empty_columns(_join(held))
            if rows.nbytes > limits.APPEND_BYTES_MAX:
                raise AppendTooLargeError(
                    f"the tasks return {rows.nbytes} bytes for stream {name!r}, more than the "
                    f"{limits.APPEND_BYTES_MAX} that one commit takes; coalesce the data frame "
                    "into fewer tasks"
                )
            self._write.add(name, rows, captured=True)

    def commit(self) -> Committed:
        """Append everything, or find that it was appended before; durable when it returns."""
        for name in self._ids:
            self._log.routes.refresh(name)
        try:
            for _ in range(ATTEMPTS_MAX):
                self._prepare()
                try:
                    outcome = self._log.catalog.write(self._run, locks=self._locks)
                except Stale as stale:
                    self._write.again(stale)
                else:
                    if outcome.repeat:
                        self.discard()
                    return outcome
        except CatalogUnavailableError:
            # Whether it was committed is not known, so nothing may be removed.
            raise
        except HeadraceError:
            self._write.discard()
            remove(self._log, self._own)
            raise
        raise CatalogUnavailableError("the stream was scaled again and again; try later")

    def discard(self) -> None:
        """Remove what was staged; only for a write that is known not to name it."""
        self._write.discard()
        remove(self._log, [f.batch.path for held in self._files.values() for f in held])

    def _prepare(self) -> None:
        for name, held in self._files.items():
            route = self._log.routes.get(name)
            if route.stream.id != self._ids[name]:
                raise UnknownStreamError(
                    f"stream {name!r} was deleted and made anew while it was written to"
                )
            self._numbers[name] = {segment.id: segment.number for segment in route.segments}
            fresh = time.time() - FRESH_S
            self._files[name] = [
                new
                for file in held
                for new in (
                    [file]
                    if file.batch.segment_id in self._numbers[name] and file.staged_s > fresh
                    else self._stage_again(route, file)
                )
            ]
        self._write.prepare()

    def _stage_again(self, route: Route, file: StagedFile) -> list[StagedFile]:
        store, batch = self._log.store, file.batch
        assert store is not None
        assert batch.path is not None
        stager = Stager(self._log, route, rows_bytes=0)
        try:
            opened = files.open_file(store, batch.path, batch.size_bytes, batch.checksum)
            with opened:
                for rows in opened.iter_batches(limits.READ_ROWS):
                    stager.add(rows)
            made = list(stager.finish().files)
        except FileNotFoundError:
            stager.discard()
            raise StagedFileLostError(
                f"the file {batch.path} is gone before its events were committed, so nothing was "
                "written; run the batch again, and sweep the store with a longer grace"
            ) from None
        except BaseException:
            stager.discard()
            raise
        self._own.update(new.batch.path for new in made if new.batch.path is not None)
        # The old file is named by nobody and will not be.
        remove(self._log, [batch.path])
        self._own.discard(batch.path)
        return made

    @property
    def _locks(self) -> list[str]:
        found = {streams.lock(stream_id) for stream_id in self._ids.values()}
        found.update(self._write.locks)
        found.add(producers.lock(self._scope, self._producer))
        return sorted(found)

    @property
    def _scope(self) -> int:
        return next(iter(self._ids.values()))

    def _run(self, tx: Tx) -> Committed:
        original = producers.seen(tx, self._scope, self._producer, self._sequence)
        if original is not None:
            *spots, last = original
            return Committed(tuple(spots), last.start, repeat=True)
        placed: list[Placed] = []
        for name, held in self._files.items():
            if held:
                found = place(tx, [file.batch for file in held])
                if found is None:
                    raise Stale(name)
                numbers = self._numbers[name]
                placed += [Placed(name, numbers[i], start, n) for i, (start, n) in found.items()]
                tx.notify(streams.channel(self._ids[name]))
        placed += self._write.run(tx).placed
        merged = _merged(placed)
        # The digest goes where the positions go, as one more of them that holds no events.
        record = (*merged, Placed(_DIGEST, 0, self.digest, 0))
        producers.record(tx, self._scope, self._producer, self._sequence, record)
        return Committed(merged, self.digest, repeat=False)


def place(tx: Tx, new: Sequence[NewBatch]) -> dict[int, tuple[int, int]] | None:
    """Append batches, each segment's in the order given; {segment id: (first offset, events)}.

    None when a segment is sealed or gone.  A segment is placed once in a statement, so the first
    batches of all segments go together, then the second ones, and so on.
    """
    queues: dict[int, list[NewBatch]] = {}
    for batch in new:
        queues.setdefault(batch.segment_id, []).append(batch)
    found: dict[int, tuple[int, int]] = {}
    for turn in zip_longest(*queues.values()):
        due = [batch for batch in turn if batch is not None]
        for at in range(0, len(due), TOGETHER_MAX):
            some = due[at : at + TOGETHER_MAX]
            starts = batches.append(tx, some)
            if starts is None:
                return None
            for batch, start in zip(some, starts, strict=True):
                first, count = found.get(batch.segment_id, (start, 0))
                found[batch.segment_id] = (first, count + batch.rows)
    return found


def _merged(placed: Iterable[Placed]) -> tuple[Placed, ...]:
    """One entry per segment: under the stream's lock its placements follow each other."""
    found: dict[tuple[str, int], Placed] = {}
    for spot in placed:
        known = found.get((spot.stream, spot.segment))
        start, count = (spot.start, 0) if known is None else (known.start, known.count)
        found[spot.stream, spot.segment] = Placed(
            spot.stream, spot.segment, start, count + spot.count
        )
    return tuple(found.values())
