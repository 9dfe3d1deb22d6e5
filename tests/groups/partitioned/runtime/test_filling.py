"""A work queue that nobody fills: the group says so, and what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import headrace
from headrace import testing
from headrace.catalog import Tx
from headrace.catalog.streams import StreamConfig
from headrace.groups.looks import lag_of_one
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.explain import explain, filling_finding
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import filling
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark import records
from headrace.spark.jobs import PARTITION, JobSpec
from tests.groups.partitioned.runtime.feeder import fill

NAME = GroupName("orders", "billing")
UNFILLED = (
    "up to 2 events of stream 'orders' are not in the work queue of group 'billing', and no "
    "pipeline runs to fill it; start one with: headrace pipeline"
)


@contextmanager
def opened(url: str | Path) -> Iterator[Log]:
    log = open_log(url)
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)), 1)
    admin.create_elastic(
        log, "orders", "billing", max_members=2, filter="orders.*", wildcards=[1], members=["m1"]
    )
    try:
        yield log
    finally:
        log.catalog.close()


def publish(log: Log, count: int) -> None:
    for number in range(count):
        log.publish(Event(subject=f"orders.{number}", value=b""))


def note(log: Log, **job: object) -> None:
    log.catalog.entries.put(records.BUCKET, filling.job_key(NAME), msgspec.json.encode(job))


def test_what_the_supervisor_writes_is_found() -> None:
    assert filling.PIPELINE == records.LEASE == records.BUCKET
    assert filling.job_key(NAME) == records.JOB + JobSpec(PARTITION, NAME.key).name


def test_a_group_tells_that_no_pipeline_fills_its_queue(catalog_url: str) -> None:
    with opened(catalog_url) as log:
        nobody = explain(log, "orders", "billing").findings
        publish(log, 2)
        assert explain(log, "orders", "billing").findings == (*nobody, UNFILLED)
        assert lag_of_one(log.catalog, "orders/billing").finding == UNFILLED
        fill(log, NAME)
        assert explain(log, "orders", "billing").findings == nobody
        assert lag_of_one(log.catalog, "orders/billing").finding == ""


def test_markers_are_not_waited_for(catalog_url: str) -> None:
    with opened(catalog_url) as log:
        nobody = explain(log, "orders", "billing").findings
        log.append_marker("orders", 0, b"m")
        assert lag_of_one(log.catalog, "orders/billing").source_events == 0
        assert explain(log, "orders", "billing").findings == nobody
        publish(log, 2)
        log.append_marker("orders", 0, b"m")
        assert lag_of_one(log.catalog, "orders/billing").finding == UNFILLED
        assert fill(log, NAME) == 2
        assert lag_of_one(log.catalog, "orders/billing").events == 2


def test_a_pipeline_that_works_is_trusted_and_one_that_fails_is_quoted(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        publish(log, 1)
        assert log.catalog.leases.acquire(records.LEASE, "somebody", 60_000) is not None
        assert "has not begun" in filling_finding(log, NAME)
        note(log, name="partition/orders.billing", state="running", failures=0)
        assert filling_finding(log, NAME) == ""
        note(log, state="waiting", failures=3, last_error="no room on the disk")
        assert filling_finding(log, NAME) == (
            "up to 1 event of stream 'orders' is not in the work queue of group 'billing': the job "
            "of the pipeline fails (no room on the disk)"
        )


def test_a_member_warns_once_and_only_while_nothing_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0
    look = filling.look

    def moving(tx: Tx, name: GroupName) -> filling.Filling | None:
        nonlocal looks
        looks += 1
        found = look(tx, name)
        # For a while somebody fills the queue, though not a pipeline.
        return found and msgspec.structs.replace(found, floors=(min(looks, 10),))

    monkeypatch.setattr(filling, "look", moving)
    with opened(tmp_path) as log:
        publish(log, 2)

    def warnings() -> list[str]:
        return [r.message for r in caplog.records if "headrace pipeline" in r.message]

    async def main() -> None:
        async with (
            headrace.open(tmp_path, housekeeping=False) as hr,
            hr.join("orders", "billing", "m1"),
            hr.join("orders", "billing", "m1"),
        ):
            while not warnings():
                await asyncio.sleep(1)
            assert looks > 10
            seen = looks
            await hr.groups.active("orders", "billing")
            assert looks == seen, "it has said it, and looks no more"

    with caplog.at_level(logging.WARNING, "headrace"):
        testing.run(asyncio.wait_for(main(), 3600), autojump=True)
    assert warnings() == [UNFILLED]
