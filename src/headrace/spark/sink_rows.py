"""The rows of a data frame as events: which columns there are, and which rows cannot be events.

Columns are judged once, before the query starts; rows are judged in whole Arrow batches where the
task has them.  A batch in which every row is good costs one pass.  Any other is bisected until the
bad rows stand alone, so that each gets its own reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidEventError, InvalidSinkError
from headrace.log import events, limits
from headrace.log.columns import check_batch
from headrace.log.routing import Route
from headrace.subjects import check_subject

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PLACES = frozenset({"topic", "stream", "partition", "segment", "offset", "origin", "frontier"})
"""Columns of the source that say where an event was; they are passed over, but a row that has an
origin is refused."""
TAKEN = ("value", "subject", "key", "headers", "timestamp", "epoch")

DEAD_REASON = "headrace-reason"
DEAD_SUBJECT = "headrace-subject"
DEAD_STREAM = "headrace-stream"
DEAD_PLACE = "headrace-place"
SHOWN_BYTES_MAX = 1024


class Columns(msgspec.Struct, frozen=True):
    """Where the parts of an event come from: a column's name, or one text for all rows."""

    value: str
    subject: str | None = None
    key: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    epoch: str | None = None
    origin: str | None = None
    subject_text: str | None = None
    subject_prefix: str = ""
    key_text: str | None = None


def plan_columns(
    schema: StructType,
    *,
    subject: str | None = None,
    subject_column: str | None = None,
    subject_prefix: str = "",
    key: str | None = None,
    key_column: str | None = None,
    beside: frozenset[str] = frozenset(),
    by_epochs: bool = False,
) -> Columns:
    """The columns of a data frame as parts of events; ``beside`` are some with another use."""
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) != len(schema.fields):
        raise InvalidSinkError("a column appears twice; rename one of them")
    for option, named in (("subjectColumn", subject_column), ("keyColumn", key_column)):
        if named is not None and named not in types:
            raise InvalidSinkError(
                f"{option}={named}: there is no such column; there are {', '.join(types)}"
            )
    extra = set(types) - set(TAKEN) - PLACES - {subject_column, key_column} - beside
    if extra:
        raise InvalidSinkError(
            f"unknown column{'s' if len(extra) > 1 else ''} {', '.join(sorted(extra))}: select "
            f"{', '.join(TAKEN)} (value is required), or encode what else there is into value"
        )
    if "value" not in types:
        raise InvalidSinkError("the column value is missing: binary or string, one per event")
    if subject is None and subject_column is None and "subject" not in types:
        raise InvalidSinkError(
            "events need a subject: give a column subject, or the option subject for all rows"
        )
    if subject is not None:
        check_subject(subject_prefix + subject)
    columns = Columns(
        value="value",
        subject=None if subject is not None else subject_column or "subject",
        key=None if key is not None else key_column or ("key" if "key" in types else None),
        headers="headers" if "headers" in types else None,
        timestamp="timestamp" if "timestamp" in types else None,
        epoch="epoch" if "epoch" in types and not by_epochs else None,
        origin="origin" if "origin" in set(types) - {subject_column, key_column} else None,
        subject_text=subject,
        subject_prefix=subject_prefix,
        key_text=key,
    )
    _check_types(types, columns)
    return columns


def _check_types(types: dict[str, DataType], columns: Columns) -> None:
    from pyspark.sql import types as t

    text = (t.StringType,)
    either = (t.StringType, t.BinaryType)
    times = (t.TimestampType, t.TimestampNTZType)
    _refuse(types, columns.value, isinstance(types[columns.value], either), "binary or string")
    for name, kinds, wanted in (
        (columns.subject, text, "string"),
        (columns.key, either, "string, or binary that holds text"),
        (columns.timestamp, times, "timestamp"),
    ):
        if name is not None:
            _refuse(types, name, isinstance(types[name], kinds), wanted)
    if columns.headers is not None:
        match types[columns.headers]:
            case t.ArrayType(elementType=t.StructType(fields=[first, second])):
                fits = (first.name, second.name) == ("key", "value") and (
                    isinstance(first.dataType, text) and isinstance(second.dataType, either)
                )
            case _:
                fits = False
        _refuse(types, columns.headers, fits, "array<struct<key: string, value: binary>>")
    if columns.epoch is not None:
        kind = types[columns.epoch]
        fits = isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.IntegralType)
        _refuse(types, columns.epoch, fits, "array<bigint>")


def _refuse(types: dict[str, DataType], name: str, fits: bool, wanted: str) -> None:
    if not fits:
        raise InvalidSinkError(
            f"column {name} is {types[name].simpleString()}; it must be {wanted}"
        )


# --- rows ------------------------------------------------------------------------------------


