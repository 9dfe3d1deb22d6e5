"""Whole epochs in Spark against plain streams: the source, the sink, and planning.

``python -m bench.spark_epochs`` prints the figures.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import headrace.spark
import headrace.sync
from bench.harness import Result, at_least, at_most, ratio_of_rounds, show
from bench.spark_sink import SEGMENTS
from bench.spark_source import _batch_seconds, events
from headrace.catalog.streams import Epochs, StreamConfig
from headrace.log.open import open_log
from headrace.spark.epochs.offsets import parse_epochs
from headrace.spark.epochs.planner import EpochPlanner
from headrace.spark.options import parse_options

EPOCHS, EPOCH_ROWS = 100, 10_000
SINK_ROWS = 1_000_000
ROUNDS = 5
FEW, MANY = 100, 100_000
PLANS = 100
PLAN_MS_MAX = 50.0


def source(spark: SparkSession, folder: Path) -> Result:
    """Events read a second by a query of whole epochs, against one of rows as they come."""
    catalog = folder / "source"
    table = events(EPOCH_ROWS)
    with headrace.sync.open(catalog) as hr:
        hr.create_stream("plain", subjects=["plain.>"], segments=SEGMENTS)
        hr.create_stream("bench", subjects=["bench.>"], segments=SEGMENTS, epochs=Epochs())
        plain = table.set_column(0, "subject", [[f"plain.{n % 1000}" for n in range(EPOCH_ROWS)]])
        for _ in range(EPOCHS):
            hr.append("plain", plain)
        with hr.epoch_publisher("bench", "p") as publisher:
            for epoch in range(EPOCHS):
                publisher.append(epoch, table, advance_to=epoch + 1)
    total = EPOCHS * EPOCH_ROWS
    runs = iter(range(1000))

    def rate(**options: str) -> float:
        frame = spark.readStream.format("headrace").option("catalog", str(catalog))
        seconds = _batch_seconds(frame.options(**options).load(), folder / f"c{next(runs)}")
        return total / sum(seconds)

    def ordinary() -> float:
        return rate(subscribe="plain", startingOffsets="earliest")

    def whole() -> float:
        return rate(subscribe="bench", epochs="whole", startingFrontier="earliest")

    ordinary(), whole()
    ratio, base, found = ratio_of_rounds(ordinary, whole, ROUNDS)
    figures = f"{found:,.0f} against {base:,.0f} events/s"
    return at_least("Spark source, whole epochs", ratio, 0.9, "of the ordinary source", figures)


def sink(spark: SparkSession, folder: Path) -> Result:
    """Rows written a second with an epoch for each, against the same rows without."""
    path = str(folder / "input")
    spark.range(0, SINK_ROWS, 1, 4).selectExpr(
        "cast(id % 1000 AS string) AS topic",
        "cast(id % 5000 AS string) AS key",
        "unhex(concat(sha2(cast(id AS string), 512), sha2(cast(-id AS string), 256))) AS value",
        "id * 10 div 1000000 AS day",
    ).write.parquet(path)
    rows = spark.read.parquet(path)
    catalog = str(folder / "sink")
    log = open_log(catalog)
    log.create_stream("plain", StreamConfig(subjects=("plain.>",)), SEGMENTS)
    log.create_stream("bench", StreamConfig(subjects=("bench.>",), epochs=Epochs()), SEGMENTS)
    done = 0

    def rate(frame: DataFrame, stream: str, **options: Any) -> float:
        started = time.perf_counter()
        to = frame.withColumnRenamed("topic", "subject").write.format("headrace").mode("append")
        given = {"catalog": catalog, "stream": stream, "subjectPrefix": f"{stream}."}
        to.options(**given, **options).save()
        return SINK_ROWS / (time.perf_counter() - started)

    def without() -> float:
        return rate(rows.drop("day"), "plain")

    def with_epochs() -> float:
        nonlocal done
        done += 100
        frame = rows.selectExpr("topic", "key", "value", f"day + {done} AS day")
        return rate(frame, "bench", epochColumn="day", advanceTo=done + 100)

    without(), with_epochs()
    ratio, base, found = ratio_of_rounds(without, with_epochs, ROUNDS)
    log.catalog.close()
    figures = f"{found:,.0f} against {base:,.0f} rows/s"
    return at_least("Spark sink, epochColumn", ratio, 0.85, "of the sink without", figures)


def planning(folder: Path) -> list[Result]:
    """A trigger of ten epochs with few and with many waiting."""
    planners = {}
    for waiting in (FEW, MANY):
        catalog = folder / f"plan-{waiting}"
        with headrace.sync.open(catalog) as hr:
            hr.create_stream("bench", subjects=["bench.>"], segments=SEGMENTS, epochs=Epochs())
            with hr.epoch_publisher("bench", "p") as publisher, publisher.appender() as out:
                one = events(1)
                for epoch in range(waiting):
                    out.append(epoch, one, advance_to=epoch + 1)
        given = {"catalog": str(catalog), "subscribe": "bench", "epochs": "whole"}
        options = parse_options(
            given | {"startingfrontier": "earliest", "maxepochspertrigger": "10"}
        )
        planners[waiting] = (open_log(catalog), options)

    def plan_ms(waiting: int) -> float:
        log, options = planners[waiting]
        planner = EpochPlanner(log, options)
        at = planner.start("earliest")
        times = []
        for _ in range(FEW // 10):
            started = time.perf_counter()
            end = planner.next(at, limited=True)
            planner.references(at, parse_epochs(end.to_json()))
            times.append((time.perf_counter() - started) * 1000)
            at = end
        planner.close()
        return statistics.median(times)

    few = [plan_ms(FEW) for _ in range(PLANS // 10)]
    many = [plan_ms(MANY) for _ in range(PLANS // 10)]
    ratio = statistics.median(many) / statistics.median(few)
    for log, _ in planners.values():
        log.catalog.close()
    figures = f"{statistics.median(many):.2f} against {statistics.median(few):.2f} ms"
    return [
        at_most("planning 100,000 waiting epochs", ratio, 1.5, "of 100 waiting", figures),
        at_most("planning ten epochs", max(many), PLAN_MS_MAX, "ms", figures),
    ]


def run() -> list[Result]:
    spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            folder = Path(name)
            return [source(spark, folder), sink(spark, folder), *planning(folder)]
    finally:
        spark.stop()


if __name__ == "__main__":
    show(run())
