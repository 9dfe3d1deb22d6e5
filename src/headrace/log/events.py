"""Events as Arrow: what is stored, and how it is read back (``columns``: what is handed in).

Stored columns are those of ``COLUMNS``.  Offsets are not stored: an event's offset is its
batch's start plus its row.  A column that is all null is not stored either; the ``layout`` of a
batch says which are there (bit i for column i), which also spares every small blob its schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import EventTooLargeError, InvalidEventError
from headrace.log import arrays, limits
from headrace.log.times import TIME_MAX_US as TIME_MAX_US
from headrace.log.times import TIME_MIN_US as TIME_MIN_US
from headrace.log.times import now_us as now_us
from headrace.log.times import to_us as to_us
from headrace.subjects import check_subject
from headrace.subjects.columns import mask_of

STRING = pa.string()
BINARY = pa.binary()
TIMESTAMP = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EPOCH = pa.list_(pa.int64())
ORIGIN = pa.struct([("region", pa.string()), ("sequence", pa.int64())])

COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("timestamp", TIMESTAMP),
    ("subject", pa.string()),
    ("key", pa.string()),
    ("value", pa.binary()),
    ("headers", HEADERS),
    ("epoch", EPOCH),
    ("origin", ORIGIN),
    ("marker", pa.binary()),
)
TYPES = dict(COLUMNS)
BITS = {name: 1 << i for i, (name, _) in enumerate(COLUMNS)}
PLAIN = BITS["timestamp"] | BITS["subject"] | BITS["value"]
KEY_BIT, HEADERS_BIT, EPOCH_BIT = BITS["key"], BITS["headers"], BITS["epoch"]
MARKER_BIT = BITS["marker"]
REQUIRED = ("timestamp", "subject", "value")
BYTES = (bytes, bytearray, memoryview)
"""What a value may be given as."""
MARKER_SUBJECT = "headrace.marker"
ORIGIN_REFUSED = (
    "origin cannot be given: Headrace sets it on events that it copies from another region; "
    "leave it out"
)

READ_SCHEMA = pa.schema(
    [("segment", pa.int32()), ("offset", pa.int64())]
    + [column for column in COLUMNS if column[0] != "marker"]
)
"""The columns that a reader is given, in their order."""

Headers = Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event to append; ``timestamp`` is now unless given.

    >>> Event(subject="orders.eu.42", value=b"12 apples", key="42").subject
    'orders.eu.42'
    """

    subject: str
    value: bytes
    key: str | None = None
    headers: Headers | None = None
    timestamp: datetime | None = None
    epoch: tuple[int, ...] | None = None


Events: TypeAlias = Event | Iterable[Event] | pa.Table | pa.RecordBatch

_schemas: dict[int, pa.Schema] = {}


def schema_of(layout: int) -> pa.Schema:
    """The schema of a batch with this layout."""
    schema = _schemas.get(layout)
    if schema is None:
        if not 0 < layout < 1 << len(COLUMNS):
            raise ValueError(f"unknown layout {layout}")
        schema = pa.schema([column for i, column in enumerate(COLUMNS) if layout >> i & 1])
        _schemas[layout] = schema
    return schema


def layout_of(schema: pa.Schema) -> int:
    return sum(map(BITS.__getitem__, schema.names))


# --- events from Python --------------------------------------------------------------------


def check_event(event: Event, row: int | None = None) -> Event:
    """Refuse an event that breaks a rule."""
    at = "" if row is None else f"event {row}: "
    if not isinstance(event, Event):
        raise InvalidEventError(f"{at}expected an Event, not {type(event).__name__}", row=row)
    check_subject(event.subject)
    if not isinstance(event.value, BYTES):
        raise InvalidEventError(
            f"{at}value is {type(event.value).__name__}; it must be bytes (encode text first)",
            row=row,
        )
    size = memoryview(event.value).nbytes
    if size > limits.EVENT_BYTES_MAX:
        raise EventTooLargeError(
            f"{at}value has {size} bytes; at most {limits.EVENT_BYTES_MAX} are allowed",
            row=row,
        )
    if event.key is not None:
        _check_key(event.key, at, row)
    if event.headers is not None:
        _check_headers(event.headers, at, row)
    if event.timestamp is not None and not isinstance(event.timestamp, datetime):
        raise InvalidEventError(f"{at}timestamp must be a datetime", row=row)
    if event.epoch is not None:
        _check_epoch(event.epoch, at, row)
    return event


