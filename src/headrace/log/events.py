"""Events as Arrow: what callers may hand in, what is stored, and how it is read back.

Stored columns are those of ``COLUMNS``.  Offsets are not stored: an event's offset is its
batch's start plus its row.  A column that is all null is not stored either; the ``layout`` of a
batch says which are there (bit i for column i), which also spares every small blob its schema.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import compiled
from headrace.errors import AppendTooLargeError, EventTooLargeError, InvalidEventError
from headrace.log import limits
from headrace.subjects import SUBJECT_PLAIN_BYTES, check_subject, first_invalid_subject
from headrace.subjects.columns import largest

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
MARKER_SUBJECT = "headrace.marker"
OWN = frozenset({"origin", "marker"})
"""Columns that only Headrace fills."""
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


def now_us() -> int:
    return time.time_ns() // 1000


def to_us(moment: datetime) -> int:
    """Microseconds since 1970; a time without zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


TIME_MIN_US = to_us(datetime.min.replace(tzinfo=UTC))
TIME_MAX_US = to_us(datetime.max.replace(tzinfo=UTC))


# --- events from Python --------------------------------------------------------------------


def check_event(event: Event, row: int | None = None) -> Event:
    """Refuse an event that breaks a rule."""
    at = "" if row is None else f"event {row}: "
    if not isinstance(event, Event):
        raise InvalidEventError(f"{at}expected an Event, not {type(event).__name__}", row=row)
    check_subject(event.subject)
    if not isinstance(event.value, bytes | bytearray | memoryview):
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
        type(part) is int and -(1 << 63) <= part < 1 << 63 for part in epoch
    )
    if not whole or not 0 < len(epoch) <= limits.EPOCH_LENGTH_MAX:
        raise InvalidEventError(
            f"{at}epoch must be a tuple of 1 to {limits.EPOCH_LENGTH_MAX} integers of 64 bits",
            row=row,
        )


def _pairs(headers: Headers) -> list[tuple[str, bytes | str]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def batch_of(events: Sequence[Event], now: int) -> pa.RecordBatch:
    """Checked events as one record batch; ``now`` is for those without a time of their own."""
    if len(events) == 1 and not events[0].headers and events[0].epoch is None:
        return _batch_of_one(events[0], now)
    layout = PLAIN
    stamps = [now if e.timestamp is None else to_us(e.timestamp) for e in events]
    arrays = [
        pa.array(stamps, TIMESTAMP),
        pa.array([e.subject for e in events], STRING),
        pa.array([e.value for e in events], BINARY),
    ]
    keys = [e.key for e in events]
    if any(key is not None for key in keys):
        layout |= KEY_BIT
        arrays.insert(2, pa.array(keys, STRING))
    if any(e.headers for e in events):
        layout |= HEADERS_BIT
        arrays.append(pa.array([_header_rows(e.headers) for e in events], HEADERS))
    if any(e.epoch is not None for e in events):
        layout |= EPOCH_BIT
        arrays.append(pa.array([e.epoch for e in events], EPOCH))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(layout))


