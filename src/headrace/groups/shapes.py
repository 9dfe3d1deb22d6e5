"""One shape for groups of every kind: what programs, ``--json`` and the screens are given.

These are the types; ``view`` makes them.  Their JSON uses one vocabulary: times are ISO 8601 and
end in ``_at``, counts of events end in ``_events``, and a ``member`` has an ``instance`` and owns
a ``unit``.  ``docs/json.md`` is made of them.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.groups.decisions.core.record import Decision

LAG = {"events": "lag_events", "bytes": "lag_bytes", "seconds": "lag_seconds"}


class UnitView(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename=LAG):
    """What one member owns: a segment, a partition, or a member's share of a stream."""

    unit: str
    """A partition's number, ``stream/segment``, or the member whose share of a stream it is."""
    stream: str = ""
    """The stream that it lies in."""
    member: str | None = None
    """Whose it is, or to whom it is given if nobody owns it."""
    instance: str | None = None
    """The process that owns it; null if nobody does."""
    token: int = 0
    state: str = "unowned"
    """``owned``, ``unowned``, ``moving`` (still with another member), ``waits`` (for the segments
    that come before it) or ``finished``."""
    floor: int = 0
    """Everything below this offset is acked."""
    head: int = 0
    partitions: tuple[int, ...] = ()
    """Of a partitioned group: what the unit holds."""
    events: int = 0
    """Events that are not acked."""
    bytes: int = 0
    seconds: float = 0.0
    """Since the oldest of them was appended."""
    exact: bool = True
    """False: the number is an upper bound, since a filter may exclude some of the events."""
    lost_to_trimming: int = 0
    """Events that were trimmed before the group acked them; an upper bound."""


class GroupLag(msgspec.Struct, frozen=True, kw_only=True, rename=LAG):
    """How far a group is behind."""

    group: str
    kind: str
    events: int = 0
    """Events that are not acked, those of the source included."""
    bytes: int = 0
    seconds: float = 0.0
    exact: bool = True
    lost_to_trimming: int = 0
    source_events: int = 0
    """Of an elastic group: events of the source that are not in its work queue yet."""
    source_bytes: int = 0
    source_seconds: float = 0.0
    units: tuple[UnitView, ...] = ()
    finding: str = ""
    """Why the work queue is not filled, if it is not."""

    @property
    def parts(self) -> tuple[UnitView, ...]:
        """The units, by their older name."""
        return self.units


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member of a group."""

    member: str
    state: str
    """``active``, ``stands by`` (owns nothing and is well), ``silent`` (not heard for most of its
    lease, which has not ended yet), ``missing`` or ``lost``."""
    instance: str | None = None
    """The process that is active as this member; null if none is."""
    units: int = 0
    """How many units it owns."""
    share: int = 0
    """How many it should own."""
    heard_at: datetime | None = None
    """When the process was last heard; null if none runs or it is not known."""
    lost_at: datetime | None = None
    """Of a lost one: when its lease ran out."""
    why: str = ""
    """Why it owns less than it should."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that is not as it should be."""

    finding: str
    """A word for programs: ``member_lost``, ``no_pipeline`` …"""
    about: str
    """The group or the stream."""
    sentence: str
    next: str = ""
    """What to do about it: mostly a command."""
    needs_person: bool = True
    """False for what is worth knowing and needs nobody."""

    def __str__(self) -> str:
        return f"{self.about}: {self.sentence}" + (f"; {self.next}" if self.next else "")


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group of any kind at one moment."""

    group: str
    """Its name, which every command takes."""
    kind: str
    """``static``, ``elastic``, ``shared`` …"""
    stream: str | None = None
    """What it consumes: a stream, or"""
    streams: tuple[str, ...] = ()
    """several of them, as a reader group may, or"""
    filter: str | None = None
    """all streams that hold events of a filter."""
    members: tuple[GroupMember, ...] = ()
    members_active: int = 0
    members_wanted: int = 0
    """How many of the members have something to do."""
    leader: str | None = None
    """Of a kind that is led: the process that leads it; null if none does."""
    leader_heard_at: datetime | None = None
    lag: GroupLag
    """Its units stand in ``units``."""
    units: tuple[UnitView, ...] = ()
    findings: tuple[Finding, ...] = ()


class GroupExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What a group is doing and why."""

    group: GroupView
    decisions: tuple[Decision, ...]
    """The latest, oldest first."""
