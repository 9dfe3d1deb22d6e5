"""Making groups and removing them: each is one transaction of the catalog.

A group is an entry in the bucket of its kind.  With an elastic group come its work queue and a
place in the source from which the queue is filled; with a static group the places from which its
members read.  Deleting a group takes all of that away and nothing else.  The rows of its pins and
claims stay behind without an owner, because their tokens must never start over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.catalog import Tx, claims, entries, leases, streams
from headrace.catalog import progress as stored
from headrace.catalog.streams import SEGMENTS_MAX, Consumed, Stream
from headrace.errors import (
    GroupExistsError,
    GroupFilterError,
    GroupMembersError,
    InvalidGroupConfigError,
    InvalidPositionError,
    MaxMembersError,
)
from headrace.groups import decisions, homes
from headrace.groups.partitioned import deciding
from headrace.groups.partitioned.core import changes, telling
from headrace.groups.partitioned.core.config import (
    Distribution,
    ElasticGroupConfig,
    GroupConfig,
    StaticGroupConfig,
    encode,
    make_elastic,
    make_static,
)
from headrace.groups.partitioned.entry import (
    BUCKETS,
    GroupInfo,
    Mappings,
    locks_of,
    mapping_records,
    removable,
    require,
)
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.ownership import (
    STEP_DOWN_BUCKET,
    read_config,
    step_down_key,
)
from headrace.groups.partitioned.runtime.units import GroupKind, kind_of, layout_of, progress_names
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.log import internal
from headrace.log.log import Log
from headrace.log.query import Place, Query
from headrace.subjects import overlaps

NUMBERS_TRIED = 100
"""Partition numbers that are tried against a stream's subjects: if any can match, a low one can."""


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
    if not config.members and not config.member_mappings:
        raise GroupMembersError(
            f"static group {group!r} would have no members for ever; give members or a mapping"
        )
    _check_carries_partitions(source, config)
    floors = start_floors(log, source, start)

    def begin(tx: Tx, found: Stream) -> None:
        for reader in progress_names(name, config, layout_of(config, found.config)):
            _start(tx, found, reader, floors)

    return _create(log, name, config, source, begin)


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
    _check_can_match(source, [config.filter], config.filter)
    floors = start_floors(log, source, start)

    def begin(tx: Tx, found: Stream) -> None:
        _create_queue(tx, name, config)
        _start(tx, found, name.partition_job, floors)

    return _create(log, name, config, source, begin)


def _create_queue(tx: Tx, name: GroupName, config: ElasticGroupConfig) -> None:
    queue = internal.create(
        tx, name.work_queue, config.max_members, Consumed(), key_tokens=key_tokens(config)
    )
    stored.subscribe(tx, queue.id, name.key)


def create_with(log: Log, name: GroupName, config: GroupConfig) -> GroupInfo:
    """Make a group of another region here, with nothing acked yet."""
    source = log.stream(name.stream)

    def begin(tx: Tx, found: Stream) -> None:
        if isinstance(config, ElasticGroupConfig):
            _create_queue(tx, name, config)
            _start(tx, found, name.consumed, {})
            return
        for reader in progress_names(name, config, layout_of(config, found.config)):
            _start(tx, found, reader, {})

    return _create(log, name, config, source, begin)


def _create(
    log: Log,
    name: GroupName,
    config: GroupConfig,
    source: Stream,
    begin: Callable[[Tx, Stream], None],
) -> GroupInfo:
    """One transaction: the group's entry, and what it ``begin``s with on its stream."""

    def run(tx: Tx) -> GroupInfo:
        existing = _existing(tx, name, config)
        if existing is not None:
            return existing
        begin(tx, streams.require(tx, name.stream))
        data, bucket = encode(config), BUCKETS[kind_of(config)]
        revision = entries.put(tx, bucket, name.key, data, if_revision=entries.ABSENT)
        deciding.configured(tx, name, telling.created(config))
        return GroupInfo(name, config, revision)

    return log.catalog.write(run, locks=locks_of(name, kind_of(config), source))


