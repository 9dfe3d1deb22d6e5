"""The partition job: fills the work queue of an elastic group from its source stream.

The work goes in rounds (:mod:`headrace.groups.partitioned.work_queue`).  The driver plans one:
which offsets of which segments.  Tasks read those straight from the log, compute the partitions and
encode the rows of each: small shares go back with the answer, large ones are written as files.
The driver appends all of them and moves the places in the source forward, in one transaction that
first checks that no other round came before.  So there is no checkpoint to keep, a job that dies
anywhere leaves at most files that nothing names, and two jobs on one group only waste work.

A round of few events is done by the driver itself, since a Spark job takes longer to start than
they take to partition.  Between rounds the job waits for news of the source; when the queue is full
it looks whether members have acked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from zlib_ng.zlib_ng import crc32

from headrace.catalog import Tx, entries, streams
from headrace.catalog.batches import NewBatch
from headrace.errors import (
    CatalogUnavailableError,
    HeadraceError,
    RoundOvertakenError,
    TrimmedError,
    UnknownGroupError,
    UnknownStreamError,
)
from headrace.groups.partitioned.config import ElasticGroupConfig
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.work_queue import (
    Round,
    SegmentRead,
    commit_round,
    partitioned,
    plan_round,
    round_locks,
)
from headrace.log import events, limits
from headrace.log.log import Log
from headrace.log.read import Query
from headrace.spark.connection import Connection, check_shared, connection_of
from headrace.spark.staging import FRESH_S, max_ts_us, place, remove, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_EVENTS_MAX = 2_000_000
TASK_EVENTS = 250_000
"""A segment's part of a round is cut into tasks of about this size."""
SMALL_EVENTS = 20_000
"""Rounds up to this size are done without Spark."""
INLINE_BYTES = 8 * 1024 * 1024
"""What a task may return instead of writing files."""
FILE_BYTES_MIN = 64 * 1024
"""Shares below this are returned in any case; so small a file costs more than it spares."""
ROOM_LOOK_S = 0.05
"""How often a full queue is looked at; acks are too many to tell of each."""
STOP_LOOK_S = 0.2
OVERTAKEN_MAX = 100
RATE_WINDOW_S = 30.0


class Work(msgspec.Struct, frozen=True):
    """What the tasks of a round have in common."""

    connection: Connection
    stream: str
    config: ElasticGroupConfig
    queue_id: int
    queue_segments: tuple[tuple[int, int], ...]
    """(partition, segment id) of the queue."""


class Done(msgspec.Struct, frozen=True):
    """What one task made of its read: batches in their order within each partition."""

    batches: tuple[NewBatch, ...]
    events: int


class JobStatus(msgspec.Struct, frozen=True):
    """How a partition job is doing; counts are since it was made."""

    name: str
    state: str
    rounds: int
    events_read: int
    events_queued: int
    behind_events: int
    rate_events_per_s: float
    error: str = ""


