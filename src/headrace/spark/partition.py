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
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.catalog import Tx, entries, progress, streams
from headrace.catalog.batches import NewBatch
from headrace.errors import (
    CatalogUnavailableError,
    HeadraceError,
    RoundOvertakenError,
    TrimmedError,
    UnknownGroupError,
    UnknownStreamError,
)
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.work_queue import (
    Round,
    SegmentRead,
    commit_round,
    partitioned,
    plan_round,
    round_locks,
)
from headrace.log import events, limits
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.shares import Rows, inline
from headrace.log.shelf import join
from headrace.spark.connection import Connection, check_shared, connection_to
from headrace.spark.jobs import PARTITION, JobSpec, JobStatus, Meter
from headrace.spark.staged_write import FRESH_S, place
from headrace.spark.staging import HELD_BYTES_MAX, remove, write_file

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
INLINE_BYTES = 8 * 1024 * 1024
"""What a task may return instead of writing files."""
FILE_BYTES_MIN = 64 * 1024
"""Shares below this are always returned; a file this small costs more than it saves."""
STOP_LOOK_S = 0.2
OVERTAKEN_MAX = 100


class Work(msgspec.Struct, frozen=True):
    """What the tasks of a round have in common."""

    connection: Connection
    stream: str
    config: ElasticGroupConfig
    queue_id: int
    queue_segments: tuple[tuple[int, int], ...]
    """(partition, segment id) of the queue."""


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
            self._run(stop)
        except UnknownGroupError:
            self._note = "the group is gone"

    def _run(self, stop: threading.Event) -> None:
        log = self._connection.log()
        planned = self._plan(log)
        channels = (
            streams.channel(planned.source_id),
            streams.channel(planned.queue_id),
            progress.channel(self.group.key),
            entries.channel(ELASTIC_BUCKET),
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
                self._note = ""
                while not stop.is_set() and not wait(STOP_LOOK_S):
                    pass

    def step(self) -> bool:
        """One round; true when it read anything."""
        return bool(self.round().reads)

    def round(self) -> Round:
        """One round; returns the plan that was carried out, empty when there was nothing to do."""
        log = self._connection.log()
        for _ in range(OVERTAKEN_MAX):
            planned = self._plan(log)
            if not planned.reads:
                return planned
            try:
                self._carry_out(log, planned)
            except (RoundOvertakenError, TrimmedError):
                # Another job committed first, or events were trimmed; plan again from there.
                continue
            self._note = ""
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

    def _carry_out(self, log: Log, planned: Round) -> None:
        started_s = time.monotonic()
        work = self._work(log, planned)
        count = sum(read.end - read.start for read in planned.reads)
        if count <= self._small_events or self._spark is None:
            done = carry_out(work, planned.reads, log)
        else:
            tasks = self._cut(planned.reads)
            spread = self._spark.sparkContext.parallelize(tasks, len(tasks))
            done = spread.flatMap(partial(_in_task, work)).collect()
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

        log.catalog.write(lambda tx: commit_round(tx, planned, append), locks=round_locks(planned))


def _events_of(tx: Tx, stream: str, size_bytes: int) -> int:
    """About how many events of the stream make ``size_bytes``, by their average size."""
    segments = streams.require(tx, stream).segments
    held_bytes = sum(segment.retained_bytes for segment in segments)
    held = sum(segment.events for segment in segments)
    return max(1, size_bytes * held // held_bytes) if held_bytes > 0 else size_bytes


# --- what a task does --------------------------------------------------------------------------


def _in_task(work: Work, read: SegmentRead) -> list[NewBatch]:
    work.connection.check_reachable()
    return carry_out(work, [read], work.connection.log())


def carry_out(work: Work, reads: Iterable[SegmentRead], log: Log) -> list[NewBatch]:
    """Read, partition and encode, in order within each partition.

    Large shares are written to files, which count once the driver commits.
    """
    made: list[NewBatch] = []
    rows: dict[int, list[pa.RecordBatch]] = {}
    held_bytes = 0
    try:
        for read in reads:
            for batch in _events(work, read, log):
                for number, share in partitioned(batch, work.config).items():
                    rows.setdefault(number, []).append(share)
                held_bytes += batch.nbytes
                if held_bytes > HELD_BYTES_MAX:
                    _encode_all(work, rows, log, made)
                    rows, held_bytes = {}, 0
        _encode_all(work, rows, log, made)
    except BaseException:
        remove(log, [batch.path for batch in made])
        raise
    return made


def _encode_all(
    work: Work, rows: dict[int, list[pa.RecordBatch]], log: Log, made: list[NewBatch]
) -> None:
    joined = {number: join(parts) for number, parts in sorted(rows.items())}
    large = _too_large_to_return(joined) if log.store is not None else set()
    ids = dict(work.queue_segments)
    for number, batch in joined.items():
        layout = events.layout_of(batch.schema)
        part = Rows(batch, layout, events.stamps_of(batch))
        if number in large:
            for piece in part.cut(limits.FILE_BYTES):
                made.append(write_file(log, work.queue_id, number, ids[number], piece.batch))
        else:
            made += [inline(ids[number], piece) for piece in part.cut(limits.INLINE_BYTES)]


def _events(work: Work, read: SegmentRead, log: Log) -> Iterable[pa.RecordBatch]:
    query = Query(
        start={read.segment: read.start},
        until={read.segment: read.end},
        segments=[read.segment],
    )
    reader = log.reader(work.stream, query)
    if reader.stream.segment(read.segment) is None:
        raise UnknownStreamError(f"stream {work.stream!r} was made anew while it was read")
    while not reader.done:
        batch = reader.next()
        if batch is not None:
            yield batch


def _too_large_to_return(shares: dict[int, pa.RecordBatch]) -> set[int]:
    """Partitions whose rows are written to files, so that what is returned stays bounded."""
    sizes = {number: batch.nbytes for number, batch in shares.items()}
    large = {number for number, size in sizes.items() if size > limits.INLINE_BYTES}
    left = sum(size for number, size in sizes.items() if number not in large)
    for number in sorted(sizes.keys() - large, key=sizes.__getitem__, reverse=True):
        if left <= INLINE_BYTES or sizes[number] < FILE_BYTES_MIN:
            break
        large.add(number)
        left -= sizes[number]
    return large
