"""A stream is no table: each way of Spark to make one is refused before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

import headrace.spark
from headrace.errors import InvalidOptionError
from headrace.log.log import Log
from headrace.log.open import open_log
from tests.log.helpers import create, event
from tests.log.helpers import read as read_all

ROW = "'s.x' AS subject, 'a' AS value"
COLUMNS = "(subject string, value string)"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(tmp_path / "catalog")
    create(opened, "s")
    yield opened
    opened.catalog.close()


@pytest.fixture
def using(log: Log, tmp_path: Path) -> str:
    del log
    return f"USING headrace OPTIONS (catalog '{tmp_path / 'catalog'}', subscribe 's')"


@pytest.fixture
def to(log: Log, tmp_path: Path) -> dict[str, str]:
    del log
    return {"catalog": str(tmp_path / "catalog"), "stream": "s"}


def made(spark: SparkSession) -> list[str]:
    """Tables, and folders of tables."""
    warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    folders = [path.name for path in warehouse.iterdir()] if warehouse.exists() else []
    return sorted([each.name for each in spark.catalog.listTables()] + folders)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE nothing {using}",
        f"create table nothing {COLUMNS} {{using}}",
        f"CREATE TABLE IF NOT EXISTS default.nothing {COLUMNS} USING `Headrace`",
        f"CREATE TABLE nothing {{using}} AS SELECT {ROW}",
        f"CREATE OR REPLACE TABLE nothing {{using}} AS SELECT {ROW}",
        f"/* a table */ REPLACE TABLE nothing {COLUMNS} {{using}}",
        "CREATE TABLE nothing LIKE another USING headrace",
    ],
)
def test_a_statement_that_makes_a_table_of_a_stream_is_refused(
    spark: SparkSession, log: Log, using: str, statement: str
) -> None:
    with pytest.raises(InvalidOptionError, match="CREATE TEMPORARY VIEW"):
        spark.sql(statement.format(using=using))
    assert made(spark) == []
    assert read_all(log) == []


WAYS: dict[str, Callable[[DataFrame, dict[str, str]], Any]] = {
    "saved": lambda frame, to: (
        frame.write.format("headrace").mode("append").options(**to).saveAsTable("nothing")
    ),
    "saved, named there": lambda frame, to: frame.write.saveAsTable("nothing", "HEADRACE", **to),
    "version 2": lambda frame, to: (
        frame.writeTo("nothing").using("headrace").options(**to).create()
    ),
    "catalog": lambda frame, to: frame.sparkSession.catalog.createTable(
        "nothing", source="headrace", schema=frame.schema, **to
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_call_that_makes_a_table_of_a_stream_is_refused(
    spark: SparkSession, log: Log, to: dict[str, str], way: Callable[..., Any]
) -> None:
    with pytest.raises(InvalidOptionError, match="CREATE TEMPORARY VIEW"):
        way(spark.sql(f"SELECT {ROW}"), to)
    assert made(spark) == []
    assert read_all(log) == []


def test_a_query_into_a_table_of_a_stream_is_refused(
    spark: SparkSession, log: Log, to: dict[str, str], tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("'s.x' AS subject", "'a' AS value")
    writer = rows.writeStream.format("headrace").options(**to)
    with pytest.raises(InvalidOptionError, match="CREATE TEMPORARY VIEW"):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("nothing")
    assert made(spark) == []
    assert read_all(log) == []
    assert not (tmp_path / "checkpoint").exists()


def test_a_view_names_a_read_and_other_tables_are_made_as_before(
    spark: SparkSession, log: Log, using: str
) -> None:
    log.append("s", [event(n) for n in range(3)])
    spark.sql(f"CREATE TEMPORARY VIEW viewed {using}")
    assert spark.sql("SELECT count(*) FROM viewed").collect()[0][0] == 3
    text = "'CREATE TABLE nothing USING headrace'"
    assert spark.sql(f"SELECT {text}").collect()[0][0] == text.strip("'")
    spark.sql(f"CREATE TABLE one (told string) USING parquet COMMENT {text}")
    spark.table("one").write.format("parquet").saveAsTable("other")
    assert spark.table("other").columns == ["told"]
    for name in ("one", "other"):
        spark.sql(f"DROP TABLE {name}")
    spark.catalog.dropTempView("viewed")
    with pytest.raises(ParseException):
        spark.sql("CREATE TABLE USING headrace")


def test_spark_itself_does_not_tell_the_source_of_a_table(
    spark: SparkSession, log: Log, using: str, to: dict[str, str]
) -> None:
    """When it does, its methods need not be wrapped any more; what it tells is refused."""
    sql = SparkSession.sql.__wrapped__  # type: ignore[attr-defined]
    for rest in ("", f" AS SELECT {ROW}"):
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            sql(spark, f"CREATE TABLE nothing {using}{rest}")
    assert made(spark) == []
    sql(spark, f"CREATE TABLE listed {COLUMNS} {using}")
    writer = spark.sql(f"SELECT {ROW}").write.format("headrace").mode("append").options(**to)
    DataFrameWriter.saveAsTable.__wrapped__(writer, "saved")  # type: ignore[attr-defined]
    assert made(spark) == ["listed", "listed", "saved", "saved"]
    assert len(read_all(log)) == 1
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.table("listed").collect()
    for name in ("listed", "saved"):
        spark.sql(f"DROP TABLE {name}")


def test_a_session_that_is_asked_for_again_wraps_nothing_twice(spark: SparkSession) -> None:
    before = SparkSession.sql
    headrace.spark.session("tests", str(spark.sparkContext.master))
    assert SparkSession.sql is before
