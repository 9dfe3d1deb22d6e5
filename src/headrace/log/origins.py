"""The ``origin`` column: filled in from the runs of a linked segment when events are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.catalog import Catalog, lanes
from headrace.catalog.lanes import Run
from headrace.log import arrays, events
from headrace.subjects.columns import mask_array

if TYPE_CHECKING:
    from headrace.log.log import Log

_FIELD = pa.field("origin", events.ORIGIN)


class Origins:
    """Fills in where the events of one linked segment come from."""

    def __init__(self, catalog: Catalog, segment_id: int) -> None:
        self._catalog = catalog
        self._segment_id = segment_id

    def fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of neighbours with an ``offset`` column, and with their origins behind it."""
        if not batch.num_rows:
            return batch
        offsets = events.int64s(batch.column("offset"))
        start, end = int(offsets[0]), int(offsets[-1]) + 1
        found = self._catalog.read(lambda tx: lanes.runs(tx, self._segment_id, start, end))
        return batch.append_column(_FIELD, origin_column(found, start, end))


def is_linked(log: Log, stream: str) -> bool:
    """Whether a stream is in other regions too."""
    return any(segment.lane is not None for segment in log.stream(stream).segments)


def origin_column(runs: Sequence[Run], start: int, end: int) -> pa.Array:
    """The origins of the offsets ``start`` to ``end`` - 1; null where there is a marker."""
    count = end - start
    names = sorted({run.lane for run in runs})
    place = {name: at for at, name in enumerate(names)}
    which = np.full(count, -1, np.int32)
    sequences = np.zeros(count, np.int64)
    for run in runs:
        lo, hi = max(run.start, start), min(run.end, end)
        which[lo - start : hi - start] = place[run.lane]
        first = run.sequence + lo - run.start
        sequences[lo - start : hi - start] = np.arange(first, first + hi - lo)
    missing = which < 0
    # By way of buffers: ``pa.array`` imports pandas where it is installed.
    valid, found = mask_array(~missing).buffers()[1], np.where(missing, 0, which)
    codes = pa.Array.from_buffers(
        pa.int32(), count, [valid, pa.py_buffer(found.astype(np.int32, copy=False))]
    )
    regions = arrays.texts(names or [""], events.STRING).take(codes)
    return pa.StructArray.from_arrays(
        [regions, events.numbers(sequences)],
        fields=list(events.ORIGIN),
        mask=mask_array(missing),
    )
