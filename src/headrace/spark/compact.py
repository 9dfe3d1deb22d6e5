"""The compaction job: runs are planned and committed on the driver, and rewritten by tasks.

A task that is retried, or a zombie that still writes, leaves an orphaned file; only what the
driver commits counts.  See :mod:`headrace.log.compact` for the rules.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog.batches import CompactedFile
from headrace.errors import (
    DamagedBatchError,
    SparkSetupError,
    TrimmedError,
    UnknownStreamError,
)
from headrace.log.compact import Compacted, Compactor, Rewrite, Run, rewrite
from headrace.log.compact_policy import CompactionPolicy
from headrace.spark.connection import Connection, check_shared
from headrace.spark.jobs import COMPACTION, JobSpec, JobStatus, Meter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_EVERY_S = 10.0
RUNS_PLANNED_MAX = 256
"""A plan looks ahead this far; the next one takes up what is left."""


class Damaged(msgspec.Struct, frozen=True):
    """A batch of the run cannot be read."""

    start: int
    end: int
    message: str


def rewritten(connection: Connection, task: Rewrite) -> CompactedFile | Damaged | None:
    """In a task: the file of a run; None if the run was trimmed or deleted before it was read."""
    connection.check_reachable()
    log = connection.log()
    assert log.store is not None
    try:
        return rewrite(log.catalog, log.store, log.prefix, task)
    except DamagedBatchError as error:
        return Damaged(error.start, error.end, str(error))
    except (TrimmedError, UnknownStreamError):
        return None


class CompactionJob:
    """Compacts one stream by its policy, for as long as it runs."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        policy: CompactionPolicy | None = None,
        *,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._policy = policy
        self._look_every_s = look_every_s
        self._compactor: Compactor | None = None
        self._spark: SparkSession | None = None
        self._due: list[Run] = []
        self._meter = Meter()
        self._rounds = 0
        self.done = Compacted(stream=stream)

    @property
    def name(self) -> str:
        return JobSpec(COMPACTION, self._stream).name

    def start(self, spark: SparkSession) -> None:
        log = self._connection.log()
        check_shared(log, spark.sparkContext.master)
        self._compactor = log.compactor(self._stream, self._policy)
        self._spark = spark

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if not self.step():
                stop.wait(self._look_every_s)

    def step(self) -> bool:
        """Rewrite and commit as many runs as there are cores; false when none was due."""
        compactor, spark = self._started()
        if not self._due:
            self._due = list(islice(compactor.plan(), RUNS_PLANNED_MAX))
        wave = self._due[: max(1, spark.sparkContext.defaultParallelism)]
        if wave:
            self._work(compactor, spark, wave)
        self._rounds += 1
        return bool(wave)

    def status(self) -> JobStatus:
        note = f"{len(self.done.damaged)} damaged batches" if self.done.damaged else ""
        return JobStatus(
            rounds=self._rounds,
            events=self.done.events,
            rate_per_s=self._meter.rate_per_s(time.monotonic()),
            lag_events=sum(run.events for run in self._due),
            note=note,
        )

    def _started(self) -> tuple[Compactor, SparkSession]:
        if self._compactor is None or self._spark is None:
            raise SparkSetupError(f"{self.name} was not started")
        return self._compactor, self._spark

    def _work(self, compactor: Compactor, spark: SparkSession, wave: list[Run]) -> None:
        # Taken before any file is begun: the commit refuses files that have become too old.
        began_s = time.monotonic()
        outcomes = self._rewrite(spark, [run.task for run in wave])
        self._due = self._due[len(wave) :]
        for run, outcome in zip(wave, outcomes, strict=True):
            match outcome:
                case None:
                    self.done = self.done.with_lost()
                case Damaged(start=start, end=end, message=message):
                    self.done = self.done.with_damage(message)
                    self._due += compactor.without_damage(run, start, end)
                case file if compactor.commit(run, file, began_s):
                    self.done = self.done.with_run(run, file)
                    self._meter.add(run.events, time.monotonic())
                case _:
                    self.done = self.done.with_lost()

    def _rewrite(
        self, spark: SparkSession, tasks: list[Rewrite]
    ) -> list[CompactedFile | Damaged | None]:
        spread = spark.sparkContext.parallelize(tasks, len(tasks))
        return spread.map(partial(rewritten, self._connection)).collect()
