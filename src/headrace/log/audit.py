"""Audit: everything that the catalog says of the log is compared with what is there.

Events have checksums, so that a read finds damage by itself.  Heads, tails, sizes and markers have
none: they are recorded with every append, and agree with the batches as long as nothing is damaged.
Here they are compared, and every event is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from headrace.catalog import Tx, audit, batches, producers, streams
from headrace.catalog.sqlite import SqliteCatalog
from headrace.catalog.streams import KEY_SPACE, Segment, Stream
from headrace.errors import DamagedBatchError, HeadraceError, TrimmedError, UnreadableRecordError
from headrace.log import order
from headrace.log.log import Log
from headrace.log.query import Query

PAGE = 1000


def examine(log: Log, progress: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """What is wrong, in words; ``progress`` is told the name of each stream in turn."""
    if isinstance(log.catalog, SqliteCatalog):
        yield from log.catalog.read(audit.integrity)
    yield from log.catalog.read(audit.ownerless, snapshot=True)
    yield from log.catalog.read(audit.uncounted, snapshot=True)
    yield from log.catalog.read(audit.damaged_keys, snapshot=True)
    yield from log.catalog.read(lambda tx: list(_producers(tx)))
    names = log.catalog.read(streams.names)
    for name in names:
        progress(name)
        yield from (f"stream {name!r}: {flaw}" for flaw in _stream(log, name))


def _producers(tx: Tx) -> Iterator[str]:
    for producer, sequence, positions in audit.producer_rows(tx):
        try:
            producers.decode(positions)
        except msgspec.MsgspecError as error:
            yield f"producer {producer!r}: the positions of sequence {sequence}: {error}"


def _stream(log: Log, name: str) -> Iterator[str]:
    def look(tx: Tx) -> tuple[Stream, list[str]] | None:
        stream = streams.get(tx, name)
        if stream is None:
            return None
        found = [*_segments(stream), *(f for s in stream.segments for f in _batches(tx, s))]
        return stream, found

    try:
        seen = log.catalog.read(look, snapshot=True)
    except UnreadableRecordError as error:
        yield str(error)
        return
    if seen is None:
        return
    yield from seen[1]
    for segment in seen[0].segments:
        yield from _events(log, name, segment)


def _segments(stream: Stream) -> Iterator[str]:
    """Whether the open segments tile the keys, and what follows from what makes sense."""
    at = 0
    for segment in stream.open_segments:
        if segment.range_lo != at or segment.range_hi <= segment.range_lo:
            yield f"segment {segment.number} begins at key hash {segment.range_lo}, not {at}"
        at = segment.range_hi
    if at != KEY_SPACE:
        yield f"its open segments end at key hash {at}, not {KEY_SPACE}"
    graph = {segment.number: segment.predecessors for segment in stream.segments}
    for segment in stream.segments:
        strange = [number for number in segment.successors if number not in graph]
        if strange:
            yield f"segment {segment.number} is followed by {strange}, which do not exist"
        if segment.number in order.following([segment.number], graph):
            yield f"segment {segment.number} follows from itself"
        if bool(segment.successors) != segment.sealed:
            yield f"segment {segment.number} is sealed or followed, and not both"


def _batches(tx: Tx, segment: Segment) -> Iterator[str]:
    """Whether a segment's row agrees with its batches and markers."""
    what = f"segment {segment.number}"
    at, total, latest = segment.tail, segment.trimmed_bytes, streams.NO_TIME_US
    start = 0
    while page := batches.pieces(tx, segment.id, start, PAGE):
        for piece in page:
            if piece.start != at or piece.end <= piece.start:
                yield f"{what} has a batch of offsets {piece.start} to {piece.end}, not from {at}"
            # The file of a compaction is smaller than what it replaced, which the total counts.
            grown = piece.total_bytes - total
            if grown < 0 or (piece.path is None and grown != piece.size_bytes):
                yield f"{what}: the sizes up to the batch at {piece.start} do not add up"
            if piece.max_ts_us < latest:
                yield f"{what}: the batch at {piece.start} has a lesser time than the one before"
            at, total, latest = piece.end, piece.total_bytes, piece.max_ts_us
        start = page[-1].start + 1
    if at != segment.head:
        yield f"{what} has batches up to offset {at}, and its head is {segment.head}"
    if total != segment.bytes:
        yield f"{what} has {total} bytes in batches, and its row says {segment.bytes}"
    if segment.head > segment.tail and latest != segment.max_ts_us:
        yield f"{what}: its greatest time is not that of its last batch"
    found = audit.marker_rows(tx, segment.id)
    offsets = [offset for offset, _ in found]
    if len(found) != segment.markers or not all(
        segment.tail <= offset < segment.head for offset in offsets
    ):
        yield f"{what} has markers at {offsets[:5]}…, and its row says {segment.markers}"
    if [total for _, total in found] != list(range(found[0][1], found[-1][1] + 1) if found else ()):
        yield f"{what}: its markers are not numbered one after the other"


def _events(log: Log, name: str, segment: Segment) -> Iterator[str]:
    """Read all that a segment holds."""
    damaged: list[str] = []

    def note(error: DamagedBatchError) -> None:
        damaged.append(str(error))

    query = Query(
        start={segment.number: segment.tail},
        until={segment.number: segment.head},
        segments=[segment.number],
        markers=True,
    )
    count = 0
    try:
        for batch in log.read(name, query, note):
            if "marker" in batch.schema.names:
                count += batch.num_rows - batch.column("marker").null_count
    except TrimmedError:
        return  # meanwhile, or its tail is wrong, which was told
    except HeadraceError as error:
        damaged.append(str(error))
    if not damaged and count != segment.markers:
        damaged.append(f"segment {segment.number}: {count} markers, its row says {segment.markers}")
    yield from damaged