def _check_key(key: str, at: str, row: int | None) -> None:
    if not isinstance(key, str):
        raise InvalidEventError(f"{at}key is {type(key).__name__}; it must be text", row=row)
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidEventError(f"{at}key is not valid text: {error.reason}", row=row) from None
    if size > limits.KEY_BYTES_MAX:
        raise EventTooLargeError(
            f"{at}key has {size} bytes; at most {limits.KEY_BYTES_MAX} are allowed", row=row
        )


def _check_headers(headers: Headers, at: str, row: int | None) -> None:
    if not isinstance(headers, Mapping | Sequence):
        raise InvalidEventError(f"{at}headers must be pairs of a name and a value", row=row)
    pairs = _pairs(headers)
    size = 0
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InvalidEventError(f"{at}headers must be pairs of a name and a value", row=row)
        if not isinstance(pair[1], bytes | str):
            raise InvalidEventError(f"{at}header {pair[0]!r} must be bytes or text", row=row)
        try:
            value = pair[1].encode() if isinstance(pair[1], str) else pair[1]
            size += len(pair[0].encode()) + len(value)
        except UnicodeEncodeError:
            raise InvalidEventError(f"{at}a header is not valid text", row=row) from None
    if len(pairs) > limits.HEADERS_MAX or size > limits.HEADERS_BYTES_MAX:
        raise EventTooLargeError(
            f"{at}{len(pairs)} headers with {size} bytes; at most {limits.HEADERS_MAX} with "
            f"{limits.HEADERS_BYTES_MAX} bytes are allowed",
            row=row,
        )


def _check_epoch(epoch: tuple[int, ...], at: str, row: int | None) -> None:
    whole = isinstance(epoch, tuple) and all(
        type(part) is int and 0 <= part <= limits.EPOCH_TIME_MAX for part in epoch
    )
    if not whole or not 0 < len(epoch) <= limits.EPOCH_LENGTH_MAX:
        raise InvalidEventError(
            f"{at}epoch must be a tuple of 1 to {limits.EPOCH_LENGTH_MAX} integers "
            "from 0 to 2^63 - 2",
            row=row,
        )


def _pairs(headers: Headers) -> list[tuple[str, bytes | str]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def batch_of(events: Sequence[Event], now: int) -> pa.RecordBatch:
    """Checked events as one record batch; ``now`` is for those without a time of their own."""
    layout = PLAIN
    stamps = [now if e.timestamp is None else to_us(e.timestamp) for e in events]
    columns = [
        arrays.integers(stamps, TIMESTAMP),
        arrays.texts([e.subject for e in events], STRING),
        arrays.binaries([e.value for e in events], BINARY),
    ]
    keys = [e.key for e in events]
    if any(key is not None for key in keys):
        layout |= KEY_BIT
        columns.insert(2, arrays.texts(keys, STRING))
    if any(e.headers for e in events):
        layout |= HEADERS_BIT
        columns.append(_header_lists([e.headers for e in events]))
    epochs = [e.epoch for e in events]
    if any(epoch is not None for epoch in epochs):
        layout |= EPOCH_BIT
        parts = arrays.integers([part for epoch in epochs if epoch for part in epoch], pa.int64())
        counts = [None if epoch is None else len(epoch) for epoch in epochs]
        columns.append(arrays.lists(counts, parts, EPOCH))
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(layout))


def _header_lists(headers: Sequence[Headers | None]) -> pa.Array:
    rows = [_pairs(each) if each else None for each in headers]
    pairs = [pair for row in rows if row for pair in row]
    names = arrays.texts([name for name, _ in pairs], STRING)
    values = [value.encode() if isinstance(value, str) else value for _, value in pairs]
    fields = [HEADERS.value_type.field(at) for at in range(2)]
    items = pa.StructArray.from_arrays([names, arrays.binaries(values, BINARY)], fields=fields)
    return arrays.lists([None if row is None else len(row) for row in rows], items, HEADERS)


