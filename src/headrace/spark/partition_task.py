"""What the tasks of a partition round do: read, compute partitions, encode the rows of each.

Small shares go back with the answer, large ones are written as files that nothing names yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.catalog.batches import NewBatch
from headrace.catalog.queue_places import SourceSpan
from headrace.errors import UnknownStreamError
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.runtime.places import Offsets, spans
from headrace.groups.partitioned.runtime.work_queue import SegmentRead, partitioned
from headrace.groups.progress import AckedRanges
from headrace.log import events, limits
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.shares import Rows, inline
from headrace.log.shelf import join
from headrace.spark.connection import Connection
from headrace.spark.staging import HELD_BYTES_MAX, remove, write_file

INLINE_BYTES = 8 * 1024 * 1024
"""What a task may return instead of writing files."""
FILE_BYTES_MIN = 64 * 1024
"""Shares below this are always returned; a file this small costs more than it saves."""


class Share(NamedTuple):
    """Rows of a partition that come from one segment of the source, and their offsets there."""

    source_id: int
    offsets: Offsets | None
    rows: pa.RecordBatch


_Held = dict[int, list[Share]]


class Work(msgspec.Struct, frozen=True):
    """What the tasks of a round have in common, for one group."""

    connection: Connection
    stream: str
    config: ElasticGroupConfig
    queue_id: int
    queue_segments: tuple[tuple[int, int], ...]
    """(partition, segment id) of the queue."""
    placed: bool = False
    """Whether batches say where their rows come from."""
    acked: tuple[tuple[int, int, int], ...] = ()
    """(segment of the source, from, to): what is left out."""


def in_task(works: Sequence[Work], read: SegmentRead) -> list[tuple[int, NewBatch]]:
    works[0].connection.check_reachable()
    return carry_out(works, [read], works[0].connection.log())


def carry_out(
    works: Sequence[Work], reads: Iterable[SegmentRead], log: Log
) -> list[tuple[int, NewBatch]]:
    """Read once; partition and encode for each work, in order within each of its partitions.

    Large shares are written to files, which count once the driver commits.  Each batch comes with
    the number of its work.
    """
    made: list[tuple[int, NewBatch]] = []
    rows: list[_Held] = [{} for _ in works]
    held_bytes = 0
    try:
        for read in reads:
            acked = [_acked(work, read) for work in works]
            for batch in _events(works[0], read, log):
                for work, held, known in zip(works, rows, acked, strict=True):
                    chosen = batch if known is None else _unacked(batch, known)
                    for number, share in partitioned(
                        chosen, work.config, placed=work.placed
                    ).items():
                        held.setdefault(number, []).append(_share(read, share, work))
                    held_bytes += batch.nbytes
                if held_bytes > HELD_BYTES_MAX:
                    _encode_all(works, rows, log, made)
                    rows, held_bytes = [{} for _ in works], 0
        _encode_all(works, rows, log, made)
    except BaseException:
        remove(log, [batch.path for _, batch in made])
        raise
    return made


def _encode_all(
    works: Sequence[Work],
    rows: Sequence[_Held],
    log: Log,
    made: list[tuple[int, NewBatch]],
) -> None:
    for at, (work, held) in enumerate(zip(works, rows, strict=True)):
        for batch in _encoded(work, held, log):
            made.append((at, batch))


def _encoded(work: Work, rows: _Held, log: Log) -> Iterator[NewBatch]:
    joined = {n: join([part.rows for part in parts]) for n, parts in sorted(rows.items())}
    large = _too_large_to_return(joined) if log.store is not None else set()
    ids = dict(work.queue_segments)
    for number, batch in joined.items():
        layout = events.layout_of(batch.schema)
        part, at = Rows(batch, layout, events.stamps_of(batch)), 0
        to_files = number in large
        for piece in part.cut(limits.FILE_BYTES if to_files else limits.INLINE_BYTES):
            if to_files:
                made = write_file(log, work.queue_id, number, ids[number], piece.batch)
            else:
                made = inline(ids[number], piece)
            if work.placed:
                found = _places(rows[number], at, at + piece.rows)
                made = msgspec.structs.replace(made, places=found)
            at += piece.rows
            yield made


def _share(read: SegmentRead, rows: pa.RecordBatch, work: Work) -> Share:
    if not work.placed:
        return Share(read.segment_id, None, rows)
    offsets = rows.column("offset").to_numpy()
    return Share(read.segment_id, offsets, rows.drop_columns(["offset"]))


def _places(parts: Sequence[Share], lo: int, hi: int) -> tuple[SourceSpan, ...]:
    """Where some of the joined rows come from."""
    counts = [part.rows.num_rows for part in parts]
    source_ids = np.repeat(np.array([part.source_id for part in parts], dtype=np.int64), counts)
    offsets = np.concatenate([part.offsets for part in parts if part.offsets is not None])
    return spans(source_ids[lo:hi], offsets[lo:hi])


def _acked(work: Work, read: SegmentRead) -> AckedRanges | None:
    """What the group has acked already of the part that is read."""
    ranges = [(lo, hi) for segment, lo, hi in work.acked if segment == read.segment]
    if not ranges:
        return None
    found = AckedRanges()
    for lo, hi in ranges:
        found.ack_range(lo, hi)
    return found


def _unacked(batch: pa.RecordBatch, acked: AckedRanges) -> pa.RecordBatch:
    return batch.filter(pa.array(~acked.contains_many(batch.column("offset").to_numpy())))


def _events(work: Work, read: SegmentRead, log: Log) -> Iterable[pa.RecordBatch]:
    query = Query(
        start={read.segment: read.start},
        until={read.segment: read.end},
        segments=[read.segment],
    )
    reader = log.reader(work.stream, query)
    if reader.stream.segment(read.segment) is None:
        raise UnknownStreamError(f"stream {work.stream!r} was made anew while it was read")
    while not reader.done:
        batch = reader.next()
        if batch is not None:
            yield batch


def _too_large_to_return(shares: dict[int, pa.RecordBatch]) -> set[int]:
    """Partitions whose rows are written to files, so that what is returned stays bounded."""
    sizes = {number: batch.nbytes for number, batch in shares.items()}
    large = {number for number, size in sizes.items() if size > limits.INLINE_BYTES}
    left = sum(size for number, size in sizes.items() if number not in large)
    for number in sorted(sizes.keys() - large, key=sizes.__getitem__, reverse=True):
        if left <= INLINE_BYTES or sizes[number] < FILE_BYTES_MIN:
            break
        large.add(number)
        left -= sizes[number]
    return large
