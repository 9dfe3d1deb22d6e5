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
    CONNECTION_OPTIONS,
    Connection,
    check_shared,
    connection_of,
    driver_master,
    lower,
)
from headrace.spark.sink_rows import Columns
from headrace.spark.staged_write import StagedWrite
from headrace.spark.staging import Part, Stager, remove_unnamed
from headrace.subjects import check_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = (
    *CONNECTION_OPTIONS,
    "stream",
    "subject",
    "subjectColumn",
    "subjectPrefix",
    "key",
    "keyColumn",
    "deadLetterStream",
    "replay",
    "producer",
    "sequence",
)
SPARKS_OWN = ("checkpointlocation", "queryname", "path")
"""Options that Spark hands on to every sink."""
REPLAYS = ("check", "skip")


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of a write, checked."""

    connection: Connection
    stream: str
    subject: str | None = None
    subject_column: str | None = None
    subject_prefix: str = ""
    key: str | None = None
    key_column: str | None = None
    dead_letter_stream: str | None = None
    skip_replays: bool = False
    producer: str | None = None
    sequence: int | None = None


def parse_options(options: Mapping[str, str]) -> SinkOptions:
    """Spark's options, whose names come in lower case; an error names what is wrong."""
    rest = lower(options, OPTIONS, hidden=SPARKS_OWN)
    stream = rest.get("stream")
    if not stream:
        raise InvalidOptionError("the option stream is missing: which stream to append to")
    for constant, column in (("subject", "subjectColumn"), ("key", "keyColumn")):
        if constant in rest and column.lower() in rest:
            raise InvalidOptionError(f"give {constant} or {column}, not both")
    replay = rest.get("replay", "check")
    if replay not in REPLAYS:
        raise InvalidOptionError(f"replay={replay!r}: use {' or '.join(REPLAYS)}")
    producer, sequence = rest.get("producer"), rest.get("sequence")
    if (producer is None) != (sequence is None):
        raise InvalidOptionError("an idempotent write needs both producer and sequence")
    if sequence is not None and not (sequence.isascii() and sequence.isdigit()):
        raise InvalidOptionError(f"sequence={sequence!r} is not a number from 0 on")
    return SinkOptions(
        connection=connection_of(rest),
        stream=check_name(stream, "stream"),
        subject=rest.get("subject"),
        subject_column=rest.get("subjectcolumn"),
        subject_prefix=rest.get("subjectprefix", ""),
        key=rest.get("key"),
        key_column=rest.get("keycolumn"),
        dead_letter_stream=rest.get("deadletterstream"),
        skip_replays=replay == "skip",
        producer=None if producer is None else check_name(producer, "producer"),
        sequence=None if sequence is None else int(sequence),
    )


# --- what batch and stream writes share --------------------------------------------------------


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one task staged, on its way to the driver."""

    query: str | None
    parts: tuple[Part, ...]


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
        partition, query = _task()
        # Workers live long, so a cached route may be stale.
        route = log.routes.refresh(self.options.stream)
        stagers.append(Stager(log, route))
        dead = self.options.dead_letter_stream
        if dead is not None:
            stagers.append(Stager(log, log.routes.refresh(dead)))
        first = 0
        for batch in iterator:
            if not batch.num_rows:
                continue
            rows = sink_rows.convert(batch, self.columns, events.now_us())
            bad = sink_rows.judge(rows, route)
            worst = next(bad, None)
            if worst is not None:
                if dead is None:
                    raise BadRowError(partition, first + worst.row, worst.reason)
                found = [worst, *bad]
                stagers[1].add(self._dead_letters(rows, found, log, partition, first))
                rows = sink_rows.without(rows, found)
            stagers[0].add(rows)
            first += batch.num_rows
        return Staged(query, tuple(stager.finish() for stager in stagers))

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
        self, messages: Sequence[WriterCommitMessage | None], producer: str, sequence: int
    ) -> None:
        """On the driver: append what all tasks staged, once."""
        parts = _parts(messages)
        if not any(part.count for part in parts):
            return
        write = StagedWrite(self.options.connection.log(), parts, producer, sequence)
        done = write.commit()
        if done.repeat and done.digest != write.digest and not self.options.skip_replays:
            raise ReplayMismatchError(producer, sequence, done.count, write.count)

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


QUERY_ID = "sql.streaming.queryId"
"""A property internal to Spark; nothing else tells a task which query it works for."""


def _task() -> tuple[int, str | None]:
    context = TaskContext.get()
    if context is None:
        return 0, None
    return context.partitionId(), context.getLocalProperty(QUERY_ID)


def make_sink(
    options: Mapping[str, str], schema: StructType, overwrite: bool, master: str | None = None
) -> Sink:
    """Check everything that can be checked before a row is seen."""
    parsed = parse_options(options)
    if overwrite:
        raise InvalidSinkError(
            "a stream is appended to, never overwritten: use mode('append') or outputMode('append')"
        )
    columns = sink_rows.plan_columns(
        schema,
        subject=parsed.subject,
        subject_column=parsed.subject_column,
        subject_prefix=parsed.subject_prefix,
        key=parsed.key,
        key_column=parsed.key_column,
    )
    log = parsed.connection.log()
    check_shared(log, master or driver_master())
    route = _writable(log, parsed.stream, "stream")
    if columns.subject_text is not None:
        # A subject that is the same for all rows is judged once, and early.
        subject = columns.subject_prefix + columns.subject_text
        route.check_subjects(pa.record_batch({"subject": pa.array([subject])}))
    if parsed.dead_letter_stream is not None:
        if parsed.dead_letter_stream == parsed.stream:
            raise InvalidOptionError("deadLetterStream must be another stream than stream")
        _writable(log, parsed.dead_letter_stream, "deadLetterStream")
    return Sink(parsed, columns)


def _writable(log: Log, name: str, option: str) -> Route:
    route = log.routes.refresh(name)
    if route.stream.config.internal:
        raise InvalidOptionError(f"{option}={name}: the stream belongs to a group")
    if route.stream.config.epochs is not None:
        raise EpochStreamError(name)
    return route


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
        self._sink.commit(messages, self._producer, self._sequence)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: one commit for each batch of the query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        query = next((m.query for m in messages if isinstance(m, Staged) and m.query), None)
        if query is None:
            if any(isinstance(message, Staged) for message in messages):
                raise InvalidSinkError(
                    "Spark does not tell which query this batch belongs to, so it cannot be "
                    "written exactly once; use a Spark release that Headrace supports"
                )
            return
        self._sink.commit(messages, f"spark-{query}", batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        del batch_id
        self._sink.abort(messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``; what does not fit is refused here, before any task runs."""
    return BatchWriter(make_sink(options, schema, overwrite))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, master: str | None = None
) -> StreamWriter:
    """The writer of ``df.writeStream``."""
    sink = make_sink(options, schema, overwrite, master)
    if sink.options.producer is not None:
        raise InvalidOptionError("producer and sequence are for batch writes; a query has its own")
    return StreamWriter(sink)
