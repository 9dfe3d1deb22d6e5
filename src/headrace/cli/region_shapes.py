"""The JSON of regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.cli.group_shapes import full_name, shared_name
from headrace.cli.region_snapshot_shapes import SnapshotShape, snapshot_shape

if TYPE_CHECKING:
    from headrace.groups.homes import GroupRecord
    from headrace.regions.checking import CheckReport
    from headrace.regions.linking import Linked
    from headrace.regions.losing import FailOverReport
    from headrace.regions.moving import SwitchReport
    from headrace.regions.records import Region
    from headrace.regions.status import (
        LinkStatus,
        RegionsStatus,
        ReplicatedGroup,
    )


class RegionShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a catalog is called among regions."""

    region: str
    incarnation: int
    """How often it began anew after it was restored from a copy."""


class LinkedStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that was linked."""

    stream: str
    regions: tuple[str, ...]
    created_in: tuple[str, ...]
    """Regions in which the stream was made."""
    one_sided: tuple[str, ...]
    """Regions in which it still has to be linked, from their side."""


class UnlinkedStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that is in this region alone now."""

    unlinked: str
    groups: tuple[str, ...]
    """Groups that are consumed here on their own from now on."""


class RemovedRegion(msgspec.Struct, frozen=True, kw_only=True):
    """A region that was taken out of all links, or would be."""

    region: str
    streams: tuple[str, ...]
    told: tuple[str, ...]
    """Regions that have done without it since then."""
    untold: tuple[str, ...]
    """Regions that could not be told: the same command has to be run there."""
    dry_run: bool


class PromotedStream(
    msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}
):
    """A stream that is written in this region now, or would be."""

    stream: str
    source: str
    """The region that wrote it."""
    target: str
    lag_events: int | None
    """Events of the old writer that were not here when it began; null if that was not known."""
    took_ms: int
    forced: bool
    dry_run: bool


class RegionState(msgspec.Struct, frozen=True, kw_only=True):
    """A region that events are copied from, or not."""

    region: str
    state: str
    """``active`` or ``paused``."""
    streams: tuple[str, ...]


