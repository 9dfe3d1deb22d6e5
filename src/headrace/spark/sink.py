"""The sink: ``df.write`` and ``df.writeStream`` with ``format("headrace")``, exactly once.

Tasks judge, route and encode their rows and stage them (:mod:`headrace.spark.staging`); nothing of
that counts.  The driver then commits what all tasks staged in one transaction, together with the
key of the batch: the query's id and the batch's number for a stream, an id of its own for a batch
write.  A batch that comes again (a restart between stage and commit, a checkpoint put back) finds
its key and writes nothing.  Task attempts that lost, were repeated or live on as zombies only leave
files behind that nothing names.

Spark calls ``abort`` also after a ``commit`` that raised, when nobody knows any more whether it
happened.  So ``abort`` asks the catalog, under the lock that the commit held, and removes only
files that are named nowhere.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.runtime.opening import find
from headrace.epochs.runtime.progress_log import epochs_of
from headrace.errors import (
    BadRowError,
    EpochStreamError,
    HeadraceError,
    InvalidOptionError,
    InvalidSinkError,
    ReplayMismatchError,
)
from headrace.log import events
from headrace.log.log import Log
from headrace.log.routing import Route
from headrace.spark import sink_rows
from headrace.spark.connection import (
    check_shared,
    driver_master,
)
from headrace.spark.epochs.publishing import EpochCommitPart
from headrace.spark.epochs.sink_options import EpochWrite, check_epoch_write
from headrace.spark.epochs.sink_rows import TaskEpochs, look
from headrace.spark.group_sink import BatchCount
from headrace.spark.sink_options import SinkOptions, parse_options
from headrace.spark.sink_rows import Columns
from headrace.spark.staged_write import StagedWrite
from headrace.spark.staging import Part, Stager, remove_unnamed
from headrace.spark.task import BATCH_ID, QUERY_ID, RUN_ID, query_producer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# --- what batch and stream writes share --------------------------------------------------------


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task staged, on its way to the driver."""

    query: str | None
    parts: tuple[Part, ...]
    run: str | None = None
    """The run of the query that staged it."""
    epoch: Time | None = None
    """The epoch that all rows were put into (``epoch=batch``)."""
    frontier: str | None = None
    """What the rows say is still to come (``frontier=column:NAME``)."""


