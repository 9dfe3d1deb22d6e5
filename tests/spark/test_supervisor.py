"""The supervisor at work: real jobs on a real session, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest
from pyspark.sql import SparkSession

from headrace.catalog import Tx, leases
from headrace.errors import CatalogUnavailableError, PipelineLedError
from headrace.groups import decisions
from headrace.groups.decisions import Decision, What
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.runtime.work_queue import SegmentRead
from headrace.log.compact_policy import BUCKET, CompactionPolicy
from headrace.log.log import Log
from headrace.spark import partition_task, records
from headrace.spark.compact import CompactionJob
from headrace.spark.connection import Connection, connection_of
from headrace.spark.records import JobRecord, PipelineStatus, read_status
from headrace.spark.supervision import BackOff
from headrace.spark.supervisor import Settings, Supervisor
from tests.log.helpers import create, event, numbers
from tests.support import wait_until

EAGER = CompactionPolicy(min_batches=2, min_age_s=0)
PATIENCE_S = 240
"""The first job of a session takes long on a busy machine."""
QUICK = Settings(
    lease_ttl_ms=10_000,
    look_every_ms=200,
    record_every_ms=50,
    back_off=BackOff(first_ms=50, most_ms=400),
)
SHORT = msgspec.structs.replace(QUICK, lease_ttl_ms=1500)
COMPACTION = "compaction/s"
PARTITION = "partition/s.g"


class Lent:
    """The session of all tests, which a supervisor must not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.stopped = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        self.stopped += 1


class Pipeline:
    """A supervisor in a thread, and what the catalog says of it."""

    def __init__(
        self, connection: Connection, spark: SparkSession, settings: Settings = QUICK
    ) -> None:
        self.lent = Lent(spark)
        self.log = connection.log()
        self.supervisor = Supervisor(
            connection, lambda: cast(SparkSession, self.lent), settings=settings
        )
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.supervisor.run(self._stop)
        except BaseException as error:
            self.errors.append(error)

    def start(self) -> None:
        self._thread.start()

    def tell_to_stop(self) -> None:
        self._stop.set()
        self.supervisor.wake()

    def stop(self) -> None:
        self.tell_to_stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    @property
    def status(self) -> PipelineStatus:
        return read_status(self.log.catalog)

    def job(self, name: str) -> JobRecord | None:
        return next((job for job in self.status.jobs if job.name == name), None)

    def wait(self, name: str, condition: Callable[[JobRecord], bool]) -> JobRecord:
        def look() -> JobRecord | None:
            assert not self.errors
            job = self.job(name)
            return job if job is not None and condition(job) else None

        return cast(JobRecord, wait_until(look, f"{name} to be so", PATIENCE_S))


@pytest.fixture
def connection(catalog_url: str, log: Log) -> Iterator[Connection]:
    """A log with a stream ``s``, as jobs open it."""
    assert log.store is not None
    found = connection_of({"catalog": catalog_url, "store": log.store.url})
    create(log)
    yield found
    found.log().catalog.close()


@contextmanager
def running(
    connection: Connection, spark: SparkSession, settings: Settings = QUICK
) -> Iterator[Pipeline]:
    pipeline = Pipeline(connection, spark, settings)
    pipeline.start()
    try:
        yield pipeline
    finally:
        pipeline.stop()
        assert pipeline.errors == []
        assert pipeline.lent.stopped == 1


def add(log: Log, count: int = 10) -> None:
    first = sum(segment.head for segment in log.stream("s").segments)
    for at in range(first, first + count):
        log.append("s", [event(at)])


def batches_of(log: Log) -> int:
    rows = log.catalog.read(lambda tx: tx.rows("SELECT count(*) FROM batches"))
    return int(rows[0][0])