class ReplicatedShape(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose progress follows its consumers."""

    group: str
    kind: str
    """``static`` or ``shared``."""
    streams: tuple[str, ...]
    home: str | None
    """The region in which it is consumed; null: in every one."""
    eager: bool
    mode: str
    """How its progress is exchanged: by ``origin`` or by ``snapshot``."""


class LinkShape(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied of a stream from another region into this one."""

    stream: str
    region: str
    state: str
    """``active``, ``paused``, ``lost``, ``away`` or ``one-sided``."""
    writers: str
    lag_events: int | None
    """Events there that are not here yet; null while that cannot be seen."""
    copied_seconds: float | None
    """Since something was last copied; null if nothing was."""
    missed_events: int
    """Events that were trimmed there before they came."""
    filter: str | None
    """What events have to pass to cross; null if all do."""
    error: str


class RegionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A replicated group as it stands in this region."""

    group: str
    kind: str
    streams: tuple[str, ...]
    home: str | None
    waits: str
    """Why members here wait; empty if they may consume."""
    behind: dict[str, int | None]
    """Cursors that other regions do not know yet, by region; null if one cannot be read."""
    moving_to: str | None
    absent: tuple[str, ...]
    """Regions that do not have it yet."""
    mode: str
    """How its progress is exchanged: by ``origin`` or by ``snapshot``."""


class RegionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A region, what is copied to it, and its replicated groups."""

    region: str | None
    """Null: this catalog has no region's name yet."""
    incarnation: int
    agent: bool
    """Whether an agent runs here."""
    links: tuple[LinkShape, ...]
    groups: tuple[RegionGroup, ...]
    snapshots: tuple[SnapshotShape, ...]
    findings: tuple[str, ...]
    """What a person has to decide."""


class LaneShape(msgspec.Struct, frozen=True, kw_only=True):
    """What one region published to a segment, here and in another region."""

    segment: int
    lane: str
    region: str
    here_events: int
    """How many are known here, trimmed ones included."""
    there_events: int
    same: bool | None
    """Whether the events that both retain are the same; null if they were not read."""


class RegionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether regions hold the same events."""

    stream: str
    agrees: bool
    lanes: tuple[LaneShape, ...]
    differences: tuple[str, ...]


class SwitchShape(
    msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}
):
    """A group that moved to another region, or would."""

    group: str
    source: str
    target: str
    dry_run: bool
    took_ms: int


class SyncedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the other regions know all that was acked here."""

    group: str
    synced: bool
    missing: dict[str, int]
    """How many cursors each region does not know yet."""


class HeardStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a region that is lost."""

    stream: str
    copied_seconds: float
    """Since something last came from it."""


class FailOverShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a fail-over moved, or would."""

    lost: str
    region: str
    """Where the groups are at home now."""
    dry_run: bool
    groups: tuple[str, ...]
    streams: tuple[HeardStream, ...]


def region_shape(found: Region) -> RegionShape:
    """A region's name for programs."""
    return RegionShape(region=found.name, incarnation=found.incarnation)


def linked_shape(made: Linked) -> LinkedStream:
    """A new link for programs."""
    return LinkedStream(
        stream=made.stream,
        regions=made.regions,
        created_in=made.created_in,
        one_sided=made.one_sided,
    )


def named(key: str) -> str:
    """The name of a replicated group that every command takes; its records have its key."""
    if ":" in key:
        return shared_name(key)
    if "/" in key:
        return key
    stream, _, group = key.partition(".")
    return full_name(stream, group)


def replicated_shape(record: GroupRecord) -> ReplicatedShape:
    """A replicated group's record for programs."""
    return ReplicatedShape(
        group=named(record.key),
        kind=record.family,
        streams=record.streams,
        home=record.home,
        eager=record.eager,
        mode=record.mode,
    )


def region_status(found: RegionsStatus) -> RegionStatus:
    """The look at a region for programs."""
    return RegionStatus(
        region=found.region,
        incarnation=found.incarnation,
        agent=found.agent,
        links=tuple(map(_link, found.links)),
        groups=tuple(map(region_group, found.groups)),
        snapshots=tuple(map(snapshot_shape, found.snapshots)),
        findings=found.findings,
    )


def _link(found: LinkStatus) -> LinkShape:
    return LinkShape(
        stream=found.stream,
        region=found.region,
        state=found.state,
        writers=found.writers,
        filter=found.filter or None,
        lag_events=found.lag_events,
        copied_seconds=found.moved_s,
        missed_events=found.missed,
        error=found.error,
    )


def region_group(found: ReplicatedGroup) -> RegionGroup:
    """A replicated group for programs."""
    return RegionGroup(
        group=named(found.key),
        kind=found.family,
        streams=found.streams,
        home=found.home,
        waits=found.waits,
        behind=found.behind,
        moving_to=found.moving_to,
        absent=found.absent,
        mode=found.mode,
    )


def region_check(found: CheckReport) -> RegionCheck:
    """A comparison for programs."""
    return RegionCheck(
        stream=found.stream,
        agrees=found.agrees,
        lanes=tuple(
            LaneShape(
                segment=each.segment,
                lane=each.lane,
                region=each.region,
                here_events=each.here,
                there_events=each.there,
                same=each.same,
            )
            for each in found.lanes
        ),
        differences=found.differences,
    )


def switch_shape(done: SwitchReport) -> SwitchShape:
    """A switch for programs."""
    return SwitchShape(
        group=named(done.group),
        source=done.source,
        target=done.target,
        dry_run=done.dry_run,
        took_ms=round(done.took_s * 1000),
    )


def fail_over_shape(done: FailOverReport) -> FailOverShape:
    """A fail-over for programs."""
    return FailOverShape(
        lost=done.lost,
        region=done.region,
        dry_run=done.dry_run,
        groups=tuple(map(named, done.groups)),
        streams=tuple(
            HeardStream(stream=name, copied_seconds=age_s) for name, age_s in done.streams
        ),
    )
