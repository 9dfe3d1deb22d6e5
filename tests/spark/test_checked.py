"""Streaming reads and writes that are refused before there is a query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from headrace.catalog.streams import StreamConfig
from headrace.errors import (
    ExecutorPackageError,
    HeadraceError,
    InvalidOptionError,
    InvalidPositionError,
    InvalidSchemaError,
    InvalidSinkError,
    NotSharedError,
    UnknownStreamError,
)
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark import checked
from tests.log.helpers import create, numbers, table
from tests.spark.queries import run_through


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(tmp_path / "catalog")
    create(opened, segments=2)
    opened.create_stream("clean", StreamConfig(subjects=("clean.>",)))
    yield opened
    opened.catalog.close()


@pytest.fixture
def catalog(log: Log, tmp_path: Path) -> str:
    return str(tmp_path / "catalog")


def rates(spark: SparkSession, *columns: str) -> DataFrame:
    """A streaming frame that has nothing to do with a log."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    return source.selectExpr(*columns)


GOOD = ("cast(value AS string) AS value", "'clean.x' AS subject")


@pytest.mark.parametrize(
    ("columns", "options", "kind", "said"),
    [
        (GOOD, {"stream": "gone"}, UnknownStreamError, "there is no stream 'gone'"),
        (GOOD, {"colour": "red"}, InvalidOptionError, "unknown option 'colour'"),
        (GOOD, {"subject": "other.x"}, HeadraceError, "captures clean.>, not 'other.x'"),
        (GOOD, {"keyColumn": "colour"}, InvalidSinkError, "there is no such column"),
        (GOOD, {"producer": "p", "sequence": 1}, InvalidOptionError, "for batch writes"),
        ((*GOOD, "1 AS colour"), {}, InvalidSinkError, "unknown column colour"),
        (("value", "'clean.x' AS subject"), {}, InvalidSinkError, "value is bigint"),
        (GOOD[:1], {}, InvalidSinkError, "events need a subject"),
    ],
)
def test_a_write_that_does_not_fit_never_becomes_a_query(
    spark: SparkSession,
    catalog: str,
    tmp_path: Path,
    columns: tuple[str, ...],
    options: dict[str, checked.Value],
    kind: type[Exception],
    said: str,
) -> None:
    given = {"stream": "clean", "checkpointLocation": tmp_path / "checkpoint"} | options
    with pytest.raises(kind, match=said):
        headrace.spark.write_stream(rates(spark, *columns), catalog=catalog, **given)  # type: ignore[arg-type]
    assert spark.streams.active == []
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"streams": "gone"}, UnknownStreamError, "there is no stream 'gone'"),
        ({"colour": "red"}, InvalidOptionError, "unknown option 'colour'"),
        ({"endingOffsets": "latest"}, InvalidOptionError, "for batch reads"),
        ({"schema": "colour string"}, InvalidSchemaError, "there is no column 'colour'"),
        ({"schema": "value string"}, InvalidSchemaError, "is binary, not string"),
        (
            {"startingOffsets": '{"s": {"0": 9, "1": -2}}'},
            InvalidPositionError,
            "outside segment 0",
        ),
        ({"maxOffsetsPerTrigger": -1}, InvalidOptionError, "whole number above 0"),
    ],
)
def test_a_read_that_does_not_fit_never_becomes_a_frame(
    spark: SparkSession,
    catalog: str,
    options: dict[str, checked.Value],
    kind: type[Exception],
    said: str,
) -> None:
    given = {"streams": "s"} | options
    with pytest.raises(kind, match=said):
        headrace.spark.read_stream(spark, catalog=catalog, **given)  # type: ignore[arg-type]


def test_a_cluster_that_cannot_reach_the_log_is_refused(
    spark: SparkSession, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "master_of", lambda _: "spark://elsewhere:7077")
    with pytest.raises(NotSharedError, match="postgresql://"):
        headrace.spark.read_stream(spark, "s", catalog=catalog)
    with pytest.raises(NotSharedError, match="postgresql://"):
        headrace.spark.write_stream(rates(spark, *GOOD), "clean", catalog=catalog)


def test_what_fits_is_read_and_written_as_ever(
    spark: SparkSession, log: Log, catalog: str, tmp_path: Path
) -> None:
    log.append("s", table(50))
    frame = headrace.spark.read_stream(
        spark,
        "s",
        catalog=catalog,
        schema="subject string, value binary",
        startingOffsets="earliest",
        failOnDataLoss=True,
    )
    assert frame.columns == ["subject", "value"]
    to = headrace.spark.write_stream(
        frame,
        "clean",
        catalog=catalog,
        subjectPrefix="clean.",
        checkpointLocation=tmp_path / "checkpoint",
    )
    run_through(to.queryName("checked").trigger(availableNow=True).start)
    assert sorted(numbers(log, "clean")) == sorted(numbers(log, "s"))


@pytest.mark.parametrize(
    ("columns", "stream", "said"),
    [
        (GOOD, "gone", "there is no stream 'gone'"),
        (("value", "'clean.x' AS subject"), "clean", "column value is bigint"),
    ],
)
def test_a_plain_write_that_does_not_fit_ends_before_its_first_batch(
    spark: SparkSession,
    log: Log,
    catalog: str,
    tmp_path: Path,
    columns: tuple[str, ...],
    stream: str,
    said: str,
) -> None:
    """Spark shows a write to its sink no earlier than this."""
    plain = rates(spark, *columns).writeStream.format("headrace")
    plain = plain.options(catalog=catalog, stream=stream)
    query = plain.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match=said):
        query.awaitTermination(180)
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert numbers(log, "clean") == []


# --- executors without the package ---------------------------------------------------------------


def test_workers_without_the_package_are_refused_before_a_query_starts(
    spark: SparkSession, catalog: str, bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = rates(spark, *GOOD)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)
    said = r"No module named 'headrace'.*install 'headrace\[spark\]' there"
    with pytest.raises(ExecutorPackageError, match=said):
        headrace.spark.write_stream(frame, "clean", catalog=catalog)
    with pytest.raises(ExecutorPackageError, match=said):
        headrace.spark.read_stream(spark, "s", catalog=catalog)
    with pytest.raises(ExecutorPackageError, match=said):
        headrace.spark.session("again", "local[2]")
    assert spark.range(3).count() == 3, "the session that was there is not stopped"
