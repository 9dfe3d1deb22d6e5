"""The JSON of what is particular to a kind of group: its configuration and its dead letters.

What all kinds have in common is in :mod:`headrace.groups.shapes`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from headrace.cli import shapes
from headrace.cli.records import EventShape
from headrace.cli.shapes import DecisionShape
from headrace.groups.findings import moment
from headrace.groups.shared.core.settings import LeaderSettings

if TYPE_CHECKING:
    from headrace.groups.operations.dead_letters import LetterReason
    from headrace.groups.partitioned.admin import GroupInfo as PartitionedInfo
    from headrace.groups.partitioned.core.status import GroupStatus, LostInstance
    from headrace.groups.shared.admin import GroupInfo as SharedInfo
    from headrace.groups.shared.admin import SharedExplanation
    from headrace.groups.shared.properties import GroupProperties


# --- static and elastic ----------------------------------------------------------------------


class PartitionedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A static or an elastic group as it is configured."""

    group: str
    """Its name, which every command takes."""
    kind: str
    """``static`` or ``elastic``."""
    stream: str
    revision: int
    """Grows with every change."""
    max_members: int
    """As many partitions there are."""
    filter: str
    wildcards: tuple[int, ...]
    """Of an elastic one: which of the filter's wildcards make up the key."""
    buffered_events_max: int
    """Of an elastic one: how many events may wait in its work queue; 0: no limit."""
    distribution: str | None
    """Of an elastic one: ``blocks`` or ``sticky``."""
    members: tuple[str, ...]
    """Empty where partitions are mapped by hand."""
    mapped: bool
    """Whether partitions are given by hand."""
    assignment: dict[str, tuple[int, ...]]
    """The partitions that each member is given."""
    finding: str = ""
    """Why its work queue is not filled, if it is not; told by ``info``."""


