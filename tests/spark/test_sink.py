"""Writing streams from Spark, on one machine: what arrives, what is refused, and exactly once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.catalog.streams import StreamConfig
from headrace.errors import (
    HeadraceError,
    InvalidOptionError,
    InvalidSinkError,
    NotSharedError,
    ReplayMismatchError,
    UnknownStreamError,
)
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.log.query import Query
from headrace.spark import connection, staging
from headrace.spark.sink import BatchWriter, Staged, StreamWriter, batch_writer, stream_writer
from tests.spark.queries import run_through

PLAIN = "value string, subject string"


@pytest.fixture
def url(catalog_url: str, tmp_path: Path) -> str:
    """A catalog with a store and the streams raw, clean and dead."""
    log = open_log(catalog_url, tmp_path / "files")
    for name in ("raw", "clean", "dead"):
        log.create_stream(name, StreamConfig(subjects=(f"{name}.>",)), segments=2)
    log.catalog.close()
    return catalog_url


@pytest.fixture
def opened(url: str) -> Iterator[Log]:
    log = open_log(url)
    yield log
    log.catalog.close()


@pytest.fixture
def ddl(spark: SparkSession) -> Callable[[str], StructType]:
    """Spark alone can read a schema from text."""

    def parse(text: str) -> StructType:
        return spark.createDataFrame([], text).schema

    return parse


def write(frame: DataFrame, url: str, **options: str) -> None:
    given = {"catalog": url, "stream": "clean"} | options
    frame.write.format("headrace").mode("append").options(**given).save()


def rows(log: Log, stream: str = "clean") -> list[dict[str, Any]]:
    return [row for batch in log.read(stream, Query()) for row in batch.to_pylist()]


def numbers(log: Log, stream: str = "clean") -> list[int]:
    return [int(row["value"]) for row in rows(log, stream)]


# --- batch writes ------------------------------------------------------------------------------


def test_every_part_of_an_event_arrives(spark: SparkSession, url: str, opened: Log) -> None:
    frame = spark.sql(
        "SELECT 'clean.a' AS subject, binary('v') AS value, 'k' AS key, "
        "timestamp'2024-05-01 12:00:00' AS timestamp, "
        "array(named_struct('key', 'h', 'value', binary('1'))) AS headers, "
        "array(1L, 2L) AS epoch"
    )
    write(frame, url)
    (found,) = rows(opened)
    assert found["offset"] == 0
    found = {name: found[name] for name in ("subject", "value", "key", "timestamp", "headers")}
    assert found == {
        "subject": "clean.a",
        "value": b"v",
        "key": "k",
        "timestamp": datetime(2024, 5, 1, 12, tzinfo=UTC),
        "headers": [{"key": "h", "value": b"1"}],
    }


def test_rows_of_a_key_keep_the_order_of_their_partition(
    spark: SparkSession, url: str, opened: Log
) -> None:
    frame = spark.range(0, 40_000, 1, 2).selectExpr(
        "'clean.x' AS subject", "cast(id % 97 AS string) AS key", "cast(id AS string) AS value"
    )
    write(frame, url)
    found = rows(opened)
    assert sorted(int(row["value"]) for row in found) == list(range(40_000))
    last: dict[tuple[str, bool], int] = {}
    for row in found:
        number = int(row["value"])
        of = row["key"], number < 20_000
        assert last.get(of, -1) < number
        last[of] = number


def test_a_write_with_a_producer_and_a_sequence_counts_once(
    spark: SparkSession, url: str, opened: Log
) -> None:
    """De-duplication is the log's: no query keeps a state for it (it costs Spark every key)."""
    frame = spark.range(10).selectExpr("'clean.x' AS subject", "cast(id AS string) AS value")
    for _ in range(2):
        write(frame, url, producer="nightly", sequence="7")
    assert sorted(numbers(opened)) == list(range(10))
    with pytest.raises(PySparkException, match="comes again"):
        write(frame.limit(3), url, producer="nightly", sequence="7")
    write(frame.limit(3), url, producer="nightly", sequence="7", replay="skip")
    assert len(numbers(opened)) == 10


