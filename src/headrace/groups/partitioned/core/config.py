"""Config records of partitioned groups, and their rules.

A config is an entry of the catalog, stored as JSON with the field names of the document; what
Headrace adds is left out while it has its default.  How one may change stands in ``changes``.

The rules are checked in one fixed order and each has its own message; the first that is broken
is reported.  Members are never refused for being too many or given twice: they are kept sorted
and without repeats, and those beyond ``max_members`` own nothing until a place is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import msgspec

from headrace.errors import (
    BufferSizeError,
    GroupAssignmentError,
    GroupConfigDecodeError,
    GroupFilterError,
    GroupMembersError,
    InvalidFilterError,
    InvalidInputError,
    InvalidNameError,
    MaxMembersError,
    MemberMappingsError,
    PartitioningWildcardsError,
)
from headrace.groups.partitioned.core.distribution import (
    blocks,
    effective_members,
    sorted_members,
    sticky,
)
from headrace.subjects import check_filter, check_name

PARTITIONS_MAX = 100_000
MEMBERS_MAX = 100_000
BUFFERED_EVENTS_MAX = 2**53


class Distribution(Enum):
    """How partitions are given to members when no mapping says it."""

    BLOCKS = "blocks"
    STICKY = "sticky"


class MemberMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The partitions of one member."""

    member: str
    partitions: tuple[int, ...]


class StaticGroupConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    dict=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"member_mappings": "member-mappings"},
):
    """A group whose members are fixed for its life."""

    max_members: int
    filter: str
    members: tuple[str, ...] = ()
    member_mappings: tuple[MemberMapping, ...] = ()

    def assignment(self) -> Mapping[str, tuple[int, ...]]:
        """Who consumes what."""
        return self._assignment

    @cached_property  # asked for with every claim, and costly with many partitions
    def _assignment(self) -> Mapping[str, tuple[int, ...]]:
        if self.member_mappings:
            return _mapped(self.member_mappings)
        return MappingProxyType(blocks(self.members, self.max_members))


class ElasticGroupConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    dict=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={
        "partitioning_wildcards": "partitioning-wildcards",
        "buffered_events_max": "msg-buffer-size",
        "member_mappings": "member-mappings",
        "kept_assignment": "assignment",
    },
):
    """A group whose members or mappings may change at any time."""

    max_members: int
    filter: str
    partitioning_wildcards: tuple[int, ...]
    buffered_events_max: int = 0
    """Events in the work queue that are not consumed yet; 0: no limit."""
    members: tuple[str, ...] = ()
    member_mappings: tuple[MemberMapping, ...] = ()
    distribution: Distribution = Distribution.BLOCKS
    kept_assignment: tuple[MemberMapping, ...] = ()
    """Under ``sticky``: who consumes what, as the last change left it."""

    def assignment(self) -> Mapping[str, tuple[int, ...]]:
        """Who consumes what."""
        return self._assignment

    @cached_property
    def _assignment(self) -> Mapping[str, tuple[int, ...]]:
        if self.member_mappings:
            return _mapped(self.member_mappings)
        if self.distribution is Distribution.STICKY:
            kept = {m.member: m.partitions for m in self.kept_assignment}
            return MappingProxyType({name: kept.get(name, ()) for name in self.members})
        return MappingProxyType(blocks(self.members, self.max_members))


def _mapped(mappings: Sequence[MemberMapping]) -> Mapping[str, tuple[int, ...]]:
    return MappingProxyType({m.member: tuple(sorted(m.partitions)) for m in mappings})


GroupConfig = StaticGroupConfig | ElasticGroupConfig
_Config = TypeVar("_Config", StaticGroupConfig, ElasticGroupConfig)


# --- making --------------------------------------------------------------------------------


def make_static(
    *,
    max_members: int,
    filter: str = "",
    members: Iterable[str] = (),
    member_mappings: Iterable[MemberMapping] = (),
) -> StaticGroupConfig:
    """A checked config of a static group."""
    return checked_static(
        StaticGroupConfig(
            max_members=max_members,
            filter=filter,
            members=tuple(sorted_members(members)),
            member_mappings=tuple(member_mappings),
        )
    )