class Sink(msgspec.Struct, frozen=True):
    """A write that was checked: it can be sent to tasks."""

    options: SinkOptions
    columns: Columns

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: judge, route and stage all rows of a partition."""
        self.options.connection.check_reachable()
        stagers: list[Stager] = []
        try:
            return self._stage(self.options.connection.log(), iterator, stagers)
        except BaseException:
            for stager in stagers:
                stager.discard()
            raise

    def _stage(self, log: Log, iterator: Iterator[pa.RecordBatch], stagers: list[Stager]) -> Staged:
        partition, query, run, number = _task()
        # Workers live long, so a cached route may be stale.
        route = log.routes.refresh(self.options.stream)
        stagers.append(Stager(log, route))
        dead = self.options.dead_letter_stream
        if dead is not None:
            stagers.append(Stager(log, log.routes.refresh(dead)))
        epochs = self._epochs(log, route, query, number)
        first = 0
        for batch in iterator:
            if not batch.num_rows:
                continue
            rows = sink_rows.convert(batch, self.columns, events.now_us())
            if epochs is not None:
                rows = epochs.rows(batch, rows)
            bad = sink_rows.judge(rows, route, None if epochs is None else epochs.check)
            worst = next(bad, None)
            if worst is not None:
                if dead is None:
                    raise BadRowError(partition, first + worst.row, worst.reason)
                found = [worst, *bad]
                stagers[1].add(self._dead_letters(rows, found, log, partition, first))
                rows = sink_rows.without(rows, found)
            if epochs is not None:
                timely = epochs.without_late(rows, route, first)
                if timely.late and dead is not None and epochs.wanted.late == "deadLetter":
                    found = [sink_rows.Bad(row, why) for row, why in timely.late]
                    stagers[1].add(self._dead_letters(rows, found, log, partition, first))
                rows = timely.rows
            stagers[0].add(rows)
            first += batch.num_rows
        parts = tuple(stager.finish() for stager in stagers)
        if epochs is None:
            return Staged(query, parts, run)
        by_batch = epochs.time if epochs.wanted.by_batch and parts[0].count else None
        return Staged(query, parts, run, by_batch, epochs.told)

    def _epochs(
        self, log: Log, route: Route, query: str | None, number: int | None
    ) -> TaskEpochs | None:
        wanted, options = self.options.epochs, self.options
        if wanted is None:
            return None
        batch: tuple[str, int] | None = None
        if query is not None and number is not None:
            batch = (query_producer(query), number)
        elif options.producer is not None and options.sequence is not None:
            batch = (options.producer, options.sequence)
        return look(log, route, wanted, batch)

    def _dead_letters(
        self, rows: pa.RecordBatch, bad: list[sink_rows.Bad], log: Log, partition: int, first: int
    ) -> pa.RecordBatch:
        dead, stream = self.options.dead_letter_stream, self.options.stream
        assert dead is not None
        return sink_rows.dead_letters(
            rows,
            bad,
            subject=sink_rows.dead_subject(log.routes.get(dead), stream),
            stream=stream,
            partition=partition,
            first=first,
        )

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        producer: str,
        sequence: int,
        count: BatchCount | None = None,
        *,
        by_query: bool = True,
    ) -> None:
        """On the driver: append what all tasks staged, once; ``count`` is a query's batch."""
        parts, log = _parts(messages), self.options.connection.log()
        if count is not None and not count.is_of_group(log):
            count = None
        wanted = self.options.epochs
        advances = wanted is not None and wanted.advance_to is not None
        writes = advances or any(part.count for part in parts)
        if count is None and not writes:
            return
        if count is not None and self.options.skip_replays:
            raise InvalidOptionError(
                "replay=skip passes over rows that a reader group would count as read; take it "
                "away from a query that reads for a group"
            )
        epochs = None
        if wanted is not None and writes:
            stream = self.options.stream
            parts = parts or [Part(stream, log.routes.refresh(stream).stream.id, 0, 0)]
            epochs = self._epoch_commit(log, wanted, messages, producer, by_query)
        write = StagedWrite(log, parts, producer, sequence, count, epochs)
        done = write.commit()
        # Late rows of a batch that is repeated were put aside the first time.
        checked = not self.options.skip_replays and (wanted is None or wanted.late == "fail")
        if done.repeat and done.digest != write.digest and checked:
            raise ReplayMismatchError(producer, sequence, done.count, write.count)

    def _epoch_commit(
        self,
        log: Log,
        wanted: EpochWrite,
        messages: Sequence[WriterCommitMessage | None],
        producer: str,
        by_query: bool,
    ) -> EpochCommitPart:
        staged = [message for message in messages if isinstance(message, Staged)]
        return EpochCommitPart(
            log,
            self.options.stream,
            wanted,
            producer,
            keeps=by_query,
            told=[one.frontier for one in staged if one.frontier is not None],
            times=[one.epoch for one in staged if one.epoch is not None],
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: remove staged files, but none that a commit may have named."""
        parts = _parts(messages)
        paths = [file.batch.path for part in parts for file in part.files]
        if not paths:
            return
        # The sweep removes what is left; the error to show is the query's own.
        with contextlib.suppress(HeadraceError):
            log = self.options.connection.log()
            remove_unnamed(log, [part.stream_id for part in parts], paths)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    """Of all tasks, the written stream's parts before the dead letters'; a lost task has none."""
    staged = [message for message in messages if isinstance(message, Staged)]
    longest = max((len(message.parts) for message in staged), default=0)
    return [message.parts[at] for at in range(longest) for message in staged]


def _task() -> tuple[int, str | None, str | None, int | None]:
    """The partition of this task; of a streaming write, its query, run and number of its batch."""
    context = TaskContext.get()
    if context is None:
        return 0, None, None, None
    query, run = context.getLocalProperty(QUERY_ID), context.getLocalProperty(RUN_ID)
    number = context.getLocalProperty(BATCH_ID)
    return context.partitionId(), query, run, None if number is None else int(number)


def make_sink(
    options: Mapping[str, str], schema: StructType, overwrite: bool, master: str | None = None
) -> Sink:
    """Check everything that can be checked before a row is seen."""
    parsed = parse_options(options)
    if overwrite:
        raise InvalidSinkError(
            "a stream is appended to, never overwritten: use mode('append'), outputMode('append'), "
            "or headrace.spark.write_stream(…, outputMode='update')"
        )
    wanted = parsed.epochs
    log = parsed.connection.log()
    check_shared(log, master or driver_master())
    route = _writable(log, parsed.stream, "stream", epochs=wanted is not None)
    if wanted is not None:
        given = {name.lower(): value for name, value in options.items()}
        shape = TimeShape(epochs_of(route.stream).length)
        check_epoch_write(wanted, given, shape, schema)
    beside = () if wanted is None else (wanted.column, wanted.frontier.column or None)
    columns = sink_rows.plan_columns(
        schema,
        subject=parsed.subject,
        subject_column=parsed.subject_column,
        subject_prefix=parsed.subject_prefix,
        key=parsed.key,
        key_column=parsed.key_column,
        beside=frozenset(name for name in beside if name is not None),
        by_epochs=wanted is not None,
    )
    if columns.subject_text is not None:
        # A subject that is the same for all rows is judged once, and early.
        subject = columns.subject_prefix + columns.subject_text
        route.check_subject(subject)
    if parsed.dead_letter_stream is not None:
        if parsed.dead_letter_stream == parsed.stream:
            raise InvalidOptionError("deadLetterStream must be another stream than stream")
        _writable(log, parsed.dead_letter_stream, "deadLetterStream")
    return Sink(parsed, columns)


def _writable(log: Log, name: str, option: str, *, epochs: bool = False) -> Route:
    route = log.routes.refresh(name)
    if route.stream.config.internal:
        raise InvalidOptionError(f"{option}={name}: the stream belongs to a group")
    if epochs:
        find(log, name)
    elif route.stream.config.epochs is not None:
        raise EpochStreamError(name)
    return route


def _names(options: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in options}


# --- what Spark calls --------------------------------------------------------------------------


class BatchWriter(DataSourceArrowWriter):
    """``df.write``: one commit for the whole data frame."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._producer = sink.options.producer or f"spark-write-{uuid.uuid4().hex}"
        self._sequence = sink.options.sequence or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        count = self._batch_of_query(messages)
        by_query = count is not None
        self._sink.commit(messages, self._producer, self._sequence, count, by_query=by_query)

    def _batch_of_query(self, messages: Sequence[WriterCommitMessage | None]) -> BatchCount | None:
        """The batch of a query that this write stands for (``outputMode`` update), if it does."""
        for message in messages:
            if isinstance(message, Staged) and message.query is not None:
                if self._producer != query_producer(message.query):
                    return None
                return BatchCount(message.query, message.run or "", self._sequence)
        return None

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: one commit for each batch of the query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.by_epochs = sink.options.epochs is not None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        task = next((m for m in messages if isinstance(m, Staged) and m.query), None)
        query = None if task is None else task.query
        if query is None:
            if any(isinstance(message, Staged) for message in messages):
                raise InvalidSinkError(
                    "Spark does not tell which query this batch belongs to, so it cannot be "
                    "written exactly once; use a Spark release that Headrace supports"
                )
            return
        count = BatchCount(query, (task and task.run) or "", batch_id)
        self._sink.commit(messages, query_producer(query), batch_id, count)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        del batch_id
        self._sink.abort(messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``; what does not fit is refused here, before any task runs."""
    sink = make_sink(options, schema, overwrite)
    if sink.options.epochs is not None and sink.options.epochs.by_batch:
        raise InvalidOptionError("epoch=batch is for streaming writes; name the epoch: epoch=17")
    return BatchWriter(sink)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, master: str | None = None
) -> StreamWriter:
    """The writer of ``df.writeStream``."""
    sink = make_sink(options, schema, overwrite, master)
    if sink.options.producer is not None:
        raise InvalidOptionError("producer and sequence are for batch writes; a query has its own")
    wanted = sink.options.epochs
    if wanted is not None and (wanted.time is not None or wanted.advance_to is not None):
        raise InvalidOptionError(
            "epoch=TIME and advanceTo are for batch writes; a query has epochColumn and frontier, "
            "or epoch=batch"
        )
    if wanted is not None and wanted.column is not None and "frontier" not in _names(options):
        raise InvalidOptionError(
            "option frontier is missing: say what is complete after a batch, with batch, delay:N, "
            "column:NAME, or none (an EpochListener or a program advances the publisher)"
        )
    return StreamWriter(sink)
