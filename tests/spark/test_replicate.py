"""The replicate job: large rounds are copied by Spark tasks, small ones by the driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.spark import replicate
from headrace.spark.connection import connection_to
from headrace.spark.jobs import REPLICATION, JobSpec
from headrace.spark.replicate import ReplicateJob
from headrace.spark.wanted import make_job, wanted_jobs
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