class LostShape(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that let its lease run out, and nobody has taken over from."""

    instance: str
    lost_at: datetime
    heard_at: datetime | None
    """When it was last heard; null if that is not known."""


class ActiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a partitioned group, and whether it is active."""

    member: str
    instance: str | None
    """The active one; null if there is none."""
    assigned: tuple[int, ...]
    """Partitions that it is given."""
    consumed: tuple[int, ...]
    """Those of them that its instance owns."""
    lost: LostShape | None


class ActiveMembers(msgspec.Struct, frozen=True, kw_only=True):
    """Who is active in a partitioned group."""

    group: str
    active: tuple[str, ...]
    missing: tuple[str, ...]
    unconsumed: tuple[int, ...]
    """Partitions that nobody consumes."""
    moving: tuple[int, ...]
    """Partitions that are still with a member which is to give them up."""
    members: tuple[ActiveMember, ...]


class SteppedDown(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that was asked to give way to a standby."""

    group: str
    member: str
    instance: str


class MemberPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is given."""

    group: str
    member: str
    partitions: tuple[int, ...]


def partitioned(info: PartitionedInfo, finding: str = "") -> PartitionedGroup:
    """A static or elastic group for programs."""
    from headrace.groups.partitioned.core.config import ElasticGroupConfig

    config = info.config
    elastic = config if isinstance(config, ElasticGroupConfig) else None
    return PartitionedGroup(
        group=full_name(info.name.stream, info.name.group),
        kind=info.kind.value,
        stream=info.name.stream,
        revision=info.revision,
        max_members=config.max_members,
        filter=config.filter,
        wildcards=elastic.partitioning_wildcards if elastic else (),
        buffered_events_max=elastic.buffered_events_max if elastic else 0,
        distribution=elastic.distribution.value if elastic else None,
        members=config.members,
        mapped=bool(config.member_mappings),
        assignment={member: tuple(owned) for member, owned in config.assignment().items()},
        finding=finding,
    )


def full_name(stream: str, group: str) -> str:
    """The name of a partitioned group that every command takes."""
    from headrace.groups.names import PARTITIONED, FullName

    return str(FullName(PARTITIONED, stream, group))


def active_members(group: str, status: GroupStatus) -> ActiveMembers:
    """Who is active, for programs."""
    return ActiveMembers(
        group=group,
        active=status.active,
        missing=tuple(member.member for member in status.missing),
        unconsumed=status.unconsumed,
        moving=status.moving,
        members=tuple(
            ActiveMember(
                member=each.member,
                instance=each.instance,
                assigned=each.assigned,
                consumed=each.consumed,
                lost=None if each.lost is None else _lost(each.lost),
            )
            for each in status.members
        ),
    )


def _lost(lost: LostInstance) -> LostShape:
    return LostShape(
        instance=lost.instance,
        lost_at=moment(lost.since_us),
        heard_at=moment(lost.heard_us) if lost.heard_us else None,
    )


# --- shared ----------------------------------------------------------------------------------


class DeclaredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A shared group as it was declared."""

    group: str
    """Its name, which every command takes."""
    filter: str
    start: str
    """``earliest``, ``now`` or a time."""
    created_at: datetime
    scale_for_members: bool
    """Whether segments are split while there are more members than segments."""
    settings: LeaderSettings


class SharedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a shared group, as its leader sees it."""

    member: str
    session: str
    units: int
    """How many it has."""
    share: int
    """How many it should have."""
    benched_ms: int
    """It was evicted, and gets nothing for this long yet."""
    why: str
    """Why it has none."""


class SharedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A segment, as a shared group sees it."""

    unit: str
    member: str | None
    """Who has it; null if nobody has."""
    token: int
    floor: int
    head: int
    lag_events: int
    finished: bool


class SharedGroup(DeclaredGroup, frozen=True, kw_only=True):
    """A shared group, who leads it and takes part, and how far it has come."""

    leader: str | None
    """The process that leads it; null if none does."""
    leader_token: int
    lag_events: int
    members: tuple[SharedMember, ...]
    units: tuple[SharedUnit, ...]
    decisions: tuple[DecisionShape, ...]
    """The latest, oldest first."""
    lines: tuple[str, ...]
    """In words: what is not as it should be."""


class IdleMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a shared group, and why it has nothing."""

    member: str
    units: int
    why: str


class SharedExplanationShape(msgspec.Struct, frozen=True, kw_only=True):
    """Why the members of a shared group have what they have."""

    group: str
    leader: str | None
    members: tuple[IdleMember, ...]
    decisions: tuple[DecisionShape, ...]
    """The latest, oldest first."""
    lines: tuple[str, ...]
    """In words: what is not as it should be."""


def declared(made: GroupProperties) -> DeclaredGroup:
    """A declared group for programs."""
    return DeclaredGroup(
        group=shared_name(made.key),
        filter=made.filter,
        start=made.start,
        created_at=moment(made.created_us),
        scale_for_members=made.scale_for_members,
        settings=made.settings,
    )


def shared_name(key: str) -> str:
    """The name of a shared group that every command takes; its records have its key."""
    from headrace.groups.names import parse

    return str(parse(key))


def shared(info: SharedInfo) -> SharedGroup:
    """A shared group for programs."""
    return SharedGroup(
        **msgspec.structs.asdict(declared(info.properties)),
        leader=info.leader,
        leader_token=info.leader_token,
        lag_events=info.lag_events,
        members=tuple(
            SharedMember(
                member=each.member,
                session=each.session,
                units=each.units,
                share=each.share,
                benched_ms=each.benched_ms,
                why=each.why_idle,
            )
            for each in info.members
        ),
        units=tuple(
            SharedUnit(
                unit=each.unit,
                member=each.owner,
                token=each.token,
                floor=each.floor,
                head=each.head,
                lag_events=each.lag_events,
                finished=each.finished,
            )
            for each in info.units
        ),
        decisions=tuple(map(shapes.decided, info.decisions)),
        lines=info.findings,
    )


def shared_explained(found: SharedExplanation) -> SharedExplanationShape:
    """An explanation for programs."""
    return SharedExplanationShape(
        group=shared_name(found.group),
        leader=found.leader,
        members=tuple(
            IdleMember(member=member, units=units, why=why) for member, units, why in found.members
        ),
        decisions=tuple(map(shapes.decided, found.decisions)),
        lines=found.findings,
    )


# --- what goes, and dead letters ---------------------------------------------------------------


class DeadLetter(EventShape, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter: the event, and what became of it."""

    id: int
    stream: str
    """Where it was, as ``segment`` and ``offset`` are."""
    died_at: datetime | None
    reason: str
    error: str
    attempts: int
    lives: int
    """How often it has died."""
    member: str | None


class DeathReason(msgspec.Struct, frozen=True, kw_only=True):
    """What letters died of."""

    reason: str
    error: str
    """Of the first one."""
    letters: int
    first_id: int
    first_died_at: datetime | None
    last_died_at: datetime | None


def death_reason(found: LetterReason) -> DeathReason:
    """A reason for programs."""
    return DeathReason(
        reason=found.reason,
        error=found.error,
        letters=found.letters,
        first_id=found.first_id,
        first_died_at=None if found.first_died_us is None else moment(found.first_died_us),
        last_died_at=None if found.last_died_us is None else moment(found.last_died_us),
    )
