"""Streaming reads and writes that are checked before there is a query.

Spark shows a streaming write to its sink, and a schema of the user's to its source, when the first
batch is planned: ``load()`` and ``start()`` have returned by then, and the error ends the query.
These two look first, in the process that calls them, at everything that the source and the sink
look at: options, streams, columns and their types, places, whether executors can reach the log and
have the package.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidOptionError, InvalidSchemaError
from headrace.spark.session import (
    check_executors_once,
    check_format,
    is_connect,
    master_of,
    not_found_explained,
    text_of,
)
from headrace.spark.task import QUERY_ID, query_producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
    from pyspark.sql.types import StructType

    from headrace.spark.sink import StreamWriter

Value = str | int | float | bool | Path
OUTPUT_MODES = ("append", "update")


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
    frame: DataFrame,
    stream: str,
    *,
    catalog: str | Path | None = None,
    outputMode: str = "append",  # noqa: N803
    **options: Value,
) -> DataStreamWriter:
    """A writer whose ``start()`` begins the query; it takes a trigger and a name as any other.

    ``options`` are those of ``format("headrace")``, and ``checkpointLocation``.  ``outputMode`` is
    ``append``, or ``update`` to append each row again that changed in a batch.  What does not fit
    is an error of this call.
    """
    from headrace.spark.sink import stream_writer

    if outputMode.lower() not in OUTPUT_MODES:
        raise InvalidOptionError(
            f"outputMode={outputMode!r}: a stream takes 'append', or 'update' to append every row "
            "that changed; 'complete' would append the whole result again with every batch"
        )
    given = _texts({"catalog": catalog, "stream": stream} | options)
    spark = frame.sparkSession
    changes = outputMode.lower() == "update"
    writer = stream_writer(given, frame.schema, False, master_of(spark))
    if changes:
        _check_changes(writer, spark)
    check_executors_once(spark)
    if is_connect(spark):
        check_format(spark)
    made = frame.writeStream.outputMode(outputMode.lower()).options(**given)
    return made.foreachBatch(_appending(given)) if changes else made.format("headrace")


def _check_changes(writer: StreamWriter, spark: SparkSession) -> None:
    if writer.by_epochs:
        raise InvalidOptionError(
            "outputMode='update' appends rows again that have changed, and an epoch is written "
            "once: use 'append' with epochs"
        )
    if is_connect(spark):
        raise InvalidOptionError(
            "outputMode='update' needs a session in this process: Spark gives no sink in Python "
            "the rows that changed, and over Connect it does not say which query they are of"
        )


def _appending(given: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """Appends the rows of a batch as the sink does: Spark refuses update for sinks in Python."""

    def append(rows: DataFrame, number: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        batch = {"producer": query_producer(str(query)), "sequence": str(number)}
        rows.write.format("headrace").mode("append").options(**given, **batch).save()

    return append


def loaded(spark: SparkSession, reader: DataStreamReader | DataFrameReader) -> DataFrame:
    """``load()``; that Spark does not find the source is explained."""
    with not_found_explained(spark):
        frame = reader.load()
        if is_connect(spark):
            _ = frame.schema  # only now does the server look for it
        return frame


def _parsed(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise InvalidSchemaError(f"{schema!r}: name columns, such as 'offset bigint, value binary'")
    return found


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark takes them; those that are None were not given."""
    return {name: text_of(value) for name, value in options.items() if value is not None}
