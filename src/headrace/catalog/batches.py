"""Batches: contiguous runs of events in a segment, as an Arrow blob or a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from headrace.catalog import lanes, markers, queue_places, streams
from headrace.catalog.transaction import Tx


class NewBatch(msgspec.Struct, frozen=True):
    """A batch that has no offsets yet: a blob in ``data``, or a file at ``path``."""

    segment_id: int
    rows: int
    size_bytes: int
    max_ts_us: int
    layout: int
    checksum: int
    data: bytes | memoryview | None = None
    path: str | None = None
    markers: tuple[int, ...] = ()
    """The rows that are markers and no events."""
    step: lanes.LaneStep | None = None
    """Set for batches of events that go to some regions only, or come from another."""
    places: tuple[queue_places.SourceSpan, ...] = ()
    """Where the rows come from, in the work queue of a replicated group."""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A recorded batch, with offsets ``start`` to ``end`` - 1."""

    start: int
    end: int
    size_bytes: int
    layout: int
    checksum: int
    path: str | None
    data: bytes | None


def append(tx: Tx, new: Sequence[NewBatch]) -> dict[int, int] | None:
    """Place batches at the heads of their segments, each segment once; their offsets by its id.

    None if a segment is sealed or gone, or by another filter than its rows were judged by: then the
    transaction must not be committed.  The caller holds the stream's lock, so offsets appear in
    their order.  All batches take two statements: each is a round trip, or takes the GIL anew.
    """
    if len(new) == 1:
        (one,) = new
        given = [one.rows, one.size_bytes, one.max_ts_us, one.max_ts_us, one.segment_id]
        rows = tx.rows(_TAKE_OFFSET, given)
    else:
        given = [v for b in new for v in (b.segment_id, b.rows, b.size_bytes, b.max_ts_us)]
        rows = tx.rows(_take_offsets(len(new)), given)
    if len(rows) < len(new):
        return None
    heads = {row[0]: row for row in rows}
    now_us = tx.now_us()
    starts: dict[int, int] = {}
    values: list[object] = []
    special = []
    for batch in new:
        segment_id, head, max_ts_us, total_bytes, lane = heads[batch.segment_id]
        start = starts[segment_id] = head - batch.rows
        if lane is not None or batch.step is not None or batch.markers or batch.places:
            special.append((batch, lane, start))
        values += (
            segment_id,
            start,
            head,
            batch.size_bytes,
            total_bytes,
            max_ts_us,
            now_us,
            batch.layout,
            batch.checksum,
            batch.path,
            batch.data,
        )
    tx.execute(_insert_batches(len(new)), values)
    for batch, lane, start in special:
        if batch.markers:
            markers.record(tx, batch.segment_id, [start + row for row in batch.markers])
        if lane is not None or batch.step is not None:
            of = (tx, batch.segment_id, lane, batch.step)
            if not lanes.record(*of, start, batch.rows, batch.markers):
                return None
        if batch.places:
            queue_places.record(tx, batch.segment_id, start, batch.places)
    return starts


_TAKE_OFFSET = (
    "UPDATE segments SET head = head + ?, bytes = bytes + ?, "
    "max_ts_us = CASE WHEN max_ts_us > ? THEN max_ts_us ELSE ? END "
    "WHERE id = ? AND sealed_us IS NULL RETURNING id, head, max_ts_us, bytes, lane"
)


@lru_cache(maxsize=64)
def _take_offsets(count: int) -> str:
    # The types of the first row are those of all; PostgreSQL cannot guess them.
    first = "(CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT))"
    given = ", ".join([first] + ["(?, ?, ?, ?)"] * (count - 1))
    return (
        f"WITH given (id, events, size, ts) AS (VALUES {given}) "
        "UPDATE segments SET head = head + given.events, bytes = bytes + given.size, "
        "max_ts_us = CASE WHEN max_ts_us > given.ts THEN max_ts_us ELSE given.ts END "
        "FROM given WHERE segments.id = given.id AND sealed_us IS NULL "
        "RETURNING segments.id, head, max_ts_us, bytes, lane"
    )


@lru_cache(maxsize=64)
def _insert_batches(count: int) -> str:
    one = f"({', '.join('?' * 11)})"
    return (
        "INSERT INTO batches (segment_id, start_offset, end_offset, bytes, total_bytes, max_ts_us, "
        f"created_us, layout, checksum, path, data) VALUES {', '.join([one] * count)}"
    )


