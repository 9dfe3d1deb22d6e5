"""A source and sink that stop at one point of a batch, to be killed or frozen there.

At its point a process leaves a mark, and goes on when somebody removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.spark.group_source import GroupStreamReader
from headrace.spark.sink import StreamWriter, make_sink
from headrace.spark.source import HeadraceSource

OWN = ("mark", "point")


class Point:
    """One point of one batch, in whatever process comes to it first."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._mark = Path(options["mark"])
        self._point = options["point"]

    def at(self, point: str) -> None:
        if point != self._point:
            return
        done = self._mark.with_suffix(".done")
        try:
            os.close(os.open(done, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self._mark.touch()
        while self._mark.exists():
            time.sleep(0.02)


class StruckReader(GroupStreamReader):
    """See the module's text."""

    point: Point

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"point": self.point}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.point = state["point"]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if start.get("batch", {}).get("id") in self._partitions:
            self.point.at("finished")
        end = super().latestOffset(start, limit)
        if end != start:
            self.point.at("planned")
        elif self._loop is not None and self._loop.reader._units.by_segment:
            self.point.at("idle")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self.point.at("logged")
        found = super().partitions(start, end)
        self.point.at("open")
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            self.point.at("bound")
            yield batch


class StruckWriter(StreamWriter):
    """See the module's text."""

    point: Point

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        self.point.at("staged")
        super().commit(messages, batch_id)
        self.point.at("counted")


class StruckSource(HeadraceSource):
    """``format("struck")``, with the options ``mark`` and ``point`` beside the others."""

    def __init__(self, options: MutableMapping[str, str], master: str | None = None) -> None:
        self._point = Point(options)
        given = {name: value for name, value in options.items() if name not in OWN}
        super().__init__(given, master)

    @classmethod
    def name(cls) -> str:
        return "struck"

    def streamReader(self, schema: StructType) -> StruckReader:  # noqa: N802
        reader = StruckReader(self._options(), schema)
        reader.point = self._point
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> StruckWriter:  # noqa: N802
        writer = StruckWriter(make_sink(self.options, schema, overwrite))
        writer.point = self._point
        return writer
