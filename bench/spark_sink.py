"""The sink against Spark's own Parquet write of the same rows.

``python -m bench.spark_sink`` prints the figures.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import headrace.spark
from bench.harness import Result, at_least, ratio_of_rounds, show
from headrace.catalog.streams import StreamConfig
from headrace.log.open import open_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
ROUNDS = 5
SEGMENTS = 4


def events(spark: SparkSession, folder: Path) -> DataFrame:
    """Rows with values of 100 random bytes, from a file, so that both sides read the same."""
    path = str(folder / "input")
    spark.range(0, ROWS, 1, 4).selectExpr(
        "concat('bench.', id % 1000) AS subject",
        "cast(id % 5000 AS string) AS key",
        "unhex(concat(sha2(cast(id AS string), 512), "
        "substr(sha2(cast(-id AS string), 256), 1, 72))) "
        "AS value",
    ).write.parquet(path)
    return spark.read.parquet(path)


def sink(spark: SparkSession, folder: Path) -> Result:
    """Rows written a second."""
    frame = events(spark, folder)
    catalog = str(folder / "catalog")
    log = open_log(catalog)
    log.create_stream("bench", StreamConfig(subjects=("bench.>",)), SEGMENTS)
    written = 0

    def native() -> float:
        started = time.perf_counter()
        frame.write.mode("overwrite").parquet(str(folder / "native"))
        return ROWS / (time.perf_counter() - started)

    def ours() -> float:
        nonlocal written
        started = time.perf_counter()
        to = frame.write.format("headrace").mode("append")
        to.option("catalog", catalog).option("stream", "bench").save()
        written += ROWS
        return ROWS / (time.perf_counter() - started)

    native()
    ours()
    ratio, base, rate = ratio_of_rounds(native, ours, ROUNDS)
    assert sum(segment.head for segment in log.stream("bench").segments) == written
    log.catalog.close()
    return at_least(
        "Spark sink",
        ratio,
        0.5,
        "of Spark's own Parquet write",
        f"{rate:,.0f} against {base:,.0f} rows/s",
    )


def run() -> list[Result]:
    spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            return [sink(spark, Path(name))]
    finally:
        spark.stop()


if __name__ == "__main__":
    show(run())
