"""The stored lines of Spark queries: reading and writing them, and forgetting what is open.

A line is a small record; the spans of its opening are rows of their own, with what counting them
leaves, and are read only by those who need them.  Lines that were stored before there were such
rows hold their spans themselves.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.catalog import Tx, spark_readers
from headrace.catalog.records import Records
from headrace.catalog.spark_readers import LineRow, SpanRow
from headrace.groups.progress import Progress
from headrace.groups.progress.store import with_ranges
from headrace.groups.readers.core import spark_batches
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import OpenSpan, SpanRanges, SparkLine, SparkOpening
from headrace.groups.readers.names import unit_of

_lines = Records(
    SparkLine, "checkpoint of a Spark query", "start the query with a new checkpointLocation"
)
_ranges = msgspec.msgpack.Decoder(SpanRanges)
_encode = msgspec.msgpack.Encoder().encode


def decode(row: LineRow) -> SparkLine:
    """What a row holds: of what is open, all but its spans."""
    return _lines.decode(row.line, row.data)


def with_spans(tx: Tx, name: str, line: SparkLine) -> SparkLine:
    """A decoded line with the spans of what is open."""
    opening = line.opening
    if opening is None or opening.spans:
        return line
    found = [
        OpenSpan(SegmentId.parse(row.unit), row.token, _ranges.decode(row.ranges))
        for row in spark_readers.spans(tx, name)
    ]
    spans = tuple(sorted(found, key=lambda span: span.segment))
    return _with_opening(line, opening, spans)


def _with_opening(line: SparkLine, opening: SparkOpening, spans: tuple[OpenSpan, ...]) -> SparkLine:
    opened = msgspec.structs.replace(opening, spans=spans)
    return msgspec.structs.replace(line, opening=opened)


def put(tx: Tx, row: LineRow, line: SparkLine) -> None:
    """Store a line in its row; the spans of what is open are there already, or follow."""
    opening = line.opening
    if opening is None:
        spark_readers.put_spans(tx, row.line, ())
    elif opening.spans:
        line = _with_opening(line, opening, ())
    data = _lines.encode(row.line, line)
    spark_readers.put_line(tx, msgspec.structs.replace(row, data=data))


def span_row(span: OpenSpan, segment_id: int, was: bytes | None, before: Progress) -> SpanRow:
    """A span as it is stored, with what is found of the group's progress and what it will be."""
    after = with_ranges(before, span.ranges)
    return SpanRow(
        segment_id,
        unit_of(span.segment),
        span.token,
        _encode(span.ranges),
        was,
        after.floor,
        after.encode() if after.base != before.base else after.stored(),
    )


def stored_line(tx: Tx, line: str) -> SparkLine | None:
    """What is stored of a line, without the spans of what is open."""
    row = spark_readers.lines(tx, [line]).get(line)
    return None if row is None else decode(row)


def forget(tx: Tx, group: str, segments: Collection[SegmentId] | None = None) -> None:
    """A group goes back: what is open of it, or of some segments, is to be read again."""
    for row in spark_readers.lines_of_group(tx, group, hold=True):
        before = decode(row)
        if segments is not None:
            before = with_spans(tx, row.line, before)
        after = spark_batches.forget_opening(before, segments)
        if after != before:
            put(tx, row, after)


def unsettled(tx: Tx, group: str) -> dict[str, SparkOpening]:
    """The batches that are open, by reader."""
    found = {}
    for row in spark_readers.lines_of_group(tx, group):
        line = decode(row)
        if line.opening is not None and not line.opening.settled:
            opening = with_spans(tx, row.line, line).opening
            assert opening is not None
            found[row.reader] = opening
    return found
