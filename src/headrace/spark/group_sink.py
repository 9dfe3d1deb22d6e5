"""A sink's part in reading for a group: the batch is counted in the transaction that writes it.

No option asks for it: it holds whenever source and sink are in one catalog.  Where the rows of a
batch come from is written down by its read tasks (:mod:`headrace.spark.group_source`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.catalog import Tx, spark_readers
from headrace.groups.readers.runtime import spark_lines
from headrace.log.log import Log


class BatchCount(msgspec.Struct, frozen=True):
    """The batch of a query, as the sink knows it."""

    query: str
    run: str
    batch: int

    def is_of_group(self, log: Log) -> bool:
        """Whether this batch has, or had, rows of a reader group; only reads."""
        found: Sequence[object] = log.catalog.read(
            lambda tx: spark_readers.bindings(tx, self.query, self.batch)
        )
        return bool(found)

    def run_in(self, tx: Tx, *, written: bool) -> bool | None:
        """Count the batch within the sink's transaction; see :func:`.spark_lines.count`."""
        return spark_lines.count(tx, self.query, self.batch, self.run, written=written)
