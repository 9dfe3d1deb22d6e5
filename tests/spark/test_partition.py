"""The partition job: every event once in its partition, in order per key, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.catalog import Tx, streams
from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogUnavailableError, NotSharedError
from headrace.groups.partitioned.admin import create_elastic, delete
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join, load_all
from headrace.log.events import ORIGIN, Event
from headrace.log.given import to_batch
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark import partition, partition_task
from headrace.spark.partition import PartitionJob
from headrace.subjects import partition as partition_of
from tests.support import process, wait_until

NAME = GroupName("orders", "billing")
PARTITIONS = 5
KEYS = 23


@pytest.fixture
def log(catalog_url: str, tmp_path: Path) -> Iterator[Log]:
    log = open_log(catalog_url, tmp_path / "files")
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)), segments=2)
    yield log
    log.catalog.close()


def make_group(log: Log, **more: Any) -> None:
    create_elastic(
        log,
        NAME.stream,
        NAME.group,
        max_members=PARTITIONS,
        filter="orders.*.*",
        wildcards=[2],
        **more,
    )


def publish(log: Log, first: int, count: int, value_bytes: int = 0) -> None:
    """Events numbered in their values; every seventh does not pass the filter of the group."""
    numbers = range(first, first + count)
    subjects = [f"orders.eu.{n % KEYS}" + (".x" if n % 7 == 0 else "") for n in numbers]
    values = [str(n).encode().ljust(value_bytes) for n in numbers]
    log.append("orders", pa.table({"subject": subjects, "value": values}))


def wanted(count: int) -> list[int]:
    return [n for n in range(count) if n % 7]


def queued(log: Log) -> list[dict[str, Any]]:
    return [row for batch in log.read(NAME.work_queue) for row in batch.to_pylist()]


def check_queue(log: Log, count: int) -> None:
    """All events are there once, where they belong, and in the order of their keys."""
    found = queued(log)
    assert sorted(int(row["value"]) for row in found) == wanted(count)
    last: dict[str, int] = {}
    for row in found:
        token, _, subject = row["subject"].partition(".")
        number = int(row["value"])
        assert subject == f"orders.eu.{number % KEYS}"
        assert int(token) == partition_of(subject, "orders.*.*", [2], PARTITIONS)
        assert row["segment"] == int(token)
        assert last.get(subject, -1) < number
        last[subject] = number


def job(catalog_url: str, **more: Any) -> PartitionJob:
    return PartitionJob(catalog_url, None, NAME, **more)


def test_tasks_fill_the_queue_with_blobs_and_files(
    spark: SparkSession, log: Log, catalog_url: str
) -> None:
    make_group(log)
    publish(log, 0, 2000)
    publish(log, 2000, 2000, value_bytes=6000)
    log.split("orders", 0)
    publish(log, 4000, 500)
    filling = job(catalog_url, small_events=0, task_events=700)
    filling.start(spark)
    while filling.step():
        pass
    check_queue(log, 4500)
    assert log.store is not None
    queue = log.stream(NAME.work_queue)
    assert list(log.store.list(f"{log.prefix}/{queue.id}/"))
    status = filling.status()
    assert (status.events, status.lag_events) == (4500, 0)
    assert status.rate_per_s > 0


def test_order_per_key_holds_through_splits_and_merges_of_the_source(
    log: Log, catalog_url: str
) -> None:
    make_group(log)
    filling = job(catalog_url, round_events_max=150)
    for step in range(6):
        publish(log, step * 200, 200)
        if step % 2:
            numbers = [segment.number for segment in log.stream("orders").open_segments]
            log.split("orders", numbers[0]) if step == 1 else log.merge("orders", numbers[:2])
        # Rounds fall behind, so that sealed segments and their successors are there together.
        filling.step()
    while filling.step():
        pass
    check_queue(log, 1200)


def test_a_group_that_starts_now_gets_what_comes_later(log: Log, catalog_url: str) -> None:
    publish(log, 0, 100)
    make_group(log, start="latest")
    publish(log, 100, 100)
    filling = job(catalog_url)
    assert filling.step()
    assert not filling.step()
    assert sorted(int(row["value"]) for row in queued(log)) == [n for n in range(100, 200) if n % 7]


def test_keys_and_headers_are_kept(log: Log, catalog_url: str) -> None:
    make_group(log)
    headers = [[{"key": "h", "value": b"1"}], None]
    for some in (headers, [None, None]):
        log.append(
            "orders",
            pa.table(
                {
                    "subject": ["orders.eu.1", "orders.eu.1"],
                    "key": ["k", None],
                    "value": [b"1", b"2"],
                    "headers": pa.array(
                        some, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                    ),
                }
            ),
        )
    job(catalog_url).step()
    found = [(row["key"], row["headers"], row["value"]) for row in queued(log)]
    assert sorted(found, key=str) == sorted(
        [("k", headers[0], b"1"), (None, None, b"2"), ("k", None, b"1"), (None, None, b"2")],
        key=str,
    )


def test_origins_are_kept(log: Log, catalog_url: str) -> None:
    make_group(log)
    copied = to_batch([Event(subject=f"orders.eu.{n}", value=b"%d" % n) for n in range(4)])
    origins = [{"region": "eu", "sequence": n} if n % 2 else None for n in range(4)]
    write = log.write_of()
    write.add("orders", copied.append_column("origin", pa.array(origins, ORIGIN)))
    log.commit(write)
    job(catalog_url).step()
    found = {int(row["value"]): row["origin"] for row in queued(log)}
    assert found == dict(enumerate(origins))


def test_the_queue_holds_no_more_than_its_limit(log: Log, catalog_url: str) -> None:
    make_group(log, max_buffered=50)
    publish(log, 0, 300)
    filling = job(catalog_url)
    stop = threading.Event()
    thread = threading.Thread(target=filling.run, args=(stop,))
    thread.start()
    try:
        turns = 0
        while not is_done(log, 300):
            wait_until(
                lambda: (unconsumed(log) and "full" in filling.status().note) or is_done(log, 300),
                "a full queue",
            )
            assert unconsumed(log) <= 50
            acknowledge_all(log)
            turns += 1
        assert turns >= len(wanted(300)) // 50
    finally:
        stop.set()
        thread.join()
    check_queue(log, 300)


def is_done(log: Log, count: int) -> bool:
    return sum(s.head for s in log.stream(NAME.work_queue).segments) == len(wanted(count))


def floors(log: Log) -> dict[int, int]:
    found = log.catalog.read(lambda tx: load_all(tx, NAME.key))
    segments = log.stream(NAME.work_queue).segments
    return {s.id: found.get(s.id, Progress()).floor for s in segments}


def unconsumed(log: Log) -> int:
    acked = floors(log)
    return sum(s.head - acked[s.id] for s in log.stream(NAME.work_queue).segments)


def acknowledge_all(log: Log) -> None:
    """What the members do."""

    def ack(tx: Tx) -> None:
        queue = streams.require(tx, NAME.work_queue)
        join(tx, NAME.key, {segment.id: Progress(segment.head) for segment in queue.segments})

    log.catalog.write(ack)


def test_two_jobs_at_once_waste_work_and_repeat_nothing(log: Log, catalog_url: str) -> None:
    make_group(log)
    stop = threading.Event()
    jobs = [job(catalog_url, round_events_max=100) for _ in range(2)]
    threads = [threading.Thread(target=each.run, args=(stop,)) for each in jobs]
    for thread in threads:
        thread.start()
    try:
        for first in range(0, 2000, 250):
            publish(log, first, 250)
        wait_until(lambda: is_done(log, 2000), "all events in the queue")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    check_queue(log, 2000)
    assert sum(each.status().events for each in jobs) == 2000


def test_a_round_that_was_overtaken_removes_its_files(
    log: Log, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_task, "INLINE_BYTES", 0)
    monkeypatch.setattr(partition_task, "FILE_BYTES_MIN", 0)
    make_group(log)
    publish(log, 0, 500)
    slow, quick = job(catalog_url), job(catalog_url)
    commit = slow._commit

    def late(*args: Any) -> None:
        while quick.step():
            pass
        commit(*args)

    monkeypatch.setattr(slow, "_commit", late)
    assert not slow.step()
    check_queue(log, 500)
    named = log.catalog.read(lambda tx: tx.rows("SELECT path FROM batches WHERE path IS NOT NULL"))
    assert log.store is not None
    queue = log.stream(NAME.work_queue)
    kept = {file.path for file in log.store.list(f"{log.prefix}/{queue.id}/")}
    assert kept == {path for (path,) in named if f"/{queue.id}/" in path}
    assert len(kept) == PARTITIONS


def test_a_job_that_is_killed_anywhere_loses_and_repeats_nothing(
    log: Log, catalog_url: str
) -> None:
    """With SIGKILL, in the middle of rounds, and once held just before its commit."""
    make_group(log)
    publish(log, 0, 5000)
    args = (catalog_url, NAME.stream, NAME.group)
    for _ in range(2):
        before = queue_head(log)
        with process("tests.spark.filler", *args) as filler:
            assert filler.line() == "ready"
            wait_until(lambda: queue_head(log) > before, "a round")  # noqa: B023
    before = queue_head(log)
    with process("tests.spark.filler", *args, "hold") as filler:
        assert [filler.line(), filler.line()] == ["ready", "commit"]
    assert queue_head(log) == before
    check_order_so_far(log)
    filling = job(catalog_url)
    while filling.step():
        pass
    check_queue(log, 5000)


def queue_head(log: Log) -> int:
    return sum(segment.head for segment in log.stream(NAME.work_queue).segments)


def check_order_so_far(log: Log) -> None:
    found = [int(row["value"]) for row in queued(log)]
    assert len(found) == len(set(found))


def test_a_job_waits_for_news_and_ends_with_its_group(log: Log, catalog_url: str) -> None:
    make_group(log)
    filling = job(catalog_url)
    thread = threading.Thread(target=filling.run, args=(threading.Event(),))
    thread.start()
    wait_until(lambda: filling.status().lag_events == 0, "the job's first look")
    publish(log, 0, 100)
    wait_until(lambda: is_done(log, 100), "the news to be partitioned")
    delete(log, NAME.stream, NAME.group)
    thread.join(20)
    assert not thread.is_alive()
    assert "gone" in filling.status().note


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_a_catalog_that_executors_cannot_reach_is_refused(
    log: Log, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere:
        class sparkContext:  # noqa: N801
            master = "spark://elsewhere:7077"

    with pytest.raises(NotSharedError, match="postgresql://"):
        job(catalog_url).start(Elsewhere())  # type: ignore[arg-type]


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_rounds_that_always_come_too_late_end_in_an_error(
    log: Log, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(log)
    publish(log, 0, 100)
    monkeypatch.setattr(partition, "FRESH_S", -1.0)
    with pytest.raises(CatalogUnavailableError, match="came too late"):
        job(catalog_url).step()
    assert queued(log) == []


@pytest.mark.parametrize("catalog_url", ["sqlite"], indirect=True)
def test_large_events_make_rounds_shorter_and_are_written_as_they_come(
    log: Log, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(log)
    for first in range(0, 400, 50):
        publish(log, first, 50, value_bytes=20_000)
    monkeypatch.setattr(partition_task, "HELD_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(partition, "ROUND_BYTES", 4_000_000)
    filling = job(catalog_url)
    rounds = 0
    while filling.step():
        rounds += 1
    assert rounds > 1
    check_queue(log, 400)
