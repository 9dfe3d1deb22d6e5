"""Read a stream's events as plain rows, without Arrow where no file is met.

What a person looks at is a few events, and most of them lie in the catalog: blobs are decoded by
:mod:`headrace.log.plain`.  Files, and the events of linked segments, are read as Arrow and turned
into rows, so that the answer is the same wherever an event lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.catalog import Catalog
from headrace.catalog.batches import Batch
from headrace.catalog.streams import Segment
from headrace.log.plain import Row, rows_of
from headrace.log.reading import Reading
from headrace.log.walk import FileAhead, OnDamaged, Walk, is_whole
from headrace.store import Store
from headrace.subjects import matches

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.log.cursor import Cursor

PlainRows = list[Row]

FEW_ROWS = 10
MANY_BLOBS = 2000
"""Blobs of fewer rows than that take longer here than in Arrow.  After so many of them it is
quicker to load Arrow, and to read the rest with it."""


class SmallBlobs:
    """How many blobs of a few rows a read has met."""

    count = 0


class RowReader(Reading[PlainRows]):
    """A read under way; not thread-safe."""

    _met: SmallBlobs | None = None

    def _cursor(
        self, segment: Segment, offset: int, on_damaged: OnDamaged | None, *, origins: bool
    ) -> RowCursor:
        self._met = self._met or SmallBlobs()
        return RowCursor(
            self._catalog, self._store, self.stream.name, segment, offset, on_damaged,
            origins=origins, met=self._met,
        )  # fmt: skip

    def _show(self, cursor: Walk[PlainRows], batch: PlainRows) -> PlainRows:
        if not self._query.markers:
            batch = [row for row in batch if row.marker is None]
        if self._query.subject is not None:
            wanted = self._query.subject
            batch = [row for row in batch if matches(wanted, row.subject)]
        if self._left is not None:
            if len(batch) > self._left:
                batch = batch[: self._left]
                last = batch[-1].offset
                assert last is not None
                cursor.position = last + 1
            self._left -= len(batch)
        return batch

    def _count(self, batch: PlainRows) -> int:
        return len(batch)

    def _nothing(self) -> PlainRows:
        return []

    def _since(self, batch: PlainRows, ts_us: int) -> int | None:
        return next((row.offset for row in batch if row.timestamp_us >= ts_us), None)


class RowCursor(Walk[PlainRows]):
    """A walk that returns rows."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store | None,
        stream: str,
        segment: Segment,
        position: int,
        on_damaged: OnDamaged | None = None,
        *,
        origins: bool = False,
        met: SmallBlobs | None = None,
    ) -> None:
        """``origins``: show where the events of a linked segment come from.

        ``met`` counts for all cursors of one read.
        """
        super().__init__(catalog, store, stream, segment, position, on_damaged)
        self._segment = segment
        self._origins = origins
        self._met = SmallBlobs() if met is None else met
        self._arrow: Cursor | None = None
        """Reads what takes Arrow."""

    @property
    def in_file(self) -> bool:
        return self._arrow is not None

    @property
    def _in_arrow(self) -> bool:
        """Whether blobs are read as Arrow, too."""
        return self._origins or self._met.count > MANY_BLOBS

    def next(self, end: int, *, brief: bool = False) -> PlainRows | None:
        if self._in_arrow and self._arrow is None:
            if brief:
                raise FileAhead
            self._begin_arrow()
        return super().next(end, brief=brief)

    def at_hand(self) -> PlainRows | None:
        return None if self._in_arrow else super().at_hand()

    def _read(self, end: int) -> tuple[PlainRows | None, Batch | None]:
        taken = _Taken(self.number, self._met)
        begin, stop = self._catalog.read(lambda tx: self._put_all(tx, end, taken))
        first, last = self.position - begin, end - begin
        return taken.rows[first:last] or None, stop

    def _count(self, found: PlainRows) -> int:
        return len(found)

    def _flaw(self, batch: Batch) -> str:
        if batch.data is None or not is_whole(batch):
            return "its checksum does not match"
        try:
            rows_of(batch.data, batch.layout, self.number, batch.start, batch.end)
        except ValueError as error:
            return f"it cannot be decoded: {error}"
        return "it is in order"

    def _open_file(self, _: Batch) -> None:
        self._begin_arrow()

    def _begin_arrow(self) -> None:
        from headrace.log.cursor import Cursor

        self._arrow = Cursor(
            self._catalog, self._store, self._stream, self._segment, self.position,
            self._on_damaged, origins=self._origins,
        )  # fmt: skip

    def _next_of_file(self, end: int) -> PlainRows | None:
        assert self._arrow is not None
        self._arrow.position = self.position
        found = self._arrow.next(end)
        self.position = self._arrow.position
        if not self._in_arrow and not self._arrow.in_file:
            self._arrow = None
        return None if found is None else rows_of_arrow(found, self.number)


class _Taken:
    """The rows of one load."""

    def __init__(self, segment: int, met: SmallBlobs) -> None:
        self.rows: PlainRows = []
        self._segment = segment
        self._met = met

    def put(self, batch: Batch) -> bool:
        if batch.data is None or not is_whole(batch):
            return False
        try:
            found = rows_of(batch.data, batch.layout, self._segment, batch.start, batch.end)
        except ValueError:
            return False
        self.rows += found
        self._met.count += len(found) < FEW_ROWS
        return True


def rows_of_arrow(batch: pa.RecordBatch, segment: int | None = None) -> PlainRows:
    """PlainRows of a record batch; columns that it does not have are null."""
    found = []
    stamps = batch.column("timestamp").view("int64").to_pylist()
    # Times as such load pandas where it is installed.
    for row, stamp in zip(batch.drop_columns(["timestamp"]).to_pylist(), stamps, strict=True):
        headers, epoch, origin = (row.get(name) for name in ("headers", "epoch", "origin"))
        found.append(
            Row(
                row.get("segment") if segment is None else segment,
                row.get("offset"),
                stamp,
                row["subject"],
                row.get("key"),
                row["value"],
                None if headers is None else tuple((e["key"], e["value"]) for e in headers),
                None if epoch is None else tuple(epoch),
                None if origin is None else (origin["region"], origin["sequence"]),
                row.get("marker"),
            )
        )
    return found
