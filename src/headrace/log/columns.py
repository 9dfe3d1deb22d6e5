"""Events that callers hand in as Arrow columns: cast, filled in, checked, as one stored batch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import compiled
from headrace.errors import AppendTooLargeError, EventTooLargeError, InvalidEventError
from headrace.log import limits
from headrace.log.events import (
    BITS,
    KEY_BIT,
    ORIGIN_REFUSED,
    PLAIN,
    REQUIRED,
    TIME_MAX_US,
    TIME_MIN_US,
    TIMESTAMP,
    TYPES,
    int32s,
    int64s,
    schema_of,
)
from headrace.subjects import SUBJECT_PLAIN_BYTES, first_invalid_subject
from headrace.subjects.columns import largest, mask_of

OWN = frozenset({"origin", "marker"})
"""Columns that only Headrace fills."""


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
    stamps = int64s(column)
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
    counts = np.zeros(len(column), np.int32)
    counts[mask_of(column.is_valid())] = int32s(pc.list_value_length(column.drop_null()))
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
    sizes = int32s(pc.binary_length(names)) + int32s(pc.binary_length(values))
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
    parts = column.flatten()
    if parts.null_count:
        raise InvalidEventError("an epoch holds a null")
    ends = pc.min_max(parts)
    if len(parts) and not 0 <= ends["min"].as_py() <= ends["max"].as_py() <= limits.EPOCH_TIME_MAX:
        raise InvalidEventError("the times of epochs are from 0 to 2^63 - 2")


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())