def _batch_of_one(event: Event, now: int) -> pa.RecordBatch:
    """One plain event as a record batch, built from buffers.

    ``pa.array`` would import pandas, where it is installed, for a single event.
    """
    stamp = now if event.timestamp is None else to_us(event.timestamp)
    arrays = [
        pa.Array.from_buffers(
            TIMESTAMP, 1, [None, pa.py_buffer(stamp.to_bytes(8, "little", signed=True))]
        ),
        _array_of_one(STRING, event.subject.encode()),
        _array_of_one(BINARY, bytes(event.value)),
    ]
    layout = PLAIN
    if event.key is not None:
        layout |= KEY_BIT
        arrays.insert(2, _array_of_one(STRING, event.key.encode()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(layout))


def _array_of_one(kind: pa.DataType, data: bytes) -> pa.Array:
    ends = bytes(4) + len(data).to_bytes(4, "little")
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _header_rows(headers: Headers | None) -> list[dict[str, Any]] | None:
    if not headers:
        return None
    return [
        {"key": key, "value": value.encode() if isinstance(value, str) else value}
        for key, value in _pairs(headers)
    ]


def marker_batch(payload: bytes, now: int) -> pa.RecordBatch:
    """One internal record, in line with the events and never shown to consumers."""
    return pa.record_batch(
        {
            "timestamp": pa.array([now], TIMESTAMP),
            "subject": pa.array([MARKER_SUBJECT], pa.string()),
            "value": pa.array([b""], pa.binary()),
            "marker": pa.array([payload], pa.binary()),
        }
    )


def marker_rows(batch: pa.RecordBatch) -> tuple[int, ...]:
    """Which rows of a batch are markers."""
    valid = batch.column("marker").is_valid().to_numpy(zero_copy_only=False)
    return tuple(np.flatnonzero(valid).tolist())


# --- events from Arrow ---------------------------------------------------------------------


def normalise(data: pa.Table | pa.RecordBatch, now: int) -> pa.RecordBatch:
    """A caller's columns as stored ones: cast, filled in, checked, in one batch."""
    rows = data.num_rows
    # The size of the buffers is cheap to ask and an upper bound; the exact size takes a while.
    size = data.get_total_buffer_size()
    if size > limits.APPEND_BYTES_MAX // len(TYPES):
        size = data.nbytes
    if rows > limits.APPEND_ROWS_MAX or size > limits.APPEND_BYTES_MAX:
        raise AppendTooLargeError(
            f"{rows} rows with {size} bytes are too many for one append (at most "
            f"{limits.APPEND_ROWS_MAX} rows and {limits.APPEND_BYTES_MAX} bytes); append in parts"
        )
    batch = _timed(data, now)
    if batch is None:
        batch = _stored(data, now)
    if not _are_plain(batch):
        _check_columns(batch)
    return batch


def _timed(data: pa.Table | pa.RecordBatch, now: int) -> pa.RecordBatch | None:
    """The columns as they are, with times, if nothing else has to be done to them."""
    if not any(data.schema.equals(schema, check_metadata=True) for schema in _UNTIMED):
        return None
    if isinstance(data, pa.Table):
        batches = data.to_batches()
        if len(batches) != 1:
            return None
        (data,) = batches
    if data.num_columns == len(_UNTIMED[0]) and data.column("key").null_count:
        # Keys that are all null are not stored.
        return None
    return data.add_column(0, _TIME, _stamps(data.num_rows, now))


_TIME = pa.field("timestamp", TIMESTAMP)
_PLAIN_SCHEMAS = (schema_of(PLAIN | KEY_BIT), schema_of(PLAIN))
_UNTIMED = tuple(schema.remove(0) for schema in _PLAIN_SCHEMAS)


def _stored(data: pa.Table | pa.RecordBatch, now: int) -> pa.RecordBatch:
    """The columns to store, cast and filled in."""
    rows = data.num_rows
    arrays, layout = [], 0
    for name, at in _stored_columns(tuple(data.schema.names)):
        if at is None:
            column = _stamps(rows, now)
        elif name == "origin":
            _refuse_origins(_one_chunk(data.column(at)))
            continue
        else:
            column = _cast(_one_chunk(data.column(at)), name, TYPES[name])
            if column.null_count == rows and name not in REQUIRED:
                continue
            if name == "timestamp":
                if column.null_count:
                    column = pc.fill_null(column, pa.scalar(now, TIMESTAMP))
                _check_times(column)
        arrays.append(column)
        layout |= BITS[name]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(layout))


@lru_cache(maxsize=16)
def _stored_columns(names: tuple[str, ...]) -> tuple[tuple[str, int | None], ...]:
    """Name and place in the input of each column to store; the time may have to be made up."""
    unknown = [name for name in names if name not in TYPES or name == "marker"]
    if unknown:
        allowed = ", ".join(name for name in TYPES if name not in OWN)
        raise InvalidEventError(f"unknown columns {', '.join(unknown)}; events have {allowed}")
    if len(set(names)) != len(names):
        raise InvalidEventError("a column appears twice")
    for name in ("subject", "value"):
        if name not in names:
            raise InvalidEventError(f"the column {name!r} is missing")
    return tuple(
        (name, names.index(name) if name in names else None)
        for name in TYPES
        if name in names or name == "timestamp"
    )


