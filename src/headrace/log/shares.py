"""What a segment gets of an append, encoded: one batch in the catalog, or some in files."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.catalog.batches import NewBatch
from headrace.catalog.lanes import LaneStep
from headrace.catalog.streams import Segment
from headrace.log import checksums, events
from headrace.subjects.columns import largest


class Share(msgspec.Struct, frozen=True):
    """What one segment gets of an append; ``order`` are the input rows in their new order."""

    segment: int
    segment_id: int
    count: int
    order: npt.NDArray[np.int64] | bytes | None
    batches: tuple[NewBatch, ...]

    @property
    def rows(self) -> npt.NDArray[np.int64] | None:
        """``order`` as an array; None if the share has all rows in their original order."""
        return None if self.order is None else np.frombuffer(self.order, np.int64)


class Rows:
    """Rows that will be one batch, with what the catalog records of them."""

    __slots__ = ("batch", "layout", "markers", "max_ts_us", "rows")

    def __init__(self, batch: pa.RecordBatch, layout: int, stamps: npt.NDArray[np.int64]) -> None:
        self.batch = batch
        self.layout = layout
        self.rows = len(stamps)
        self.max_ts_us = int(largest(stamps) if self.rows > 1 else stamps[0])
        self.markers = events.marker_rows(batch) if layout & events.MARKER_BIT else ()

    def cut(self, target_bytes: int) -> list[Rows]:
        """Cut the rows into parts of about ``target_bytes``."""
        size_bytes = self.batch.nbytes
        if size_bytes <= target_bytes or self.rows == 1:
            return [self]
        count = min(self.rows, -(-size_bytes // target_bytes))
        step = -(-self.rows // count)
        slices = [self.batch.slice(at, step) for at in range(0, self.rows, step)]
        return [Rows(piece, self.layout, events.stamps_of(piece)) for piece in slices]


def share_of_blob(
    segment: Segment,
    rows: int,
    max_ts_us: int,
    layout: int,
    blob: bytes,
    order: bytes | None,
) -> Share:
    """The share of an encoded batch."""
    new = NewBatch(
        segment_id=segment.id,
        rows=rows,
        size_bytes=len(blob),
        max_ts_us=max_ts_us,
        layout=layout,
        checksum=checksums.of_blob(blob, layout),
        data=blob,
    )
    return Share(segment.number, segment.id, rows, order, (new,))


def in_lane(shares: Sequence[Share], step: LaneStep) -> tuple[Share, ...]:
    """Shares whose events belong to another lane than that of their segment."""
    replace = msgspec.structs.replace
    return tuple(
        replace(share, batches=tuple(replace(batch, step=step) for batch in share.batches))
        for share in shares
    )


def judged(
    shares: Sequence[Share], filter: str, crosses: npt.NDArray[np.bool_]
) -> tuple[Share, ...]:
    """Shares of rows that cross to other regions if they pass a link's filter, and else stay."""
    replace = msgspec.structs.replace
    found = []
    for share in shares:
        own = crosses if share.rows is None else crosses[share.rows]
        ends = np.cumsum([batch.rows for batch in share.batches])[:-1]
        parts = zip(share.batches, np.split(own, ends), strict=True)
        made = tuple(replace(batch, step=_by(filter, part, batch.step)) for batch, part in parts)
        found.append(replace(share, batches=made))
    return tuple(found)


def _by(filter: str, crosses: npt.NDArray[np.bool_], step: LaneStep | None) -> LaneStep:
    return msgspec.structs.replace(step or LaneStep(), filter=filter, stays=staying(crosses))


def staying(crosses: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """The ranges of rows that do not cross.

    >>> staying(np.array([True, False, False, True, False]))
    ((1, 3), (4, 5))
    """
    if crosses.all():
        return ()
    edges = np.flatnonzero(np.diff(np.concatenate(([True], crosses, [True])).astype(np.int8)))
    return tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def inline(segment_id: int, part: Rows) -> NewBatch:
    """Some rows as a batch that lives in the catalog."""
    blob = events.encode_blob(part.batch)
    return NewBatch(
        segment_id=segment_id,
        rows=part.rows,
        size_bytes=blob.nbytes,
        max_ts_us=part.max_ts_us,
        layout=part.layout,
        checksum=checksums.of_blob(blob, part.layout),
        data=blob,
        markers=part.markers,
    )