def test_a_bad_row_fails_the_write_and_is_named(spark: SparkSession, url: str, opened: Log) -> None:
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "'clean.x' AS subject", "if(id = 13, NULL, cast(id AS string)) AS value"
    )
    with pytest.raises(PySparkException, match=r"partition 1, row 3: value is null"):
        write(frame, url)
    assert rows(opened) == []


def test_bad_rows_go_to_the_dead_letters_in_the_same_commit(
    spark: SparkSession, url: str, opened: Log
) -> None:
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "if(id = 4, 'clean..x', if(id = 5, 'other.x', 'clean.x')) AS subject",
        "if(id = 13, NULL, cast(id AS string)) AS value",
    )
    write(frame, url, deadLetterStream="dead")
    assert sorted(numbers(opened)) == sorted(set(range(20)) - {4, 5, 13})
    dead = {
        headers["headrace-place"]: headers
        for row in rows(opened, "dead")
        for headers in [{each["key"]: each["value"] for each in row["headers"]}]
    }
    assert set(dead) == {b"0:4", b"0:5", b"1:3"}
    assert dead[b"0:4"]["headrace-subject"] == b"clean..x"
    assert dead[b"0:5"]["headrace-reason"] == b"stream 'clean' captures clean.>, not 'other.x'"
    assert dead[b"1:3"]["headrace-reason"] == b"value is null"


# --- what is refused before a row is seen --------------------------------------------------------


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"stream": ""}, InvalidOptionError, "option stream is missing"),
        ({"stream": "gone"}, UnknownStreamError, "there is no stream 'gone'"),
        ({"topic": "x"}, InvalidOptionError, "give 'stream' for a write"),
        ({"includeHeaders": "true"}, InvalidOptionError, "'headers' is always written"),
        ({"subject": "clean.x", "subjectColumn": "subject"}, InvalidOptionError, "not both"),
        ({"subject": "other.x"}, HeadraceError, "captures clean.>, not 'other.x'"),
        ({"deadLetterStream": "gone"}, UnknownStreamError, "'gone'"),
        ({"deadLetterStream": "clean"}, InvalidOptionError, "another stream"),
        ({"replay": "always"}, InvalidOptionError, "use check or skip"),
        ({"producer": "p"}, InvalidOptionError, "both producer and sequence"),
        ({"producer": "p", "sequence": "-1"}, InvalidOptionError, "not a number"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    url: str,
    ddl: Callable[[str], StructType],
    options: dict[str, str],
    kind: type[Exception],
    said: str,
) -> None:
    given = {"catalog": url, "stream": "clean"} | options
    with pytest.raises(kind, match=said):
        batch_writer(given, ddl(PLAIN), False)


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_what_only_one_kind_of_write_takes_is_refused_by_the_other(
    url: str, ddl: Callable[[str], StructType], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"catalog": url, "stream": "clean"}
    with pytest.raises(InvalidSinkError, match="never overwritten"):
        stream_writer(given, ddl(PLAIN), True)
    with pytest.raises(InvalidOptionError, match="for batch writes"):
        stream_writer(given | {"producer": "p", "sequence": "1"}, ddl(PLAIN), False)
    monkeypatch.setenv("HEADRACE_SPARK_MASTER", "spark://elsewhere:7077")
    with pytest.raises(NotSharedError, match="postgresql://"):
        batch_writer(given, ddl(PLAIN), False)


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_spark_reports_what_is_refused_before_any_task_runs(spark: SparkSession, url: str) -> None:
    touched = spark.sparkContext.accumulator(0)

    def touch(batches: Any) -> Any:
        touched.add(1)
        yield from batches

    frame = spark.range(3).selectExpr("cast(id AS string) AS value", "id AS number")
    frame = frame.mapInArrow(touch, frame.schema)
    with pytest.raises(PySparkException, match="unknown column number"):
        write(frame, url, subject="clean.x")
    assert touched.value == 0


