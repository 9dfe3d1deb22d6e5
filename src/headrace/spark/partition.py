"""The partition job: fills the work queue of an elastic group from its source stream.

The work goes in rounds (:mod:`headrace.groups.partitioned.runtime.work_queue`).  The driver plans
one, which offsets of which segments.  Tasks read them from the log, compute the partitions and
encode the rows of each: small shares go back with the answer, large ones are written as files.
The driver appends all of them and moves the places in the source forward, in one transaction that
first checks that no other round came before.  So there is no checkpoint to keep, a job that dies
anywhere leaves at most files that nothing names, and two jobs on one group only waste work.

A round of few events is done by the driver itself, since a Spark job takes longer to start than
they take to partition.  Between rounds the job waits for news of the source, and of what members
have acked when the queue is full.

Jobs of several groups on one stream, in one process, share the reading
(:mod:`headrace.spark.siblings`): a round is then carried out for all that would read the same, and
committed for each group by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from headrace.catalog import Tx, entries, progress, streams
from headrace.catalog.batches import NewBatch
from headrace.errors import (
    CatalogUnavailableError,
    HeadraceError,
    RoundOvertakenError,
    TrimmedError,
    UnknownGroupError,
)
from headrace.groups.homes import GROUPS_BUCKET
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.work_queue import (
    Round,
    SegmentRead,
    commit_round,
    plan_round,
    round_locks,
)
from headrace.log.log import Log
from headrace.spark.connection import Connection, check_shared, connection_to
from headrace.spark.jobs import PARTITION, JobSpec, JobStatus, Meter
from headrace.spark.partition_task import Work, carry_out, in_task
from headrace.spark.siblings import Siblings
from headrace.spark.staged_write import FRESH_S, place
from headrace.spark.staging import remove

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_EVENTS_MAX = 2_000_000
ROUND_BYTES = 512 * 1024 * 1024
"""A limit for rounds of large events; bytes are estimated from the source's average event."""
ROUND_BYTES_WITHOUT_STORE = 32 * 1024 * 1024
TASK_EVENTS = 500_000
"""A segment's part of a round is cut into tasks of about this size."""
SMALL_EVENTS = 20_000
"""Rounds up to this size are done without Spark."""
STOP_LOOK_S = 0.2
OVERTAKEN_MAX = 100
_log = logging.getLogger(__name__)


class Along(NamedTuple):
    """Another job's round that is carried out in the same pass."""

    job: PartitionJob
    planned: Round
    work: Work


