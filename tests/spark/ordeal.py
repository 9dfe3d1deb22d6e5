"""A driver with executors in processes of their own: ``ordeal FOLDER CATALOG...``, until killed.

Task attempts fail and an executor is killed while batches are written; every step is told on
standard output.  In the end one query for each catalog is held between stage and commit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace.spark
from headrace.groups.partitioned.names import GroupName
from headrace.spark.partition import PartitionJob
from tests.spark.held_sink import HeldSink
from tests.support import ROOT

MASTER = "local-cluster[2,1,1024]"
FLAKY_ROWS = 20_000


def session(folder: Path) -> SparkSession:
    return headrace.spark.session(
        "ordeal",
        MASTER,
        **{
            "spark.driver.memory": "768m",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.sql.shuffle.partitions": 2,
            "spark.local.dir": str(folder / "local"),
        },
    )


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
        for batch in batches:
            yield batch
            if not Path(mark).exists():
                Path(mark).touch()
                os.kill(_parent(os.getppid()), signal.SIGKILL)

    return kill


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
    first = catalogs[0]

    frame = spark.range(0, FLAKY_ROWS, 1, 2).selectExpr(
        "concat('flaky.', id % 10) AS subject", "lpad(cast(id AS string), 100, '0') AS value"
    )
    flaky = frame.mapInArrow(fail_once, frame.schema).write.format("headrace").mode("append")
    flaky.option("catalog", first).option("stream", "flaky").save()
    print("failed once", flush=True)

    killing = read_raw(spark, first, 1000)
    killing = killing.mapInArrow(kill_once(str(folder / "killed")), killing.schema)
    to = {"catalog": first, "stream": "killed", "subjectPrefix": "killed."}
    query = killing.writeStream.format("headrace").options(**to).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "killed-checkpoint")).start().awaitTermination()
    print("killed once", flush=True)

    job = PartitionJob(first, None, GroupName("raw", "group"), small_events=0)
    job.start(spark)
    while job.step():
        pass
    print("partitioned", flush=True)

    for number, catalog in enumerate(catalogs):
        mark = folder / f"held-{number}"
        holding = held(spark, folder, number, catalog)
        while not mark.exists():
            # On a machine with too much to do, Spark gives up waiting for its Python processes.
            if not holding.isActive:
                holding = held(spark, folder, number, catalog)
            with suppress(StreamingQueryException):
                holding.awaitTermination(1)
    signal.pause()


def held(spark: SparkSession, folder: Path, number: int, catalog: str) -> StreamingQuery:
    """A query that stops between stage and commit of its second batch."""
    to = {"catalog": catalog, "stream": "clean", "subjectPrefix": "clean."}
    to["mark"] = str(folder / f"held-{number}")
    query = read_raw(spark, catalog, 40).writeStream.format("held").options(**to)
    return query.option("checkpointLocation", str(folder / f"checkpoint-{number}")).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