# --- stage, commit, abort ------------------------------------------------------------------------


def batches(first: int = 0, count: int = 5000) -> list[pa.RecordBatch]:
    values = [f"{number:0100d}" for number in range(first, first + count)]
    return [pa.record_batch({"value": values, "subject": [f"clean.{v[-2:]}" for v in values]})]


@pytest.fixture
def writer(
    url: str, ddl: Callable[[str], StructType], monkeypatch: pytest.MonkeyPatch
) -> BatchWriter:
    # Everything goes to files.
    monkeypatch.setattr(staging, "ROWS_BYTES", 0)
    return batch_writer({"catalog": url, "stream": "clean"}, ddl(PLAIN), False)


def files(log: Log) -> set[str]:
    assert log.store is not None
    return {file.path for file in log.store.list(f"{log.prefix}/")}


def stage(writer: BatchWriter | StreamWriter, first: int = 0) -> Staged:
    found = writer.write(iter(batches(first)))
    assert isinstance(found, Staged)
    return found


def test_abort_after_a_commit_removes_nothing(writer: BatchWriter, opened: Log) -> None:
    """Spark calls it whenever commit raised, also when the commit was made all the same."""
    message = stage(writer)
    writer.commit([message])
    kept = files(opened)
    assert kept
    writer.abort([message, None])
    assert files(opened) == kept
    assert len(numbers(opened)) == 5000


def test_abort_removes_the_files_of_a_batch_that_was_not_committed(
    writer: BatchWriter, opened: Log
) -> None:
    committed, aborted = stage(writer), stage(writer, 5000)
    writer.commit([committed])
    writer.abort([None, aborted])
    assert files(opened) == {file.batch.path for file in committed.parts[0].files}
    assert sorted(numbers(opened)) == list(range(5000))


