"""Elastic groups on one stream share what is read of it, and nothing else."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogUnavailableError, StoreError
from headrace.groups.partitioned.admin import create_elastic, delete
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.work_queue import SegmentRead
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark import partition_task
from headrace.spark.partition import PartitionJob
from headrace.spark.siblings import Siblings
from tests.support import wait_until


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path)
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)), segments=2)
    yield log
    log.catalog.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many offsets each look at the source went through."""
    found: list[int] = []
    real = partition_task._events

    def counted(work: Any, read: SegmentRead, log: Log) -> Any:
        found.append(read.end - read.start)
        return real(work, read, log)

    monkeypatch.setattr(partition_task, "_events", counted)
    return found


MakeGroup = Callable[..., PartitionJob]


@pytest.fixture
def group(log: Log, tmp_path: Path) -> MakeGroup:
    """Makes a group, and the job that fills its queue."""

    def make(name: str, members: int = 3, **more: Any) -> PartitionJob:
        create_elastic(
            log, "orders", name, max_members=members, filter="orders.*", wildcards=[1], **more
        )
        return PartitionJob(str(tmp_path), None, GroupName("orders", name))

    return make


def publish(log: Log, first: int, count: int) -> None:
    numbers = range(first, first + count)
    subjects = [f"orders.{n % 11}" for n in numbers]
    values = [str(n).encode() for n in numbers]
    log.append("orders", pa.table({"subject": subjects, "value": values}))


def padded(log: Log, first: int, count: int) -> None:
    """Events that are large enough for files."""
    subjects = [f"orders.{n % 11}" for n in range(first, first + count)]
    values = [str(n).encode().ljust(256 * 1024) for n in range(first, first + count)]
    log.append("orders", pa.table({"subject": subjects, "value": values}))


def files_of(log: Log, folder: Path, name: str) -> set[int]:
    """What there is on the disk for the queue of a group, whatever its names."""
    queue = log.stream(GroupName("orders", name).work_queue)
    assert log.store is not None
    listed = log.store.list(f"{log.prefix}/{queue.id}/")
    return {(Path(log.store.url) / each.path).stat().st_ino for each in listed}


def queued(log: Log, name: str) -> list[int]:
    queue = GroupName("orders", name).work_queue
    last: dict[str, int] = {}
    found = []
    for row in (row for batch in log.read(queue) for row in batch.to_pylist()):
        number, subject = int(row["value"]), row["subject"].partition(".")[2]
        assert last.get(subject, -1) < number, "out of order"
        last[subject] = number
        found.append(number)
    return sorted(found)


def test_a_round_is_read_once_for_all_groups_at_the_same_place(
    log: Log, group: MakeGroup, reads: list[int]
) -> None:
    jobs = [group(f"g{n}", members=n + 1) for n in range(3)]
    publish(log, 0, 500)
    with ExitStack() as at_work:
        for job in jobs:
            at_work.enter_context(job.joined())
        assert jobs[1].step()
        assert not any(job.step() for job in jobs)
        log.split("orders", 0)
        publish(log, 500, 300)
        while jobs[0].step():
            pass
    assert sum(reads) == 800
    for n, job in enumerate(jobs):
        assert queued(log, f"g{n}") == list(range(800))
        status = job.status()
        assert (status.events, status.lag_events) == (800, 0)
        assert status.rounds >= 2


def test_groups_that_partition_alike_are_written_once(
    log: Log, group: MakeGroup, tmp_path: Path
) -> None:
    jobs = [group("one"), group("two"), group("wider", members=4)]
    padded(log, 0, 60)
    with ExitStack() as at_work:
        for job in jobs:
            at_work.enter_context(job.joined())
        assert jobs[0].step()
    places = {name: files_of(log, tmp_path, name) for name in ("one", "two", "wider")}
    assert places["one"]
    assert places["one"] == places["two"]
    assert not places["one"] & places["wider"]
    for name in places:
        assert queued(log, name) == list(range(60))
    assert log.store is not None
    queue = log.stream(GroupName("orders", "one").work_queue)
    for each in list(log.store.list(f"{log.prefix}/{queue.id}/")):  # as a sweep does, later
        log.store.delete(each.path)
    assert queued(log, "two") == list(range(60))