def test_jobs_come_and_go_with_what_the_catalog_asks_for(
    connection: Connection, log: Log, spark: SparkSession
) -> None:
    with running(connection, spark) as pipeline:
        add(log)  # first: a last batch that is left alone is not compacted
        log.set_compaction("s", EAGER)
        done = pipeline.wait(COMPACTION, lambda job: job.events >= 10)
        assert (done.state, done.kind, done.target, done.last_error) == (
            "running",
            "compaction",
            "s",
            None,
        )
        admin.create_elastic(
            log, "s", "g", max_members=2, filter="s.*", wildcards=[1], members=["m"]
        )
        moved = pipeline.wait(PARTITION, lambda job: job.events >= 10)
        assert (moved.state, moved.lag_events) == ("running", 0)
        status = pipeline.status
        assert status.led
        assert status.supervisor is not None
        assert status.supervisor.master == "local[2]"
        log.set_compaction("s", None)
        wait_until(lambda: pipeline.job(COMPACTION) is None, "the compaction to go")
        admin.delete(log, "s", "g")
        wait_until(lambda: not pipeline.status.jobs, "the partition job to go")
    assert numbers(log) == list(range(10))
    status = read_status(log.catalog)
    assert not status.led
    assert status.supervisor is not None
    assert status.supervisor.stopped


def test_a_changed_policy_takes_effect(
    connection: Connection, log: Log, spark: SparkSession
) -> None:
    log.set_compaction("s", CompactionPolicy(min_batches=500, min_age_s=0))
    add(log)
    with running(connection, spark) as pipeline:
        pipeline.wait(COMPACTION, lambda job: job.rounds >= 1)
        assert batches_of(log) == 10
        log.set_compaction("s", EAGER)
        pipeline.wait(COMPACTION, lambda job: job.starts == 2 and job.events == 10)
    assert batches_of(log) == 1


def test_a_failing_job_is_told_of_tried_again_and_mended(
    connection: Connection, log: Log, spark: SparkSession
) -> None:
    add(log)
    log.catalog.entries.put(BUCKET, "s", b'{"target_bytes": "large"}')
    with running(connection, spark) as pipeline:
        failed = pipeline.wait(COMPACTION, lambda job: job.failures >= 3)
        assert "target_bytes" in str(failed.last_error)
        log.set_compaction("s", EAGER)
        mended = pipeline.wait(COMPACTION, lambda job: job.events == 10 and job.failures == 0)
        assert mended.state == "running"
        assert mended.last_error == failed.last_error


