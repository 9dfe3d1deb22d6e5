"""Reading through Spark: streaming and native reads, planning, and the cost of a small trigger.

``python -m bench.spark_source`` prints the figures.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

import headrace.spark
from bench.growth import grow
from bench.harness import Result, at_least, at_most, ratio_of_rounds, rounds_of, show
from headrace.catalog.streams import StreamConfig
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.columns import default_schema
from headrace.spark.python_workers import tend_workers
from headrace.spark.session import SETTINGS
from headrace.spark.source import HeadraceSource

SEGMENTS = 4
STREAM_APPENDS, STREAM_ROWS = 200, 10_000
FILE_APPENDS, FILE_ROWS = 4, 500_000
ROUNDS = 5
TRIGGERS = 40
TRIGGER_ROWS = 100
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
SMALL, LARGE = 100, 100_000
PLANS = 200


def events(count: int) -> pa.Table:
    """Values of 100 random bytes."""
    data = os.urandom(100 * count)
    values = pa.array([data[at : at + 100] for at in range(0, len(data), 100)], pa.binary())
    return pa.table(
        {
            "subject": [f"bench.{row % 1000}" for row in range(count)],
            "key": [f"{row % 5000}" for row in range(count)],
            "value": values,
        }
    )


def _log(folder: Path, segments: int = SEGMENTS) -> Log:
    log = open_log(folder)
    log.create_stream("bench", StreamConfig(subjects=("bench.>",)), segments)
    return log


class Bare(DataSource):
    """A source that yields Arrow batches from files, and does no more."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> StructType:
        tend_workers()
        return default_schema(headers=False)

    def streamReader(self, schema: StructType) -> BareReader:  # noqa: ARG002, N802
        tend_workers()
        return BareReader(self.options["folder"])


