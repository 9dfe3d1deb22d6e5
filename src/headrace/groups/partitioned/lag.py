"""Lag: how far a group is behind, in events, bytes and seconds.

Events are counted exactly, without markers.  Bytes and seconds are those of the batches that hold
them: a batch counts from the first event of it that is not acked, and the oldest one tells the
time.
"""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, batches, markers, streams
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import filling
from headrace.groups.partitioned.runtime.units import Layout, layout_of, progress_in, read_stream
from headrace.log.log import Log


class UnitLag(msgspec.Struct, frozen=True):
    """What is not acked of one unit."""

    events: int
    bytes: int
    seconds: float


class PartitionLag(msgspec.Struct, frozen=True):
    """A partition, or the share of a member where members read shares of every segment."""

    member: str | None
    """To whom the config gives it."""
    partitions: tuple[int, ...]
    events: int
    bytes: int
    seconds: float


class GroupLag(msgspec.Struct, frozen=True):
    """A group, and its parts."""

    events: int
    bytes: int
    seconds: float
    source_events: int
    """Of an elastic group: events of the source that are not in its work queue yet."""
    parts: tuple[PartitionLag, ...]
    finding: str = ""
    """Why the work queue is not filled, if it is not."""


def unit_lag(tx: Tx, group: str, segment: streams.Segment) -> UnitLag:
    """What a group has not acked in a segment."""
    progress = progress_in(tx, group, segment)
    events = markers.events_in(tx, segment, progress.acked().missing(segment.head))
    if events <= 0:
        return UnitLag(0, 0, 0.0)
    first = batches.first_ending_after(tx, segment.id, progress.floor)
    if first is None:
        return UnitLag(events, 0, 0.0)
    left = first.end - max(first.start, progress.floor)
    part = first.size_bytes * left // (first.end - first.start)
    return UnitLag(
        events=events,
        bytes=segment.bytes - first.total_bytes + part,
        seconds=max(0.0, (tx.now_us() - first.created_us) / 1e6),
    )


def group_lag(log: Log, stream: str, group: str) -> GroupLag:
    """How far a partitioned group is behind."""
    name = GroupName(stream, group)
    config = admin.get(log, stream, group).config

    def look(tx: Tx) -> GroupLag:
        source = streams.require(tx, stream)
        read = streams.require(tx, read_stream(name, config))
        parts = []
        if layout_of(config, source.config) is Layout.SEGMENTS:
            owner = {p: m for m, owned in config.assignment().items() for p in owned}
            for segment in read.segments:
                lag = unit_lag(tx, name.key, segment)
                parts.append(_part(owner.get(segment.number), (segment.number,), [lag]))
        else:
            for member, owned in config.assignment().items():
                if owned:
                    share = name.share(member)
                    lags = [unit_lag(tx, share, segment) for segment in read.segments]
                    parts.append(_part(member, owned, lags))
        queue = filling.look(tx, name) if isinstance(config, ElasticGroupConfig) else None
        behind = 0 if queue is None else queue.behind
        return GroupLag(
            events=sum(part.events for part in parts) + behind,
            bytes=sum(part.bytes for part in parts),
            seconds=max((part.seconds for part in parts), default=0.0),
            source_events=behind,
            parts=tuple(parts),
            finding="" if queue is None else queue.finding,
        )

    return log.catalog.read(look, snapshot=True)


def _part(member: str | None, owned: tuple[int, ...], lags: list[UnitLag]) -> PartitionLag:
    return PartitionLag(
        member,
        owned,
        sum(lag.events for lag in lags),
        sum(lag.bytes for lag in lags),
        max((lag.seconds for lag in lags), default=0.0),
    )