def _stamps(count: int, now: int) -> pa.Array:
    stamps = now.to_bytes(8, "little", signed=True) * count
    return pa.Array.from_buffers(TIMESTAMP, count, [None, pa.py_buffer(stamps)])


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _cast(column: pa.Array, name: str, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if name == "timestamp" and pa.types.is_timestamp(column.type) and column.type.tz is None:
            column = column.cast(pa.timestamp(column.type.unit, "UTC"))
        # Times finer than a microsecond are cut, not refused.
        return pc.cast(column, options=pc.CastOptions(wanted, allow_time_truncate=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidEventError(
            f"column {name!r} of type {column.type} cannot be taken as {wanted}: {reason}"
        ) from error


def check_batch(batch: pa.RecordBatch) -> None:
    """Refuse a batch in which any event breaks a rule; names the first one's row."""
    _check_times(batch.column("timestamp"))
    _check_columns(batch)


def _are_plain(batch: pa.RecordBatch) -> bool:
    """A quick check that passes most batches, times aside; false means: check every column."""
    kernels = compiled.kernels
    if kernels is None or batch.schema not in _PLAIN_SCHEMAS:
        return False
    most = (SUBJECT_PLAIN_BYTES, limits.KEY_BYTES_MAX, limits.EVENT_BYTES_MAX)
    return bool(kernels.plain_events(batch.columns[1:], *most))


def _check_columns(batch: pa.RecordBatch) -> None:
    """Refuse what breaks a rule, the times aside."""
    invalid = first_invalid_subject(batch.column("subject"))
    if invalid is not None:
        row, reason = invalid
        raise InvalidEventError(f"row {row}: {reason}", row=row)
    values = batch.column("value")
    if values.null_count:
        row = _first(values.is_null())
        raise InvalidEventError(f"row {row}: value is null", row=row)
    _check_lengths(values, "value", limits.EVENT_BYTES_MAX)
    names = batch.schema.names
    if "key" in names:
        keys = batch.column("key")
        _check_lengths(keys, "key", limits.KEY_BYTES_MAX)
        _check_text(keys, "key")
    if "headers" in names:
        _check_header_column(batch.column("headers"))
    if "epoch" in names:
        _check_epoch_column(batch.column("epoch"))
    if "origin" in names:
        _refuse_origins(batch.column("origin"))


def _refuse_origins(column: pa.Array) -> None:
    """Refuse origins, which callers cannot set; nulls pass, so that a read can be appended."""
    if column.null_count < len(column):
        row = _first(column.is_valid())
        raise InvalidEventError(f"row {row}: {ORIGIN_REFUSED}", row=row)


def _check_lengths(column: pa.Array, name: str, most: int) -> None:
    _, offsets, data = column.buffers()
    if data is None or data.size <= most:
        return
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = bounds[1:] - bounds[:-1]
    if largest(lengths, initial=0) > most:
        # The length of a null is null.
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy()
        row = int(np.argmax(lengths > most))
        if lengths[row] > most:
            raise EventTooLargeError(
                f"row {row}: {name} has {lengths[row]} bytes; at most {most} are allowed", row=row
            )


def _check_times(column: pa.Array) -> None:
    """Refuse times outside the years 1 to 9999, which Python's ``datetime`` cannot show."""
    if not len(column):
        return
    stamps = column.view(pa.int64()).to_numpy()
    if stamps.min() < TIME_MIN_US or stamps.max() > TIME_MAX_US:
        row = int(np.argmax((stamps < TIME_MIN_US) | (stamps > TIME_MAX_US)))
        raise InvalidEventError(f"row {row}: timestamp is outside the years 1 to 9999", row=row)


def _check_text(column: pa.StringArray, name: str) -> None:
    """Refuse text that is not UTF-8: Arrow does not validate what comes from a file."""
    _, offsets, data = column.buffers()
    if data is None or not data.size:
        return
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    if not len(text) or largest(text) < 0x80:
        return
    for row, value in enumerate(column.cast(pa.binary())):
        try:
            (value.as_py() or b"").decode()
        except UnicodeDecodeError as error:
            raise InvalidEventError(
                f"row {row}: {name} is not valid text: {error.reason}", row=row
            ) from None


def _check_header_column(column: pa.ListArray) -> None:
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    if counts.max(initial=0) > limits.HEADERS_MAX:
        row = int(np.argmax(counts > limits.HEADERS_MAX))
        raise EventTooLargeError(
            f"row {row}: more than {limits.HEADERS_MAX} headers in one event", row=row
        )
    entries = column.flatten()
    names, values = entries.field("key"), entries.field("value")
    if entries.null_count or names.null_count or values.null_count:
        raise InvalidEventError("a header has no name or no value")
    _check_text(names, "a header's name")
    sizes = pc.add(pc.binary_length(names), pc.binary_length(values)).to_numpy()
    bounds = np.concatenate(([0], np.cumsum(counts)))
    totals = np.diff(np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))[bounds])
    if totals.max(initial=0) > limits.HEADERS_BYTES_MAX:
        row = int(np.argmax(totals > limits.HEADERS_BYTES_MAX))
        raise EventTooLargeError(
            f"row {row}: headers have {totals[row]} bytes; at most {limits.HEADERS_BYTES_MAX} "
            "are allowed",
            row=row,
        )


def _check_epoch_column(column: pa.ListArray) -> None:
    counts = pc.list_value_length(column)
    bad = pc.fill_null(
        pc.or_(pc.less(counts, 1), pc.greater(counts, limits.EPOCH_LENGTH_MAX)), False
    )
    if pc.any(bad).as_py():
        row = _first(bad)
        raise InvalidEventError(
            f"row {row}: an epoch must have 1 to {limits.EPOCH_LENGTH_MAX} integers", row=row
        )
    if column.flatten().null_count:
        raise InvalidEventError("an epoch holds a null")


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())


# --- blobs ---------------------------------------------------------------------------------


def encode_blob(batch: pa.RecordBatch) -> memoryview:
    """A batch as an Arrow IPC message, without its schema (the layout implies it)."""
    return memoryview(batch.serialize())


def decode_blob(data: bytes | memoryview, layout: int) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema_of(layout))


_take = pc.get_function("take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_NUMBERS = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64()}


def numbers(values: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> pa.Array:
    """A numpy array as an Arrow array, zero-copy.

    ``pa.array`` does that too, but imports pandas first where it is installed.
    """
    kind = _NUMBERS[values.dtype]
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def reordered(batch: pa.RecordBatch, order: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The rows in another order; ``order`` is taken on trust, without a bounds check."""
    return _take.call([batch, numbers(order)], _UNCHECKED)


def stamps_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The times of a stored batch in microseconds, as a zero-copy view."""
    column = batch.column("timestamp")
    start = column.offset
    return np.frombuffer(column.buffers()[1], np.int64)[start : start + len(column)]


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
