"""Copying what a round of replication takes over; see :mod:`headrace.regions.runtime.rounds`.

Files that lie within one run go as they stand; all else is decoded, which checks it, and joined to
one batch per segment and lane.  Markers for this region are written where they stand among the
events; those of other protocols stay where they are.  Nothing names what is written here until the
round is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from headrace.catalog import batches
from headrace.catalog.batches import NewBatch
from headrace.catalog.lanes import LaneStep
from headrace.errors import (
    DamagedBatchError,
    InvalidMarkerError,
    RoundOvertakenError,
    StoreError,
)
from headrace.log import events, files, limits
from headrace.log.log import Log
from headrace.log.shares import Rows, inline
from headrace.log.shelf import join
from headrace.regions.core.markers import decode_marker, recipients, written_in
from headrace.regions.runtime.reading import Gathered, Reading
from headrace.regions.runtime.rounds import MARKERS, Copied, LanePiece, SegmentCopy


def carry_out(log: Log, source_log: Log, copies: Iterable[SegmentCopy]) -> list[Copied]:
    """Read, check and encode what a plan copies; files are written and named by nothing."""
    done: list[Copied] = []
    try:
        for copy in copies:
            done.append(Copied(copy, tuple(_copy_segment(log, source_log, copy))))
    except BaseException:
        discard(log, done)
        raise
    return done


def discard(log: Log, done: Iterable[Copied]) -> None:
    """Remove files of a round that does not count; the sweep finds what this misses."""
    for copied in done:
        for batch in copied.batches:
            if batch.path is not None and log.store is not None:
                try:
                    log.store.delete(batch.path)
                except StoreError:
                    continue


def _copy_segment(log: Log, source_log: Log, copy: SegmentCopy) -> Iterator[NewBatch]:
    held, lane, sequence = Gathered(), "", 0
    reading = Reading(source_log, copy, files=log.store is not None)
    for piece in copy.pieces:
        if held.rows and (piece.lane != lane or held.size_bytes > limits.FILE_BYTES):
            yield from _encode(log, copy, held.taken(), lane, sequence)
        if not held.rows:
            lane, sequence = piece.lane, piece.sequence
        if piece.lane == MARKERS:
            found = list(_markers(reading, copy, piece))
            if found:
                yield from _encode(log, copy, join(found), MARKERS, 0)
            continue
        for part in reading.parts(piece):
            if isinstance(part, batches.Piece):
                if held.rows:
                    rows = held.rows
                    yield from _encode(log, copy, held.taken(), lane, sequence)
                    sequence += rows
                made = _copied_file(log, source_log, copy, part)
                yield msgspec.structs.replace(made, step=LaneStep(lane=lane, sequence=sequence))
                sequence += made.rows
                continue
            held.add(part)
    if held.rows:
        yield from _encode(log, copy, held.taken(), lane, sequence)


def _markers(reading: Reading, copy: SegmentCopy, piece: LanePiece) -> Iterator[pa.RecordBatch]:
    """The markers of a piece that the source wrote for this region."""
    for batch in reading.decoded(piece.start, piece.end):
        wanted = [_is_for(data, copy) for data in batch.column("marker").to_pylist()]
        if any(wanted):
            yield batch.filter(pa.array(wanted))


def _is_for(data: bytes | None, copy: SegmentCopy) -> bool:
    if data is None:
        return False
    try:
        marker = decode_marker(data)
    except InvalidMarkerError:
        return False  # of another protocol
    return written_in(marker) == copy.place.source and copy.region in recipients(
        marker, (copy.region,)
    )


def _copied_file(log: Log, source_log: Log, copy: SegmentCopy, file: batches.Piece) -> NewBatch:
    assert log.store is not None
    data = source_file(source_log, copy.stream, copy.number, file, read=True)
    path = files.new_path(log.prefix, copy.stream_id, copy.number)
    log.store.put(path, data)
    return NewBatch(
        segment_id=copy.place.segment_id,
        rows=file.end - file.start,
        size_bytes=file.size_bytes,
        max_ts_us=file.max_ts_us,
        layout=file.layout,
        checksum=file.checksum,
        path=path,
    )


def source_file(
    source_log: Log, stream: str, number: int, file: batches.Piece, *, read: bool
) -> bytes:
    """Open a file of a source and check it; its bytes if it is to be read."""
    assert source_log.store is not None
    path = file.path
    assert path is not None
    try:
        with files.open_file(source_log.store, path, file.size_bytes, file.checksum):
            return source_log.store.get(path) if read else b""
    except FileNotFoundError:
        if not source_log.catalog.read(lambda tx: batches.is_referenced(tx, path)):
            raise RoundOvertakenError(stream, "a file was replaced or trimmed meanwhile") from None
        why = f"its file {path} is missing"
    except (pa.ArrowException, OSError, ValueError) as error:
        why = f"its file cannot be read: {str(error).splitlines()[0]}"
    raise DamagedBatchError(stream, number, file.start, file.end, why)


def _encode(
    log: Log, copy: SegmentCopy, batch: pa.RecordBatch, lane: str, sequence: int
) -> Iterator[NewBatch]:
    part = Rows(batch, events.layout_of(batch.schema), events.stamps_of(batch))
    small = log.store is None or lane == MARKERS or batch.nbytes <= limits.INLINE_BYTES
    for piece in part.cut(limits.INLINE_BYTES if small else limits.FILE_BYTES):
        if small:
            made = inline(copy.place.segment_id, piece)
        else:
            assert log.store is not None
            data, checksum = files.encode(piece.batch)
            path = files.new_path(log.prefix, copy.stream_id, copy.number)
            log.store.put(path, data)
            made = NewBatch(
                segment_id=copy.place.segment_id,
                rows=piece.rows,
                size_bytes=len(data),
                max_ts_us=piece.max_ts_us,
                layout=piece.layout,
                checksum=checksum,
                path=path,
            )
        if lane == MARKERS:
            yield made
            continue
        yield msgspec.structs.replace(made, step=LaneStep(lane=lane, sequence=sequence))
        sequence += piece.rows
