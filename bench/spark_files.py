"""Headrace in Spark against Spark's own files: a day out of years, streaming reads and writes.

Both sides take turns within one run, on the same rows.  ``python -m bench.spark_files`` prints the
figures; ``python -m bench.spark_files day sink`` some of them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import headrace.spark
from bench.harness import Result, at_most, rounds_of, show
from bench.spark_source import events
from headrace.catalog.streams import StreamConfig
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.python_workers import tend_workers

YEARS = 15
DAY_EVENTS = 300
FIRST = datetime(2010, 1, 1, tzinfo=UTC)
DAY = datetime(2017, 6, 1, tzinfo=UTC)
SUBJECT = "bench.777"
ROUNDS = 5

SINK_BATCHES, SMALL_BATCHES = 4, 15
SINK_ROWS = {500_000: 1.6, 100: 1.3}
SOURCE_APPENDS, SOURCE_ROWS = 100, 20_000
THREE = "subject string, key string, value binary"
PUBLISHES = 20


def _log(folder: Path, segments: int) -> Log:
    log = open_log(folder)
    log.create_stream("bench", StreamConfig(subjects=("bench.>",)), segments)
    return log


def _in_turn(floor: Callable[[], float], ours: Callable[[], float], rounds: int) -> Any:
    """(median ratio of seconds, the rounds as text); the first round warms up."""
    floor()
    ours()
    found = rounds_of(floor, ours, rounds)
    shown = " ".join(f"{mine:.3f}/{base:.3f}" for base, mine in found) + " s"
    return statistics.median(mine / base for base, mine in found), shown


def _seconds(frame: DataFrame) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


# --- filters -----------------------------------------------------------------------------------


def filters(spark: SparkSession, folder: Path) -> list[Result]:
    """A day, and a subject, out of fifteen years in one segment."""
    log = _log(folder / "years", 1)
    count = 365 * DAY_EVENTS
    table = events(count)
    for year in range(YEARS):
        start = FIRST.replace(year=FIRST.year + year)
        stamps = np.linspace(0, 365 * 86_400_000_000, count, endpoint=False).astype("int64")
        stamps += int(start.timestamp()) * 1_000_000
        times = pa.array(stamps, pa.timestamp("us", "UTC"))
        log.append("bench", table.append_column("timestamp", times))
    log.catalog.close()
    paths = [str(path) for path in (folder / "years" / "store").rglob("*.parquet")]
    columns = ["timestamp", "subject", "key", "value"]
    until = DAY + timedelta(days=1)

    def measured(name: str, where: str, most: float) -> Result:
        def floor() -> float:
            started = time.perf_counter()
            _seconds(spark.read.parquet(*paths).where(where).select(*columns))
            return time.perf_counter() - started

        def ours() -> float:
            started = time.perf_counter()
            given = {"catalog": str(folder / "years"), "subscribe": "bench"}
            frame = spark.read.format("headrace").options(**given).load()
            _seconds(frame.where(where).select(*columns))
            return time.perf_counter() - started

        ratio, shown = _in_turn(floor, ours, ROUNDS)
        return at_most(f"Spark read of {name}", ratio, most, "x spark.read.parquet", shown)

    day = f"timestamp >= '{DAY:%Y-%m-%d}' AND timestamp < '{until:%Y-%m-%d}'"
    return [
        measured("a day out of fifteen years", day, 2.0),
        measured("a subject out of a thousand", f"subject = '{SUBJECT}'", 2.0),
    ]


# --- streaming ---------------------------------------------------------------------------------


def _batches(frame: DataFrame, sink: str, checkpoint: Path, **options: str) -> list[float]:
    """Seconds of the batches of a query that reads all there is."""
    query = (
        frame.writeStream.format(sink)
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [each for each in query.recentProgress if each["numInputRows"]]
    return [each["durationMs"]["triggerExecution"] / 1000 for each in done]


def sink(spark: SparkSession, folder: Path) -> list[Result]:
    """Seconds of a batch into a stream, against one into Parquet files."""
    return [_sink(spark, folder / f"{rows}", rows, most) for rows, most in SINK_ROWS.items()]


class BareSink(DataSource):
    """A sink in Python that takes the rows and does no more: what Spark itself costs."""

    @classmethod
    def name(cls) -> str:
        return "baresink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> BareWriter:  # noqa: ARG002, N802
        tend_workers()
        return BareWriter()


class BareWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        tend_workers()
        for _ in iterator:
            pass
        return WriterCommitMessage()


def _sink(spark: SparkSession, folder: Path, rows: int, most: float) -> Result:
    given = folder / "given"
    given.mkdir(parents=True)
    table = events(rows)
    for at in range(SINK_BATCHES if rows > 1000 else SMALL_BATCHES):
        pq.write_table(table, given / f"{at}.parquet")
    _log(folder / "log", 4).catalog.close()
    runs = iter(range(1000))
    frame = spark.readStream.schema(THREE).option("maxFilesPerTrigger", 1).parquet(str(given))

    def median(form: str, **options: str) -> float:
        times = _batches(frame, form, folder / f"checkpoint-{next(runs)}", **options)
        return statistics.median(times[1:])

    def floor() -> float:
        return median("parquet", path=str(folder / f"out-{next(runs)}"))

    def ours() -> float:
        return median("headrace", catalog=str(folder / "log"), stream="bench")

    cloudpickle.register_pickle_by_value(sys.modules[BareSink.__module__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(BareSink)
    ratio, shown = _in_turn(floor, ours, 3)
    bare = statistics.median(median("baresink") for _ in range(3))
    name = f"Spark streaming sink, {rows:,} rows a batch"
    shown += f"; a sink in Python that does nothing {bare:.3f}"
    return at_most(name, ratio, most, "x the Parquet sink", shown)


def source(spark: SparkSession, folder: Path) -> list[Result]:
    """Seconds of a streaming read of three columns, against the file source."""
    log = _log(folder / "stream", 4)
    files = folder / "files"
    files.mkdir()
    table = events(SOURCE_ROWS)
    for at in range(SOURCE_APPENDS):
        log.append("bench", table)
        if at % 5 == 0:
            pq.write_table(pa.concat_tables([table] * 5), files / f"{at}.parquet")
    log.catalog.close()
    runs = iter(range(1000))

    def floor() -> float:
        frame = spark.readStream.schema(THREE).parquet(str(files))
        return sum(_batches(frame, "noop", folder / f"cs-{next(runs)}"))

    def ours() -> float:
        given = {"catalog": str(folder / "stream"), "subscribe": "bench"}
        reader = spark.readStream.format("headrace").schema(THREE).options(**given)
        frame = reader.option("startingOffsets", "earliest").load()
        return sum(_batches(frame, "noop", folder / f"cs-{next(runs)}"))

    ratio, shown = _in_turn(floor, ours, ROUNDS)
    return [
        at_most("Spark streaming source, three columns", ratio, 1.5, "x the file source", shown)
    ]


def publish(spark: SparkSession, folder: Path) -> list[Result]:
    """Seconds from a publish of 100 events until ``foreachBatch`` has them."""
    log = _log(folder / "small", 1)
    files = folder / "small-files"
    files.mkdir()
    table = events(100)
    heard = threading.Event()

    def hear(frame: DataFrame, _: int) -> None:
        if frame.count():
            heard.set()

    def median(frame: DataFrame, checkpoint: Path, give: Callable[[int], object]) -> float:
        query = (
            frame.writeStream.foreachBatch(hear)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        times = []
        for at in range(PUBLISHES):
            heard.clear()
            started = time.perf_counter()
            give(at)
            if not heard.wait(60):
                raise TimeoutError("the batch did not come")
            times.append(time.perf_counter() - started)
        query.stop()
        return statistics.median(times[3:])

    runs = iter(range(1000))

    def floor() -> float:
        run = next(runs)
        folder_of_run = files / f"{run}"
        folder_of_run.mkdir()

        def give(at: int) -> None:
            pq.write_table(table, folder / "part")
            (folder / "part").rename(folder_of_run / f"{at}.parquet")

        frame = spark.readStream.schema(THREE).parquet(str(folder_of_run))
        return median(frame, folder / f"cp-{run}", give)

    def ours() -> float:
        given = {"catalog": str(folder / "small"), "subscribe": "bench"}
        reader = spark.readStream.format("headrace").schema(THREE).options(**given)
        frame = reader.option("startingOffsets", "earliest").load()
        return median(frame, folder / f"cp-{next(runs)}", lambda _: log.append("bench", table))

    ratio, shown = _in_turn(floor, ours, ROUNDS)
    log.catalog.close()
    return [at_most("Spark, publish to foreachBatch", ratio, 1.0, "x the file source", shown)]


LINES = {"filters": filters, "sink": sink, "source": source, "publish": publish}


def run(*names: str) -> list[Result]:
    spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            return [
                result
                for line, measure in LINES.items()
                if not names or line in names
                for result in measure(spark, Path(name))
            ]
    finally:
        spark.stop()


if __name__ == "__main__":
    show(run(*sys.argv[1:]))
