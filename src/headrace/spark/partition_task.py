"""What the tasks of a partition round do: read, compute partitions, encode the rows of each.

Small shares go back with the answer, large ones are written as files that nothing names yet.
Groups that partition alike get the same rows: those are computed and encoded once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from headrace.spark.staging import HELD_BYTES_MAX, Home, remove, write_same

INLINE_BYTES = 8 * 1024 * 1024
"""What a task may return instead of writing files."""
FILE_BYTES_MIN = 64 * 1024
"""Shares below this are always returned; a file this small costs more than it saves."""

FILES_AT_ONCE = 4


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
    kinds = alike(works)
    firsts = [works[at] for at, *_ in kinds]
    rows: list[_Held] = [{} for _ in kinds]
    held_bytes = 0
    try:
        for read in reads:
            acked = [_acked(work, read) for work in firsts]
            for batch in _events(works[0], read, log):
                for work, held, known in zip(firsts, rows, acked, strict=True):
                    chosen = batch if known is None else _unacked(batch, known)
                    for number, share in partitioned(
                        chosen, work.config, placed=work.placed
                    ).items():
                        held.setdefault(number, []).append(_share(read, share, work))
                    held_bytes += batch.nbytes
                if held_bytes > HELD_BYTES_MAX:
                    _encode_all(works, kinds, rows, log, made)
                    rows, held_bytes = [{} for _ in kinds], 0
        _encode_all(works, kinds, rows, log, made)
    except BaseException:
        remove(log, [batch.path for _, batch in made])
        raise
    return made


def alike(works: Sequence[Work]) -> list[list[int]]:
    """The numbers of works that make the same rows of the same events."""
    found: dict[object, list[int]] = {}
    for at, work in enumerate(works):
        config = work.config
        shape = (config.filter, config.partitioning_wildcards, config.max_members)
        found.setdefault((shape, work.placed, work.acked), []).append(at)
    return list(found.values())


def _encode_all(
    works: Sequence[Work],
    kinds: Sequence[Sequence[int]],
    rows: Sequence[_Held],
    log: Log,
    made: list[tuple[int, NewBatch]],
) -> None:
    """Encode what is held; ``made`` also gets what was written before something fails."""
    pieces = [
        (kind, piece)
        for kind, held in zip(kinds, rows, strict=True)
        for piece in _pieces(held, log, works[kind[0]].placed)
    ]

    def encode(kind: Sequence[int], piece: _Piece) -> list[tuple[int, NewBatch]]:
        found = _encoded([works[at] for at in kind], piece, log)
        return list(zip(kind, found, strict=True))

    # Most of the time of writing a file is spent waiting for the disk, or for the other side.
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        at_work = [pool.submit(encode, *each) for each in pieces if each[1].to_file]
    if failed := next((error for each in at_work if (error := each.exception())), None):
        made += [one for each in at_work if not each.exception() for one in each.result()]
        raise failed
    written = iter(at_work)
    for kind, piece in pieces:
        made += next(written).result() if piece.to_file else encode(kind, piece)


class _Piece(NamedTuple):
    """Rows of a partition that become one batch."""

    partition: int
    rows: Rows
    places: tuple[SourceSpan, ...]
    to_file: bool


def _pieces(held: _Held, log: Log, placed: bool) -> Iterator[_Piece]:
    joined = {n: join([part.rows for part in parts]) for n, parts in sorted(held.items())}
    large = _too_large_to_return(joined) if log.store is not None else set()
    for number, batch in joined.items():
        layout = events.layout_of(batch.schema)
        rows, at = Rows(batch, layout, events.stamps_of(batch)), 0
        to_file = number in large
        for piece in rows.cut(limits.FILE_BYTES if to_file else limits.INLINE_BYTES):
            places = _places(held[number], at, at + piece.rows) if placed else ()
            yield _Piece(number, piece, places, to_file)
            at += piece.rows


def _encoded(works: Sequence[Work], piece: _Piece, log: Log) -> list[NewBatch]:
    """The batch of a piece for each of some works that are alike."""
    segments = [dict(work.queue_segments)[piece.partition] for work in works]
    if piece.to_file:
        homes = [
            Home(work.queue_id, piece.partition, segment)
            for work, segment in zip(works, segments, strict=True)
        ]
        made = write_same(log, homes, piece.rows.batch)
    else:
        first = inline(segments[0], piece.rows)
        made = [msgspec.structs.replace(first, segment_id=segment) for segment in segments]
    if not piece.places:
        return made
    return [msgspec.structs.replace(batch, places=piece.places) for batch in made]


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
