"""``region check --deep`` on Spark: tasks read and count the events of both regions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.regions.checking import CheckReport, check
from headrace.regions.digests import Digests, DigestTask, digests_of
from headrace.regions.runtime.neighbours import Neighbours
from headrace.spark.connection import Connection, check_shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_regions(connection: Connection, stream: str, spark: SparkSession) -> CheckReport:
    """Whether the regions of a stream hold the same events; Spark tasks read all of them."""
    log = connection.log()
    check_shared(log, spark.sparkContext.master)

    def carry_out(tasks: Sequence[DigestTask]) -> list[Digests]:
        spread = spark.sparkContext.parallelize(list(tasks), len(tasks))
        return spread.map(partial(_in_task, connection)).collect()

    neighbours = Neighbours()
    try:
        return check(log, stream, neighbours, deep=True, carry_out=carry_out)
    finally:
        neighbours.close()


def _in_task(connection: Connection, task: DigestTask) -> Digests:
    connection.check_reachable()
    if task.member is None:
        return digests_of(connection.log(), task)
    neighbours = Neighbours()
    try:
        return digests_of(neighbours.log(task.member), task)
    finally:
        neighbours.close()
