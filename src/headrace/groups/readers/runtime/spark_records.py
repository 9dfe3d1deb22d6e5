"""The stored lines of Spark queries: reading and writing them, and forgetting what is open."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.catalog import Tx, spark_readers
from headrace.catalog.records import Records
from headrace.catalog.spark_readers import LineRow
from headrace.groups.readers.core import spark_batches
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import SparkLine, SparkOpening

_lines = Records(
    SparkLine, "checkpoint of a Spark query", "start the query with a new checkpointLocation"
)


def decode(row: LineRow) -> SparkLine:
    """What a row holds."""
    return _lines.decode(row.line, row.data)


def put(tx: Tx, row: LineRow, line: SparkLine) -> None:
    """Store a line in its row."""
    data = _lines.encode(row.line, line)
    spark_readers.put_line(tx, msgspec.structs.replace(row, data=data))


def stored_line(tx: Tx, line: str) -> SparkLine | None:
    """What is stored of a line."""
    row = spark_readers.lines(tx, [line]).get(line)
    return None if row is None else decode(row)


def forget(tx: Tx, group: str, segments: Collection[SegmentId] | None = None) -> None:
    """A group goes back: what is open of it, or of some segments, is to be read again."""
    for row in spark_readers.lines_of_group(tx, group, hold=True):
        before = decode(row)
        after = spark_batches.forget_opening(before, segments)
        if after != before:
            put(tx, row, after)


def unsettled(tx: Tx, group: str) -> dict[str, SparkOpening]:
    """The batches that are open, by reader."""
    found = {}
    for row in spark_readers.lines_of_group(tx, group):
        opening = decode(row).opening
        if opening is not None and not opening.settled:
            found[row.reader] = opening
    return found