def make_elastic(
    *,
    max_members: int,
    filter: str,
    partitioning_wildcards: Sequence[int],
    buffered_events_max: int = 0,
    members: Iterable[str] = (),
    member_mappings: Iterable[MemberMapping] = (),
    distribution: Distribution = Distribution.BLOCKS,
) -> ElasticGroupConfig:
    """A checked config of an elastic group.

    >>> config = make_elastic(max_members=4, filter="orders.*.*", partitioning_wildcards=[2],
    ...                       members=["m2", "m1", "m2"])
    >>> dict(config.assignment())
    {'m1': (0, 1), 'm2': (2, 3)}
    """
    config = ElasticGroupConfig(
        max_members=max_members,
        filter=filter,
        partitioning_wildcards=tuple(partitioning_wildcards),
        buffered_events_max=buffered_events_max,
        members=tuple(sorted_members(members)),
        member_mappings=tuple(member_mappings),
        distribution=distribution,
    )
    check_elastic_rules(config)
    return redistributed(config)


def redistributed(config: ElasticGroupConfig) -> ElasticGroupConfig:
    """Under sticky distribution, work out the assignment from the one that was kept."""
    if config.distribution is not Distribution.STICKY:
        return config
    if config.member_mappings:
        made: Mapping[str, tuple[int, ...]] = config.assignment()
    elif config.members:
        kept = {m.member: m.partitions for m in config.kept_assignment}
        made = sticky(kept, config.members, config.max_members)
    else:
        return config
    records = tuple(MemberMapping(m, owned) for m, owned in made.items() if owned)
    return msgspec.structs.replace(config, kept_assignment=records)


# --- the rules, in their order ---------------------------------------------------------------


def checked_static(config: StaticGroupConfig) -> StaticGroupConfig:
    """The config, or the error of the first rule that it breaks."""
    _check_max_members(config.max_members)
    if config.filter:
        _check_filter_is_well_formed(config.filter)
    _check_members_or_mappings(config)
    return config


def checked_elastic(config: ElasticGroupConfig) -> ElasticGroupConfig:
    """The config, or the error of the first rule that it breaks."""
    check_elastic_rules(config)
    _check_kept_assignment(config)
    return config


def check_elastic_rules(config: ElasticGroupConfig) -> None:
    _check_max_members(config.max_members)
    _check_partitioning(config.filter, config.partitioning_wildcards)
    if not 0 <= config.buffered_events_max <= BUFFERED_EVENTS_MAX:
        raise BufferSizeError(
            f"max_buffered (msg-buffer-size) is {config.buffered_events_max}; "
            f"use 1 to {BUFFERED_EVENTS_MAX}, or 0 for no limit"
        )
    _check_members_or_mappings(config)


def _check_max_members(max_members: int) -> None:
    if max_members < 1:
        raise MaxMembersError(f"max_members is {max_members}; a group needs at least 1 partition")
    if max_members > PARTITIONS_MAX:
        raise MaxMembersError(f"max_members is {max_members}; at most {PARTITIONS_MAX} are allowed")


def _check_filter_is_well_formed(filter: str) -> None:
    try:
        check_filter(filter)
    except InvalidFilterError as error:
        raise GroupFilterError(str(error)) from error


def _check_partitioning(filter: str, wildcards: Sequence[int]) -> None:
    if not filter:
        raise GroupFilterError("an elastic group needs a filter, such as 'orders.*'")
    _check_filter_is_well_formed(filter)
    stars = filter.split(".").count("*")
    if not stars:
        raise GroupFilterError(f"filter {filter!r} has no '*'; the partition is made from them")
    if len(wildcards) > stars:
        raise PartitioningWildcardsError(
            f"{len(wildcards)} partitioning wildcards, but filter {filter!r} has {stars} '*'"
        )
    if len(set(wildcards)) != len(wildcards):
        twice = next(w for i, w in enumerate(wildcards) if w in wildcards[:i])
        raise PartitioningWildcardsError(f"partitioning wildcard {twice} is given twice")
    for wildcard in wildcards:
        if not 1 <= wildcard <= stars:
            raise PartitioningWildcardsError(
                f"partitioning wildcard {wildcard} does not exist: "
                f"filter {filter!r} has {stars} '*', numbered from 1"
            )


def _check_members_or_mappings(config: GroupConfig) -> None:
    if config.members and config.member_mappings:
        raise GroupMembersError("members and member-mappings are both given; use one of them")
    if len(config.members) > MEMBERS_MAX:
        raise GroupMembersError(f"{len(config.members)} members; at most {MEMBERS_MAX} are kept")
    for name in config.members:
        _check_member_name(name)
    if config.member_mappings:
        _check_mappings(config.member_mappings, config.max_members)


