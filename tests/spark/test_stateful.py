"""Queries with state: rows that change, and a stream that goes away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from headrace.errors import InvalidOptionError, UnknownStreamError
from headrace.log.log import Log
from headrace.log.open import open_log
from tests.log.helpers import create, event
from tests.log.helpers import read as read_all
from tests.spark.queries import begun, run_through
from tests.support import wait_until


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(tmp_path / "catalog")
    for name in ("s", "t", "counts"):
        create(opened, name)
    yield opened
    opened.catalog.close()


@pytest.fixture
def catalog(log: Log, tmp_path: Path) -> str:
    return str(tmp_path / "catalog")


def counts(spark: SparkSession, catalog: str, to: str = "counts", **options: str) -> DataFrame:
    """How often each key came, as events for the stream ``counts``, or ``to``."""
    given = {"startingOffsets": "earliest"} | options
    source = headrace.spark.read_stream(spark, catalog=catalog, **given)
    counted = source.groupBy("key").count()
    return counted.selectExpr(f"'{to}.x' AS subject", "key", "cast(count AS string) AS value")


def run(frame: DataFrame, catalog: str, checkpoint: Path) -> None:
    to = headrace.spark.write_stream(
        frame, "counts", catalog=catalog, outputMode="update", checkpointLocation=str(checkpoint)
    )
    run_through(to.trigger(availableNow=True).start)


def written(log: Log, name: str = "counts") -> list[str]:
    return sorted(f"{row['key']}={row['value'].decode()}" for row in read_all(log, name))


def lose_the_last_commit(checkpoint: Path) -> None:
    """As when the driver dies between the sink's commit and the checkpoint's."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()


def test_rows_that_change_are_appended_once(
    spark: SparkSession, log: Log, catalog: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    log.append("s", [event(n, key=f"k{n % 2}") for n in range(6)])
    run(counts(spark, catalog, streams="s"), catalog, checkpoint)
    assert written(log) == ["k0=3", "k1=3"]
    log.append("s", event(6, key="k0"))
    run(counts(spark, catalog, streams="s"), catalog, checkpoint)
    assert written(log) == ["k0=3", "k0=4", "k1=3"]
    lose_the_last_commit(checkpoint)
    log.append("s", event(7, key="k1"))
    run(counts(spark, catalog, streams="s"), catalog, checkpoint)
    assert written(log) == ["k0=3", "k0=4", "k1=3", "k1=4"], "k0=4 was repeated, not written"


def test_a_mode_that_no_stream_can_have_is_refused(
    spark: SparkSession, log: Log, catalog: str
) -> None:
    frame = counts(spark, catalog, streams="s")
    for mode in ("complete", "replace"):
        with pytest.raises(InvalidOptionError, match=f"outputMode='{mode}'.*'update'"):
            headrace.spark.write_stream(frame, "counts", catalog=catalog, outputMode=mode)


@pytest.mark.parametrize(
    ("before", "after", "deleted"),
    [
        ({"subscribePattern": "[st]"}, {"subscribePattern": "[st]"}, True),
        ({"subscribe": "s,t"}, {"subscribe": "s,t"}, True),
        ({"subscribe": "s,t"}, {"subscribe": "t"}, False),
        ({"subscribePattern": "[st]"}, {"subscribePattern": "t"}, False),
    ],
    ids=["pattern, deleted", "deleted", "taken out", "pattern, taken out"],
)
def test_a_query_goes_on_with_its_state_without_a_stream(
    spark: SparkSession,
    log: Log,
    catalog: str,
    tmp_path: Path,
    before: dict[str, str],
    after: dict[str, str],
    deleted: bool,
) -> None:
    checkpoint = tmp_path / "checkpoint"
    lenient = {"failOnDataLoss": "false"}
    log.append("s", [event(n, key="k") for n in range(3)])
    log.append("t", [event(n, key="k", stream="t") for n in range(2)])
    run(counts(spark, catalog, **before), catalog, checkpoint)
    assert written(log) == ["k=5"]
    if deleted:
        log.delete_stream("s")
    log.append("t", event(2, key="k", stream="t"))
    with pytest.raises((StreamingQueryException, UnknownStreamError), match="stream 's' is gone"):
        run(counts(spark, catalog, **after), catalog, checkpoint)
    run(counts(spark, catalog, **after, **lenient), catalog, checkpoint)
    assert written(log) == ["k=5", "k=6"]
    log.append("t", event(3, key="k", stream="t"))
    run(counts(spark, catalog, **after, **lenient), catalog, checkpoint)
    assert written(log) == ["k=5", "k=6", "k=7"], "started again, its loss behind it"


@pytest.mark.parametrize("which", [{"subscribePattern": "[st]"}, {"subscribe": "s,t"}])
def test_a_running_query_meets_the_end_of_a_stream_as_it_was_told_to(
    spark: SparkSession, log: Log, catalog: str, tmp_path: Path, which: dict[str, str]
) -> None:
    log.append("s", [event(n, key="k") for n in range(3)])
    begun_with = {"strict": "true", "lenient": "false"}
    queries = {}
    for name, fatal in begun_with.items():
        create(log, name)
        frame = counts(spark, catalog, name, **which, failOnDataLoss=fatal)
        to = headrace.spark.write_stream(
            frame,
            name,
            catalog=catalog,
            outputMode="update",
            checkpointLocation=str(tmp_path / name),
        )
        queries[name] = begun(lambda _, to=to: to.start())  # type: ignore[misc]
    try:
        for name in queries:
            wait_until(lambda name=name: written(log, name) == ["k=3"], "a batch", 120)  # type: ignore[misc]
        log.delete_stream("s")
        log.append("t", event(0, key="k", stream="t"))
        wait_until(lambda: written(log, "lenient") == ["k=3", "k=4"], "the state", 120)
        wait_until(lambda: not queries["strict"].isActive, "the strict one to end", 120)
        assert "stream 's' is gone" in str(queries["strict"].exception())
        assert queries["lenient"].isActive
    finally:
        for query in queries.values():
            query.stop()
    assert written(log, "strict") == ["k=3"]


def test_any_thread_may_read(spark: SparkSession, log: Log, catalog: str) -> None:
    log.append("s", [event(n) for n in range(3)])
    found: list[object] = []

    def count() -> None:
        try:
            plain = spark.read.format("headrace").option("catalog", catalog)
            found.append(plain.option("subscribe", "s").load().count())
            found.append(headrace.spark.read(spark, "s", catalog=catalog).count())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert found == [3, 3]
