"""``format("headrace")`` on a real Spark: batches, streams, restarts, splits, lag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace.spark
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.listener import lag_of
from tests.log.helpers import check_dense, create, event, per_key, table
from tests.spark.queries import begun, run_through
from tests.support import wait_until

SPARK_S = 180.0


@pytest.fixture
def options(catalog_url: str, tmp_path: Path) -> dict[str, str]:
    return {"catalog": catalog_url, "store": str(tmp_path / "store"), "subscribe": "s"}


@pytest.fixture
def log(options: dict[str, str]) -> Iterator[Log]:
    opened = open_log(options["catalog"], options["store"])
    yield opened
    opened.catalog.close()


sqlite = pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
"""What has nothing to do with the database is tested on one."""


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("headrace").options(**options).load()


def into_memory(frame: DataFrame, name: str, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("memory").queryName(name)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def rows(spark: SparkSession, name: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.table(name).collect()]


def into_files(frame: DataFrame, folder: Path, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    """A sink that can go on from a checkpoint."""
    writer = frame.writeStream.format("parquet").option("path", str(folder))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def written(folder: Path) -> list[dict[str, Any]]:
    """What the batches wrote, in the order of places."""
    found = [row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    return sorted(found, key=lambda row: (row["segment"], row["offset"]))


def rows_read(query: StreamingQuery) -> int:
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def read_now(frame: DataFrame, folder: Path, checkpoint: Path) -> list[dict[str, Any]]:
    run_through(lambda: into_files(frame, folder, checkpoint, availableNow=True))
    return written(folder)


@sqlite
def test_a_batch_has_all_events_and_a_schema_prunes_its_columns(
    spark: SparkSession, log: Log, options: dict[str, str]
) -> None:
    create(log, segments=2)
    log.append("s", table(300))
    log.append("s", [event(1, key="k", headers={"a": b"b"}, epoch=(4, 5))])
    reader = spark.read.format("headrace").options(**options, includeHeaders="true")
    found = [row.asDict(recursive=True) for row in reader.load().collect()]
    assert len(found) == 301
    check_dense(sorted(found, key=lambda row: (row["segment"], row["offset"])))
    (last,) = [row for row in found if row["headers"]]
    assert last["headers"] == [{"key": "a", "value": bytearray(b"b")}]
    assert last["epoch"] == [4, 5]
    pruned = spark.read.schema("offset bigint, stream string").format("headrace")
    assert pruned.options(**options).load().distinct().columns == ["offset", "stream"]


@sqlite
def test_trap_7_filters_spare_tasks_where_pushdown_is_on_and_do_no_harm_where_it_is_off(
    spark: SparkSession, log: Log, options: dict[str, str]
) -> None:
    create(log, segments=4)
    log.append("s", table(300, keys=50))
    frame = spark.read.format("headrace").options(**options).load()
    narrow = "segment = 2 AND offset >= 3 AND offset < 5"
    assert frame.where(narrow).rdd.getNumPartitions() == 1
    assert frame.where(narrow).count() == 2
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert frame.where(narrow).count() == 2
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@sqlite
def test_bad_input_is_an_error_before_the_query_starts(
    spark: SparkSession, log: Log, options: dict[str, str], tmp_path: Path
) -> None:
    create(log)
    reader = spark.readStream.format("headrace")
    with pytest.raises(AnalysisException, match="there is no stream 'nobody'"):
        reader.options(**options | {"subscribe": "nobody"}).load()
    with pytest.raises(AnalysisException, match="unknown option 'colour'"):
        spark.readStream.format("headrace").options(**options, colour="red").load()
    wrong = spark.readStream.format("headrace").schema("colour string").options(**options).load()
    with pytest.raises(StreamingQueryException, match="no column 'colour'"):
        run_through(lambda: into_files(wrong, tmp_path / "out", tmp_path / "bad"))


def test_a_query_goes_on_where_its_checkpoint_says_and_a_replay_skips_nothing(
    spark: SparkSession, log: Log, options: dict[str, str], tmp_path: Path
) -> None:
    """Trap 1 on a real Spark: the first batch of a query from ``latest`` is repeated."""
    create(log, segments=2)
    log.append("s", table(10))
    checkpoint = tmp_path / "query"
    query = begun(lambda _: into_files(stream(spark, options), tmp_path / "first", checkpoint))
    wait_until(lambda: (checkpoint / "commits" / "0").exists(), "the first batch", SPARK_S)
    log.append("s", table(40))
    wait_until(lambda: rows_read(query) == 40, "the events", SPARK_S)
    query.stop()

    # As if the driver had died in its first batch: it is in the log, and was never done.
    for done in (checkpoint / "commits").glob("[0-9]*"):
        done.unlink()
    for logged in (checkpoint / "offsets").glob("[1-9]*"):
        logged.unlink()
    log.append("s", table(50))
    found = read_now(stream(spark, options), tmp_path / "second", checkpoint)
    starts = {n: min(r["offset"] for r in found if r["segment"] == n) for n in (0, 1)}
    assert sum(starts.values()) == 10
    check_dense(found, starts)
    assert len(found) == 90
    assert read_now(stream(spark, options), tmp_path / "third", checkpoint) == []


@sqlite
def test_a_running_query_follows_splits_and_merges_and_its_lag_is_reported(
    spark: SparkSession, log: Log, options: dict[str, str], tmp_path: Path
) -> None:
    lags: list[headrace.spark.QueryLag] = []
    listener = headrace.spark.LagListener(lags.append)
    spark.streams.addListener(listener)
    create(log, segments=2)
    given = options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
    query = begun(lambda n: into_memory(stream(spark, given), "splits", tmp_path / f"splits-{n}"))
    try:
        count = 0
        for change in (
            lambda: None,
            lambda: log.split("s", 0),
            lambda: log.merge("s", [1, 3]),
            lambda: log.split("s", 4, 3),
        ):
            change()
            log.append("s", [event(count + n, key=f"k{n % 11}") for n in range(80)])
            count += 80
        wait_until(lambda: spark.table("splits").count() >= count, "all events", SPARK_S)
        wait_until(lambda: lags and lags[-1].events == 0, "the lag to be gone", SPARK_S)
        assert str(query.id) in listener.lags
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    found = rows(spark, "splits")
    check_dense(found)
    for key, values in per_key(found).items():
        assert list(map(int, values)) == sorted(map(int, values)), key
    assert max(lag.behind_max for lag in lags) > 0
    assert all(lag.behind_min <= lag.behind_avg <= lag.behind_max for lag in lags)
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert max(p["numInputRows"] for p in progress) <= 60
    # Trap 8: what Spark itself reports of the source is empty, hence the listener.
    assert not progress[-1]["sources"][0]["metrics"]


def test_lag_is_told_of_our_sources_only() -> None:
    ours = json.dumps({"catalog": "c", "streams": {"s": {"id": 1, "segments": {"0": 3, "1": 4}}}})
    head = json.dumps({"catalog": "c", "streams": {"s": {"id": 1, "segments": {"0": 9, "1": 4}}}})
    lag = lag_of("q", None, 7, [("5", "6"), (None, None), (ours, head)])
    assert lag is not None
    assert (lag.events, lag.behind_min, lag.behind_avg, lag.behind_max) == (6, 0, 3.0, 6)
    assert lag_of("q", None, 7, [("5", "6")]) is None