def _check_member_name(name: str) -> None:
    try:
        check_name(name, "member name")
    except InvalidNameError as error:
        raise GroupMembersError(str(error)) from error


def _check_mappings(mappings: Sequence[MemberMapping], partitions: int) -> None:
    if len(mappings) > partitions:
        raise MemberMappingsError(
            f"{len(mappings)} members are mapped, but max_members is {partitions}"
        )
    members: set[str] = set()
    for mapping in mappings:
        if mapping.member in members:
            raise MemberMappingsError(f"member {mapping.member!r} is mapped twice")
        members.add(mapping.member)
    taken: dict[int, str] = {}
    for mapping in mappings:
        for partition in mapping.partitions:
            if partition in taken:
                raise MemberMappingsError(
                    f"partition {partition} is mapped twice: "
                    f"to {taken[partition]!r} and to {mapping.member!r}"
                )
            taken[partition] = mapping.member
    for partition, member in taken.items():
        if not 0 <= partition < partitions:
            raise MemberMappingsError(
                f"partition {partition} of member {member!r} does not exist; "
                f"they are 0 to {partitions - 1}"
            )
    if len(taken) < partitions:
        free = next(p for p in range(partitions) if p not in taken)
        raise MemberMappingsError(
            f"{partitions - len(taken)} of {partitions} partitions are not mapped, "
            f"the first is {free}"
        )
    for name in sorted(members):
        _check_member_name(name)


def _check_kept_assignment(config: ElasticGroupConfig) -> None:
    kept = config.kept_assignment
    if config.distribution is not Distribution.STICKY:
        if kept:
            raise GroupAssignmentError("an assignment is kept only under sticky distribution")
        return
    if kept or config.members:
        try:
            _check_mappings(kept, config.max_members)
        except MemberMappingsError as error:
            raise GroupAssignmentError(f"the kept assignment is damaged: {error}") from error
    if config.member_mappings or not config.members:
        return  # what is kept is only where the next distribution starts from
    active = effective_members(config.members, config.max_members)
    if sorted_members(m.member for m in kept) != active:
        raise GroupAssignmentError("the kept assignment is not for the members of the group")
    sizes = [len(m.partitions) for m in kept]
    if max(sizes) - min(sizes) > 1:
        raise GroupAssignmentError("the kept assignment is not balanced within one")


# --- records ---------------------------------------------------------------------------------


def encode(config: GroupConfig) -> bytes:
    """The config as it is stored, checked by type and range."""
    try:
        data = msgspec.json.encode(config)
        if isinstance(config, ElasticGroupConfig):
            _elastic_decoder.decode(data)
        else:
            _static_decoder.decode(data)
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise InvalidInputError(f"config of a partitioned group: {error}") from error
    return data


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_static_decoder = msgspec.json.Decoder(StaticGroupConfig)
_elastic_decoder = msgspec.json.Decoder(ElasticGroupConfig)


def decode_static(data: bytes | str) -> StaticGroupConfig:
    """A stored static config; one that breaks a rule is refused as at creation."""
    return checked_static(_sorted(_decode(data, _static_decoder)))


def decode_elastic(data: bytes | str) -> ElasticGroupConfig:
    """A stored elastic config; one that breaks a rule is refused as at creation."""
    return checked_elastic(_sorted(_decode(data, _elastic_decoder)))


class _Salvaged(msgspec.Struct, frozen=True):
    """What deleting a group needs to know of its config."""

    members: tuple[str, ...] = ()


_salvaged_decoder = msgspec.json.Decoder(_Salvaged)


def salvaged(data: bytes, *, elastic: bool) -> GroupConfig:
    """As much of a config that cannot be read as deleting its group needs."""
    members: tuple[str, ...] = ()
    with suppress(msgspec.MsgspecError, UnicodeError):
        members = _salvaged_decoder.decode(data).members
    count = max(1, len(members))
    if elastic:
        return ElasticGroupConfig(
            max_members=count, filter="", partitioning_wildcards=(), members=members
        )
    return StaticGroupConfig(max_members=count, filter="", members=members)


def _decode(data: bytes | str, decoder: msgspec.json.Decoder[_Config]) -> _Config:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GroupConfigDecodeError(f"not a config of a partitioned group: {error}") from error


def _sorted(config: _Config) -> _Config:
    """Other writers of the same records may leave members unsorted or repeated."""
    return msgspec.structs.replace(config, members=tuple(sorted_members(config.members)))
