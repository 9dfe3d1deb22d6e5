"""The columns of the source: names and types for Spark, and Arrow batches made to fit them.

Spark takes a batch only if its columns have exactly the order, types and nullability of the
schema it was told, so that schema is turned into Arrow's by Spark's own function and batches are
made to match it.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import InvalidSchemaError

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
ORIGIN = StructType([StructField("region", StringType()), StructField("sequence", LongType())])

TYPES: dict[str, DataType] = {
    "key": StringType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "subject": StringType(),
    "segment": IntegerType(),
    "epoch": ArrayType(LongType()),
    "headers": HEADERS,
    "stream": StringType(),
    "origin": ORIGIN,
    "frontier": StringType(),
}
_ASKED = ("headers", "stream", "origin", "frontier")
DEFAULT = tuple(name for name in TYPES if name not in _ASKED)
"""The columns of a read without a schema; the others have to be asked for."""

STREAM_NAMES = ("topic", "stream")
SEGMENT_NAMES = ("partition", "segment")


def default_schema(*, headers: bool, frontier: bool = False) -> StructType:
    names = (*DEFAULT, *(["headers"] if headers else []), *(["frontier"] if frontier else []))
    return StructType([StructField(name, TYPES[name]) for name in names])


def check_schema(schema: StructType, *, frontier: bool = False) -> None:
    """Refuse a schema with a column that is not there or has another type."""
    if "frontier" in schema.names and not frontier:
        raise InvalidSchemaError(
            "the column 'frontier' is there with epochs=whole and includeFrontier=true"
        )
    if not schema.fields:
        raise InvalidSchemaError("the schema has no columns")
    for field in schema.fields:
        expected = TYPES.get(field.name)
        if expected is None:
            raise InvalidSchemaError(
                f"there is no column {field.name!r}; there are {', '.join(TYPES)}"
            )
        if not _same(expected, field.dataType):
            raise InvalidSchemaError(
                f"column {field.name!r} is {expected.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after the read"
            )


def _same(expected: DataType, found: DataType) -> bool:
    """Whether two types are equal, nullability aside."""
    match expected, found:
        case ArrayType(), ArrayType():
            return _same(expected.elementType, found.elementType)
        case StructType(), StructType():
            return expected.names == found.names and all(
                _same(mine.dataType, its.dataType)
                for mine, its in zip(expected.fields, found.fields, strict=True)
            )
    return expected == found


class Shape:
    """Makes stored batches into batches of a schema; one per task."""

    def __init__(self, schema: StructType, texts: dict[str, str] | None = None) -> None:
        """``texts`` are columns that have one text for all rows of the task."""
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._fields = [(field.name, field.type) for field in self._schema]
        self._texts = texts or {}
        self._constants: dict[tuple[str, str | int], pa.Array] = {}

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self._schema.names)

    def fit(self, batch: pa.RecordBatch, stream: str, segment: int) -> pa.RecordBatch:
        """The schema's columns of stored events, which come with an ``offset`` column."""
        names = set(batch.schema.names)
        count = batch.num_rows
        arrays = []
        for name, kind in self._fields:
            if name in STREAM_NAMES:
                arrays.append(self._constant(name, kind, stream, count))
            elif name in SEGMENT_NAMES:
                arrays.append(self._constant(name, kind, segment, count))
            elif name in self._texts:
                arrays.append(self._constant(name, kind, self._texts[name], count))
            elif name not in names:
                arrays.append(pa.nulls(count, kind))
            else:
                column = batch.column(name)
                arrays.append(column if column.type == kind else column.cast(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, kind: pa.DataType, value: str | int, count: int) -> pa.Array:
        """A column with one value for every row; a slice of a cached array."""
        made = self._constants.get((name, value))
        if made is None or len(made) < count:
            made = pa.repeat(pa.scalar(value, kind), count)
            self._constants[name, value] = made
        return made.slice(0, count)
