"""The compaction job: rewrites in tasks of Spark, commits on the driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.catalog import Tx
from headrace.errors import DamagedBatchError, NotSharedError, SparkSetupError
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.log import Log
from headrace.spark.compact import CompactionJob
from headrace.spark.connection import Connection, check_shared, connection_of
from tests.log.helpers import create, event, files, numbers, read
from tests.support import wait_until

EAGER = CompactionPolicy(min_batches=2, min_age_s=0)


@pytest.fixture
def connection(catalog_url: str, log: Log) -> Iterator[Connection]:
    assert log.store is not None
    found = connection_of({"catalog": catalog_url, "store": log.store.url})
    yield found
    found.log().catalog.close()


def fill(log: Log, segments: int = 4, count: int = 40) -> None:
    create(log, segments=segments)
    for first in range(0, count * 25, 25):
        log.append("s", [event(n, key=f"k{n % 17}") for n in range(first, first + 25)])


def work_off(job: CompactionJob) -> None:
    while job.step():
        pass


def test_runs_of_all_segments_are_rewritten_by_tasks(
    log: Log, connection: Connection, spark: SparkSession
) -> None:
    fill(log)
    before = sorted(read(log), key=lambda row: (row["segment"], row["offset"]))
    job = CompactionJob(connection, "s", EAGER)
    job.start(spark)
    assert job.step() is True
    assert job.done.files == 2, "as many at a time as there are cores"
    status = job.status()
    assert status.lag_events is not None
    assert (status.rounds, status.events + status.lag_events) == (1, 1000)
    work_off(job)
    assert (job.done.files, job.done.events, job.status().lag_events) == (4, 1000, 0)
    after = sorted(read(log), key=lambda row: (row["segment"], row["offset"]))
    assert after == before
    assert len(files(log)) == 4


def test_compacted_files_are_plain_parquet_for_spark(
    log: Log, connection: Connection, spark: SparkSession
) -> None:
    fill(log, segments=1)
    job = CompactionJob(connection, "s", EAGER)
    job.start(spark)
    work_off(job)
    assert log.store is not None
    (path,) = files(log)
    frame = spark.read.parquet(str(Path(log.store.url) / path))
    found = [int(row.value) for row in frame.select("value").collect()]
    assert found == numbers(log)


def test_a_damaged_batch_is_left_and_the_rest_compacted(
    log: Log, connection: Connection, spark: SparkSession
) -> None:
    fill(log, segments=1, count=12)

    def damage(tx: Tx) -> None:
        tx.execute("UPDATE batches SET checksum = checksum + 1 WHERE start_offset = 100")

    log.catalog.write(damage)
    job = CompactionJob(connection, "s", EAGER)
    job.start(spark)
    work_off(job)
    assert (job.done.files, job.done.batches, len(job.done.damaged)) == (2, 11, 1)
    assert job.status().note == "1 damaged batches"
    with pytest.raises(DamagedBatchError, match="100 to 124"):
        numbers(log)


def test_runs_that_were_trimmed_or_compacted_meanwhile_are_let_go(
    log: Log, connection: Connection, spark: SparkSession
) -> None:
    fill(log, segments=1, count=12)
    log.append("s", [event(n) for n in range(300, 400)])
    job = CompactionJob(connection, "s", EAGER)
    job.start(spark)
    real = job._rewrite

    def meddle(*args: object) -> object:
        outcomes = real(*args)  # type: ignore[arg-type]
        log.compact("s", EAGER)
        return outcomes

    job._rewrite = meddle  # type: ignore[assignment, method-assign]
    work_off(job)
    assert (job.done.files, job.done.lost) == (0, 1)
    assert len(files(log)) == 1, "the one that counts"
    assert numbers(log) == list(range(400))


def test_a_job_stops_when_told_while_it_waits(
    log: Log, connection: Connection, spark: SparkSession
) -> None:
    fill(log, segments=1)
    job = CompactionJob(connection, "s", EAGER, look_every_s=3600)
    job.start(spark)
    stop = threading.Event()
    thread = threading.Thread(target=job.run, args=(stop,))
    thread.start()
    wait_until(lambda: job.status().rounds >= 2, "a round without work")
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_job_that_was_not_started_says_so(connection: Connection, log: Log) -> None:
    with pytest.raises(SparkSetupError, match="not started"):
        CompactionJob(connection, "s", EAGER).step()


def test_a_cluster_with_a_local_store_is_refused(log: Log) -> None:
    with pytest.raises(NotSharedError):
        check_shared(log, "spark://somewhere:7077")
