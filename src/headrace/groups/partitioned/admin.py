"""Administration of partitioned groups: each call is one transaction of the catalog.

A group is an entry in the bucket of its kind.  With an elastic group come its work queue and a
place in the source from which the queue is filled; with a static group the places from which its
members read.  Deleting a group takes all of that away and nothing else.  The rows of its pins and
claims stay behind without an owner, because their tokens must never start over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from headrace.catalog import Tx, entries, leases, streams
from headrace.catalog import progress as stored
from headrace.catalog.streams import SEGMENTS_MAX, Consumed, Stream
from headrace.errors import (
    GroupExistsError,
    GroupUpdateError,
    InvalidGroupConfigError,
    InvalidPositionError,
    MaxMembersError,
    NoActiveInstanceError,
    UnknownGroupError,
    UnknownMemberError,
)
from headrace.groups.partitioned import changes
from headrace.groups.partitioned.config import (
    Distribution,
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    decode_elastic,
    decode_static,
    encode,
    make_elastic,
    make_static,
)
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.ownership import (
    STEP_DOWN_BUCKET,
    read_claims,
    read_config,
    read_pins,
    step_down_key,
)
from headrace.groups.partitioned.record import DECISIONS_BUCKET
from headrace.groups.partitioned.status import GroupStatus, group_status
from headrace.groups.partitioned.units import (
    GroupKind,
    Layout,
    claimed_config,
    kind_of,
    layout_of,
    progress_names,
)
from headrace.log import internal
from headrace.log.log import Log
from headrace.log.read import Place, Query

BUCKETS = {GroupKind.STATIC: STATIC_BUCKET, GroupKind.ELASTIC: ELASTIC_BUCKET}

Mappings = Mapping[str, Iterable[int]] | Iterable[MemberMapping]
"""Partitions by member, or the records that hold them."""


class GroupInfo(msgspec.Struct, frozen=True):
    """A group as it stands."""

    name: GroupName
    config: GroupConfig
    revision: int
    """Of its config; it grows with every change."""

    @property
    def kind(self) -> GroupKind:
        """Static or elastic."""
        return kind_of(self.config)


# --- making and removing ---------------------------------------------------------------------


def create_static(
    log: Log,
    stream: str,
    group: str,
    *,
    max_members: int,
    filter: str = "",
    members: Iterable[str] = (),
    mappings: Mappings = (),
    start: Place = "earliest",
) -> GroupInfo:
    """Create a static group; creating it again in the same way changes nothing."""
    name = GroupName(stream, group)
    config = make_static(
        max_members=max_members,
        filter=filter,
        members=members,
        member_mappings=mapping_records(mappings),
    )
    source = log.stream(stream)
    if source.config.partitions and source.config.partitions != max_members:
        raise MaxMembersError(
            f"max_members is {max_members}, but stream {stream!r} has "
            f"{source.config.partitions} partitions; give that number"
        )
    floors = start_floors(log, source, start)

    def run(tx: Tx) -> GroupInfo:
        existing = _existing(tx, name, config)
        if existing is not None:
            return existing
        found = streams.require(tx, stream)
        layout = layout_of(config, found.config)
        for reader in progress_names(name, config, layout):
            _start(tx, found, reader, floors)
        revision = entries.put(
            tx, STATIC_BUCKET, name.key, encode(config), if_revision=entries.ABSENT
        )
        return GroupInfo(name, config, revision)

    return log.catalog.write(run, locks=_locks(name, GroupKind.STATIC, source))


def create_elastic(
    log: Log,
    stream: str,
    group: str,
    *,
    max_members: int,
    filter: str,
    wildcards: Sequence[int],
    max_buffered: int = 0,
    members: Iterable[str] = (),
    mappings: Mappings = (),
    distribution: Distribution | str = Distribution.BLOCKS,
    start: Place = "earliest",
) -> GroupInfo:
    """Create an elastic group and its work queue; doing it again in the same way changes nothing.

    ``start`` says from where in the stream the queue is filled.
    """
    name = GroupName(stream, group)
    config = make_elastic(
        max_members=max_members,
        filter=filter,
        partitioning_wildcards=wildcards,
        buffered_events_max=max_buffered,
        members=members,
        member_mappings=mapping_records(mappings),
        distribution=_distribution(distribution),
    )
    if max_members > SEGMENTS_MAX:
        raise MaxMembersError(
            f"max_members is {max_members}; the work queue has one segment for each, and "
            f"{SEGMENTS_MAX} is the most"
        )
    source = log.stream(stream)
    floors = start_floors(log, source, start)

    def run(tx: Tx) -> GroupInfo:
        existing = _existing(tx, name, config)
        if existing is not None:
            return existing
        found = streams.require(tx, stream)
        queue = internal.create(
            tx, name.work_queue, max_members, Consumed(), key_tokens=key_tokens(config)
        )
        stored.subscribe(tx, queue.id, name.key)
        _start(tx, found, name.partition_job, floors)
        revision = entries.put(
            tx, ELASTIC_BUCKET, name.key, encode(config), if_revision=entries.ABSENT
        )
        return GroupInfo(name, config, revision)

    return log.catalog.write(run, locks=_locks(name, GroupKind.ELASTIC, source))


def key_tokens(config: ElasticGroupConfig) -> tuple[int, ...]:
    """Places, in the subjects of the work queue, of the tokens that make the key."""
    stars = [at for at, token in enumerate(config.filter.split("."), 1) if token == "*"]
    return tuple(stars[wildcard - 1] + 1 for wildcard in config.partitioning_wildcards)


def start_floors(log: Log, stream: Stream, start: Place) -> dict[int, int]:
    """Where a place is in each segment; what lies before it counts as consumed."""
    if isinstance(start, int) and not isinstance(start, bool):
        raise InvalidPositionError(
            f"start={start!r} is not a place for a group: give 'earliest', 'latest', a datetime or "
            "{segment: offset}"
        )
    reader = log.reader(stream.name, Query(start=start, follow=True))
    places = reader.positions
    return {s.number: places.get(s.number, s.head) for s in reader.stream.segments}


def delete(log: Log, stream: str, group: str, kind: GroupKind | None = None) -> GroupInfo:
    """Delete a group with all that is its own; its members wait until it is made again."""
    name = GroupName(stream, group)
    info = get(log, stream, group, kind)
    found = {s.name: s for s in _own_streams(log, name)}

    def run(tx: Tx) -> GroupInfo:
        current = _require(tx, name, info.kind)
        entries.delete(tx, BUCKETS[info.kind], name.key)
        source = streams.get(tx, stream)
        if source is not None:
            for reader in stored.subscribed(tx, source.id):
                if reader == name.partition_job or _is_reader(name, current.config, reader):
                    stored.unsubscribe(tx, source.id, reader)
        for own in (name.work_queue, name.dead_letters):
            internal.delete(tx, own)
        _forget_owners(tx, name, current.config)
        return current

    locks = [
        *_locks(name, info.kind, None),
        streams.LOCK_ALL,
        entries.lock(STEP_DOWN_BUCKET),
        entries.lock(DECISIONS_BUCKET),
        *(streams.lock(s.id) for s in found.values()),
        *(leases.lock(name.pin(member)) for member in info.config.assignment()),
    ]
    deleted = log.catalog.write(run, locks=locks)
    for own in found:
        log.routes.forget(own)
    return deleted


def _own_streams(log: Log, name: GroupName) -> list[Stream]:
    def look(tx: Tx) -> list[Stream]:
        wanted = (name.stream, name.work_queue, name.dead_letters)
        return [found for own in wanted if (found := streams.get(tx, own)) is not None]

    return log.catalog.read(look, snapshot=True)


def _is_reader(name: GroupName, config: GroupConfig, reader: str) -> bool:
    return reader == name.key or any(reader == name.share(m) for m in config.assignment())


def _forget_owners(tx: Tx, name: GroupName, config: GroupConfig) -> None:
    """Nobody owns anything any more; the tokens stay, so that nobody ever passes for an owner."""
    owned = [name.key, *(name.share(member) for member in config.assignment())]
    tx.executemany(
        "UPDATE claims SET owner = NULL WHERE group_name = ?", [(each,) for each in owned]
    )
    # Members that were dropped may still hold a pin; the names of leases end in the member's.
    beginning = name.pin("x")[:-1]
    rows = tx.rows(
        "SELECT name, token FROM leases WHERE substr(name, 1, ?) = ? AND owner IS NOT NULL",
        (len(beginning), beginning),
    )
    for pin, token in rows:
        if name.owns(pin):
            leases.release(tx, pin, token)
    beginning = step_down_key(name, "")
    for (entry_key,) in tx.rows(
        "SELECT key FROM entries WHERE bucket = ? AND substr(key, 1, ?) = ? AND value IS NOT NULL",
        (STEP_DOWN_BUCKET, len(beginning), beginning),
    ):
        entries.delete(tx, STEP_DOWN_BUCKET, entry_key)
    entries.delete(tx, DECISIONS_BUCKET, name.key)


# --- looking ---------------------------------------------------------------------------------


def get(log: Log, stream: str, group: str, kind: GroupKind | None = None) -> GroupInfo:
    """A group, of the given kind or of either."""
    name = GroupName(stream, group)
    return log.catalog.read(lambda tx: _require(tx, name, kind), snapshot=True)


def list_groups(
    log: Log, stream: str | None = None, kind: GroupKind | None = None
) -> tuple[GroupInfo, ...]:
    """The groups of a stream (or of all), by name."""
    if stream is not None:
        log.stream(stream)
    found = []
    for each in GroupKind if kind is None else (kind,):
        for entry in log.catalog.entries.list(BUCKETS[each]):
            name = GroupName.of_key(entry.key)
            if entry.value is not None and stream in (None, name.stream):
                found.append(GroupInfo(name, _decode(each, entry.value), entry.revision))
    return tuple(sorted(found, key=lambda info: info.name))


def status(log: Log, stream: str, group: str, kind: GroupKind | None = None) -> GroupStatus:
    """Who is active, who is missing, and which partitions nobody consumes."""
    name = GroupName(stream, group)

    def look(tx: Tx) -> GroupStatus:
        config = _require(tx, name, kind).config
        source = streams.get(tx, stream)
        layout = Layout.SEGMENTS if source is None else layout_of(config, source.config)
        by_lease = {name.pin(member): member for member in config.assignment()}
        claims = read_claims(tx, name)
        for claim in claims.values():  # members that were dropped may not have finished yet
            if claim.owner is not None:
                by_lease[name.pin(claim.owner.member)] = claim.owner.member
        pins = {by_lease[pin]: held for pin, held in read_pins(tx, by_lease).items()}
        judged = claimed_config(config, layout)
        found = group_status(judged, pins, claims, tx.now_us() // 1000)
        return found if layout is Layout.SEGMENTS else _of_shares(found, config)

    return log.catalog.read(look, snapshot=True)


def _of_shares(found: GroupStatus, config: GroupConfig) -> GroupStatus:
    """The same by partition: who has claimed its share consumes all of its partitions."""
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
        info = _require(tx, name, None)
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
        return GroupInfo(name, after, revision)

    return log.catalog.write(run, locks=_locks(name, GroupKind.ELASTIC, None))


def step_down(log: Log, stream: str, group: str, member: str) -> str:
    """Ask the active instance of a member to give up its pin; returns which one was asked."""
    name = GroupName(stream, group)

    def run(tx: Tx) -> str:
        info = _require(tx, name, None)
        held = leases.get(tx, name.pin(_member_of(info, member)))
        if held is None:
            raise NoActiveInstanceError(
                f"member {member!r} of group {group!r} has no active instance"
            )
        key = step_down_key(name, member)
        entries.put(tx, STEP_DOWN_BUCKET, key, str(held.token).encode())
        return held.owner

    return log.catalog.write(run, locks=[name.lock, entries.lock(STEP_DOWN_BUCKET)])


# --- internals -------------------------------------------------------------------------------


def mapping_records(mappings: Mappings) -> tuple[MemberMapping, ...]:
    """Mappings as records, whatever form they came in."""
    if isinstance(mappings, Mapping):
        return tuple(MemberMapping(m, tuple(owned)) for m, owned in mappings.items())
    return tuple(mappings)


def _distribution(given: Distribution | str) -> Distribution:
    try:
        return Distribution(given)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Distribution)
        raise InvalidGroupConfigError(f"there is no distribution {given!r}; use {known}") from None


def _locks(name: GroupName, kind: GroupKind, source: Stream | None) -> list[str]:
    locks = [name.lock, entries.lock(BUCKETS[kind])]
    if source is not None:
        locks += [streams.LOCK_ALL, streams.lock(source.id)]
    return locks


def _existing(tx: Tx, name: GroupName, wanted: GroupConfig) -> GroupInfo | None:
    """The group, if it is there just as wanted."""
    found = read_config(tx, name)
    if found is None:
        return None
    if kind_of(found) is not kind_of(wanted):
        raise GroupExistsError(
            f"group {name.group!r} exists and is {kind_of(found).value}; choose another name, or "
            "delete it first"
        )
    changes.check_same(name.group, found, wanted)
    return _require(tx, name, kind_of(wanted))


def _start(tx: Tx, stream: Stream, reader: str, floors: Mapping[int, int]) -> None:
    """Let a reader begin at the floors; retention keeps what it still needs."""
    stored.subscribe(tx, stream.id, reader)
    for segment in stream.segments:
        floor = min(segment.head, floors.get(segment.number, 0))
        if floor:
            stored.put(tx, stored.Progress(reader, segment.id, floor))


def _require(tx: Tx, name: GroupName, kind: GroupKind | None) -> GroupInfo:
    for each in GroupKind if kind is None else (kind,):
        entry = entries.get(tx, BUCKETS[each], name.key)
        if entry is not None and entry.value is not None:
            return GroupInfo(name, _decode(each, entry.value), entry.revision)
    beginning = f"{name.stream}."
    rows = tx.rows(
        "SELECT key FROM entries WHERE bucket IN (?, ?) AND substr(key, 1, ?) = ? "
        "AND value IS NOT NULL ORDER BY key LIMIT 10",
        (*BUCKETS.values(), len(beginning), beginning),
    )
    groups = ", ".join(GroupName.of_key(key).group for (key,) in rows)
    hint = f"its groups are: {groups}" if groups else "it has no groups yet"
    raise UnknownGroupError(name.stream, name.group, "" if kind is None else kind.value, hint)


def _decode(kind: GroupKind, data: bytes) -> GroupConfig:
    return decode_elastic(data) if kind is GroupKind.ELASTIC else decode_static(data)