def convert(batch: pa.RecordBatch, columns: Columns, now_us: int) -> pa.RecordBatch:
    """The stored columns of Spark's rows, not judged yet; with origins if some row has one."""
    count = batch.num_rows
    found: dict[str, pa.Array] = {}
    if columns.timestamp is None:
        found["timestamp"] = pa.repeat(pa.scalar(now_us, events.TIMESTAMP), count)
    else:
        stamps = _cast(batch, columns.timestamp, events.TIMESTAMP)
        if stamps.null_count:
            stamps = pc.fill_null(stamps, pa.scalar(now_us, events.TIMESTAMP))
        found["timestamp"] = stamps
    if columns.subject_text is not None:
        found["subject"] = pa.repeat(columns.subject_prefix + columns.subject_text, count)
    else:
        assert columns.subject is not None
        subjects = _cast(batch, columns.subject, events.STRING)
        if columns.subject_prefix:
            prefix = pa.scalar(columns.subject_prefix, events.STRING)
            subjects = pc.binary_join_element_wise(prefix, subjects, pa.scalar("", events.STRING))
        found["subject"] = subjects
    if columns.key_text is not None:
        found["key"] = pa.repeat(columns.key_text, count)
    elif columns.key is not None:
        keys = batch.column(columns.key)
        # Bytes are judged as text along with everything else, not where they are cast.
        found["key"] = keys.view(events.STRING) if pa.types.is_binary(keys.type) else keys
        found["key"] = found["key"].cast(events.STRING)
    found["value"] = _cast(batch, columns.value, events.BINARY)
    if columns.headers is not None:
        found["headers"] = _cast(batch, columns.headers, events.HEADERS)
    if columns.epoch is not None:
        found["epoch"] = _cast(batch, columns.epoch, events.EPOCH)
    if columns.origin is not None and batch.column(columns.origin).null_count < count:
        found["origin"] = batch.column(columns.origin)
    return pa.RecordBatch.from_arrays(list(found.values()), list(found))


def _cast(batch: pa.RecordBatch, name: str, wanted: pa.DataType) -> pa.Array:
    column = batch.column(name)
    if column.type == wanted:
        return column
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        column = column.cast(pa.timestamp("us", "UTC"))
    return column.cast(wanted)


class Bad(msgspec.Struct, frozen=True):
    """A row that cannot be an event."""

    row: int
    reason: str


RowCheck = Callable[[pa.RecordBatch], None]


def judge(batch: pa.RecordBatch, route: Route, check: RowCheck | None = None) -> Iterator[Bad]:
    """The bad rows, in their order; each is found when it is asked for."""
    yield from _judge(batch, route, 0, check)


def _judge(batch: pa.RecordBatch, route: Route, base: int, check: RowCheck | None) -> Iterator[Bad]:
    try:
        check_batch(batch)
        route.check_subjects(batch)
        if check is not None:
            check(batch)
    except InvalidEventError as error:
        if batch.num_rows == 1:
            yield Bad(base, str(error).removeprefix("row 0: "))
            return
        half = batch.num_rows // 2
        yield from _judge(batch.slice(0, half), route, base, check)
        yield from _judge(batch.slice(half), route, base + half, check)


def without(batch: pa.RecordBatch, bad: list[Bad]) -> pa.RecordBatch:
    """The good rows; none of them has an origin, so that column goes."""
    rows = {each.row for each in bad}
    good = batch.filter(pa.array([row not in rows for row in range(batch.num_rows)]))
    return good.select([name for name in good.schema.names if name != "origin"])


# --- dead letters ----------------------------------------------------------------------------


def dead_subject(route: Route, stream: str) -> str:
    """A subject that the dead-letter stream captures: its first filter, wildcards filled in."""
    tokens = route.stream.config.subjects[0].split(".")
    return ".".join(stream if token in {"*", ">"} else token for token in tokens)


def dead_letters(
    batch: pa.RecordBatch, bad: list[Bad], *, subject: str, stream: str, partition: int, first: int
) -> pa.RecordBatch:
    """Bad rows as events that say why; what of a row cannot be stored is left out."""
    rows = batch.take(pa.array([each.row for each in bad]))
    values = rows.column("value")
    sizes = pc.fill_null(pc.binary_length(values), 0)
    kept = pc.if_else(pc.less_equal(sizes, limits.EVENT_BYTES_MAX), values, None)
    headers = [
        [
            {"key": DEAD_REASON, "value": _cut(each.reason)},
            {"key": DEAD_STREAM, "value": stream.encode()},
            {"key": DEAD_PLACE, "value": f"{partition}:{first + each.row}".encode()},
            {"key": DEAD_SUBJECT, "value": (original or b"")[:SHOWN_BYTES_MAX]},
        ]
        for each, original in zip(
            bad, rows.column("subject").view(events.BINARY).to_pylist(), strict=True
        )
    ]
    return pa.RecordBatch.from_arrays(
        [
            rows.column("timestamp"),
            pa.repeat(subject, len(bad)),
            _legal_keys(rows),
            pc.fill_null(kept, b""),
            pa.array(headers, events.HEADERS),
        ],
        ["timestamp", "subject", "key", "value", "headers"],
    )


def _legal_keys(rows: pa.RecordBatch) -> pa.Array:
    """Keys as far as they are legal, so that dead letters keep the order of theirs."""
    if "key" not in rows.schema.names:
        return pa.nulls(rows.num_rows, events.STRING)
    kept: list[str | None] = []
    for key in rows.column("key").view(events.BINARY).to_pylist():
        try:
            text = None if key is None or len(key) > limits.KEY_BYTES_MAX else key.decode()
        except UnicodeDecodeError:
            text = None
        kept.append(text)
    return pa.array(kept, events.STRING)


def _cut(reason: str) -> bytes:
    return reason.encode(errors="replace")[:SHOWN_BYTES_MAX]