def _check_carries_partitions(source: Stream, config: StaticGroupConfig) -> None:
    """A group whose partitions are nowhere in the stream would wait for ever, and so is refused."""
    if source.config.partitions:
        _check_can_match(source, [config.filter or ">"], config.filter)
        return
    first = [f"{number}.>" for number in range(min(config.max_members, NUMBERS_TRIED))]
    if not _can_match(source, first):
        raise GroupFilterError(
            f"stream {source.name!r} has no partitions, and its subjects "
            f"({', '.join(source.config.subjects)}) do not begin with the number of one; make the "
            "stream with partitions, or an elastic group"
        )


def _check_can_match(source: Stream, filters: list[str], given: str) -> None:
    if not _can_match(source, filters):
        raise GroupFilterError(
            f"filter {given!r} matches nothing that stream {source.name!r} captures "
            f"({', '.join(source.config.subjects)})"
        )


def _can_match(source: Stream, filters: list[str]) -> bool:
    return any(overlaps(one, subject) for one in filters for subject in source.config.subjects)


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
    info = log.catalog.read(lambda tx: removable(tx, name, kind), snapshot=True)
    found = log.catalog.read(lambda tx: _own_streams(tx, name), snapshot=True)

    def run(tx: Tx) -> GroupInfo:
        current = removable(tx, name, info.kind)
        entries.delete(tx, BUCKETS[info.kind], name.key)
        source = streams.id_of(tx, stream)
        if source is not None:
            for reader in stored.subscribed(tx, source):
                if _is_reader(name, current.config, reader):
                    stored.unsubscribe(tx, source, reader)
            if isinstance(current.config, ElasticGroupConfig):
                for reader in (name.partition_job, name.consumed):
                    stored.unsubscribe(tx, source, reader)
        for own in (name.work_queue, name.dead_letters):
            internal.delete(tx, own)
        _forget_owners(tx, name, current.config)
        homes.deleted_here(tx, name.key)
        decisions.forget(tx, deciding.key_of(name))
        return current

    locks = [
        *locks_of(name, info.kind, None),
        streams.LOCK_ALL,
        entries.lock(STEP_DOWN_BUCKET),
        entries.lock(homes.GROUPS_BUCKET),
        *(streams.lock(stream_id) for stream_id in found.values()),
        *(leases.lock(name.pin(member)) for member in info.config.assignment()),
    ]
    deleted = log.catalog.write(run, locks=locks)
    for own in found:
        log.routes.forget(own)
    return deleted


def _own_streams(tx: Tx, name: GroupName) -> dict[str, int]:
    wanted = (name.stream, name.work_queue, name.dead_letters)
    return {own: found for own in wanted if (found := streams.id_of(tx, own)) is not None}


def _is_reader(name: GroupName, config: GroupConfig, reader: str) -> bool:
    return reader == name.key or any(reader == name.share(m) for m in config.assignment())


def _forget_owners(tx: Tx, name: GroupName, config: GroupConfig) -> None:
    """Nobody owns anything any more, nor passes for an owner when the group is made again."""
    owned = [name.key, *(name.share(member) for member in config.assignment())]
    for each in owned:
        claims.retire(tx, each)
    # Members that were dropped may still hold a pin; the names of leases end in the member's.
    for pin in leases.names(tx, name.pin("x")[:-1]):
        if name.owns(pin):
            leases.retire(tx, pin)
    for key in entries.keys(tx, STEP_DOWN_BUCKET, step_down_key(name, "")):
        entries.delete(tx, STEP_DOWN_BUCKET, key)


def _distribution(given: Distribution | str) -> Distribution:
    try:
        return Distribution(given)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Distribution)
        raise InvalidGroupConfigError(f"there is no distribution {given!r}; use {known}") from None


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
    return require(tx, name, kind_of(wanted))


def _start(tx: Tx, stream: Stream, reader: str, floors: Mapping[int, int]) -> None:
    """Let a reader begin at the floors; retention keeps what it still needs."""
    stored.subscribe(tx, stream.id, reader)
    places = {s.id: min(s.head, floors.get(s.number, 0)) for s in stream.segments}
    join(tx, reader, {key: Progress(floor) for key, floor in places.items() if floor})
