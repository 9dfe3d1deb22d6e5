"""What replication has to know of each kind of group: its readers, how it is made, sought and left.

A *reader* is the name of a row of progress: that of the group, or that of a member's share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from headrace.catalog import (
    Tx,
    claims,
    entries,
    leases,
    progress,
    reader_groups,
    replicas,
    streams,
)
from headrace.errors import InvalidNameError, LinkError, UnknownGroupError
from headrace.groups.homes import ORIGIN, GroupRecord
from headrace.groups.names import of_key
from headrace.groups.partitioned.core.config import (
    ElasticGroupConfig,
    decode_elastic,
    decode_static,
    encode,
)
from headrace.groups.partitioned.core.pins import ClaimOwner
from headrace.groups.partitioned.lifecycle import create_with, delete
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime import units
from headrace.groups.partitioned.runtime.ownership import read_config
from headrace.groups.partitioned.runtime.units import consumed_lock, layout_of, progress_names
from headrace.groups.progress import Progress
from headrace.groups.readers.admin import delete as delete_readers
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.names import is_key
from headrace.groups.shared import properties
from headrace.groups.shared.core.messages import unit_of
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime import state
from headrace.log.log import Log
from headrace.regions import runtime
from headrace.regions.records import LinkRecord
from headrace.regions.runtime import queues
from headrace.subjects import overlaps

READER: Literal["reader"] = "reader"
STATIC: Literal["static"] = "static"
SHARED: Literal["shared"] = "shared"
ELASTIC: Literal["elastic"] = "elastic"

_BUCKETS = {STATIC: STATIC_BUCKET, SHARED: properties.BUCKET, ELASTIC: ELASTIC_BUCKET}

Configs = dict[str, streams.StreamConfig | None]
"""The configurations of streams, by name; None where there is no such stream."""

# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_properties_decoder = msgspec.json.Decoder(GroupProperties)


def describe(tx: Tx, key: str, linked: Mapping[str, LinkRecord]) -> GroupRecord:
    """A group that is to be replicated; ``linked`` are the streams of this region that are."""
    if is_key(key):
        return runtime.readers.describe(tx, key, linked)
    if ":" in key:
        found = properties.require(tx, key)
        names = [
            stream.name
            for stream in streams.all_streams(tx, internal=False)
            if stream.name in linked
            and any(overlaps(found.filter, subject) for subject in stream.config.subjects)
        ]
        if not names:
            raise LinkError(
                f"shared group {key!r} reads no stream that is linked to other regions; link one"
            )
        config = msgspec.json.encode(found)
        return GroupRecord(key=key, family=SHARED, streams=tuple(names), config=config)
    name = GroupName.of_key(key)
    config_of = read_config(tx, name)
    if config_of is None:
        raise UnknownGroupError(name.stream, name.group)
    if name.stream not in linked:
        raise LinkError(
            f"stream {name.stream!r} is linked to no other region; link it first with: headrace "
            f"region link {name.stream} REGION=CATALOG"
        )
    family = ELASTIC if isinstance(config_of, ElasticGroupConfig) else STATIC
    return GroupRecord(key=key, family=family, streams=(name.stream,), config=encode(config_of))


def check_home(family: str, key: str, home: str | None, mode: str) -> None:
    """Refuse a group that has to have a home without one, or by snapshots.

    One work queue is filled, and one state of readers counts.
    """
    name = str(of_key(key))
    if family == READER and home is None:
        raise LinkError(f"reader group {name!r} is read in one region: say which, with --home")
    if family == READER and mode != ORIGIN:
        raise LinkError(f"reader group {name!r} is exchanged by origin: leave mode out")
    if family != ELASTIC:
        return
    if home is None:
        raise LinkError(
            f"group {name!r} is elastic, and its work queue is filled in one region alone: say "
            "which, with home= or --home"
        )
    if mode != ORIGIN:
        raise LinkError(
            f"group {name!r} is elastic, and what is acked of its work queue is exchanged by "
            "origin: leave mode out"
        )


def begin(tx: Tx, record: GroupRecord) -> None:
    """A group of this region is about to be replicated; holds :func:`begin_locks`."""
    if record.family == READER:
        runtime.readers.begin(tx, record)
    if record.family == ELASTIC:
        queues.begin(tx, GroupName.of_key(record.key))


def end(tx: Tx, record: GroupRecord) -> None:
    """A group is in this region alone from now on; holds :func:`begin_locks`."""
    if record.family == ELASTIC:
        queues.end(tx, GroupName.of_key(record.key))


def begin_locks(record: GroupRecord) -> set[str]:
    """The locks for :func:`begin` and :func:`end`."""
    if record.family == READER:
        return runtime.readers.locks(record.key)
    return _queue_locks(record) if record.family == ELASTIC and record.config else set()


def _queue_locks(record: GroupRecord) -> set[str]:
    return queues.locks(GroupName.of_key(record.key), decode_elastic(record.config))


def is_untaken(tx: Tx, record: GroupRecord) -> bool:
    """Whether something was acked that the group's rows of progress do not tell yet."""
    return record.family == ELASTIC and queues.is_untaken(tx, GroupName.of_key(record.key))