class BareReader(DataSourceStreamReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        return {"at": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        tend_workers()
        with pa.memory_map(partition.value) as file:
            reader = pa.ipc.open_file(file)
            for at in range(reader.num_record_batches):
                yield reader.get_batch(at)


def _batch_seconds(frame: DataFrame, checkpoint: Path) -> list[float]:
    """How long the batches of a query took that reads all there is and writes it nowhere."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [each for each in query.recentProgress if each["numInputRows"]]
    return [each["durationMs"]["triggerExecution"] / 1000 for each in done]


def streaming(spark: SparkSession, folder: Path) -> Result:
    """Events read a second by a streaming query, against a source that only yields them."""
    log = _log(folder / "stream")
    table = events(STREAM_ROWS)
    for _ in range(STREAM_APPENDS):
        log.append("bench", table)
    options = {"catalog": str(folder / "stream"), "subscribe": "bench"}
    bare = folder / "bare"
    bare.mkdir()
    source = HeadraceSource(options)
    reader = source.reader(source.schema())
    for at, part in enumerate(reader.partitions()):
        batches = list(reader.read(part))
        with pa.ipc.new_file(bare / f"{at}", batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    by_value = sys.modules[Bare.__module__]
    cloudpickle.register_pickle_by_value(by_value)  # type: ignore[no-untyped-call]
    spark.dataSource.register(Bare)
    total = STREAM_APPENDS * STREAM_ROWS
    runs = iter(range(1000))

    def floor() -> float:
        frame = spark.readStream.format("bare").option("folder", str(bare)).load()
        return total / sum(_batch_seconds(frame, folder / f"checkpoint-{next(runs)}"))

    def ours() -> float:
        given = options | {"startingOffsets": "earliest"}
        frame = spark.readStream.format("headrace").options(**given).load()
        return total / sum(_batch_seconds(frame, folder / f"checkpoint-{next(runs)}"))

    floor()
    ours()
    ratio, base, rate = ratio_of_rounds(floor, ours, ROUNDS)
    log.catalog.close()
    return at_least(
        "Spark streaming source",
        ratio,
        0.6,
        "of a bare Python source",
        f"{rate:,.0f} against {base:,.0f} events/s",
    )


def native(spark: SparkSession, folder: Path) -> Result:
    """Events read a second by a native read, against Spark's reader on the same files."""
    log = _log(folder / "files")
    table = events(FILE_ROWS)
    for _ in range(FILE_APPENDS):
        log.append("bench", table)
    assert log.store is not None
    paths = [f"{folder}/files/store/{file.path}" for file in log.store.list("")]
    total = FILE_APPENDS * FILE_ROWS
    columns = ["timestamp", "subject", "key", "value"]

    def rate(frame: DataFrame) -> float:
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return total / (time.perf_counter() - started)

    def floor() -> float:
        return rate(spark.read.parquet(*paths).select(*columns))

    def ours() -> float:
        frame = headrace.spark.read(spark, "bench", catalog=folder / "files")
        return rate(frame.select(*columns, "segment", "offset"))

    floor()
    ours()
    rounds = rounds_of(floor, ours, ROUNDS)
    log.catalog.close()
    return at_least(
        "Spark native read",
        statistics.median(mine / base for base, mine in rounds),
        0.7,
        "of spark.read.parquet",
        " ".join(f"{mine / 1e6:.2f}/{base / 1e6:.2f}" for base, mine in rounds) + " M events/s",
    )


def small_triggers(spark: SparkSession, folder: Path) -> Result:
    """The median trigger of a small batch with our settings, against Spark's default."""
    log = _log(folder / "small", 1)
    log.append("bench", events(TRIGGERS * TRIGGER_ROWS))
    options = {
        "catalog": str(folder / "small"),
        "subscribe": "bench",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(TRIGGER_ROWS),
    }
    runs = iter(range(1000))

    def median_s() -> float:
        frame = spark.readStream.format("headrace").options(**options).load()
        times = _batch_seconds(frame, folder / f"small-{next(runs)}")
        return statistics.median(times[5:])

    def default() -> float:
        spark.conf.unset(FILE_MANAGER)
        try:
            return median_s()
        finally:
            spark.conf.set(FILE_MANAGER, SETTINGS[FILE_MANAGER])

    median_s()
    ratio, base, found = ratio_of_rounds(default, median_s, 3)
    log.catalog.close()
    return at_most(
        "Spark trigger of a small batch",
        ratio,
        0.6,
        "x that of the default file manager",
        f"{found * 1000:.0f} against {base * 1000:.0f} ms",
    )


def planning(folder: Path) -> list[Result]:
    """What it takes to plan a batch in a backlog of 100 batches, and of 100,000."""
    for backlog in (SMALL, LARGE):
        log = _log(folder / f"plan-{backlog}", 1)
        grow(log, backlog, step=min(backlog, 1000))
        log.catalog.close()

    def plan_s(backlog: int, limits: dict[str, str]) -> float:
        options = {
            "catalog": str(folder / f"plan-{backlog}"),
            "subscribe": "bench",
            "startingOffsets": "earliest",
        }
        source = HeadraceSource(options | limits)
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        times = []
        for _ in range(PLANS):
            started = time.perf_counter()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            reader.partitions(start, end)
            times.append(time.perf_counter() - started)
        reader.stop()
        return statistics.median(times)

    results = []
    for what, limits in (
        ("rows and bytes", {"maxOffsetsPerTrigger": "50", "maxBytesPerTrigger": "10000"}),
        ("bytes", {"maxBytesPerTrigger": "10000"}),
    ):
        rounds = rounds_of(partial(plan_s, SMALL, limits), partial(plan_s, LARGE, limits), ROUNDS)
        results.append(
            at_most(
                f"Spark planning, 100,000 batches of backlog, limit of {what}",
                statistics.median(large / small for small, large in rounds),
                1.25,
                "x the time with 100",
                " ".join(f"{large * 1e6:.0f}/{small * 1e6:.0f}" for small, large in rounds) + " µs",
            )
        )
    return results


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        results = planning(folder)
        spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
        try:
            results += [
                streaming(spark, folder),
                native(spark, folder),
                small_triggers(spark, folder),
            ]
        finally:
            spark.stop()
        return results


if __name__ == "__main__":
    show(run())
