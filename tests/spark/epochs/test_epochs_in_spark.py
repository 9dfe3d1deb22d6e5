"""Whole epochs through real queries: pass-through, windows, and a driver that fails anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import window

import headrace.spark
from headrace.catalog.streams import Epochs, StreamConfig
from headrace.epochs.runtime.status import status
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.open import open_log
from tests.epochs.runtime.writer import Writer
from tests.spark.engine import batch_rows
from tests.spark.epochs.failing_sink import FailingSink
from tests.spark.queries import run_through
from tests.support import wait_until

SPARK_S = 120.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path / "data")
    for name in ("days", "clean", "report"):
        config = StreamConfig(subjects=(f"{name}.>",), epochs=Epochs())
        log.create_stream(name, config, segments=2)
    log.create_stream("trips", StreamConfig(subjects=("trips.>",)), segments=2)
    yield log
    log.catalog.close()


@pytest.fixture
def url(log: Log, tmp_path: Path) -> str:
    return str(tmp_path / "data")


def days(writer: Writer, first: int, end: int) -> None:
    for day in range(first, end):
        writer.publish("eu", [(day, b"%d.%d" % (day, n)) for n in range(5)], advance_to=day + 1)


def whole(url: str, stream: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in batch_rows({"catalog": url, "subscribe": stream, "epochs": "whole"}):
        found.setdefault(row["epoch"][0], []).append(row["value"].decode())
    return {day: sorted(values) for day, values in sorted(found.items())}


def through(
    spark: SparkSession, url: str, tmp_path: Path, source: str, sink: str, **options: Any
) -> Any:
    """A query that hands epochs and frontier on, up to what is complete now."""
    given = {"format": "headrace", "where": "true"} | options
    frame = headrace.spark.read_stream(
        spark,
        source,
        catalog=url,
        epochs="whole",
        startingFrontier="earliest",
        maxEpochsPerTrigger=2,
        includeFrontier=True,
    )
    writer = frame.where(given.pop("where")).writeStream.format(given.pop("format"))
    kept = {"stream": sink, "subject": f"{sink}.x", "epochColumn": "epoch"}
    kept |= {"frontier": "column:frontier", "checkpointLocation": str(tmp_path / sink)} | given
    return writer.option("catalog", url).options(**kept).trigger(availableNow=True).start()


def test_a_frontier_passes_through_two_queries(
    spark: SparkSession, log: Log, url: str, tmp_path: Path
) -> None:
    days(Writer(log, "days"), 0, 5)
    listener = headrace.spark.EpochListener("clean", catalog=url, by="source", query="first")
    spark.streams.addListener(listener)
    try:

        def first() -> Any:
            # Nothing of the last two days comes out: the listener tells that they are complete.
            return through(
                spark, url, tmp_path, "days", "clean", where="epoch[0] < 3", queryName="first"
            )

        run_through(first)
        wait_until(lambda: status(log, "clean").frontier == (5,), "the listener", SPARK_S)
    finally:
        spark.streams.removeListener(listener)
    run_through(lambda: through(spark, url, tmp_path, "clean", "report"))
    wanted = {day: [f"{day}.{n}" for n in range(5)] for day in range(3)}
    assert whole(url, "clean") == whole(url, "report") == wanted
    shown = spark.read.format("headrace").option("catalog", url).option("subscribe", "report")
    frame = shown.option("epochs", "whole").option("endingFrontier", "2").load()
    assert frame.groupBy("epoch").count().count() == 2


def test_a_driver_that_fails_anywhere_repeats_no_epoch_and_loses_none(
    spark: SparkSession, log: Log, url: str, tmp_path: Path
) -> None:
    spark.dataSource.register(FailingSink)
    days(Writer(log, "days"), 0, 2)
    marks = tmp_path / "marks"
    marks.mkdir()
    deaths = 0
    while True:
        try:
            run_through(
                lambda: through(
                    spark, url, tmp_path, "days", "clean", format="failing", marks=str(marks)
                )
            )
            break
        except StreamingQueryException as error:
            if "the driver dies" not in str(error):
                raise
            deaths += 1
    assert deaths == len(list(marks.iterdir())) == 2
    assert whole(url, "clean") == {day: [f"{day}.{n}" for n in range(5)] for day in range(2)}
    assert status(log, "clean").frontier == (2,)


def test_windows_by_watermark_are_whole_epochs_and_no_row_is_late(
    spark: SparkSession, log: Log, url: str, tmp_path: Path
) -> None:
    """An epoch is the hour in which a window starts."""
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    hour0 = int(midnight.timestamp()) // 3600

    def trips(first: int, end: int) -> None:
        log.append(
            "trips",
            [
                Event(subject="trips.x", value=b"1", timestamp=midnight + timedelta(minutes=m))
                for m in range(first, end, 5)
            ],
        )

    def start() -> Any:
        frame = headrace.spark.read_stream(
            spark,
            "trips",
            catalog=url,
            schema="timestamp timestamp",
            startingOffsets="earliest",
        )
        counted = (
            frame.withWatermark("timestamp", "10 minutes")
            .groupBy(window("timestamp", "30 minutes"))
            .count()
            .selectExpr(
                "'report.x' AS subject",
                "cast(count AS string) AS value",
                "window.start AS timestamp",
            )
        )
        return (
            counted.writeStream.format("headrace")
            .queryName("windows")
            .options(catalog=url, stream="report", epochColumn="timestamp", epochUnit="hour")
            .options(frontier="none", checkpointLocation=str(tmp_path / "windows"))
            .trigger(availableNow=True)
            .start()
        )

    listener = headrace.spark.EpochListener(
        "report",
        catalog=url,
        unit="hour",
        window=timedelta(minutes=30),
        query="windows",
    )
    spark.streams.addListener(listener)
    try:
        for first in (0, 150):
            trips(first, first + 150)
            run_through(start)
        # The greatest time is 295, the watermark 285, and windows up to 270 are out.
        wait_until(lambda: status(log, "report").frontier == (hour0 + 4,), "the listener", SPARK_S)
    finally:
        spark.streams.removeListener(listener)
    assert listener.failed is None
    assert whole(url, "report") == {hour0 + hour: ["6", "6"] for hour in range(4)}