class PartitionJob:
    """Keeps the work queue of one elastic group filled.

    ``run`` works until it is told to stop or the group is gone; ``step`` does one round.  Both may
    be called again after an error.
    """

    def __init__(
        self,
        catalog: str,
        store: str | None,
        group: GroupName,
        *,
        round_events_max: int = ROUND_EVENTS_MAX,
        task_events: int = TASK_EVENTS,
        small_events: int = SMALL_EVENTS,
    ) -> None:
        self.group = group
        self.name = f"partition {group.key}"
        given = {"catalog": catalog} | ({} if store is None else {"store": store})
        self._connection = connection_of(given)
        self._round_events_max = round_events_max
        self._task_events = task_events
        self._small_events = small_events
        self._state = "new"
        self._error = ""
        self._rounds = self._read = self._queued = self._behind = 0
        self._pace: deque[tuple[float, int]] = deque()

    def status(self) -> JobStatus:
        """For the supervisor; may be asked from any thread."""
        now = time.monotonic()
        recent = [(at, count) for at, count in list(self._pace) if at > now - RATE_WINDOW_S]
        span = max(1.0, now - recent[0][0]) if recent else 1.0
        return JobStatus(
            name=self.name,
            state=self._state,
            rounds=self._rounds,
            events_read=self._read,
            events_queued=self._queued,
            behind_events=self._behind,
            rate_events_per_s=sum(count for _, count in recent) / span,
            error=self._error,
        )

    def run(self, spark: SparkSession, stop: threading.Event) -> None:
        """Fill the queue until ``stop`` is set; returns early when the group is deleted."""
        log = self._connection.log()
        check_shared(log, spark.sparkContext.master)
        self._error = ""
        try:
            self._run(log, spark, stop)
        except UnknownGroupError:
            self._state = "gone"
        except HeadraceError as error:
            self._state, self._error = "failed", str(error)
            raise
        else:
            self._state = "stopped"

    def _run(self, log: Log, spark: SparkSession, stop: threading.Event) -> None:
        planned = self._plan(log)
        channels = (
            streams.channel(planned.source_id),
            streams.channel(planned.queue_id),
            entries.channel(ELASTIC_BUCKET),
        )
        with log.catalog.waiting(*channels) as wait:
            while not stop.is_set():
                done = self.step(spark)
                if done.reads:
                    continue
                if done.waits_for_room:
                    self._state = "waiting for room"
                    wait(ROOM_LOOK_S)
                    continue
                self._state = "idle"
                while not stop.is_set() and not wait(STOP_LOOK_S):
                    pass

    def step(self, spark: SparkSession) -> Round:
        """One round; the plan that was carried out, which reads nothing when there is no news."""
        log = self._connection.log()
        for _ in range(OVERTAKEN_MAX):
            planned = self._plan(log)
            if not planned.reads:
                return planned
            self._state = "running"
            try:
                self._carry_out(log, spark, planned)
            except (RoundOvertakenError, TrimmedError):
                # Another job was quicker, or retention; the next plan starts from there.
                continue
            return planned
        raise CatalogUnavailableError(
            f"{self.name}: {OVERTAKEN_MAX} rounds in a row came too late; is another job at work?"
        )

    def _plan(self, log: Log) -> Round:
        planned = log.catalog.read(
            lambda tx: plan_round(tx, self.group, events_max=self._round_events_max),
            snapshot=True,
        )
        self._behind = planned.behind
        return planned

    def _carry_out(self, log: Log, spark: SparkSession, planned: Round) -> None:
        started_s = time.time()
        work = self._work(log, planned)
        count = sum(read.end - read.start for read in planned.reads)
        if count <= self._small_events:
            done = [carry_out(work, planned.reads, log)]
        else:
            tasks = self._cut(planned.reads)
            context = spark.sparkContext
            done = context.parallelize(tasks, len(tasks)).map(partial(_in_task, work)).collect()
        made = [batch for each in done for batch in each.batches]
        try:
            if time.time() - started_s > FRESH_S:
                raise RoundOvertakenError(self.group.key, "it took so long that a sweep may come")
            self._commit(log, planned, made)
        except CatalogUnavailableError:
            # Whether it was committed is not known, so nothing may be removed.
            raise
        except HeadraceError:
            remove(log, [batch.path for batch in made])
            raise
        self._rounds += 1
        self._read += count
        self._queued += sum(each.events for each in done)
        self._behind = max(0, planned.behind - count)
        self._pace.append((time.monotonic(), count))
        while self._pace and self._pace[0][0] < time.monotonic() - RATE_WINDOW_S:
            self._pace.popleft()

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


# --- what a task does --------------------------------------------------------------------------


def _in_task(work: Work, read: SegmentRead) -> Done:
    work.connection.check_reachable()
    return carry_out(work, [read], work.connection.log())


def carry_out(work: Work, reads: Iterable[SegmentRead], log: Log) -> Done:
    """Read, partition and encode; files are written, and nothing names them yet."""
    rows: dict[int, list[pa.RecordBatch]] = {}
    for read in reads:
        for batch in _events(work, read, log):
            for number, share in partitioned(batch, work.config).items():
                rows.setdefault(number, []).append(share)
    joined = {number: _join(parts) for number, parts in sorted(rows.items())}
    rows.clear()
    large = _too_large_to_return(joined) if log.store is not None else set()
    ids = dict(work.queue_segments)
    made: list[NewBatch] = []
    try:
        for number, batch in joined.items():
            made += _encode(log, work.queue_id, number, ids[number], batch, number in large)
    except BaseException:
        remove(log, [batch.path for batch in made])
        raise
    return Done(tuple(made), sum(batch.num_rows for batch in joined.values()))


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


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several, which may have different columns: those all null are left out."""
    if len(parts) == 1:
        return parts[0]
    if all(part.schema == parts[0].schema for part in parts):
        return pa.concat_batches(parts)
    layout = 0
    for part in parts:
        layout |= events.layout_of(part.schema)
    schema = events.schema_of(layout)
    tables = [pa.Table.from_batches([part]) for part in parts]
    whole = pa.concat_tables(tables, promote_options="default").select(schema.names)
    (batch,) = whole.combine_chunks().to_batches()
    return batch


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


def _encode(
    log: Log, queue_id: int, number: int, segment_id: int, batch: pa.RecordBatch, to_file: bool
) -> list[NewBatch]:
    most = limits.FILE_BYTES if to_file else limits.INLINE_BYTES
    pieces = min(batch.num_rows, max(1, -(-batch.nbytes // most)))
    step = -(-batch.num_rows // pieces)
    parts = [batch.slice(at, step) for at in range(0, batch.num_rows, step)]
    if to_file:
        return [write_file(log, queue_id, number, segment_id, part) for part in parts]
    return [_inline(segment_id, part) for part in parts]


def _inline(segment_id: int, batch: pa.RecordBatch) -> NewBatch:
    blob = events.encode_blob(batch)
    return NewBatch(
        segment_id=segment_id,
        rows=batch.num_rows,
        size_bytes=len(blob),
        max_ts_us=max_ts_us(batch),
        layout=events.layout_of(batch.schema),
        checksum=crc32(blob),
        data=blob,
    )
