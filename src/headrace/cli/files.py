"""Parquet and CSV files as event batches, a part at a time, whatever the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from headrace.cli import rows
from headrace.cli.failures import UsageError
from headrace.errors import InvalidEventError, InvalidInputError

PART_ROWS = 65_536
CSV_BLOCK_BYTES = 8 * 1024 * 1024
OWN_COLUMNS = ("subject", "key", "value", "headers", "timestamp", "epoch", "origin")


@dataclass(frozen=True)
class Mapping:
    """Which columns make an event; subject and key may be templates with {column}."""

    subject: str | None = None
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None


@dataclass(frozen=True)
class FilePart:
    """Some rows of a file, and how far along the file they bring us."""

    events: pa.RecordBatch
    first_row: int
    """How many rows stand before them."""
    done: int


@dataclass(frozen=True)
class Source:
    """A file that is open; ``size`` is in rows or in bytes, as is ``done`` of its parts."""

    size: int
    parts: Iterator[FilePart]


@contextmanager
def open_file(path: Path, mapping: Mapping, *, as_text: bool) -> Iterator[Source]:
    """Open a file by the ending of its name."""
    name = path.name.lower()
    if not path.is_file():
        raise UsageError(f"--file: there is no file {path}")
    try:
        if name.endswith((".parquet", ".pq")):
            with pq.ParquetFile(path, pre_buffer=False) as parquet:
                yield Source(parquet.metadata.num_rows, _parquet_parts(parquet, mapping))
        elif name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
            with path.open("rb") as raw:
                yield Source(path.stat().st_size, _csv_parts(raw, name, mapping, as_text))
        else:
            raise UsageError(f"--file: {path.name} ends in neither .parquet, .csv, .tsv nor .gz")
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidInputError(f"{path} cannot be read on: {reason}") from error


def _parquet_parts(parquet: pq.ParquetFile, mapping: Mapping) -> Iterator[FilePart]:
    row = 0
    for batch in parquet.iter_batches(PART_ROWS):
        yield FilePart(_events(batch, mapping, row), row, row + batch.num_rows)
        row += batch.num_rows


def _csv_parts(raw: IO[bytes], name: str, mapping: Mapping, as_text: bool) -> Iterator[FilePart]:
    stream: Any = pa.PythonFile(raw, mode="r")
    if name.endswith(".gz"):
        stream = pa.CompressedInputStream(stream, "gzip")
    delimiter = "\t" if ".tsv" in name else ","
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    # Only an empty field is null: Arrow would take NA for null, which may be a name.
    convert: dict[str, Any] = {"null_values": [""], "strings_can_be_null": True}
    if as_text:
        names = _csv_names(raw, name, delimiter)
        convert["column_types"] = dict.fromkeys(names, pa.string())
    try:
        reader = pa.csv.open_csv(
            stream,
            read_options=pa.csv.ReadOptions(block_size=CSV_BLOCK_BYTES),
            parse_options=parse,
            convert_options=pa.csv.ConvertOptions(**convert),
        )
        row = 0
        for number, batch in enumerate(reader, 1):
            # The reader runs ahead of these rows; the number of their block tells their place.
            done = raw.tell() if name.endswith(".gz") else number * CSV_BLOCK_BYTES
            if batch.num_rows:
                yield FilePart(_events(batch, mapping, row), row, done)
                row += batch.num_rows
    except pa.ArrowInvalid as error:
        reason = str(error).split("\n", 1)[0]
        advice = "" if as_text else "; if a column changes its kind on the way, add --text"
        raise InvalidInputError(f"the file cannot be read on: {reason}{advice}") from error


def _csv_names(raw: IO[bytes], name: str, delimiter: str) -> list[str]:
    import csv
    import gzip
    import io

    opened: Any = gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw
    text = io.TextIOWrapper(opened, encoding="utf-8-sig", newline="")
    names = next(csv.reader(text, delimiter=delimiter), [])
    text.detach()
    raw.seek(0)
    return names


def _events(batch: pa.RecordBatch, mapping: Mapping, first_row: int) -> pa.RecordBatch:
    """The rows as columns of events."""
    if mapping.subject is None:
        return _own_columns(batch, mapping)
    subjects = rows.text_of(batch, mapping.subject, "--subject")
    if subjects.null_count:
        row = first_row + int(pc.index(subjects.is_null(), True).as_py()) + 1
        raise InvalidEventError(f"row {row}: a column that makes the subject is empty", row=row)
    columns: dict[str, pa.Array] = {"subject": subjects}
    if mapping.key is not None:
        columns["key"] = rows.text_of(batch, mapping.key, "--key")
    if mapping.value is None:
        columns["value"] = rows.as_json(batch)
    else:
        columns["value"] = _value(rows.column_named(batch, mapping.value, "--value"))
    if mapping.timestamp is not None:
        column = rows.column_named(batch, mapping.timestamp, "--timestamp")
        columns["timestamp"] = _times(column, mapping.timestamp)
    return pa.record_batch(columns)


def _own_columns(batch: pa.RecordBatch, mapping: Mapping) -> pa.RecordBatch:
    if mapping != Mapping():
        raise UsageError("--key, --value and --timestamp go with --subject")
    missing = [name for name in ("subject", "value") if name not in batch.schema.names]
    if missing:
        raise UsageError(
            f"the file has no column {missing[0]!r}; say with --subject how its columns make one: "
            f"{', '.join(batch.schema.names)}"
        )
    return batch.select([name for name in OWN_COLUMNS if name in batch.schema.names])


def _value(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.fill_null(b"")
    return rows.as_text(column).fill_null("").cast(pa.binary())


def _times(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    try:
        if pa.types.is_timestamp(kind):
            return column
        if pa.types.is_date(kind):
            return column.cast(pa.timestamp("us"))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            zoned = pc.any(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$")).as_py()
            return column.cast(pa.timestamp("us", "UTC" if zoned else None))
    except pa.ArrowInvalid as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidInputError(f"--timestamp: column {name!r}: {reason}") from error
    raise UsageError(f"--timestamp: column {name!r} is of type {kind}; it must hold times")
