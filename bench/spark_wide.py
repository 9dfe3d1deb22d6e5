"""Wide streams in Spark: the same events in one segment and in many, batch and streaming.

``python -m bench.spark_wide`` prints the figures.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import headrace.spark
from bench.harness import Result, at_most, show
from bench.spark_source import _batch_seconds, events
from headrace.catalog.streams import StreamConfig
from headrace.log.open import open_log

EVENTS = 100_000
TRIGGER_EVENTS = 5_000
TRIGGERS = 6
WIDTHS = (1, 100, 1000)
ROUNDS = 5
READ_MAX = {100: 2.0, 1000: 5.0}
TRIGGER_MAX = 2.0


def batches(spark: SparkSession, folder: Path) -> list[Result]:
    """Seconds of a batch read, by the number of segments."""
    table = events(EVENTS)
    for width in WIDTHS:
        log = open_log(folder / f"{width}")
        log.create_stream("bench", StreamConfig(subjects=("bench.>",)), width)
        log.append("bench", table)
        log.catalog.close()

    def seconds(width: int) -> float:
        given = {"catalog": str(folder / f"{width}"), "subscribe": "bench"}
        started = time.perf_counter()
        frame = spark.read.format("headrace").options(**given).load()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    rounds = [{width: seconds(width) for width in WIDTHS} for _ in range(ROUNDS + 1)][1:]
    return [
        at_most(
            f"Spark read of {width} segments",
            statistics.median(one[width] / one[1] for one in rounds),
            most,
            "of 1 segment",
            " ".join(f"{one[width]:.2f}/{one[1]:.2f}" for one in rounds) + " s",
        )
        for width, most in READ_MAX.items()
    ]


def triggers(spark: SparkSession, folder: Path) -> Result:
    """Seconds of a trigger over 100 segments, against 1."""
    table: pa.Table = events(TRIGGER_EVENTS * TRIGGERS)
    for width in (1, 100):
        log = open_log(folder / f"t{width}")
        log.create_stream("bench", StreamConfig(subjects=("bench.>",)), width)
        log.append("bench", table)
        log.catalog.close()
    runs = iter(range(100))

    def seconds(width: int) -> float:
        given = {"catalog": str(folder / f"t{width}"), "subscribe": "bench"}
        given |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(TRIGGER_EVENTS)}
        frame = spark.readStream.format("headrace").options(**given).load()
        return statistics.median(_batch_seconds(frame, folder / f"c{next(runs)}")[1:])

    rounds = [(seconds(1), seconds(100)) for _ in range(ROUNDS - 2)]
    return at_most(
        "Spark trigger of 100 segments",
        statistics.median(many / one for one, many in rounds),
        TRIGGER_MAX,
        "of 1 segment",
        " ".join(f"{many:.2f}/{one:.2f}" for one, many in rounds) + " s",
    )


def run() -> list[Result]:
    spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            return [*batches(spark, Path(name)), triggers(spark, Path(name))]
    finally:
        spark.stop()


if __name__ == "__main__":
    show(run())
