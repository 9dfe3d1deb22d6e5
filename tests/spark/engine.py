"""Drives a stream reader as Spark does, without Spark: offset log, commits, restarts, replays."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.spark.epochs.reader import EpochStreamReader
from headrace.spark.source import HeadraceSource, StreamReader

Row = dict[str, Any]


def source(options: Mapping[str, Any]) -> HeadraceSource:
    return HeadraceSource({name.lower(): str(value) for name, value in options.items()})


def stream_reader(
    options: Mapping[str, Any], schema: StructType | None = None
) -> StreamReader | EpochStreamReader:
    made = source(options)
    found = made.streamReader(schema or made.schema())
    assert isinstance(found, StreamReader | EpochStreamReader)
    return found


def batch_rows(options: Mapping[str, Any], schema: StructType | None = None) -> list[Row]:
    made = source(options)
    reader = made.reader(schema or made.schema())
    return [row for part in reader.partitions() for row in rows_of(reader.read(shipped(part)))]


def shipped(part: InputPartition) -> InputPartition:
    """A partition as an executor gets it."""
    found: InputPartition = pickle.loads(pickle.dumps(part))
    return found


def rows_of(batches: Any) -> list[Row]:
    found: list[Row] = []
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        found += batch.to_pylist()
    return found


class Engine:
    """One query and its checkpoint; a new reader per run, as after a restart."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self.log: list[str] = []
        self.committed = 0
        self.batches: list[list[Row]] = []
        self.widths: list[int] = []
        self.start()

    def start(self, *, available_now: bool = False) -> None:
        """Begin, or begin again from the checkpoint."""
        self.reader = stream_reader(self._options)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        # Spark asks twice; only what the log holds is remembered.
        self.initial = self._text(self.reader.initialOffset())
        assert self.initial == self._text(self.reader.initialOffset())
        if len(self.log) > self.committed:
            self.execute()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write the next batch to the log; false when there is nothing new."""
        start = self.log[-1] if self.log else self.initial
        limit = limit or self.reader.getDefaultReadLimit()
        end = self._text(self.reader.latestOffset(json.loads(start), limit))
        if self.log and end == start:
            return False
        self.log.append(end)
        return True

    def execute(self) -> list[Row]:
        """Run the batch that the log has last, and commit it."""
        start = self.log[-2] if len(self.log) > 1 else self.initial
        parts = self.reader.partitions(json.loads(start), json.loads(self.log[-1]))
        self.widths.append(len(parts))
        worker = pickle.loads(pickle.dumps(self.reader))
        rows = [row for part in parts for row in rows_of(worker.read(shipped(part)))]
        self.batches.append(rows)
        self.committed = len(self.log)
        return rows

    def run(self, batches_max: int = 1000) -> list[Row]:
        """Batches until there is nothing new; returns their rows."""
        found: list[Row] = []
        for _ in range(batches_max):
            if not self.plan():
                return found
            found += self.execute()
        raise AssertionError(f"still not through after {batches_max} batches")

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]

    @staticmethod
    def _text(offset: dict[str, Any]) -> str:
        return json.dumps(offset)
