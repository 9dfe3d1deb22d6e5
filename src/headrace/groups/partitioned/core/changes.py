"""How the config of a partitioned group may change.

Every change is a pure function from one config to the next, made for a compare-and-set on the
revision of the entry.  Only members and mappings of elastic groups change; a static group, and
everything else about an elastic one, is fixed until the group is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.errors import GroupExistsError, GroupUpdateError, MemberMappingsError
from headrace.groups.partitioned.core.config import (
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    StaticGroupConfig,
    check_elastic_rules,
    redistributed,
)
from headrace.groups.partitioned.core.distribution import sorted_members


def check_same(name: str, existing: GroupConfig, wanted: GroupConfig) -> None:
    """Creating what is there already is fine; creating something else under its name is not."""
    if existing != wanted:
        raise GroupExistsError(
            f"group {name!r} exists with another config; delete it first to change that"
        )


def add_members(config: ElasticGroupConfig, members: Iterable[str]) -> ElasticGroupConfig:
    """The config with more members; those it has already are passed over."""
    _refuse_under_mappings(config, "add members to")
    names = sorted_members([*config.members, *members])
    return _changed(config, members=tuple(names))


def drop_members(config: ElasticGroupConfig, members: Iterable[str]) -> ElasticGroupConfig:
    """The config with fewer members; those it does not have are passed over."""
    _refuse_under_mappings(config, "drop members from")
    dropped = set(members)
    return _changed(config, members=tuple(m for m in config.members if m not in dropped))


def set_mappings(
    config: ElasticGroupConfig, mappings: Iterable[MemberMapping]
) -> ElasticGroupConfig:
    """The config with partitions mapped by hand; the list of members gives way to it."""
    given = tuple(mappings)
    if not given:
        raise MemberMappingsError("no mappings are given; delete the mapping to go back to members")
    return _changed(config, members=(), member_mappings=given)


def delete_mappings(
    config: ElasticGroupConfig, members: Iterable[str] | None = None
) -> ElasticGroupConfig:
    """Back to automatic distribution, over ``members`` or over those that were mapped."""
    if not config.member_mappings:
        raise GroupUpdateError("the group has no mapping to delete")
    names = [m.member for m in config.member_mappings] if members is None else members
    return _changed(config, members=tuple(sorted_members(names)), member_mappings=())


def check_change(before: GroupConfig, after: GroupConfig) -> None:
    """Refuse a change that a group does not survive; for whoever sees two revisions."""
    if isinstance(before, StaticGroupConfig) or isinstance(after, StaticGroupConfig):
        if before != after:
            raise GroupUpdateError("a static group cannot change; delete and create it again")
        return
    for field in ("max_members", "filter", "partitioning_wildcards", "buffered_events_max"):
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            raise GroupUpdateError(f"{field} cannot change from {old!r} to {new!r}")
    if before.distribution is not after.distribution:
        raise GroupUpdateError("the distribution cannot change; delete and create the group again")


def _refuse_under_mappings(config: ElasticGroupConfig, what: str) -> None:
    if config.member_mappings:
        raise GroupUpdateError(
            f"cannot {what} a group whose partitions are mapped; "
            "set another mapping, or delete it first"
        )


def _changed(
    config: ElasticGroupConfig,
    *,
    members: tuple[str, ...],
    member_mappings: tuple[MemberMapping, ...] = (),
) -> ElasticGroupConfig:
    after = msgspec.structs.replace(config, members=members, member_mappings=member_mappings)
    check_elastic_rules(after)
    return redistributed(after)


def is_another_group(before: GroupConfig, after: GroupConfig) -> bool:
    """Whether a config is no change of the one before it: the group was made anew."""
    try:
        check_change(before, after)
    except GroupUpdateError:
        return True
    return False