def marker_batch(now: int, *payloads: bytes) -> pa.RecordBatch:
    """Internal records, in line with the events and never shown to consumers."""
    count = len(payloads)
    return pa.record_batch(
        {
            "timestamp": pa.array([now] * count, TIMESTAMP),
            "subject": pa.array([MARKER_SUBJECT] * count, pa.string()),
            "value": pa.array([b""] * count, pa.binary()),
            "marker": pa.array(payloads, pa.binary()),
        }
    )


def marker_rows(batch: pa.RecordBatch) -> tuple[int, ...]:
    """Which rows of a batch are markers."""
    valid = mask_of(batch.column("marker").is_valid())
    return tuple(np.flatnonzero(valid).tolist())


# --- blobs ---------------------------------------------------------------------------------


def encode_blob(batch: pa.RecordBatch) -> memoryview:
    """A batch as an Arrow IPC message, without its schema (the layout implies it)."""
    return memoryview(batch.serialize())


def decode_blob(data: bytes | memoryview, layout: int) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema_of(layout))


_NUMBERS = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64()}


def numbers(values: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> pa.Array:
    """A numpy array as an Arrow array, zero-copy.

    ``pa.array`` does that too, but imports pandas first where it is installed.
    """
    kind = _NUMBERS[values.dtype]
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def int32s(array: pa.Array) -> npt.NDArray[np.int32]:
    """A column of 32-bit numbers without nulls, as a zero-copy view."""
    return _view(array, np.int32)


def int64s(array: pa.Array) -> npt.NDArray[np.int64]:
    """A column of 64-bit numbers or times without nulls, as a zero-copy view.

    ``to_numpy`` does that too, but imports pandas first where it is installed, which takes the
    better part of a second.
    """
    return _view(array, np.int64)


def bounds_of(lists: pa.ListArray) -> npt.NDArray[np.int32]:
    """Where each list of a column begins in its values, and where the last one ends; a view."""
    return _view(lists.offsets, np.int32)


def ends_of(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where each value of a column ends among the bytes of all, and first where they begin."""
    bounds = np.frombuffer(values.buffers()[1], np.int32)
    return bounds[values.offset : values.offset + len(values) + 1]


def _view(array: pa.Array, kind: type[Any]) -> npt.NDArray[Any]:
    if not len(array):
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


@lru_cache(maxsize=1)
def _taking() -> tuple[Any, Any]:
    import pyarrow.compute as pc  # takes as long to load as a third of the rest of Arrow

    return pc.get_function("take"), pc.TakeOptions(boundscheck=False)


def reordered(batch: pa.RecordBatch, order: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The rows in another order; ``order`` is taken on trust, without a bounds check."""
    take, unchecked = _taking()
    return take.call([batch, numbers(order)], unchecked)


def stamps_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The times of a stored batch in microseconds, as a zero-copy view."""
    return int64s(batch.column("timestamp"))


def public(batch: pa.RecordBatch, segment: int, offsets: pa.Array) -> pa.RecordBatch:
    """A stored batch as readers get it: with segment and offset, without internal columns."""
    count = batch.num_rows
    stored = batch.columns
    arrays = [_segment_column(segment, count), offsets]
    for place in _read_plan(tuple(batch.schema.names)):
        arrays.append(stored[place] if isinstance(place, int) else _nulls(place, count))
    return pa.RecordBatch.from_arrays(arrays, schema=READ_SCHEMA)


@lru_cache(maxsize=64)
def _read_plan(names: tuple[str, ...]) -> tuple[int | pa.Array, ...]:
    """For each column that is read: its place among those that are stored, or nulls instead."""
    return tuple(
        names.index(field.name) if field.name in names else _many_nulls(field.type)
        for field in list(READ_SCHEMA)[2:]
    )


def _segment_column(segment: int, count: int) -> pa.Array:
    """The segment number for every row; a slice of one shared array, as for nulls."""
    if count > _NULLS:
        return numbers(np.full(count, segment, np.int32))
    return _many_times(segment).slice(0, count)


@lru_cache(maxsize=16)
def _many_times(segment: int) -> pa.Array:
    return numbers(np.full(_NULLS, segment, np.int32))


def _nulls(many: pa.Array, count: int) -> pa.Array:
    """Nulls for a column that is not stored; a slice of one shared array."""
    return many.slice(0, count) if count <= _NULLS else pa.nulls(count, many.type)


_NULLS = 65_536


@lru_cache(maxsize=len(COLUMNS))
def _many_nulls(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_NULLS, kind)
