"""Read: a stream's events as Arrow record batches."""

from __future__ import annotations

import pyarrow as pa

from headrace.catalog.streams import Segment
from headrace.log import events
from headrace.log.cursor import Cursor, OnDamaged
from headrace.log.reading import Reading
from headrace.log.walk import Walk
from headrace.subjects import match_array

# Not by ``from_pylist``, which imports pandas where it is installed.
_NOTHING = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in events.READ_SCHEMA], schema=events.READ_SCHEMA
)


class Reader(Reading[pa.RecordBatch]):
    """A read under way; not thread-safe."""

    def _cursor(
        self, segment: Segment, offset: int, on_damaged: OnDamaged | None, *, origins: bool
    ) -> Cursor:
        name = self.stream.name
        return Cursor(
            self._catalog, self._store, name, segment, offset, on_damaged, origins=origins
        )

    def _show(self, cursor: Walk[pa.RecordBatch], batch: pa.RecordBatch) -> pa.RecordBatch:
        if "marker" in batch.schema.names and not self._query.markers:
            batch = batch.filter(batch.column("marker").is_null())
        if self._filter is not None:
            batch = batch.filter(match_array(self._filter, batch.column("subject")))
        if self._left is not None:
            if batch.num_rows > self._left:
                batch = batch.slice(0, self._left)
                cursor.position = batch.column("offset")[-1].as_py() + 1
            self._left -= batch.num_rows
        if self._query.markers:
            return batch
        return events.public(batch, cursor.number, batch.column(0))

    def _count(self, batch: pa.RecordBatch) -> int:
        return int(batch.num_rows)

    def _nothing(self) -> pa.RecordBatch:
        return _NOTHING

    def _since(self, batch: pa.RecordBatch, ts_us: int) -> int | None:
        late = events.stamps_of(batch) >= ts_us
        return int(batch.column("offset")[int(late.argmax())].as_py()) if late.any() else None
