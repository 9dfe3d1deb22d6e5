"""The replicate job: large rounds are copied by Spark tasks, small ones by the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.groups.partitioned.lifecycle import create_static
from headrace.regions import digests
from headrace.regions.checking import check
from headrace.regions.runtime import copying
from headrace.regions.runtime.rounds import Copied
from headrace.spark import replicate
from headrace.spark.checking import check_regions
from headrace.spark.connection import connection_to
from headrace.spark.jobs import REPLICATION, JobSpec
from headrace.spark.replicate import ReplicateJob
from headrace.spark.wanted import make_job, wanted_jobs
from tests.regions.runtime.test_snapshots import ONE, SnapshotPlace, enable, head_of, shown, told_of
from tests.regions.runtime.world import Place, assert_same, linked


def test_a_large_round_is_copied_by_tasks_and_a_small_one_by_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = Place("eu", str(tmp_path / "eu")), Place("us", str(tmp_path / "us"))
    try:
        linked([eu, us])
        assert wanted_jobs(us.log) == [JobSpec(REPLICATION, "eu")]
        job = make_job(connection_to(us.url), JobSpec(REPLICATION, "eu"))
        assert isinstance(job, ReplicateJob)
        job.start(spark)
        eu.publish(3000, value=b"x" * 1000)
        eu.publish(500)
        monkeypatch.setattr(replicate, "SMALL_EVENTS", 100)
        while job.step():
            pass
        eu.publish(20)
        while job.step():
            pass
        assert_same([eu, us])
        assert job.status().events == 3520
        assert job.status().lag_events == 0
    finally:
        eu.close()
        us.close()


def test_tasks_carry_markers_in_line_with_the_events(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole snapshot, of which no round with events is copied by the driver."""
    eu, us = (SnapshotPlace(name, str(tmp_path / name)) for name in ("eu", "us"))
    monkeypatch.setattr(replicate, "SMALL_EVENTS", 0)
    by_driver: list[int] = []
    carry_out = copying.carry_out

    def watched(*args: Any) -> list[Copied]:
        by_driver.append(sum(copy.events for copy in args[2]))
        return carry_out(*args)

    monkeypatch.setattr(copying, "carry_out", watched)
    try:
        linked([eu, us], segments=1, config=ONE)
        create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
        enable(eu)
        jobs = [
            ReplicateJob(connection_to(us.url), "eu"),
            ReplicateJob(connection_to(eu.url), "us"),
        ]
        for job in jobs:
            job.start(spark)

        def exchange() -> None:
            moved = True
            while moved:
                moved = False
                steps = (eu.agent.step, us.agent.step, *(job.step for job in jobs))
                for step in steps:
                    moved |= step()

        exchange()
        eu.publish(3)
        eu.agent.step()  # its request stands behind the events
        eu.publish(2)  # and before these
        us.publish(2)
        exchange()
        eu.ack(floor=head_of(eu))
        exchange()
        assert us.unacked() == []
        assert_same([eu, us])
        assert sum(by_driver) == 0
        of_eu = ["request 1 of eu", "response 1 of us to eu"]
        assert told_of("eu", us.kinds())[:2] == told_of("eu", eu.kinds())[:2] == of_eu
        asked = next(at for at, each in us.markers().items() if shown(each) == of_eu[0])
        before = [
            row["value"]
            for batch in us.log.read("orders")
            for row in batch.to_pylist()
            if row["offset"] < asked and row["origin"]["region"] == "eu"
        ]
        assert before == [b"eu-0", b"eu-1", b"eu-2"]
    finally:
        eu.close()
        us.close()


def test_a_check_of_all_events_is_spread_over_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "TASK_EVENTS", 1000)
    eu, us = Place("eu", str(tmp_path / "eu")), Place("us", str(tmp_path / "us"))
    try:
        linked([eu, us])
        eu.publish(3000)
        us.pull("eu")
        eu.publish(10)
        found = check_regions(connection_to(us.url), "orders", spark)
        assert found == check(us.log, "orders", us.neighbours, deep=True)
        assert not found.agrees
        us.pull("eu")
        found = check_regions(connection_to(us.url), "orders", spark)
        assert found.agrees
        assert sum(line.here for line in found.lanes) == 3010
    finally:
        eu.close()
        us.close()