def test_a_catalog_outage_is_waited_out(
    connection: Connection, log: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.set_compaction("s", EAGER)
    with running(connection, spark, SHORT) as pipeline:
        pipeline.wait(COMPACTION, lambda job: job.state == "running")
        token = log.catalog.leases.get(records.LEASE)
        assert token is not None

        def unreachable(*_: object, **__: object) -> None:
            raise CatalogUnavailableError("the catalog is away")

        with monkeypatch.context() as patch:
            patch.setattr(pipeline.log.catalog, "read", unreachable)
            patch.setattr(pipeline.log.catalog, "write", unreachable)
            wait_until(lambda: log.catalog.leases.get(records.LEASE) is None, "the lease to end")
            add(log)
        pipeline.wait(COMPACTION, lambda job: job.state == "running" and job.events == 10)
        after = log.catalog.leases.get(records.LEASE)
        assert after is not None
        assert after.token > token.token


def rob(tx: Tx) -> leases.Lease:
    """Take the lease from whoever holds it."""
    held = leases.get(tx, records.LEASE)
    assert held is not None
    leases.release(tx, records.LEASE, held.token)
    taken = leases.acquire(tx, records.LEASE, "another", 60_000)
    assert taken is not None
    return taken


def test_a_leader_that_lost_its_lease_stops_its_jobs(
    connection: Connection, log: Log, spark: SparkSession
) -> None:
    log.set_compaction("s", EAGER)
    with running(connection, spark, SHORT) as pipeline:
        pipeline.wait(COMPACTION, lambda job: job.state == "running")
        other = log.catalog.write(rob, locks=(leases.lock(records.LEASE),))
        wait_until(
            lambda: not any(one.name == COMPACTION for one in threading.enumerate()),
            "the job's thread to end",
        )
        add(log)
        assert batches_of(log) == 10
        log.catalog.leases.release(other)
        pipeline.wait(COMPACTION, lambda job: job.events == 10)


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_the_lease_is_kept_until_the_last_job_has_ended(
    connection: Connection, log: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round may take longer than a lease lasts, and must not meet that of another leader."""
    ending, released = threading.Event(), threading.Event()

    def run(_: CompactionJob, stop: threading.Event) -> None:
        stop.wait(PATIENCE_S)
        ending.set()
        released.wait(PATIENCE_S)

    def expires_us() -> int:
        held = log.catalog.leases.get(records.LEASE)
        assert held is not None
        return held.expires_us

    monkeypatch.setattr(CompactionJob, "run", run)
    log.set_compaction("s", EAGER)
    settings = msgspec.structs.replace(QUICK, lease_ttl_ms=5000)
    pipeline = Pipeline(connection, spark, settings)
    pipeline.start()
    try:
        pipeline.wait(COMPACTION, lambda job: job.state == "running")
        pipeline.tell_to_stop()
        assert ending.wait(PATIENCE_S)
        for _ in range(2):
            before = expires_us()
            wait_until(lambda: expires_us() > before, "the lease to be prolonged")  # noqa: B023
    finally:
        released.set()
        pipeline.stop()
    assert pipeline.errors == []
    assert not pipeline.status.led
    assert pipeline.status.supervisor is not None
    assert pipeline.status.supervisor.stopped


def test_once_does_what_is_due_and_ends(
    connection: Connection, log: Log, spark: SparkSession
) -> None:
    add(log)
    log.set_compaction("s", EAGER)
    admin.create_elastic(log, "s", "g", max_members=2, filter="s.*", wildcards=[1], members=["m"])
    pipeline = Pipeline(connection, spark)
    done = pipeline.supervisor.run_once(threading.Event())
    assert [(job.name, job.events, job.state, job.last_error) for job in done] == [
        (COMPACTION, 10, "stopped", None),
        (PARTITION, 10, "stopped", None),
    ]
    assert batches_of(log) == 2, "the file, and what the queue was given"
    assert not pipeline.status.led


def test_once_reads_a_stream_once_for_all_its_groups_and_shows_no_rate(
    connection: Connection, log: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(log)
    for name in ("g", "h"):
        admin.create_elastic(log, "s", name, max_members=2, filter="s.*", wildcards=[1])
    read: list[int] = []
    real = partition_task._events

    def counted(work: Any, share: SegmentRead, log: Log) -> Any:
        read.append(share.end - share.start)
        return real(work, share, log)

    monkeypatch.setattr(partition_task, "_events", counted)
    done = Pipeline(connection, spark).supervisor.run_once(threading.Event())
    assert [(job.name, job.events, job.rate_per_s) for job in done] == [
        (PARTITION, 10, 0.0),
        ("partition/s.h", 10, 0.0),
    ]
    assert sum(read) == 10


def test_a_pipeline_records_whom_the_catalog_has_lost(
    connection: Connection, log: Log, spark: SparkSession
) -> None:
    with running(connection, spark):
        log.catalog.write(lambda tx: leases.seize(tx, "leader audit:s.>", "somebody", 1))

        def told() -> list[Decision]:
            past = log.catalog.read(lambda tx: decisions.read(tx, "$share/audit/s.>"))
            return [each for each in past if each.what is What.LOST]

        [lost] = wait_until(told, "its end to be recorded", 20)
    assert lost.source == "somebody"


def test_once_leaves_the_work_to_a_supervisor_that_leads(
    connection: Connection, log: Log, spark: SparkSession
) -> None:
    assert log.catalog.leases.acquire(records.LEASE, "another", 60_000) is not None
    with pytest.raises(PipelineLedError):
        Pipeline(connection, spark).supervisor.run_once(threading.Event())