def test_a_zombie_task_leaves_only_files_that_the_sweep_takes(
    writer: BatchWriter, opened: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts of one task: Spark hands the message of one to the commit."""
    zombie, winner = stage(writer), stage(writer)
    writer.commit([winner])
    late = stage(writer)
    assert sorted(numbers(opened)) == list(range(5000))
    orphans = {f.batch.path for staged in (zombie, late) for f in staged.parts[0].files}
    assert orphans < files(opened)
    monkeypatch.setattr("headrace.log.limits.APPEND_DEADLINE_S", -2.0)
    assert opened.sweep(older_than_s=-1.0).orphans == len(orphans)
    assert sorted(numbers(opened)) == list(range(5000))


def test_a_task_that_fails_removes_its_files(writer: BatchWriter, opened: Log) -> None:
    def failing() -> Any:
        yield from batches()
        raise RuntimeError("the query has a fault")

    with pytest.raises(RuntimeError):
        writer.write(failing())
    assert files(opened) == set()


# --- queries -------------------------------------------------------------------------------------


def run(spark: SparkSession, url: str, checkpoint: Path, rows_max: int = 40, **more: str) -> None:
    """Copy raw to clean, as far as there is anything."""
    given = {"catalog": url, "subscribe": "raw", "startingOffsets": "earliest"}
    frame = spark.readStream.format("headrace").options(**given)
    source = frame.option("maxOffsetsPerTrigger", rows_max).load()
    to = {"catalog": url, "stream": "clean", "subjectPrefix": "clean."} | more
    sink = source.select("subject", "key", "value").writeStream.format("headrace").options(**to)
    to_start = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    run_through(to_start.start)


def publish(log: Log, first: int, count: int) -> None:
    wanted = range(first, first + count)
    log.append(
        "raw",
        pa.table(
            {
                "subject": [f"raw.{number % 5}" for number in wanted],
                "key": [f"{number % 5}" for number in wanted],
                "value": [str(number).encode() for number in wanted],
            }
        ),
    )


def test_a_query_that_lost_its_commits_writes_nothing_twice(
    spark: SparkSession, url: str, opened: Log, tmp_path: Path
) -> None:
    """The last batch was committed here and not in the checkpoint, as when the driver dies."""
    checkpoint = tmp_path / "checkpoint"
    publish(opened, 0, 100)
    run(spark, url, checkpoint)
    commits = sorted(path.name for path in (checkpoint / "commits").glob("[0-9]*"))
    assert len(commits) > 1
    for path in (checkpoint / "commits").glob(f"*{commits[-1]}*"):
        path.unlink()
    publish(opened, 100, 30)
    run(spark, url, checkpoint)
    found = rows(opened)
    assert sorted(int(row["value"]) for row in found) == list(range(130))
    for key in "01234":
        of_key = [int(row["value"]) for row in found if row["key"] == key]
        assert of_key == sorted(of_key)


def test_a_checkpoint_put_back_repeats_batches_without_effect_or_is_refused(
    spark: SparkSession, url: str, opened: Log, tmp_path: Path
) -> None:
    checkpoint, copy = tmp_path / "checkpoint", tmp_path / "copy"
    publish(opened, 0, 40)
    run(spark, url, checkpoint, rows_max=1000)
    shutil.copytree(checkpoint, copy)
    publish(opened, 40, 30)
    run(spark, url, checkpoint, rows_max=1000)
    assert sorted(numbers(opened)) == list(range(70))
    # The same batch again: known.
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    run(spark, url, checkpoint, rows_max=1000)
    assert sorted(numbers(opened)) == list(range(70))
    # A batch of that number with other rows: to pass over it would lose the rest.
    publish(opened, 70, 5)
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    with pytest.raises(StreamingQueryException, match=ReplayMismatchError.__name__):
        run(spark, url, checkpoint, rows_max=1000)
    assert sorted(numbers(opened)) == list(range(70))


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_modes_that_no_python_sink_can_serve_are_refused(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """Asynchronous progress and real-time triggers would commit batches before they are written."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    frame = source.selectExpr("cast(value AS string) AS value")
    given = {"catalog": url, "stream": "clean", "subject": "clean.x"}

    def start(mode: str, **more: str) -> None:
        to = frame.writeStream.format("headrace").outputMode("update").options(**given, **more)
        to = to.option("checkpointLocation", str(tmp_path / mode))
        if mode == "realtime":
            # The stubs do not know this trigger yet.
            to = to.trigger(realTime="5 minutes")  # type: ignore[call-overload]
        to.start().awaitTermination()

    with pytest.raises(PySparkException, match=r"(?i)async"):
        start("async", asyncProgressTrackingEnabled="true")
    with pytest.raises(PySparkException, match=r"(?i)real.?time"):
        start("realtime")


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_a_query_stops_with_the_bad_row_in_its_error(
    spark: SparkSession, url: str, opened: Log, tmp_path: Path
) -> None:
    publish(opened, 0, 3)
    with pytest.raises(StreamingQueryException, match=r"partition \d, row 0: token 1 is empty"):
        run(spark, url, tmp_path / "checkpoint", subjectPrefix=".")
    assert rows(opened) == []


def test_the_process_keeps_its_log_open(url: str, ddl: Callable[[str], StructType]) -> None:
    """A worker is used for many batches, and opening a log takes longer than a small one."""
    batch_writer({"catalog": url, "stream": "clean"}, ddl(PLAIN), False)
    count = len(connection._opened)
    batch_writer({"catalog": url, "stream": "clean"}, ddl(PLAIN), False)
    assert len(connection._opened) == count


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_a_catalog_that_was_made_anew_at_its_place_gets_what_is_written(
    url: str, ddl: Callable[[str], StructType]
) -> None:
    """As in a notebook, whose workers have the old one open."""
    given = {"catalog": url, "stream": "clean"}
    batch_writer(given, ddl(PLAIN), False)
    shutil.rmtree(url)
    fresh = open_log(url)
    fresh.create_stream("clean", StreamConfig(subjects=("clean.>",)))
    writer = batch_writer(given, ddl(PLAIN), False)
    writer.commit([writer.write(iter(batches(count=10)))])
    assert len(rows(fresh)) == 10
    fresh.catalog.close()
