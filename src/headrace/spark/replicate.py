"""The replicate job: copies everything from one other region, large rounds by Spark tasks.

It works in rounds as the partition job does (:mod:`headrace.regions.runtime.rounds`): a plan from
places in the catalog, tasks that read, check and encode, and one transaction here.  Small rounds
are carried out by the driver at once, since a Spark job takes longer to start than they take.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog.batches import NewBatch
from headrace.log.log import Log
from headrace.regions.records import LinkMember
from headrace.regions.runtime import copying
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.replicator import Replicator
from headrace.regions.runtime.rounds import Copied, SegmentCopy
from headrace.spark.connection import Connection, check_shared
from headrace.spark.jobs import REPLICATION, JobSpec, JobStatus, Meter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_EVENTS_MAX = 2_000_000
ROUND_BYTES = 512 * 1024 * 1024
SMALL_EVENTS = 20_000
"""Rounds up to this size are done without Spark."""


class ReplicateJob:
    """Copies from one region; a :class:`~headrace.spark.jobs.Job`."""

    def __init__(self, connection: Connection, source: str) -> None:
        self.name = JobSpec(REPLICATION, source).name
        self._connection = connection
        self._source = source
        self._neighbours = Neighbours()
        self._spark: SparkSession | None = None
        self._meter = Meter()
        self._counted = 0
        self._replicator: Replicator | None = None

    def start(self, spark: SparkSession) -> None:
        """Take the session; refuses one whose executors cannot reach the log."""
        check_shared(self._connection.log(), spark.sparkContext.master)
        self._spark = spark

    def _made(self) -> Replicator:
        if self._replicator is None:
            self._replicator = Replicator(
                self._connection.log(),
                self._neighbours,
                self._source,
                events_max=ROUND_EVENTS_MAX,
                bytes_max=ROUND_BYTES,
                carry_out=self._carry_out,
            )
        return self._replicator

    def step(self) -> bool:
        """One round; true if it moved anything."""
        return self._made().step()

    def run(self, stop: threading.Event) -> None:
        """Rounds until told to stop; a source that is away is looked for every second."""
        self._made().run(stop)

    def status(self) -> JobStatus:
        """How far it has come."""
        found = self._made().standing
        now_s = time.monotonic()
        if found.events > self._counted:
            self._meter.add(found.events - self._counted, now_s)
            self._counted = found.events
        return JobStatus(
            rounds=found.rounds,
            events=found.events,
            rate_per_s=self._meter.rate_per_s(now_s),
            lag_events=found.behind,
            note=found.error,
        )

    def _carry_out(
        self, log: Log, source_log: Log, copies: tuple[SegmentCopy, ...]
    ) -> list[Copied]:
        count = sum(copy.events for copy in copies)
        member = self._made().member()
        if count <= SMALL_EVENTS or self._spark is None or member is None:
            return copying.carry_out(log, source_log, copies)
        spread = self._spark.sparkContext.parallelize(list(copies), len(copies))
        return spread.flatMap(partial(_in_task, self._connection, member)).collect()


def _in_task(connection: Connection, member: LinkMember, copy: SegmentCopy) -> list[Copied]:
    connection.check_reachable()
    neighbours = Neighbours()
    try:
        done = copying.carry_out(connection.log(), neighbours.log(member), [copy])
    finally:
        neighbours.close()
    return [Copied(each.copy, tuple(map(_plain, each.batches))) for each in done]


def _plain(batch: NewBatch) -> NewBatch:
    """A batch that can travel to the driver."""
    return msgspec.structs.replace(batch, data=None if batch.data is None else bytes(batch.data))
