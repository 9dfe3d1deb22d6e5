"""Administration of groups that are there: looking at them, and changing their members.

Each call is one transaction of the catalog.  ``lifecycle`` makes groups and removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from headrace.catalog import Tx, entries, leases, streams
from headrace.catalog.keys import named
from headrace.catalog.records import left_out
from headrace.errors import (
    GroupUpdateError,
    InvalidGroupConfigError,
    NoActiveInstanceError,
    UnknownMemberError,
)
from headrace.groups import homes
from headrace.groups.partitioned import deciding
from headrace.groups.partitioned.core import changes, telling
from headrace.groups.partitioned.core.config import ElasticGroupConfig, GroupConfig, encode
from headrace.groups.partitioned.core.status import GroupStatus, LostInstance, group_status
from headrace.groups.partitioned.entry import (
    BUCKETS,
    GroupInfo,
    Mappings,
    decode,
    locks_of,
    mapping_records,
    require,
)
from headrace.groups.partitioned.lifecycle import create_elastic, create_static, delete
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.ownership import (
    STEP_DOWN_BUCKET,
    read_claims,
    read_pins,
    step_down_key,
)
from headrace.groups.partitioned.runtime.units import GroupKind, Layout, claimed_config, layout_of
from headrace.log.log import Log

__all__ = [
    "GroupInfo",
    "Mappings",
    "add_members",
    "create_elastic",
    "create_static",
    "delete",
    "delete_mappings",
    "drop_members",
    "get",
    "list_groups",
    "names",
    "partitions",
    "set_mappings",
    "status",
    "step_down",
]

_log = logging.getLogger(__name__)


# --- looking ---------------------------------------------------------------------------------


def get(log: Log, stream: str, group: str, kind: GroupKind | None = None) -> GroupInfo:
    """A group, of the given kind or of either."""
    name = GroupName(stream, group)
    return log.catalog.read(lambda tx: require(tx, name, kind), snapshot=True)


def names(tx: Tx, kind: GroupKind) -> list[GroupName]:
    """The groups of a kind."""
    found = []
    for key in entries.keys(tx, BUCKETS[kind], ""):
        with left_out():
            found.append(named(BUCKETS[kind], key, GroupName.of_key))
    return found


def list_groups(
    log: Log, stream: str | None = None, kind: GroupKind | None = None
) -> tuple[GroupInfo, ...]:
    """The groups of a stream (or of all), by name."""
    if stream is not None:
        log.stream(stream)
    found = []
    for each in GroupKind if kind is None else (kind,):
        for entry in log.catalog.entries.list(BUCKETS[each]):
            with left_out():
                name = named(BUCKETS[each], entry.key, GroupName.of_key)
                if entry.value is None or stream not in (None, name.stream):
                    continue
                try:
                    config = decode(name, each, entry.value)
                except InvalidGroupConfigError as error:
                    _log.warning("left out: %s group %s: %s", each.value, name.key, error)
                    continue
                found.append(GroupInfo(name, config, entry.revision))
    return tuple(sorted(found, key=lambda info: info.name))


def status(log: Log, stream: str, group: str, kind: GroupKind | None = None) -> GroupStatus:
    """Who is active, who is missing, and which partitions nobody consumes."""
    name = GroupName(stream, group)

    def look(tx: Tx) -> GroupStatus:
        config = require(tx, name, kind).config
        source = streams.get(tx, stream)
        layout = Layout.SEGMENTS if source is None else layout_of(config, source.config)
        by_lease = {name.pin(member): member for member in config.assignment()}
        claims = read_claims(tx, name)
        for claim in claims.values():  # members that were dropped may not have finished yet
            if claim.owner is not None:
                by_lease[name.pin(claim.owner.member)] = claim.owner.member
        pins = {by_lease[pin]: held for pin, held in read_pins(tx, by_lease).items()}
        judged = claimed_config(config, layout)
        found = _with_lost(tx, name, group_status(judged, pins, claims, tx.now_us() // 1000))
        return found if layout is Layout.SEGMENTS else _of_shares(found, config)

    return log.catalog.read(look, snapshot=True)


def _with_lost(tx: Tx, name: GroupName, found: GroupStatus) -> GroupStatus:
    """Leases that have ended tell who was lost."""
    members = []
    for member in found.members:
        pin = leases.ended(tx, name.pin(member.member)) if member.instance is None else None
        lost = pin and LostInstance(pin.owner, pin.expires_us, pin.heard_us)
        members.append(msgspec.structs.replace(member, lost=lost))
    return msgspec.structs.replace(found, members=tuple(members))


def _of_shares(found: GroupStatus, config: GroupConfig) -> GroupStatus:
    """A status by shares, as one by partitions: a claimed share is all of its partitions."""
    assignment = config.assignment()
    members = tuple(
        msgspec.structs.replace(
            m, assigned=assignment[m.member], consumed=assignment[m.member] if m.consumed else ()
        )
        for m in found.members
    )
    consumed = {p for m in members for p in m.consumed}
    return GroupStatus(
        members=members,
        unconsumed=tuple(p for p in range(config.max_members) if p not in consumed),
        moving=(),
    )


def partitions(log: Log, stream: str, group: str, member: str) -> tuple[int, ...]:
    """The partitions that the config gives a member."""
    info = get(log, stream, group)
    return info.config.assignment()[_member_of(info, member)]


def _member_of(info: GroupInfo, member: str) -> str:
    assignment = info.config.assignment()
    if member not in assignment:
        known = ", ".join(list(assignment)[:10]) or "nobody"
        raise UnknownMemberError(
            f"{member!r} is not a member of group {info.name.group!r}; members are: {known}"
        )
    return member


# --- changing --------------------------------------------------------------------------------


def add_members(log: Log, stream: str, group: str, members: Iterable[str]) -> GroupInfo:
    """Add members to an elastic group; those it has already are passed over."""
    given = list(members)
    return _change(log, stream, group, lambda config: changes.add_members(config, given))


def drop_members(log: Log, stream: str, group: str, members: Iterable[str]) -> GroupInfo:
    """Drop members from an elastic group; those it does not have are passed over."""
    given = list(members)
    return _change(log, stream, group, lambda config: changes.drop_members(config, given))


def set_mappings(log: Log, stream: str, group: str, mappings: Mappings) -> GroupInfo:
    """Map the partitions of an elastic group to members by hand."""
    given = mapping_records(mappings)
    return _change(log, stream, group, lambda config: changes.set_mappings(config, given))


def delete_mappings(
    log: Log, stream: str, group: str, members: Iterable[str] | None = None
) -> GroupInfo:
    """Back to automatic distribution, over ``members`` or over those that were mapped."""
    given = None if members is None else list(members)
    return _change(log, stream, group, lambda config: changes.delete_mappings(config, given))


def _change(
    log: Log,
    stream: str,
    group: str,
    change: Callable[[ElasticGroupConfig], ElasticGroupConfig],
) -> GroupInfo:
    name = GroupName(stream, group)

    def run(tx: Tx) -> GroupInfo:
        info = require(tx, name, None)
        if not isinstance(info.config, ElasticGroupConfig):
            raise GroupUpdateError(
                f"group {group!r} is static and cannot change; delete and create it again"
            )
        after = change(info.config)
        if after == info.config:
            return info
        revision = entries.put(
            tx, ELASTIC_BUCKET, name.key, encode(after), if_revision=info.revision
        )
        homes.configured(tx, name.key, encode(after))
        deciding.configured(tx, name, telling.changed(info.config, after))
        return GroupInfo(name, after, revision)

    locks = [*locks_of(name, GroupKind.ELASTIC, None), entries.lock(homes.GROUPS_BUCKET)]
    return log.catalog.write(run, locks=locks)


def step_down(log: Log, stream: str, group: str, member: str) -> str:
    """Ask the active instance of a member to give up its pin; returns which one was asked."""
    name = GroupName(stream, group)

    def run(tx: Tx) -> str:
        info = require(tx, name, None)
        held = leases.get(tx, name.pin(_member_of(info, member)))
        if held is None:
            raise NoActiveInstanceError(
                f"member {member!r} of group {group!r} has no active instance"
            )
        key = step_down_key(name, member)
        entries.put(tx, STEP_DOWN_BUCKET, key, str(held.token).encode())
        return held.owner

    return log.catalog.write(run, locks=[name.lock, entries.lock(STEP_DOWN_BUCKET)])
