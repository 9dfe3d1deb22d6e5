"""``format("headrace")``: a stream as a Spark DataFrame, batch and streaming.

Spark makes a source in one Python process of the driver, plans in others, and reads in the
workers of its executors; what goes from one to the next is pickled.  So readers hold nothing but
options and schema, and whatever is opened is opened where it is used and kept by its process
(:mod:`headrace.spark.connection`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.catalog import lanes
from headrace.catalog.streams import Segment
from headrace.errors import InvalidOptionError, TrimmedError, UnknownStreamError
from headrace.log import limits
from headrace.log.cursor import Cursor
from headrace.log.log import Log
from headrace.log.picking import Pick
from headrace.spark import offsets, planning
from headrace.spark.columns import Shape, check_schema, default_schema
from headrace.spark.connection import check_shared, driver_master
from headrace.spark.losses import data_loss
from headrace.spark.no_tables import NO_TABLE
from headrace.spark.offsets import Offset
from headrace.spark.options import (
    BATCH_ONLY,
    STREAM_ONLY,
    WHICH,
    SourceOptions,
    is_read,
    parse_options,
)
from headrace.spark.planner import Planner
from headrace.spark.planning import Span
from headrace.spark.pushdown import EVERYTHING, Narrowing
from headrace.subjects import match_array

if TYPE_CHECKING:
    from headrace.spark.epochs.reader import EpochBatchReader, EpochStreamReader
    from headrace.spark.group_source import GroupStreamReader
    from headrace.spark.sink import BatchWriter, StreamWriter

NO_LIMIT = 1 << 62
TOGETHER_ROWS = 4096
"""Batches of fewer rows are joined with those that follow."""
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class HeadraceSource(DataSource):
    """Reads streams and appends to them; see ``docs/spark.md`` for the options."""

    def __init__(self, options: MutableMapping[str, str], master: str | None = None) -> None:
        super().__init__(options)
        self._read: SourceOptions | None = None
        # Options that make no sense are found here, before there is a query.
        if is_read(options):
            if "stream" in options:
                raise InvalidOptionError("option 'stream' is for a write, 'subscribe' for a read")
            self._read = parse_options(options)
            log = self._read.connection.log()
            check_shared(log, master or driver_master())
            if self._read.group is not None:
                from headrace.spark.group_source import check_group

                check_group(log, self._read)
                return
            if self._read.epochs:
                check_epochs(log, self._read)
                return
            planner = Planner(log, self._read)
            planner.start("earliest")
            planner.end()

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        options = self._options()
        return default_schema(headers=options.include_headers, frontier=options.include_frontier)

    def reader(self, schema: StructType) -> BatchReader | EpochBatchReader:
        options = self._options()
        options.refuse((*STREAM_ONLY, "group"), "is for streaming reads")
        if options.epochs:
            from headrace.spark.epochs.reader import EpochBatchReader

            check_schema(schema, frontier=options.include_frontier)
            return EpochBatchReader(options, schema)
        if options.start == "latest":
            raise InvalidOptionError("startingOffsets='latest' leaves nothing for a batch to read")
        if options.end == "earliest":
            raise InvalidOptionError("endingOffsets='earliest' leaves nothing for a batch to read")
        check_schema(schema)
        Planner(options.connection.log(), options).streams()  # a read with an end needs them all
        if _PUSHDOWN_WORKER in sys.modules or _is_main(_PUSHDOWN_WORKER):
            return FilteringReader(options, schema)
        return BatchReader(options, schema)

    def streamReader(  # noqa: N802
        self, schema: StructType
    ) -> StreamReader | EpochStreamReader | GroupStreamReader:
        options = self._options()
        options.refuse(BATCH_ONLY, "is for batch reads")
        check_schema(schema, frontier=options.include_frontier)
        if options.group is not None:
            from headrace.spark.group_source import GroupStreamReader

            return GroupStreamReader(options, schema)
        if options.epochs:
            from headrace.spark.epochs.reader import EpochStreamReader

            return EpochStreamReader(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from headrace.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from headrace.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _options(self) -> SourceOptions:
        if self._read is None:
            raise InvalidOptionError(
                f"which stream to read? give one of the options {', '.join(map(repr, WHICH))}"
                + ("" if self.options else f". {NO_TABLE}")
            )
        return self._read


def check_epochs(log: Log, options: SourceOptions) -> None:
    """Refuse a read of whole epochs that cannot be; nothing of it is recorded here."""
    from headrace.spark.epochs.planner import EpochPlanner

    unnamed = msgspec.structs.replace(options, subscription=None)
    planner = EpochPlanner(log, unnamed)
    planner.start("earliest")
    planner.end()


def _is_main(module: str) -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == module


class OffsetRun(InputPartition):
    """What one task reads: spans, one after another, each with its segment's id."""

    def __init__(self, spans: Sequence[tuple[Span, int]]) -> None:
        super().__init__(None)
        self.spans = tuple(spans)