def is_untranslated(tx: Tx, record: GroupRecord) -> bool:
    """Whether something was acked that the group's cursors do not tell yet."""
    return is_untaken(tx, record) or bool(replicas.untranslated(tx, readers(tx, record)))


def take_in(tx: Tx, record: GroupRecord) -> None:
    """Bring a group's rows of progress up to date, where acks are kept elsewhere first."""
    if record.family == ELASTIC:
        queues.take_in(tx, GroupName.of_key(record.key))


def take_in_locks(record: GroupRecord) -> set[str]:
    """The locks for :func:`take_in`."""
    if record.family != ELASTIC:
        return set()
    return {consumed_lock(GroupName.of_key(record.key).consumed)}


def leave(tx: Tx, record: GroupRecord) -> None:
    """A group that nobody holds here goes elsewhere; holds :func:`fence_locks`."""
    if record.family == READER:
        runtime.readers.leave(tx, record)
    if record.family == ELASTIC:
        queues.empty(tx, GroupName.of_key(record.key))


def readers(tx: Tx, record: GroupRecord, configs: Configs | None = None) -> list[str]:
    """The names of a group's rows of progress; ``configs`` keeps what was read for others."""
    if record.family in (SHARED, READER):
        return [record.key]
    name = GroupName.of_key(record.key)
    configs = {} if configs is None else configs
    if name.stream not in configs:
        source = streams.get(tx, name.stream)
        configs[name.stream] = None if source is None else source.config
    source_config = configs[name.stream]
    if source_config is None:
        return []
    if record.family == ELASTIC:
        return [name.consumed]
    config = decode_static(record.config)
    return progress_names(name, config, layout_of(config, source_config))


def salvaged(key: str) -> GroupRecord:
    """As much of a record that cannot be read as its key tells."""
    family = READER if is_key(key) else SHARED if ":" in key else STATIC
    return GroupRecord(key=key, family=family, streams=(), config=b"")


def is_reader(key: str, reader: str) -> bool:
    """Whether a row of progress belongs to a group, whatever members it has."""
    if ":" in key or is_key(key):
        return reader == key
    name, _, member = reader.rpartition(".")
    if GroupName.is_consumed(reader) and name == key:
        return True
    return reader == key or (name == f"{key}.member" and bool(member))


def exists(tx: Tx, record: GroupRecord) -> bool:
    """Whether this region has the group itself."""
    if record.family == READER:
        return runtime.readers.exists(tx, record)
    bucket = _BUCKETS.get(record.family)
    return bucket is not None and entries.get(tx, bucket, record.key) is not None


def make(log: Log, record: GroupRecord) -> None:
    """Make a group that came from another region, with nothing acked yet."""
    if record.family == READER:
        locks = {streams.LOCK_ALL, *runtime.readers.locks(record.key)}
        log.catalog.write(lambda tx: runtime.readers.make(tx, record), locks=sorted(locks))
        return
    if record.family != SHARED:
        config = decode_static if record.family == STATIC else decode_elastic
        create_with(log, GroupName.of_key(record.key), config(record.config))
        return
    found = _properties_decoder.decode(record.config)

    def run(tx: Tx) -> None:
        properties.declare(tx, found, "earliest", {}, exist_ok=True)

    log.catalog.write(run, locks=properties.declare_locks(found.key))


def remove(log: Log, record: GroupRecord) -> None:
    """Delete a group that was deleted in another region."""
    if record.family == READER:
        delete_readers(log, of_key(record.key).group)
        return
    if record.family != SHARED:
        name = GroupName.of_key(record.key)
        delete(log, name.stream, name.group)
        return

    def run(tx: Tx) -> None:
        properties.delete(tx, record.key, force=True)

    log.catalog.write(run, locks=properties.delete_locks(record.key))


def seek(
    tx: Tx, record: GroupRecord, reader: str, stream: str, segment: tuple[int, int], to: Progress
) -> None:
    """Put a reader where a command of another region says; its owners lose the unit."""
    number, segment_id = segment
    if record.family == READER:
        runtime.readers.put(tx, record, {SegmentId(stream, number): (segment_id, to)})
        return
    if record.family == SHARED:
        state.seek(tx, reader, {unit_of(stream, number): (segment_id, to)})
        return
    leave(tx, record)
    units.seek(tx, GroupName.of_key(record.key), reader, {number: (segment_id, to)})


def seek_locks(record: GroupRecord, reader: str, stream: str, number: int) -> list[str]:
    """The locks for :func:`seek`."""
    if record.family == READER:
        return sorted(runtime.readers.locks(record.key))
    if record.family == SHARED:
        return list(state.seek_locks(reader, [unit_of(stream, number)]))
    found = units.seek_locks(GroupName.of_key(record.key), reader, [number])
    return [*found, *_queue_locks(record)] if record.family == ELASTIC else found


