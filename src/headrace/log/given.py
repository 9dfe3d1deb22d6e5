"""What a caller may append, as one checked record batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import pyarrow as pa

from headrace.errors import InvalidEventError
from headrace.log import arrays, columns, events, limits
from headrace.log.events import Event, Events
from headrace.log.message import single


def to_batch(data: Events) -> pa.RecordBatch:
    """Whatever a caller may append, as one checked record batch."""
    now = events.now_us()
    if isinstance(data, pa.Table | pa.RecordBatch):
        return columns.normalise(data, now)
    if isinstance(data, Event):
        one = single(events.check_event(data), now)
        return events.decode_blob(one.blob, one.layout) if one else events.batch_of([data], now)
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise InvalidEventError(
            f"cannot append a {type(data).__name__}: give an Event, an iterable of them or an "
            "Arrow table"
        )
    given = list(islice(data, limits.APPEND_ROWS_MAX + 1))
    if len(given) > limits.APPEND_ROWS_MAX:
        raise arrays.too_large()
    size = 0
    for row, event in enumerate(given):
        events.check_event(event, row)
        size += len(event.value)
        if size > limits.APPEND_BYTES_MAX:
            raise arrays.too_large()
    batch = events.batch_of(given, now)
    # Subjects, keys and headers count too, and Arrow knows how much they are.
    if batch.nbytes > limits.APPEND_BYTES_MAX:
        raise arrays.too_large()
    return batch
