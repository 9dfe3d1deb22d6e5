"""The JSON of streams and segments."""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.catalog.stream_config import Epochs, Retention, Scaling
from headrace.catalog.streams import NO_TIME_US, Segment, Stream
from headrace.groups.findings import moment
from headrace.groups.shapes import GroupView


class SegmentShape(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stream that owns a range of key hashes."""

    segment: int
    range: tuple[int, int]
    """The key hashes that it owns; the second is not included."""
    tail: int
    """The first offset that is retained."""
    head: int
    """The offset that the next event gets."""
    retained_events: int
    retained_bytes: int
    newest_at: datetime | None
    """The greatest time of an event."""
    created_at: datetime
    sealed_at: datetime | None
    """Null while it is open."""
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]


class StreamShape(msgspec.Struct, frozen=True, kw_only=True):
    """A stream."""

    stream: str
    subjects: tuple[str, ...]
    key_tokens: tuple[int, ...]
    partitions: int | None
    retention: Retention
    scaling: Scaling
    epochs: Epochs | None
    """How epochs are counted, of a stream that has them."""
    created_at: datetime
    retained_events: int
    retained_bytes: int
    segments: tuple[SegmentShape, ...]


class StreamConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A group that consumes a stream: its lag in this stream alone."""

    group: str
    kind: str
    lag_events: int
    lag_bytes: int
    lag_seconds: float
    exact: bool
    """False: the number is an upper bound, since a filter may exclude some of the events."""


class ConsumedStream(StreamShape, frozen=True, kw_only=True):
    """A stream, and who consumes it."""

    consumers: tuple[StreamConsumer, ...]


class ScaledShape(msgspec.Struct, frozen=True, kw_only=True):
    """A scaling: the segments that were sealed, and those that follow them."""

    stream: str
    dry_run: bool
    sealed: tuple[int, ...]
    opened: tuple[int, ...]
    """Empty in a dry run."""
    reason: str


class TrimmedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """What a trim takes from a segment."""

    segment: int
    first_offset: int
    """Where it starts afterwards."""
    removed_events: int


class TrimLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A group that has not acked all that goes."""

    group: str
    kind: str
    lost_events: int
    exact: bool
    segments: tuple[int, ...]


class TrimmedStream(msgspec.Struct, frozen=True, kw_only=True):
    """What a trim removed, or would remove."""

    stream: str
    dry_run: bool
    removed_events: int
    segments: tuple[TrimmedSegment, ...]
    losses: tuple[TrimLoss, ...]


def segment_shape(segment: Segment) -> SegmentShape:
    """A segment for programs."""
    return SegmentShape(
        segment=segment.number,
        range=(segment.range_lo, segment.range_hi),
        tail=segment.tail,
        head=segment.head,
        retained_events=segment.events,
        retained_bytes=segment.retained_bytes,
        newest_at=None if segment.max_ts_us == NO_TIME_US else moment(segment.max_ts_us),
        created_at=moment(segment.created_us),
        sealed_at=None if segment.sealed_us is None else moment(segment.sealed_us),
        predecessors=tuple(segment.predecessors),
        successors=tuple(segment.successors),
    )


def stream_shape(stream: Stream) -> StreamShape:
    """A stream for programs."""
    return StreamShape(
        stream=stream.name,
        subjects=stream.config.subjects,
        key_tokens=stream.config.key_tokens,
        partitions=stream.config.partitions,
        retention=stream.config.retention,
        scaling=stream.config.scaling,
        epochs=stream.config.epochs,
        created_at=moment(stream.created_us),
        retained_events=sum(segment.events for segment in stream.segments),
        retained_bytes=sum(segment.retained_bytes for segment in stream.segments),
        segments=tuple(segment_shape(segment) for segment in stream.segments),
    )


def consumer(group: GroupView) -> StreamConsumer:
    """A group that consumes a stream, with the units that lie in it."""
    from headrace.groups.lag import total

    # A group of this stream alone counts what its units do not: the source of a work queue.
    lag = group.lag if group.stream else total(group.group, group.kind, group.units)
    return StreamConsumer(
        group=group.group,
        kind=group.kind,
        lag_events=lag.events,
        lag_bytes=lag.bytes,
        lag_seconds=lag.seconds,
        exact=lag.exact,
    )


def consumed(stream: Stream, consumers: tuple[StreamConsumer, ...]) -> ConsumedStream:
    """A stream and its consumers for programs."""
    return ConsumedStream(**msgspec.structs.asdict(stream_shape(stream)), consumers=consumers)