class PartitionJob:
    """Keeps the work queue of one elastic group filled; a :class:`~headrace.spark.jobs.Job`.

    ``run`` works until it is told to stop or the group is gone; ``step`` does one round.  Both may
    be called again after an error.
    """

    def __init__(
        self,
        catalog: str,
        store: str | None,
        group: GroupName,
        *,
        store_options: Mapping[str, str] | None = None,
        round_events_max: int = ROUND_EVENTS_MAX,
        task_events: int = TASK_EVENTS,
        small_events: int = SMALL_EVENTS,
    ) -> None:
        self.group = group
        self.name = JobSpec(PARTITION, group.key).name
        self._connection = connection_to(catalog, store, store_options)
        self._round_events_max = round_events_max
        self._task_events = task_events
        self._small_events = small_events
        self._spark: SparkSession | None = None
        self._meter = Meter()
        self._rounds = 0
        self._behind: int | None = None
        self._note = ""
        self._alone = False
        """Set when what another job did for this one failed: this one is to meet that itself."""
        self._carried: Round | None = None
        """The last round that another job carried out for this one."""
        with _siblings_lock:
            place = (self._connection, group.stream)
            self._siblings = _siblings.setdefault(place, Siblings())

    def status(self) -> JobStatus:
        """How far it has come; ``events`` are those that it read of the source."""
        return JobStatus(
            rounds=self._rounds,
            events=self._meter.total,
            rate_per_s=self._meter.rate_per_s(time.monotonic()),
            lag_events=self._behind,
            note=self._note,
        )

    def start(self, spark: SparkSession) -> None:
        """Take the session; refuses one whose executors cannot reach the log."""
        check_shared(self._connection.log(), spark.sparkContext.master)
        self._spark = spark

    def run(self, stop: threading.Event) -> None:
        """Fill the queue until ``stop`` is set; returns early when the group is deleted."""
        try:
            with self.joined():
                self._run(stop)
        except UnknownGroupError:
            self._note = "the group is gone"

    def joined(self) -> AbstractContextManager[None]:
        """While it lasts, jobs of other groups on the stream in this process read for this one."""
        return self._siblings.joined(self)

    def _run(self, stop: threading.Event) -> None:
        log = self._connection.log()
        planned = self._plan(log)
        channels = (
            streams.channel(planned.source_id),
            streams.channel(planned.queue_id),
            progress.channel(self.group.key),
            entries.channel(ELASTIC_BUCKET),
            entries.channel(GROUPS_BUCKET),
        )
        with log.catalog.waiting(*channels) as wait:
            while not stop.is_set():
                done = self.round()
                if done.reads:
                    continue
                if done.waits_for_room:
                    self._note = "the queue is full; waiting for members to ack"
                    wait(STOP_LOOK_S)  # polls as well: a member that dies notifies nobody
                    continue
                self._note = done.waits
                while not stop.is_set() and not wait(STOP_LOOK_S):
                    pass

    def step(self) -> bool:
        """One round; true when it read anything."""
        return bool(self.round().reads)

    def round(self) -> Round:
        """One round; returns the plan that was carried out, empty when there was nothing to do."""
        log = self._connection.log()
        for _ in range(OVERTAKEN_MAX):
            with self._siblings.planning(self) as others:
                if others is None and self._carried is not None:
                    return self._carried
                self._alone = False
                planned = self._plan(log)
                if not planned.reads:
                    return planned
                found = [other._along(log, planned) for other in others or ()]
                along = [one for one in found if one is not None]
                carried = [one.job for one in along]
                self._siblings.begin(self, carried)
            try:
                self._carry_out(log, planned, along)
            except (RoundOvertakenError, TrimmedError):
                # Another job committed first, or events were trimmed; plan again from there.
                continue
            finally:
                self._siblings.end(self, carried)
            return planned
        raise CatalogUnavailableError(
            f"{self.name}: {OVERTAKEN_MAX} rounds in a row came too late; is another job at work?"
        )

    def _plan(self, log: Log) -> Round:
        size_bytes = ROUND_BYTES_WITHOUT_STORE if log.store is None else ROUND_BYTES

        def plan(tx: Tx) -> Round:
            events_max = min(self._round_events_max, _events_of(tx, self.group.stream, size_bytes))
            return plan_round(tx, self.group, events_max=events_max)

        planned = log.catalog.read(plan, snapshot=True)
        self._behind = planned.behind
        return planned

    def _along(self, log: Log, other: Round) -> Along | None:
        """This job's round, if it reads just what the other's does."""
        if self._alone:
            return None
        try:
            planned = self._plan(log)
            if planned.source_id != other.source_id or _spans(planned) != _spans(other):
                return None
            return Along(self, planned, self._work(log, planned))
        except HeadraceError:
            return None  # its own thread will meet that, and tell

    def _carry_out(self, log: Log, planned: Round, along: Sequence[Along]) -> None:
        started_s = time.monotonic()
        works = [self._work(log, planned), *(one.work for one in along)]
        count = sum(read.end - read.start for read in planned.reads)
        if count <= self._small_events or self._spark is None:
            done = carry_out(works, planned.reads, log)
        else:
            tasks = self._cut(planned.reads)
            spread = self._spark.sparkContext.parallelize(tasks, len(tasks))
            done = spread.flatMap(partial(in_task, works)).collect()
        made: list[list[NewBatch]] = [[] for _ in works]
        for at, batch in done:
            made[at].append(batch)
        try:
            self._commit_made(log, planned, made[0], started_s)
        except HeadraceError:
            remove(log, [batch.path for share in made[1:] for batch in share])
            raise
        for one, share in zip(along, made[1:], strict=True):
            try:
                one.job._commit_made(log, one.planned, share, started_s)
                one.job._carried = one.planned
            except HeadraceError as error:
                one.job._alone, one.job._carried = True, None
                _log.debug("%s is left to plan again: %s", one.job.name, error)

    def _commit_made(
        self, log: Log, planned: Round, done: Sequence[NewBatch], started_s: float
    ) -> None:
        """Commit what was made for this job's group, and count it."""
        try:
            if time.monotonic() - started_s > FRESH_S:
                raise RoundOvertakenError(self.group.key, "it took so long that a sweep may come")
            self._commit(log, planned, done)
        except CatalogUnavailableError:
            # The outcome of the commit is unknown, so no file may be removed.
            raise
        except HeadraceError:
            remove(log, [batch.path for batch in done])
            raise
        count = sum(read.end - read.start for read in planned.reads)
        self._note = ""
        self._rounds += 1
        self._behind = max(0, planned.behind - count)
        self._meter.add(count, time.monotonic())

    def _work(self, log: Log, planned: Round) -> Work:
        queue = log.routes.get(self.group.work_queue).stream
        if queue.id != planned.queue_id:
            queue = log.routes.refresh(self.group.work_queue).stream
        return Work(
            connection=self._connection,
            stream=self.group.stream,
            config=planned.config,
            queue_id=queue.id,
            queue_segments=tuple((s.number, s.id) for s in queue.segments),
            placed=planned.placed,
            acked=tuple((read.segment, lo, hi) for read in planned.reads for lo, hi in read.acked),
        )

    def _cut(self, reads: Iterable[SegmentRead]) -> list[SegmentRead]:
        return [
            msgspec.structs.replace(read, start=at, end=min(read.end, at + self._task_events))
            for read in reads
            for at in range(read.start, read.end, self._task_events)
        ]

    def _commit(self, log: Log, planned: Round, made: Sequence[NewBatch]) -> None:
        def append(tx: Tx) -> None:
            if made:
                if place(tx, made) is None:
                    raise RoundOvertakenError(self.group.key, "its work queue was made anew")
                tx.notify(streams.channel(planned.queue_id))

        queued = [span for batch in made for span in batch.places]
        log.catalog.write(
            lambda tx: commit_round(tx, planned, append, queued), locks=round_locks(planned)
        )


_siblings: WeakValueDictionary[tuple[Connection, str], Siblings[PartitionJob]]
_siblings = WeakValueDictionary()
_siblings_lock = threading.Lock()


def _spans(planned: Round) -> list[tuple[int, int, int]]:
    return [(read.segment, read.start, read.end) for read in planned.reads]


def _events_of(tx: Tx, stream: str, size_bytes: int) -> int:
    """About how many events of the stream make ``size_bytes``, by their average size."""
    segments = streams.require(tx, stream).segments
    held_bytes = sum(segment.retained_bytes for segment in segments)
    held = sum(segment.events for segment in segments)
    return max(1, size_bytes * held // held_bytes) if held_bytes > 0 else size_bytes
