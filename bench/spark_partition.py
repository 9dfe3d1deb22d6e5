"""The partition job of an elastic group, end to end: events of the source to events in the queue.

``python -m bench.spark_partition`` prints the figures.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import headrace.spark
from bench.harness import Result, at_least, at_most, show
from headrace.catalog.streams import StreamConfig
from headrace.groups.partitioned.admin import create_elastic, delete
from headrace.groups.partitioned.names import GroupName
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.partition import PartitionJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 3_000_000
STEP = 250_000
VALUE_BYTES = 100
ROUNDS = 3
PARTITIONS = 16


def _fill(log: Log) -> None:
    log.create_stream("bench", StreamConfig(subjects=("bench.>",)), 4)
    ends = np.arange(STEP + 1, dtype=np.int32) * VALUE_BYTES
    for first in range(0, EVENTS, STEP):
        data = pa.py_buffer(os.urandom(STEP * VALUE_BYTES))
        values = pa.Array.from_buffers(pa.binary(), STEP, [None, pa.py_buffer(ends), data])
        subjects = pa.array([f"bench.eu.{row % 50_000}" for row in range(first, first + STEP)])
        log.append("bench", pa.table({"subject": subjects, "value": values}))


def partition(spark: SparkSession, folder: Path) -> Result:
    """Events a second, from the first plan to the last commit."""
    catalog = str(folder / "catalog")
    log = open_log(catalog)
    _fill(log)
    rates = []
    for number in range(ROUNDS + 1):
        name = GroupName("bench", f"group{number}")
        create_elastic(
            log, "bench", name.group, max_members=PARTITIONS, filter="bench.*.*", wildcards=[2]
        )
        job = PartitionJob(catalog, None, name)
        job.start(spark)
        started = time.perf_counter()
        while job.step():
            pass
        rates.append(EVENTS / (time.perf_counter() - started))
        queue = log.stream(name.work_queue)
        assert sum(segment.head for segment in queue.segments) == EVENTS
    log.catalog.close()
    # The first one starts the workers.
    warm = statistics.median(rates[1:])
    return at_least(
        "partition job",
        warm,
        300_000,
        "events/s",
        f"{PARTITIONS} partitions, {VALUE_BYTES} B values; {rates[0]:,.0f} cold",
    )


def two_groups(spark: SparkSession, folder: Path) -> list[Result]:
    """Two groups on one stream against one: the source is read once for both.

    Groups that partition alike get the same rows, which are made once; where they differ, each has
    rows of its own to make and write.
    """
    catalog = str(folder / "catalog")
    log = open_log(catalog)
    numbers = iter(range(1000, 2000))

    def seconds(*partitions: int) -> float:
        names = [GroupName("bench", f"group{next(numbers)}") for _ in partitions]
        for name, members in zip(names, partitions, strict=True):
            create_elastic(
                log, "bench", name.group, max_members=members, filter="bench.*.*", wildcards=[2]
            )
        jobs = [PartitionJob(catalog, None, name) for name in names]
        with ExitStack() as at_work:
            for job in jobs:
                job.start(spark)
                at_work.enter_context(job.joined())
            started = time.perf_counter()
            while any(job.step() for job in jobs):
                pass
            took_s = time.perf_counter() - started
        assert all(job.status().events == EVENTS for job in jobs)
        for name in names:
            delete(log, "bench", name.group)
        return took_s

    alike, differing = (PARTITIONS, PARTITIONS), (PARTITIONS, PARTITIONS - 4)
    rounds = [(seconds(*alike), seconds(PARTITIONS), seconds(*differing)) for _ in range(ROUNDS)]
    log.catalog.close()
    return [
        at_most(
            "partition jobs of two groups on one stream",
            statistics.median(two / one for two, one, _ in rounds),
            1.5,
            "x one group",
            " ".join(f"{two:.2f}/{one:.2f}" for two, one, _ in rounds) + " s",
        ),
        Result(
            "partition jobs of two groups that partition differently",
            statistics.median(two / one for _, one, two in rounds),
            "x one group",
            detail=" ".join(f"{two:.2f}/{one:.2f}" for _, one, two in rounds) + " s",
        ),
    ]


def run() -> list[Result]:
    spark = headrace.spark.session("bench", "local[2]", **{"spark.driver.memory": "1g"})
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            return [partition(spark, Path(name)), *two_groups(spark, Path(name))]
    finally:
        spark.stop()


if __name__ == "__main__":
    show(run())