_BATCH = "start_offset, end_offset, bytes, layout, checksum, path, data"


def from_offset(
    tx: Tx, segment_id: int, offset: int, limit: int, size_bytes: int
) -> Iterator[Batch]:
    """The batch that holds ``offset`` and those after it, for about ``size_bytes``."""
    if tx.lazy:
        # The caller stops when it has enough.  A continued read starts at the start of a batch.
        found = starting(tx, segment_id, offset, limit)
        first = next(found, None)
        if first is not None and first.start == offset:
            yield first
            yield from found
            return
        row = tx.row(
            "SELECT start_offset, end_offset FROM batches "
            "WHERE segment_id = ? AND start_offset <= ? ORDER BY start_offset DESC LIMIT 1",
            (segment_id, offset),
        )
        if row is not None and row[1] > offset:
            yield from starting(tx, segment_id, row[0], limit)
            return
    else:
        found = _holding(tx, segment_id, offset, limit, size_bytes)
        first = next(found, None)
        if first is not None:
            yield first
            yield from found
            return
    # The batch at this offset is gone; the first one left shows how large the gap is.
    yield from starting(tx, segment_id, offset, 1)


def starting(tx: Tx, segment_id: int, offset: int, limit: int) -> Iterator[Batch]:
    """Batches that start at ``offset`` or later."""
    found = tx.iterate(
        f"SELECT {_BATCH} FROM batches WHERE segment_id = ? AND start_offset >= ? "
        "ORDER BY start_offset LIMIT ?",
        (segment_id, offset, limit),
    )
    return (Batch(*row) for row in found)


def _holding(tx: Tx, segment_id: int, offset: int, limit: int, size_bytes: int) -> Iterator[Batch]:
    """The batch that holds ``offset`` and those after it, up to a total size; none if it is gone.

    For drivers that buffer a whole result, and where each query is a round trip.  LIMIT stands in
    the subquery, before the filter by size: no index has sizes, so the filter alone would scan the
    segment to its end.
    """
    found = tx.iterate(
        f"SELECT {_BATCH} FROM (SELECT start_offset AS first, end_offset AS until, "
        "total_bytes AS upto FROM batches WHERE segment_id = ? AND start_offset <= ? "
        "ORDER BY start_offset DESC LIMIT 1) AS holding, "
        f"LATERAL (SELECT {_BATCH}, total_bytes FROM batches WHERE segment_id = ? "
        "AND start_offset >= first ORDER BY start_offset LIMIT ?) AS load "
        "WHERE until > ? AND total_bytes - bytes < upto + ?",
        (segment_id, offset, segment_id, limit, offset, size_bytes),
    )
    return (Batch(*row) for row in found)


class Place(msgspec.Struct, frozen=True):
    """A batch's place in its segment, without its events."""

    start: int
    end: int
    size_bytes: int
    total_bytes: int
    created_us: int
    markers: int = 0
    """How many of its rows are markers; filled in only where it was asked for."""

    @property
    def events(self) -> int:
        return self.end - self.start - self.markers


_PLACE = "start_offset, end_offset, bytes, total_bytes, created_us"


def first_by_event_time(tx: Tx, segment: streams.Segment, ts_us: int) -> Place | None:
    """The batch with the first event at or after ``ts_us``."""
    return None if ts_us > segment.max_ts_us else _search(tx, segment, "max_ts_us", ts_us)


def first_by_append_time(tx: Tx, segment: streams.Segment, created_us: int) -> Place | None:
    """The first batch that was appended at or after ``created_us``."""
    return _search(tx, segment, "created_us", created_us)


def _search(tx: Tx, segment: streams.Segment, column: str, least: int) -> Place | None:
    """The first batch whose ``column``, which never falls along a segment, is at least ``least``.

    A binary search over offsets, so that appends need not maintain an index for it.
    """
    low, high = segment.tail, segment.head
    found = None
    while low < high:
        middle = (low + high) // 2
        row = tx.row(
            f"SELECT {_PLACE}, {column} FROM batches "
            "WHERE segment_id = ? AND start_offset <= ? ORDER BY start_offset DESC LIMIT 1",
            (segment.id, middle),
        )
        if row is None:
            break
        place = Place(*row[:5])
        if row[5] >= least:
            found = place
            high = place.start
        else:
            # Past the middle too: if a record is missing, the middle can lie beyond the end.
            low = max(place.end, middle + 1)
    return found


