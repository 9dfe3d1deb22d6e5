"""A sink whose driver fails between stage and commit, or between commit and Spark's own log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.spark.sink import StreamWriter, make_sink
from headrace.spark.source import HeadraceSource


class FailingWriter(StreamWriter):
    """Fails once per batch and place: the folder ``marks`` says where it has been."""

    marks = ""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        self._fail(f"{batch_id}-staged")
        super().commit(messages, batch_id)
        self._fail(f"{batch_id}-committed")

    def _fail(self, place: str) -> None:
        mark = Path(self.marks) / place
        if not mark.exists():
            mark.touch()
            raise RuntimeError(f"the driver dies: {place}")


class FailingSink(HeadraceSource):
    """``format("failing")``, with the option ``marks`` beside those of the sink."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FailingWriter:  # noqa: N802
        given = {name: value for name, value in self.options.items() if name != "marks"}
        writer = FailingWriter(make_sink(given, schema, overwrite))
        writer.marks = self.options["marks"]
        return writer
