"""Readers of whole epochs: what Spark calls for ``epochs=whole``.

The tasks of a batch get references: which offsets of which segments hold how many rows of which
epochs.  What small commits left is read by few tasks.  A task counts its rows, so an epoch that is
not all there fails the batch and never comes short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.epochs.core.feed import Reference
from headrace.epochs.core.times import TimeShape
from headrace.epochs.runtime.epoch_rows import EpochRows
from headrace.spark.columns import Shape
from headrace.spark.epochs.offsets import parse_epochs
from headrace.spark.epochs.planner import EpochPlanner
from headrace.spark.options import SourceOptions
from headrace.subjects import match_array

NO_LIMIT = 1 << 62
TASK_ROWS_MIN = 16_384
"""Fewer rows are not worth a task of their own."""
TASK_ROWS_MAX = 1_000_000


class EpochRun(InputPartition):
    """What one task reads."""

    def __init__(
        self, references: Sequence[Reference], length: int, ids: dict[str, int], frontier: str
    ) -> None:
        super().__init__(None)
        self.references = tuple(references)
        self.length = length
        self.ids = ids
        self.frontier = frontier


def tasks_of(references: Sequence[Reference], least: int) -> list[list[Reference]]:
    """References in the order of segments and offsets, in shares of about equal rows.

    A commit's rows in one segment stay together.  There are as many tasks as segments, but none
    for few rows, and more for many.
    """
    ordered = sorted(references, key=lambda one: (one.stream, one.segment, one.start))
    groups = [list(group) for _, group in groupby(ordered, key=_place)]
    total = sum(one.rows for one in references)
    if not total:
        return []
    segments = len({(one.stream, one.segment) for one in references})
    wanted = min(max(segments, -(-total // TASK_ROWS_MAX)), -(-total // TASK_ROWS_MIN))
    each = total / max(wanted, least)
    tasks: list[list[Reference]] = [[]]
    done = 0
    for group in groups:
        if tasks[-1] and done >= each * len(tasks):
            tasks.append([])
        tasks[-1] += group
        done += sum(one.rows for one in group)
    return tasks


def _place(one: Reference) -> tuple[str, int, int]:
    return one.stream, one.segment, one.start


def read_epochs(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the columns of the schema; bounded in memory."""
    if not isinstance(partition, EpochRun):
        return
    options.connection.check_reachable()
    rows = EpochRows(options.connection.log(), TimeShape(partition.length), partition.ids)
    shape = Shape(schema, {"frontier": partition.frontier})
    of_segment = groupby(partition.references, key=lambda one: (one.stream, one.segment))
    for (stream, segment), group in of_segment:
        references = list(group)
        times = list({one.time for one in references})
        for batch, _ in rows.reading(references, times):
            if options.subject is not None:
                batch = batch.filter(match_array(options.subject, batch.column("subject")))
            if batch.num_rows:
                yield shape.fit(batch, stream, segment)


class EpochBatchReader(DataSourceReader):
    """A read of the epochs that are complete, or of those before a frontier."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        planner = EpochPlanner(self._options.connection.log(), self._options)
        end = planner.end()
        found = planner.references(planner.start("earliest"), end)
        return _runs(planner, self._options, found, end.epochs.frontier)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_epochs(self._options, self._schema, partition)


class EpochStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that goes on, epoch by epoch; the frontier is kept by Spark in the checkpoint."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: EpochPlanner | None = None
        self._initial: dict[str, Any] | None = None
        self._at: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    def _plan(self) -> EpochPlanner:
        if self._planner is None:
            self._planner = EpochPlanner(self._options.connection.log(), self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            self._initial = self._plan().start("open").to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.rows_max or options.bytes_max or options.epochs_max:
            return ReadMaxRows(options.rows_max or NO_LIMIT)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = parse_epochs(start)
        found = self._plan().next(begin, limited=not isinstance(limit, ReadAllAvailable))
        # Unchanged when nothing is new: Spark compares offsets as text.
        self._at = start if found is begin else found.to_json()
        return self._at

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._at is None else self._plan().latest(parse_epochs(self._at)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planner = self._plan()
        until = parse_epochs(end)
        found = planner.references(parse_epochs(start), until)
        return _runs(planner, self._options, found, until.epochs.frontier)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_epochs(self._options, self._schema, partition)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


def _runs(
    planner: EpochPlanner, options: SourceOptions, found: list[Reference], frontier: str
) -> list[InputPartition]:
    return [
        EpochRun(task, planner.shape.length, planner.ids, frontier)
        for task in tasks_of(found, options.partitions_min)
    ]
