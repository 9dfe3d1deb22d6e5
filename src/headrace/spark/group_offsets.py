"""The offset of a query that reads for a reader group: a plan, complete in itself.

Where the group is, the group knows.  What Spark keeps in its checkpoint is which spans a batch
reads, under an id, and the *line*, which stands for this checkpoint for ever.  It is born with the
first batch that is planned.  The initial offset is a constant, since Spark asks for it again and
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import ForeignCheckpointError
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.spark_batches import PlannedSpan, SpanRanges, SparkPlan
from headrace.groups.readers.names import ReaderGroupRecord

MEND = "choose another checkpointLocation"


class GroupPlace(msgspec.Struct, frozen=True):
    """A group; one made anew under the name has another id."""

    id: int
    name: str


class PlannedStream(msgspec.Struct, frozen=True):
    """What a batch reads of a stream, by segment."""

    id: int
    segments: dict[int, SpanRanges]


class PlannedBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch: its id, and what it reads."""

    id: str
    spans: dict[str, PlannedStream]
    number: int = 0


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Spark keeps; without ``batch`` it is the initial offset."""

    batch: PlannedBatch | None = None
    behind: dict[str, dict[int, int]] | None = None
    """Of a query's latest place: how many events of each segment are still to be planned."""
    catalog: str
    group: GroupPlace
    line: str = ""

    def to_json(self) -> dict[str, Any]:
        """Equal offsets give equal text."""
        shown: dict[str, Any] = msgspec.to_builtins(self, str_keys=True, order="sorted")
        return shown

    @property
    def plan(self) -> SparkPlan | None:
        """The batch as the core knows it."""
        if self.batch is None:
            return None
        spans = (
            PlannedSpan(SegmentId(stream, number), ranges)
            for stream, planned in self.batch.spans.items()
            for number, ranges in planned.segments.items()
        )
        return SparkPlan(self.line, self.batch.id, tuple(spans), self.batch.number)


# Used here, since the first use of a type by msgspec is not safe in several threads at once.
msgspec.convert({"catalog": "", "group": {"id": 1, "name": ""}}, GroupOffset)


def parse(data: Mapping[str, Any], catalog: str, group: GroupPlace) -> GroupOffset:
    """The offset that Spark kept, or an error when it is of another source."""
    if "group" not in data:
        raise ForeignCheckpointError(
            f"the checkpoint belongs to a query that read streams and not for a group; {MEND}"
        )
    try:
        found = msgspec.convert(data, GroupOffset, strict=False)
    except msgspec.ValidationError as error:
        raise ForeignCheckpointError(
            f"the checkpoint does not hold batches of a reader group ({error}); {MEND}"
        ) from error
    if found.catalog != catalog:
        raise ForeignCheckpointError(f"the checkpoint belongs to another catalog; {MEND}")
    if found.group.name != group.name:
        raise ForeignCheckpointError(
            f"the checkpoint belongs to reader group {found.group.name!r}, not {group.name!r}; "
            f"{MEND}"
        )
    if found.group.id != group.id:
        raise ForeignCheckpointError(
            f"reader group {group.name!r} was deleted and made anew since the checkpoint; {MEND}"
        )
    return found


def offset_of(
    catalog: str, group: GroupPlace, record: ReaderGroupRecord, plan: SparkPlan
) -> GroupOffset:
    """The offset of a planned batch."""
    streams: dict[str, PlannedStream] = {}
    for span in plan.spans:
        stream = span.segment.stream
        found = streams.setdefault(stream, PlannedStream(record.stream_id(stream) or 0, {}))
        found.segments[span.segment.number] = span.ranges
    return GroupOffset(
        batch=PlannedBatch(plan.batch, streams, plan.number),
        catalog=catalog,
        group=group,
        line=plan.line,
    )


def group_behind(latest: Mapping[str, Any]) -> list[int]:
    """How many events of each segment a query had still to plan, from its latest place."""
    found: dict[str, dict[str, int]] = latest.get("behind") or {}
    return [count for segments in found.values() for count in segments.values()]