def test_what_cannot_be_written_leaves_no_file_of_any_group(
    log: Log, group: MakeGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [group("one"), group("two")]
    padded(log, 0, 60)
    real, left = os.fsync, [3]

    def fail_once(handle: int) -> None:
        if "/store/" in os.readlink(f"/proc/self/fd/{handle}"):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    with ExitStack() as at_work:
        for job in jobs:
            at_work.enter_context(job.joined())
        monkeypatch.setattr(os, "fsync", fail_once)
        with pytest.raises(StoreError):
            jobs[0].step()
        assert not files_of(log, tmp_path, "one") | files_of(log, tmp_path, "two")
        assert jobs[1].step()
    for name in ("one", "two"):
        assert queued(log, name) == list(range(60))


def test_a_group_that_is_elsewhere_goes_its_own_way_until_they_meet(
    log: Log, group: MakeGroup, reads: list[int]
) -> None:
    first = group("first")
    publish(log, 0, 400)
    assert first.step()
    second = group("second")
    publish(log, 400, 100)
    with first.joined(), second.joined():
        assert first.step()
        assert sum(reads) == 500
        assert queued(log, "second") == []
        assert second.step()
        assert sum(reads) == 1000
        publish(log, 500, 50)
        assert second.step()
        assert not first.step()
    assert sum(reads) == 1050
    for name in ("first", "second"):
        assert queued(log, name) == list(range(550))


def test_a_group_whose_queue_is_full_holds_nobody_back(
    log: Log, group: MakeGroup, reads: list[int]
) -> None:
    narrow = group("narrow", max_buffered=100)
    wide = group("wide")
    publish(log, 0, 300)
    with narrow.joined(), wide.joined():
        assert wide.step()
        assert narrow.step()
        assert not narrow.step()
    assert queued(log, "wide") == list(range(300))
    assert len(queued(log, "narrow")) == 100


def test_what_fails_for_one_group_is_left_to_it_and_hurts_no_other(
    log: Log, group: MakeGroup, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = group("good"), group("bad")

    def fail(*_: Any) -> None:
        raise CatalogUnavailableError("planted")

    publish(log, 0, 200)
    with good.joined(), bad.joined(), monkeypatch.context() as broken:
        broken.setattr(bad, "_commit", fail)
        assert good.step()
        assert queued(log, "good") == list(range(200))
        publish(log, 200, 100)
        assert good.step(), "it is not carried again"
        with pytest.raises(CatalogUnavailableError):
            bad.step()
        broken.undo()
        assert bad.step()
        delete(log, "orders", "bad")
        publish(log, 300, 10)
        assert good.step()
    assert queued(log, "good") == list(range(310))


def _are_at(jobs: list[PartitionJob], events: int) -> bool:
    return all(job.status().events == events for job in jobs)


def test_jobs_in_threads_read_once_what_comes_while_they_wait(
    log: Log, group: MakeGroup, reads: list[int]
) -> None:
    jobs = [group(name) for name in ("one", "two")]
    stop = threading.Event()
    threads = [threading.Thread(target=job.run, args=(stop,)) for job in jobs]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: len(jobs[0]._siblings._at_work) == 2, "both jobs at work")
        for first in range(0, 500, 100):
            publish(log, first, 100)
            wait_until(partial(_are_at, jobs, first + 100), "both queues")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sum(reads) == 500
    assert queued(log, "one") == queued(log, "two") == list(range(500))


def test_a_job_that_is_carried_waits_for_that_round_and_for_no_other() -> None:
    siblings: Siblings[str] = Siblings()
    given: list[list[str] | None] = []

    def plan() -> None:
        with siblings.planning("b") as others:
            given.append(others)

    with siblings.joined("a"), siblings.joined("b"):
        with siblings.planning("a") as others:
            assert others == ["b"]
            siblings.begin("a", ["b"])
        waiting = threading.Thread(target=plan)
        waiting.start()
        wait_until(lambda: bool(siblings._gate._waiters), "the other to wait")  # type: ignore[attr-defined]
        siblings.end("a", ["b"])
        # Before the other wakes up it is carried once more.
        with siblings.planning("a"):
            siblings.begin("a", ["b"])
        waiting.join()
        assert given == [None]
        siblings.end("a", ["b"])
        with siblings.planning("b") as others:
            assert others == ["a"]
