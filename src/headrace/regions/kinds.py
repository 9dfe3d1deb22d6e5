"""What replication has to know of each kind of group: its readers, how it is made, sought and left.

A *reader* is the name of a row of progress: that of the group, or that of a member's share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from headrace.catalog import Tx, claims, entries, leases, progress, streams
from headrace.errors import InvalidNameError, LinkError, UnknownGroupError
from headrace.groups.homes import GroupRecord
from headrace.groups.partitioned.core.config import StaticGroupConfig, decode_static, encode
from headrace.groups.partitioned.core.pins import ClaimOwner
from headrace.groups.partitioned.lifecycle import create_with, delete
from headrace.groups.partitioned.names import STATIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime import units
from headrace.groups.partitioned.runtime.ownership import read_config
from headrace.groups.partitioned.runtime.units import layout_of, progress_names
from headrace.groups.progress import Progress
from headrace.groups.shared import properties
from headrace.groups.shared.core.messages import unit_of
from headrace.groups.shared.properties import GroupProperties
from headrace.groups.shared.runtime import state
from headrace.log.log import Log
from headrace.subjects import overlaps

STATIC: Literal["static"] = "static"
SHARED: Literal["shared"] = "shared"

TELL_UNREAD = (STATIC, SHARED)
"""Families whose members tell what was trimmed before they read it (``consumer/fetch.py``)."""

# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_properties_decoder = msgspec.json.Decoder(GroupProperties)


def describe(tx: Tx, key: str, linked: Mapping[str, object]) -> GroupRecord:
    """A group that is to be replicated; ``linked`` are the streams of this region that are."""
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
    if not isinstance(config_of, StaticGroupConfig):
        raise LinkError(
            f"group {name.group!r} of stream {name.stream!r} is elastic, and elastic groups are "
            "not replicated yet; use a static or a shared group"
        )
    if name.stream not in linked:
        raise LinkError(
            f"stream {name.stream!r} is linked to no other region; link it first with: headrace "
            f"region link {name.stream} REGION=CATALOG"
        )
    return GroupRecord(key=key, family=STATIC, streams=(name.stream,), config=encode(config_of))


def readers(tx: Tx, record: GroupRecord) -> list[str]:
    """The names of a group's rows of progress."""
    if record.family == SHARED:
        return [record.key]
    name = GroupName.of_key(record.key)
    source = streams.get(tx, name.stream)
    if source is None:
        return []
    config = decode_static(record.config)
    return progress_names(name, config, layout_of(config, source.config))


def salvaged(key: str) -> GroupRecord:
    """As much of a record that cannot be read as its key tells."""
    return GroupRecord(key=key, family=SHARED if ":" in key else STATIC, streams=(), config=b"")


def is_reader(key: str, reader: str) -> bool:
    """Whether a row of progress belongs to a group, whatever members it has."""
    if ":" in key:
        return reader == key
    name, _, member = reader.rpartition(".")
    return reader == key or (name == f"{key}.member" and bool(member))


def exists(tx: Tx, record: GroupRecord) -> bool:
    """Whether this region has the group itself."""
    bucket = properties.BUCKET if record.family == SHARED else STATIC_BUCKET
    return entries.get(tx, bucket, record.key) is not None


def make(log: Log, record: GroupRecord) -> None:
    """Make a group that came from another region, with nothing acked yet."""
    if record.family == STATIC:
        create_with(log, GroupName.of_key(record.key), decode_static(record.config))
        return
    found = _properties_decoder.decode(record.config)

    def run(tx: Tx) -> None:
        properties.declare(tx, found, "earliest", {}, exist_ok=True)

    log.catalog.write(run, locks=properties.declare_locks(found.key))


def remove(log: Log, record: GroupRecord) -> None:
    """Delete a group that was deleted in another region."""
    if record.family == STATIC:
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
    if record.family == SHARED:
        state.seek(tx, reader, {unit_of(stream, number): (segment_id, to)})
    else:
        units.seek(tx, GroupName.of_key(record.key), reader, {number: (segment_id, to)})


def seek_locks(record: GroupRecord, reader: str, stream: str, number: int) -> list[str]:
    """The locks for :func:`seek`."""
    if record.family == SHARED:
        return list(state.seek_locks(reader, [unit_of(stream, number)]))
    return units.seek_locks(GroupName.of_key(record.key), reader, [number])


def channels(tx: Tx, record: GroupRecord) -> set[str]:
    """Where news of a group's progress is told, and of who lets go of it."""
    found = {progress.channel(each) for each in readers(tx, record)}
    if record.family == SHARED:
        found.add(leases.channel(state.lease_name(record.key)))
    return found


def is_drained(tx: Tx, record: GroupRecord) -> bool:
    """Whether nobody in this region owns anything of a group any more."""
    return not any(claim.owner is not None for claim in _claims(tx, record))


def fence_absent(tx: Tx, record: GroupRecord) -> None:
    """Take units from who is dead, or frozen past its lease; see :func:`fence_locks`.

    The leader of a shared group takes back what its sessions have, and gives its lease back when
    that is done.  Sessions of one whose lease ran out have counted it as lost before that.
    """
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
    if record.family == STATIC:
        entries.put(tx, STATIC_BUCKET, record.key, record.config)
    reset(tx, record)


def reset_locks(tx: Tx, record: GroupRecord) -> set[str]:
    """The locks for :func:`reset` and :func:`restart`."""
    found = {entries.lock(STATIC_BUCKET)} if record.family == STATIC else set()
    for reader in readers(tx, record):
        for name in record.streams:
            stream = streams.get(tx, name)
            for segment in stream.segments if stream is not None else ():
                found |= set(seek_locks(record, reader, name, segment.number))
    return found


def fence_locks(tx: Tx, record: GroupRecord) -> set[str]:
    """The locks for :func:`fence` and :func:`fence_absent`: no ack may be on its way past them."""
    found = {claims.lock(claim.group, claim.unit) for claim in _claims(tx, record)}
    if record.family == SHARED:
        found.add(leases.lock(state.lease_name(record.key)))
    return found


def fence(tx: Tx, record: GroupRecord) -> None:
    """Take a group away from whoever has it here; what they ack from now on does not count."""
    if record.family == SHARED:
        leases.fence(tx, state.lease_name(record.key))
    for name in {record.key, *readers(tx, record)}:
        claims.fence(tx, name)
        tx.notify(progress.seek_channel(name))
    tx.notify(progress.seek_channel(record.key))
