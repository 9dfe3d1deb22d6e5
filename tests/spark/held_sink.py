"""A sink whose driver stops between stage and commit, to be killed there."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.spark.sink import StreamWriter, make_sink
from headrace.spark.source import HeadraceSource

HELD_BATCH = 1


class HeldWriter(StreamWriter):
    """Leaves a mark when the batch is staged, and never commits it."""

    mark = ""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        if batch_id == HELD_BATCH:
            Path(self.mark).touch()
            signal.pause()
        super().commit(messages, batch_id)


class HeldSink(HeadraceSource):
    """``format("held")``, with the option ``mark`` beside those of the sink."""

    @classmethod
    def name(cls) -> str:
        return "held"

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeldWriter:  # noqa: N802
        given = {name: value for name, value in self.options.items() if name != "mark"}
        writer = HeldWriter(make_sink(given, schema, overwrite))
        writer.mark = self.options["mark"]
        return writer