def tasks_of(spans: Sequence[Span], options: SourceOptions) -> list[tuple[Span, ...]]:
    """Spans as tasks for this machine, cut as the options ask; small ones share a task."""
    least, most = options.partitions_min, options.partition_rows_max
    parts = planning.cut(planning.shorten(spans, most), least)
    return planning.pack(parts, least, min(planning.CORES_MAX, os.cpu_count() or 1), most)


def runs_of(
    planner: Planner, spans: Sequence[Span], options: SourceOptions
) -> list[InputPartition]:
    """Tasks for spans, each span with its segment's id."""
    ids = planner.segment_ids(span.stream for span in spans)
    return [
        OffsetRun([(span, ids[span.stream, span.segment]) for span in task])
        for task in tasks_of(spans, options)
    ]


def read_run(
    options: SourceOptions,
    schema: StructType,
    partition: InputPartition,
    narrowing: Narrowing = EVERYTHING,
) -> Iterator[pa.RecordBatch]:
    """The events of a run, in the columns of the schema; bounded in memory."""
    if not isinstance(partition, OffsetRun):
        return
    options.connection.check_reachable()
    log, shape = options.connection.log(), Shape(schema)
    pick = narrowing.pick(shape.names)
    yield from joined(
        batch
        for span, segment_id in partition.spans
        for batch in _read_span(options, log, shape, pick, span, segment_id)
    )


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in their order, with small neighbours as one batch.

    Every batch has a cost of its own, here and in Spark, and a task that reads a hundred segments
    would have a hundred of them.
    """
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= TOGETHER_ROWS or size_bytes >= limits.READ_BYTES:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield held[0] if len(held) == 1 else pa.concat_batches(held)


def _read_span(
    options: SourceOptions, log: Log, shape: Shape, pick: Pick, span: Span, segment_id: int
) -> Iterator[pa.RecordBatch]:
    segment = Segment(segment_id, span.segment, 0, 0, 0, 0, 0, 0, 0, 0, None)
    on_damaged = None if options.fail_on_data_loss else lambda _: None
    linked = "origin" in shape.names and log.catalog.read(
        lambda tx: lanes.is_linked(tx, segment_id)
    )
    cursor = Cursor(
        log.catalog,
        log.store,
        span.stream,
        segment,
        span.start,
        on_damaged,
        origins=linked,
        pick=pick if options.subject is None else pick.with_subject(options.subject),
    )
    while cursor.position < span.end:
        try:
            batch = cursor.next(span.end)
        except TrimmedError as error:
            if options.fail_on_data_loss:
                raise data_loss(span.stream, span.segment, error.offset, error.first) from error
            cursor.position = min(error.first, span.end)
            continue
        except UnknownStreamError:
            if options.fail_on_data_loss:
                raise
            return
        if batch is None:
            continue
        if "marker" in batch.schema.names:
            batch = batch.filter(batch.column("marker").is_null())
        if options.subject is not None:
            batch = batch.filter(match_array(options.subject, batch.column("subject")))
        batch = pick.rows(batch)
        if batch.num_rows:
            yield shape.fit(batch, span.stream, span.segment)


class BatchReader(DataSourceReader):
    """A read with an end."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return self._partitions(EVERYTHING)

    def _partitions(self, narrowing: Narrowing) -> list[InputPartition]:
        planner = Planner(self._options.connection.log(), self._options)
        spans = narrowing.apply(self._spans(planner))
        if narrowing.since_us is not None:
            spans = planner.since(spans, narrowing.since_us)
        return runs_of(planner, spans, self._options)

    def _spans(self, planner: Planner) -> list[Span]:
        if self._options.spans is not None:
            return [
                Span(stream, segment, start, end)
                for stream, segments in self._options.spans.items()
                for segment, bounds in segments.items()
                for start, end in bounds
            ]
        end = planner.end()
        begin = planner.start("earliest")
        return [
            run
            for name, at in end.streams.items()
            for run in planner.whole_runs(name, begin.at(name), at.segments)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_run(self._options, self._schema, partition)


class FilteringReader(BatchReader):
    """A batch read with filter push-down.

    Spark refuses a reader with ``pushFilters`` when ``spark.sql.python.filterPushdown.enabled`` is
    not set, so this one is made only in the process that Spark starts to push filters down.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._narrowing = EVERYTHING

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        # Spark still applies all of them: here they only save reading what cannot match.
        self._narrowing = Narrowing.of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        return self._partitions(self._narrowing)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_run(self._options, self._schema, partition, self._narrowing)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that goes on; places are kept by Spark in the checkpoint."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None
        self._initial: Offset | None = None
        self._at: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options.connection.log(), self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            self._initial = self._plan().start("latest")
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.rows_max or options.rows_min or options.bytes_max:
            return ReadMaxRows(options.rows_max or NO_LIMIT)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = offsets.parse(start)
        self._at = self._plan().next(begin, limited=not isinstance(limit, ReadAllAvailable))
        # Unchanged when nothing is new: Spark compares offsets as text.
        return start if self._at is begin else self._at.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._at is None else self._plan().latest(self._at).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planner = self._plan()
        begin, until = offsets.parse(start), offsets.parse(end)
        return runs_of(planner, planner.spans(begin, until), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_run(self._options, self._schema, partition)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