def channels(record: GroupRecord, readers: Iterable[str]) -> set[str]:
    """Where news of a group's progress is told, and of who lets go of it."""
    found = {progress.channel(each) for each in readers}
    if record.family == SHARED:
        found.add(leases.channel(state.lease_name(record.key)))
    if record.family == ELASTIC:
        found.add(progress.channel(record.key))
    if record.family == READER:
        found.add(reader_groups.channel(of_key(record.key).group))
    return found


def is_drained(tx: Tx, record: GroupRecord) -> bool:
    """Whether nobody in this region owns anything of a group any more."""
    if record.family == READER:
        return runtime.readers.is_drained(tx, record)
    return not any(claim.owner is not None for claim in _claims(tx, record))


def fence_absent(tx: Tx, record: GroupRecord) -> None:
    """Take units from who is dead, or frozen past its lease; see :func:`fence_locks`.

    The leader of a shared group takes back what its sessions have, and gives its lease back when
    that is done.  Sessions of one whose lease ran out have counted it as lost before that.
    """
    if record.family == READER:
        runtime.readers.bury(tx, record)
        return
    if record.family == SHARED:
        if leases.get(tx, state.lease_name(record.key)) is None:
            fence(tx, record)
        return
    name = GroupName.of_key(record.key)
    for claim in _claims(tx, record):
        if claim.owner is not None and not _is_pinned(tx, name, claim.owner):
            claims.fence(tx, claim.group, [claim.unit])


def _claims(tx: Tx, record: GroupRecord) -> list[claims.Claim]:
    names = sorted({record.key, *readers(tx, record)})
    return [claim for name in names for claim in claims.of_group(tx, name)]


def _is_pinned(tx: Tx, name: GroupName, owner: str) -> bool:
    try:
        who = ClaimOwner.decode(owner)
    except InvalidNameError:
        return True
    pin = leases.get(tx, name.pin(who.member))
    return pin is not None and pin.token == who.pin_token


def reset(tx: Tx, record: GroupRecord) -> None:
    """Nothing is acked of a group that was here on its own: another region's progress counts."""
    if record.family == READER:
        runtime.readers.reset(tx, record)
        return
    source = streams.get(tx, record.streams[0]) if record.family == ELASTIC else None
    if source is not None:
        queues.enlist(tx, GroupName.of_key(record.key), source)
    for reader in readers(tx, record):
        for name in record.streams:
            stream = streams.get(tx, name)
            for segment in stream.segments if stream is not None else ():
                place = (segment.number, segment.id)
                seek(tx, record, reader, name, place, Progress(segment.tail))


def restart(tx: Tx, record: GroupRecord) -> None:
    """A group that is here was begun anew elsewhere: as it is there, and with nothing acked."""
    if not exists(tx, record):
        return
    if record.family == READER:
        runtime.readers.restart(tx, record)
        return
    if record.family != SHARED:
        entries.put(tx, _BUCKETS[record.family], record.key, record.config)
    reset(tx, record)


def configure(tx: Tx, record: GroupRecord) -> None:
    """A group that is here was changed elsewhere; holds :func:`reset_locks`."""
    if record.family == ELASTIC and exists(tx, record):
        entries.put(tx, ELASTIC_BUCKET, record.key, record.config)
    elif record.family == READER and exists(tx, record):
        runtime.readers.configure(tx, record)


def reset_locks(tx: Tx, record: GroupRecord) -> set[str]:
    """The locks for :func:`reset` and :func:`restart`."""
    if record.family == READER:
        return runtime.readers.locks(record.key)
    found = {entries.lock(_BUCKETS[record.family])} if record.family != SHARED else set()
    for reader in readers(tx, record):
        for name in record.streams:
            stream = streams.get(tx, name)
            for segment in stream.segments if stream is not None else ():
                found |= set(seek_locks(record, reader, name, segment.number))
    return found


def fence_locks(tx: Tx, record: GroupRecord) -> set[str]:
    """The locks for :func:`fence` and :func:`fence_absent`: no ack may be on its way past them."""
    if record.family == READER:
        return runtime.readers.locks(record.key)
    found = {claims.lock(claim.group, claim.unit) for claim in _claims(tx, record)}
    if record.family == SHARED:
        found.add(leases.lock(state.lease_name(record.key)))
    return found | begin_locks(record)


def fence(tx: Tx, record: GroupRecord) -> None:
    """Take a group away from whoever has it here; what they ack from now on does not count."""
    if record.family == READER:
        runtime.readers.fence(tx, record)
        return
    if record.family == SHARED:
        leases.fence(tx, state.lease_name(record.key))
    for name in {record.key, *readers(tx, record)}:
        claims.fence(tx, name)
        tx.notify(progress.seek_channel(name))
    tx.notify(progress.seek_channel(record.key))
    leave(tx, record)
