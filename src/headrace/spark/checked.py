"""Streaming reads and writes that are checked before there is a query.

Spark shows a streaming write to its sink, and a schema of the user's to its source, when the first
batch is planned: ``load()`` and ``start()`` have returned by then, and the error ends the query.
These two look first, in the process that calls them, at everything that the source and the sink
look at: options, streams, columns and their types, places, whether executors can reach the log and
have the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidSchemaError
from headrace.spark.session import (
    NOT_FOUND,
    check_executors_once,
    master_of,
    not_found,
    text_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
    from pyspark.sql.types import StructType

Value = str | int | float | bool | Path


def read_stream(
    spark: SparkSession,
    streams: str | None = None,
    *,
    group: str | None = None,
    reader: str | None = None,
    catalog: str | Path | None = None,
    schema: StructType | str | None = None,
    **options: Value,
) -> DataFrame:
    """A streaming DataFrame; ``options`` are those of ``format("headrace")``, by their names.

    ``streams`` stands for the option ``subscribe``.  With ``group`` the query is a reader of that
    reader group, under the name ``reader``, or one that belongs to its checkpoint.  What does not
    fit is an error of this call.

    ``headrace.spark.read_stream(spark, group="report", reader="spark-1", catalog="./data")``
    """
    from headrace.spark.source import HeadraceSource

    which = {"subscribe": streams, "group": group, "reader": reader}
    given = _texts({"catalog": catalog} | which | options)
    source = HeadraceSource(
        {name.lower(): value for name, value in given.items()}, master_of(spark)
    )
    shape = None if schema is None else _parsed(schema)
    source.streamReader(source.schema() if shape is None else shape)
    check_executors_once(spark)
    made = spark.readStream.format("headrace").options(**given)
    return loaded(spark, made if shape is None else made.schema(shape))


def write_stream(
    frame: DataFrame, stream: str, *, catalog: str | Path | None = None, **options: Value
) -> DataStreamWriter:
    """A writer whose ``start()`` begins the query; it takes a trigger and a name as any other.

    ``options`` are those of ``format("headrace")``, and ``checkpointLocation``.  What does not fit
    is an error of this call.
    """
    from headrace.spark.sink import stream_writer

    given = _texts({"catalog": catalog, "stream": stream} | options)
    spark = frame.sparkSession
    stream_writer(given, frame.schema, False, master_of(spark))
    check_executors_once(spark)
    return frame.writeStream.format("headrace").options(**given)


def loaded(spark: SparkSession, reader: DataStreamReader | DataFrameReader) -> DataFrame:
    """``load()``; that Spark does not find the source is explained."""
    from pyspark.errors import PySparkException

    try:
        return reader.load()
    except PySparkException as error:
        if NOT_FOUND in str(error):
            raise not_found(spark) from error
        raise


def _parsed(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise InvalidSchemaError(f"{schema!r}: name columns, such as 'offset bigint, value binary'")
    return found


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark takes them; those that are None were not given."""
    return {name: text_of(value) for name, value in options.items() if value is not None}