def places(tx: Tx, segment_id: int, after: int, limit: int) -> list[Place]:
    """Batches that start after offset ``after``, oldest first."""
    rows = tx.rows(
        f"SELECT {_PLACE} FROM batches WHERE segment_id = ? AND start_offset > ? "
        "ORDER BY start_offset LIMIT ?",
        (segment_id, after, limit),
    )
    return [Place(*row) for row in rows]


def first_ending_after(tx: Tx, segment_id: int, offset: int) -> Place | None:
    """The first batch with an event at or after an offset."""
    row = tx.row(
        f"SELECT {_PLACE} FROM batches WHERE segment_id = ? AND end_offset > ? "
        "ORDER BY start_offset LIMIT 1",
        (segment_id, offset),
    )
    return None if row is None else Place(*row)


def has_many(tx: Tx, segment_id: int, count: int) -> bool:
    """Whether a segment has more than ``count`` batches; looks no further."""
    row = tx.row(
        "SELECT start_offset FROM batches WHERE segment_id = ? ORDER BY start_offset "
        "LIMIT 1 OFFSET ?",
        (segment_id, count),
    )
    return row is not None


class FilePlace(msgspec.Struct, frozen=True):
    """Where a batch that is a file stands, and what is in it."""

    start: int
    end: int
    size_bytes: int
    layout: int
    path: str


def files_between(tx: Tx, segment_id: int, start: int, end: int) -> list[FilePlace]:
    """The batches that are files and lie within offsets, whole."""
    rows = tx.rows(
        "SELECT start_offset, end_offset, bytes, layout, path FROM batches WHERE segment_id = ? "
        "AND start_offset >= ? AND start_offset < ? AND end_offset <= ? AND path IS NOT NULL "
        "ORDER BY start_offset",
        (segment_id, start, end, end),
    )
    return [FilePlace(*row) for row in rows]


def bytes_before(tx: Tx, segment: streams.Segment, offset: int) -> int:
    """The bytes of a segment that lie before an offset, interpolated within a batch."""
    row = tx.row(
        f"SELECT {_PLACE} FROM batches WHERE segment_id = ? AND start_offset <= ? "
        "ORDER BY start_offset DESC LIMIT 1",
        (segment.id, offset),
    )
    if row is None:
        return segment.trimmed_bytes
    place = Place(*row)
    inside = min(offset, place.end) - place.start
    left = place.size_bytes * (place.end - place.start - inside) // (place.end - place.start)
    return place.total_bytes - left


def offset_at_bytes(tx: Tx, segment: streams.Segment, size_bytes: int) -> int:
    """The offset before which about ``size_bytes`` lie: the inverse of ``bytes_before``."""
    place = _search(tx, segment, "total_bytes", size_bytes)
    if place is None:
        return segment.head
    inside = max(0, size_bytes - (place.total_bytes - place.size_bytes))
    return place.start + inside * (place.end - place.start) // max(1, place.size_bytes)


TRIM_BATCHES_MAX = 1000


def trim(
    tx: Tx, stream_id: int, segment_id: int, before: int, most: int = TRIM_BATCHES_MAX
) -> bool:
    """Remove whole batches below offset ``before``, some at a time; true while there are more."""
    tail = streams.tail_of(tx, segment_id)
    if tail is None:
        return False
    # From the tail on, and between two bounds: the index still holds what was deleted before, and
    # without a lower bound PostgreSQL's statistics choose a scan of the whole table.  Publishers
    # wait meanwhile, so only the ends of what goes are fetched.
    row = tx.row(
        "SELECT count(*), min(start_offset), max(start_offset), max(end_offset), max(total_bytes) "
        "FROM (SELECT start_offset, end_offset, total_bytes FROM batches WHERE segment_id = ? "
        "AND start_offset >= ? AND start_offset < ? AND end_offset <= ? "
        "ORDER BY start_offset LIMIT ?) AS due",
        (segment_id, tail, before, before, most),
    )
    if row is None or not row[0]:
        return False
    count, first, last, end, total_bytes = row
    span = segment_id, first, last
    tx.later(
        "INSERT INTO graveyard (path, buried_us) SELECT path, ? FROM batches WHERE segment_id = ? "
        "AND start_offset >= ? AND start_offset <= ? AND path IS NOT NULL",
        (tx.now_us(), *span),
    )
    tx.later(
        "DELETE FROM batches WHERE segment_id = ? AND start_offset >= ? AND start_offset <= ?", span
    )
    tx.later(
        "UPDATE segments SET tail = ?, trimmed_bytes = ?, markers = markers - ? WHERE id = ?",
        (end, total_bytes, markers.trim(tx, segment_id, end), segment_id),
    )
    if lanes.is_linked(tx, segment_id):
        lanes.trim(tx, segment_id, end)
    tx.notify(streams.channel(stream_id))
    return bool(count == most)


