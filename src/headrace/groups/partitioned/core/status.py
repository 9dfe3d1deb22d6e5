"""What an administrator sees of a partitioned group: who is active, who is missing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.groups.partitioned.core.config import GroupConfig
from headrace.groups.partitioned.core.pins import PartitionClaim, Pin, is_free


class LostInstance(msgspec.Struct, frozen=True):
    """An instance that let its pin run out, and nobody has taken over from."""

    instance: str
    since_us: int
    heard_us: int
    """When it was last heard; 0 if that is not known."""


class MemberStatus(msgspec.Struct, frozen=True):
    """One member of the group."""

    member: str
    instance: str | None
    """The active instance; None when no instance holds the pin."""
    assigned: tuple[int, ...]
    """Partitions that the config gives it."""
    consumed: tuple[int, ...]
    """Those of them that its active instance owns."""
    lost: LostInstance | None = None
    """The last instance, if it did not leave in order and nobody took over."""


class GroupStatus(msgspec.Struct, frozen=True):
    """The group at one moment."""

    members: tuple[MemberStatus, ...]
    unconsumed: tuple[int, ...]
    """Partitions that nobody consumes."""
    moving: tuple[int, ...]
    """Partitions still with a member to which the config no longer gives them."""

    @property
    def active(self) -> tuple[str, ...]:
        """Members with an active instance."""
        return tuple(m.member for m in self.members if m.instance is not None)

    @property
    def missing(self) -> tuple[MemberStatus, ...]:
        """Members that should consume something and have no active instance."""
        return tuple(m for m in self.members if m.instance is None and m.assigned)

    @property
    def surplus(self) -> tuple[str, ...]:
        """Members that own nothing because there are more of them than partitions."""
        return tuple(m.member for m in self.members if not m.assigned)


def group_status(
    config: GroupConfig,
    pins: Mapping[str, Pin],
    claims: Mapping[int, PartitionClaim],
    now_ms: int,
) -> GroupStatus:
    """Compare the config with the pins (by member) and claims (by partition) of the catalog."""
    assignment = config.assignment()
    owner: dict[int, str] = {}
    for partition, claim in claims.items():
        if claim.owner is not None and not is_free(claim, pins.get(claim.owner.member), now_ms):
            owner[partition] = claim.owner.member
    members = []
    for member, assigned in assignment.items():
        pin = pins.get(member)
        active = pin.instance if pin is not None and now_ms < pin.expires_ms else None
        consumed = tuple(p for p in assigned if owner.get(p) == member)
        members.append(MemberStatus(member, active, assigned, consumed))
    return GroupStatus(
        members=tuple(members),
        unconsumed=tuple(p for p in range(config.max_members) if p not in owner),
        moving=tuple(sorted(p for p, m in owner.items() if p not in assignment.get(m, ()))),
    )
