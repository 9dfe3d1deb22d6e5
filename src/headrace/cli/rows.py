"""Columns of a table as subjects, keys and values: whole columns at a time, no loop over rows."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.failures import UsageError

_NULL = "null"


def column_named(batch: pa.RecordBatch, name: str, option: str) -> pa.Array:
    """The column, or an error that lists those there are."""
    if name not in batch.schema.names:
        raise UsageError(
            f"{option}: the file has no column {name!r}; it has {', '.join(batch.schema.names)}"
        )
    return batch.column(name)


def text_of(batch: pa.RecordBatch, template: str, option: str) -> pa.Array:
    """A column by its name, or a template such as ``flights.{origin}.{dest}``, as text.

    A row is null where a column that it needs is null.
    """
    if "{" not in template and "}" not in template:
        return as_text(column_named(batch, template, option))
    parts: list[Any] = []
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"{option}: {template!r} is not a template: {error}") from None
    for literal, name, spec, conversion in fields:
        if literal:
            parts.append(pa.scalar(literal, pa.string()))
        if name is not None:
            if spec or conversion or not name:
                raise UsageError(
                    f"{option}: in {template!r}, write a column's name in braces and nothing else"
                )
            parts.append(as_text(column_named(batch, name, option)))
    if not any(isinstance(part, pa.Array) for part in parts):
        return pa.repeat(pa.scalar("".join(part.as_py() for part in parts)), batch.num_rows)
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")


def as_text(column: pa.Array) -> pa.Array:
    """A column as people would write it."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"a column of type {column.type} cannot be taken as text") from error


def as_json(batch: pa.RecordBatch, columns: Sequence[str] | None = None) -> pa.Array:
    """Each row as a compact JSON object, in UTF-8."""
    parts: list[Any] = []
    for name in batch.schema.names if columns is None else columns:
        label = ("," if parts else "{") + msgspec.json.encode(name).decode() + ":"
        parts += [pa.scalar(label, pa.string()), _json_of(batch.column(name))]
    if not parts:
        return pa.repeat(pa.scalar(b"{}"), batch.num_rows)
    parts.append(pa.scalar("}", pa.string()))
    return pc.binary_join_element_wise(*parts, "").cast(pa.binary())


def _json_of(column: pa.Array) -> pa.Array:
    """Each value as JSON text."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string()).fill_null(_NULL)
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, None)
        return finite.cast(pa.string()).fill_null(_NULL)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    try:
        # Values repeat in most columns; each different one is encoded once.
        coded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        return pa.array([_encoded(value) for value in column.to_pylist()], pa.string())
    texts = pa.array([_encoded(value) for value in coded.dictionary.to_pylist()], pa.string())
    return texts.take(coded.indices).fill_null(_NULL)


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