# --- compaction ----------------------------------------------------------------------------


class CompactedFile(msgspec.Struct, frozen=True):
    """A file with the events of neighbouring batches, written and not committed yet."""

    path: str
    rows: int
    size_bytes: int
    layout: int
    checksum: int


class Piece(msgspec.Struct, frozen=True):
    """A batch without its events, with all else that the catalog knows of it."""

    start: int
    end: int
    size_bytes: int
    total_bytes: int
    max_ts_us: int
    created_us: int
    layout: int
    checksum: int
    path: str | None


_PIECE = (
    "start_offset, end_offset, bytes, total_bytes, max_ts_us, created_us, layout, checksum, path"
)


def pieces(tx: Tx, segment_id: int, start: int, limit: int) -> list[Piece]:
    """Batches that start at offset ``start`` or later, oldest first."""
    rows = tx.rows(
        f"SELECT {_PIECE} FROM batches WHERE segment_id = ? AND start_offset >= ? "
        "ORDER BY start_offset LIMIT ?",
        (segment_id, start, limit),
    )
    return [Piece(*row) for row in rows]


def replace(tx: Tx, segment_id: int, old: Sequence[Piece], new: CompactedFile) -> bool:
    """Put one file in the place of neighbouring batches; false if they are no longer as they were.

    The caller holds the stream's lock.  The file takes over the running totals of the last batch
    it replaces.  Totals count bytes as appended, not as compressed, so that later batches need
    no update.
    """
    first, last = old[0], old[-1]
    span = (segment_id, first.start, last.end)
    rows = tx.rows(
        f"SELECT {_PIECE} FROM batches WHERE segment_id = ? AND start_offset >= ? "
        "AND start_offset < ? ORDER BY start_offset",
        span,
    )
    found = [Piece(*row) for row in rows]
    if found != list(old):
        # Idempotent: a retry after a lost answer finds its own file.
        return len(found) == 1 and found[0].path == new.path
    tx.execute(
        "INSERT INTO graveyard (path, buried_us) SELECT path, ? FROM batches WHERE segment_id = ? "
        "AND start_offset >= ? AND start_offset < ? AND path IS NOT NULL",
        (tx.now_us(), *span),
    )
    tx.execute(
        "DELETE FROM batches WHERE segment_id = ? AND start_offset >= ? AND start_offset < ?", span
    )
    tx.execute(
        _insert_batches(1),
        (
            segment_id,
            first.start,
            last.end,
            new.size_bytes,
            last.total_bytes,
            last.max_ts_us,
            last.created_us,
            new.layout,
            new.checksum,
            new.path,
            None,
        ),
    )
    return True


# --- files ---------------------------------------------------------------------------------


def is_referenced(tx: Tx, path: str) -> bool:
    return tx.row("SELECT 1 FROM batches WHERE path = ?", (path,)) is not None


def buried(tx: Tx, before_us: int, limit: int) -> list[str]:
    """Files in the graveyard since before the given time."""
    rows = tx.rows(
        "SELECT path FROM graveyard WHERE buried_us <= ? ORDER BY buried_us LIMIT ?",
        (before_us, limit),
    )
    return [str(row[0]) for row in rows]


def count_buried(tx: Tx, before_us: int) -> int:
    row = tx.row("SELECT count(*) FROM graveyard WHERE buried_us <= ?", (before_us,))
    return 0 if row is None else int(row[0])


def is_buried(tx: Tx, path: str) -> bool:
    return tx.row("SELECT 1 FROM graveyard WHERE path = ?", (path,)) is not None


def forget_buried(tx: Tx, paths: list[str]) -> None:
    tx.executemany("DELETE FROM graveyard WHERE path = ?", [(path,) for path in paths])
