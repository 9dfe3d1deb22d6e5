"""A driver with executors in processes of their own: ``ordeal FOLDER CATALOG...``, until killed.

Executors that lack the package are refused, and task attempts fail; that is told on standard
output.  Then one query for each catalog goes from the source to the sink: in its first batch an
executor is killed in the middle of the rows, and its second one is held between stage and commit.
One more query, of rows that change, is held where its second batch is in the stream and Spark's
checkpoint has not got it yet.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import headrace.spark
from headrace.errors import ExecutorPackageError
from headrace.groups.partitioned.names import GroupName
from headrace.spark import checked
from headrace.spark.partition import PartitionJob
from tests import java_classes
from tests.spark.held_sink import HELD_BATCH, HeldSink
from tests.support import ROOT

MASTER = "local-cluster[2,1,1024]"
FLAKY_ROWS = 20_000
BATCH_EVENTS = 40

Append = Callable[[DataFrame, int], None]


def session(folder: Path) -> SparkSession:
    return headrace.spark.session(
        "ordeal",
        MASTER,
        **{
            "spark.driver.memory": "768m",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": java_classes.WITH_ARCHIVE,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.sql.shuffle.partitions": 2,
            "spark.local.dir": str(folder / "local"),
        },
    )


def refuse_bare(spark: SparkSession, folder: Path) -> str:
    """What is said of executors whose Python has no package but what Spark brings along."""
    path = folder / "bare-python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    context = spark.sparkContext
    own, context.pythonExec = context.pythonExec, str(path)
    try:
        headrace.spark.check_executors(spark)
    except ExecutorPackageError as error:
        return str(error)
    finally:
        context.pythonExec = own
    return "not refused"


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of a task fails when all its rows are through."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 1 and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


def kill_once(mark: str) -> Any:
    """The first task that comes here takes its executor with it, in the middle of its rows."""

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and first(mark):
                executor = _parent(os.getppid())
                words = Path(f"/proc/{executor}/cmdline").read_text()
                assert "CoarseGrainedExecutorBackend" in words
                os.kill(executor, signal.SIGKILL)

    return kill


def first(mark: str) -> bool:
    """Whether nobody was here before; of all tasks one alone is told so."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def read_raw(spark: SparkSession, catalog: str, rows_max: int) -> DataFrame:
    given = {"catalog": catalog, "subscribe": "raw", "startingOffsets": "earliest"}
    frame = spark.readStream.format("headrace").options(**given)
    loaded: DataFrame = frame.option("maxOffsetsPerTrigger", rows_max).load()
    return loaded.select("subject", "key", "value")


def main(folder: Path, catalogs: list[str]) -> None:
    spark = session(folder)
    spark.dataSource.register(HeldSink)
    print("refused", refuse_bare(spark, folder), flush=True)

    frame = spark.range(0, FLAKY_ROWS, 1, 2).selectExpr(
        "concat('flaky.', id % 10) AS subject", "lpad(cast(id AS string), 100, '0') AS value"
    )
    flaky = frame.mapInArrow(fail_once, frame.schema).write.format("headrace").mode("append")
    flaky.option("catalog", catalogs[0]).option("stream", "flaky").save()
    print("failed once", flush=True)

    job = PartitionJob(catalogs[0], None, GroupName("raw", "group"), small_events=0)
    job.start(spark)
    while job.step():
        pass
    print("partitioned", flush=True)

    # Many small steps in a batch, so that there is a middle.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    for number, catalog in enumerate(catalogs):
        at_work(partial(held, spark, folder, number, catalog), folder / f"held-{number}")
    mark = folder / "held-update"
    checked._appending = partial(held_after, checked._appending, mark)
    counted = partial(write_counts, spark, catalogs[0], folder / "checkpoint-update")
    at_work(lambda: counted().start(), mark)
    signal.pause()


def at_work(start: Callable[[], StreamingQuery], mark: Path) -> None:
    """Have a query run until it leaves its mark."""
    query = start()
    while not mark.exists():
        # On a machine with too much to do, Spark gives up waiting for its Python processes.
        if not query.isActive:
            query = start()
        with suppress(StreamingQueryException):
            query.awaitTermination(1)


def held(spark: SparkSession, folder: Path, number: int, catalog: str) -> StreamingQuery:
    """A query that loses an executor, and then stops between stage and commit."""
    to = {"catalog": catalog, "stream": "clean", "subjectPrefix": "clean."}
    to["mark"] = str(folder / f"held-{number}")
    frame = read_raw(spark, catalog, BATCH_EVENTS)
    frame = frame.mapInArrow(kill_once(str(folder / f"killed-{number}")), frame.schema)
    query = frame.writeStream.format("held").options(**to)
    return query.option("checkpointLocation", str(folder / f"checkpoint-{number}")).start()


def write_counts(spark: SparkSession, catalog: str, checkpoint: Path) -> DataStreamWriter:
    """Writes how often each key came, again whenever that has changed."""
    frame = headrace.spark.read_stream(
        spark,
        "raw",
        catalog=catalog,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=BATCH_EVENTS,
    )
    counts = frame.groupBy("key").count()
    return headrace.spark.write_stream(
        counts.selectExpr("'counts.x' AS subject", "key", "cast(count AS string) AS value"),
        "counts",
        catalog=catalog,
        outputMode="update",
        checkpointLocation=str(checkpoint),
    )


def held_after(
    appending: Callable[[dict[str, str]], Append], mark: Path, given: dict[str, str]
) -> Append:
    """What appends a batch, and leaves a mark instead of returning once it has done the second."""
    append = appending(given)

    def hold(rows: DataFrame, number: int) -> None:
        append(rows, number)
        if number == HELD_BATCH:
            mark.touch()
            threading.Event().wait()

    return hold


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
