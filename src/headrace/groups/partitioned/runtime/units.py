"""What the partitions of a group are in the log, and what the catalog keeps about each.

Theory of operation
-------------------
A unit is a segment that a member reads under a claim.  There are two layouts:

*One segment for each partition*: the work queue of an elastic group, and a stream that was made
with ``partitions``.  The claim of a partition is that of its segment, and the group keeps its
place in the segment under its own name.

*Shares*: a static group on any other stream, whose events carry the partition as first token of
their subject.  Every segment may hold events of every partition.  The members of a static group
never change, so what a member reads is fixed as well: its *share* is all events of all of its
partitions.  A share is claimed as a whole, each segment is read once for each share (not for
each partition), and each share keeps a place of its own in every segment.  The segments are read
in order (:mod:`headrace.log.order`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from headrace.catalog import Tx, claims, streams
from headrace.catalog import progress as stored
from headrace.errors import HeadraceError
from headrace.groups.consumer.types import OwnedUnit
from headrace.groups.partitioned.core.config import (
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    StaticGroupConfig,
)
from headrace.groups.partitioned.core.pins import ClaimOwner
from headrace.groups.partitioned.layout import GroupKind as GroupKind
from headrace.groups.partitioned.layout import Layout as Layout
from headrace.groups.partitioned.layout import kind_of as kind_of
from headrace.groups.partitioned.layout import layout_of as layout_of
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import Progress, store
from headrace.groups.progress.store import SeekPlace, load, load_all
from headrace.log import order


class SegmentsMoved(HeadraceError):
    """Internal: the stream was scaled since its segments were looked up; ask again."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r} was scaled while its segments were claimed")


def read_stream(name: GroupName, config: GroupConfig) -> str:
    """The stream that the members read."""
    return name.work_queue if isinstance(config, ElasticGroupConfig) else name.stream


def claimed_config(config: GroupConfig, layout: Layout) -> GroupConfig:
    """The config by which units are claimed: with shares, each member has one, its own."""
    if layout is Layout.SEGMENTS:
        return config
    assignment = config.assignment()
    owners = [member for member, owned in assignment.items() if owned]
    numbers: dict[str, tuple[int, ...]] = {member: (at,) for at, member in enumerate(owners)}
    return StaticGroupConfig(
        max_members=max(1, len(owners)),
        filter=config.filter,
        member_mappings=tuple(
            MemberMapping(member, numbers.get(member, ())) for member in assignment
        ),
    )


def progress_names(name: GroupName, config: GroupConfig, layout: Layout) -> list[str]:
    """The names under which the members keep their places in the stream that they read."""
    if layout is Layout.SEGMENTS:
        return [name.key]
    return [name.share(member) for member, owned in config.assignment().items() if owned]


def unit_of_partition(
    tx: Tx,
    name: GroupName,
    config: GroupConfig,
    stream: streams.Stream,
    partition: int,
    token: int,
) -> OwnedUnit:
    """The unit of a partition that is a segment."""
    segment = stream.segment(partition)
    assert segment is not None, f"{stream.name} has no segment for partition {partition}"
    elastic = isinstance(config, ElasticGroupConfig)
    return OwnedUnit(
        group=name.key,
        unit=str(partition),
        token=token,
        stream=stream.name,
        segment=partition,
        segment_id=segment.id,
        progress=progress_in(tx, name.key, segment),
        filter=None if elastic or not config.filter else config.filter,
        strip=1 if elastic else 0,
        order_by=stream.config.key_tokens if elastic else None,
    )


def units_of_share(
    tx: Tx,
    name: GroupName,
    config: GroupConfig,
    stream: streams.Stream,
    owner: ClaimOwner,
    *,
    held: Mapping[int, int],
    locked: Container[int],
) -> list[OwnedUnit]:
    """Take the segments of a member's share that it can read now, beside those it holds.

    ``locked`` are the segments whose claims the caller has locked.
    """
    share = name.share(owner.member)
    found = load_all(tx, share)
    places = {s.number: retained(found.get(s.id), s) for s in stream.segments}
    floors = {number: progress.floor for number, progress in places.items()}
    for segment in stream.segments:
        if segment.number in held:
            # A held segment is not over when it is trimmed, but when its owner says so.
            floors[segment.number] = found.get(segment.id, Progress()).floor
    ready = set(order.standing_at(stream.segments, floors).ready)
    rest = config.filter or ">"
    filters = tuple(f"{p}.{rest}" for p in config.assignment().get(owner.member, ()))
    units = []
    for segment in stream.segments:
        if segment.number not in ready or segment.number in held:
            continue
        if segment.number not in locked:
            raise SegmentsMoved(stream.name)
        claim = claims.get(tx, share, str(segment.number))
        if claim is None or claim.owner != owner.encode():
            claim = claims.take(tx, share, str(segment.number), owner.encode())
        units.append(
            OwnedUnit(
                group=share,
                unit=str(segment.number),
                token=claim.token,
                stream=stream.name,
                segment=segment.number,
                segment_id=segment.id,
                progress=begun(found.get(segment.id), segment),
                filter=filters,
                strip=1,
            )
        )
    return units


def seek(tx: Tx, name: GroupName, reader: str, places: Mapping[int, tuple[int, Progress]]) -> None:
    """Put a reader of the group where it is told to: {segment's number: (its id, place)}.

    A reader is the group, the share of a member (``progress_names``), or the partition job.  Holds
    :func:`seek_locks`.
    """
    store.seek(tx, reader, [SeekPlace(str(number), *place) for number, place in places.items()])
    tx.notify(stored.seek_channel(name.key))


def seek_locks(name: GroupName, reader: str, numbers: Iterable[int]) -> list[str]:
    """The locks for :func:`seek`."""
    return [name.lock, *store.seek_locks(reader, map(str, numbers))]


def progress_in(tx: Tx, group: str, segment: streams.Segment) -> Progress:
    """Where a group is in a segment; what was trimmed before it came by is not waited for."""
    return begun(load(tx, group, segment.id), segment)


def begun(found: Progress | None, segment: streams.Segment) -> Progress:
    """Where an owner begins; where the stream is in other regions too, it tells what is gone."""
    return found if found is not None and segment.lane is not None else retained(found, segment)


def retained(found: Progress | None, segment: streams.Segment) -> Progress:
    """Progress in a segment from where it begins by now."""
    found = found or Progress()
    return found if found.floor >= segment.tail else found.merge(Progress(segment.tail))


def consumed_lock(reader: str) -> str:
    """Held while it changes what is acked of the source of a replicated group."""
    return claims.lock(reader, "")
