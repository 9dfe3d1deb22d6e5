"""Reader groups in other regions: made here, put somewhere, and taken from their readers.

What is exchanged are rows of progress, as of any other group.  What a reader group has besides is
the state that its readers share; see :mod:`headrace.groups.readers.runtime.elsewhere`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from headrace.catalog import Tx, claims, leases, reader_groups, streams
from headrace.errors import LinkError
from headrace.groups import decisions
from headrace.groups.homes import GroupRecord
from headrace.groups.names import of_key
from headrace.groups.progress import Progress
from headrace.groups.progress.store import SeekPlace
from headrace.groups.progress.store import seek as put_progress
from headrace.groups.readers import admin, names, places
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.updates import Configure, RemoveReader
from headrace.groups.readers.names import (
    FAMILY,
    ReaderGroupName,
    ReaderGroupRecord,
    is_key,
    unit_of,
)
from headrace.groups.readers.runtime import elsewhere, liveness
from headrace.groups.readers.runtime import record as recording
from headrace.groups.readers.runtime.moment import GroupMoment
from headrace.groups.readers.runtime.record import EVICTED
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.readers.runtime.transaction import Committed, GroupCommit
from headrace.groups.readers.spark_use import holder_of
from headrace.regions.records import LinkRecord


def name_of(key: str) -> ReaderGroupName:
    """The reader group of a key."""
    return ReaderGroupName(of_key(key).group)


def locks(key: str) -> set[str]:
    """The locks under which a group's state changes: nobody claims anything meanwhile."""
    name = name_of(key)
    return {reader_groups.lock(name.group), *decisions.locks(str(name))}


def hold(tx: Tx, units: Iterable[tuple[str, str]]) -> None:
    """Hold (row of progress, unit) of reader groups, as whoever acks there does; others are left.

    Beside :func:`locks`: readers hold the claims of what they ack, and no named lock for each.
    """
    found: dict[str, list[str]] = {}
    for reader, unit in units:
        if is_key(reader):
            found.setdefault(reader, []).append(unit)
    for reader, own in sorted(found.items()):
        claims.hold(tx, reader, own)


# --- what goes to other regions --------------------------------------------------------------


def describe(tx: Tx, key: str, linked: Mapping[str, LinkRecord]) -> GroupRecord:
    """A reader group that is to be replicated; refused with what to do if it cannot be."""
    name = name_of(key)
    commit = GroupCommit(tx, name, StampedReplica(name.group))
    read = tuple(stream.name for stream in commit.record.streams)
    missing = [stream for stream in read if stream not in linked]
    if missing:
        raise LinkError(
            f"reader group {name.group!r} reads stream {missing[0]!r}, which is linked to no other "
            f"region; link it first with: headrace region link {missing[0]} REGION=CATALOG"
        )
    if not read:
        raise LinkError(f"reader group {name.group!r} reads no stream any more; delete it")
    there = {stream: sorted(m.region for m in linked[stream].members) for stream in read}
    if len({tuple(regions) for regions in there.values()}) > 1:
        told = "; ".join(f"{stream} to {', '.join(found)}" for stream, found in there.items())
        raise LinkError(
            f"the streams of reader group {name.group!r} are not linked to the same regions "
            f"({told}); link each of them to all of these first"
        )
    if commit.record.end:
        raise LinkError(
            f"reader group {name.group!r} ends at {commit.record.end}, which are offsets of this "
            "region, and others have other ones: make a group without an end to replicate it"
        )
    config = elsewhere.encode(commit.record, commit.state.config)
    return GroupRecord(key=key, family=FAMILY, streams=read, config=config)


def begin(tx: Tx, record: GroupRecord) -> None:
    """A group of this region is replicated from now on; holds :func:`locks`."""
    name = name_of(record.key)
    for lease in leases.beginning_with(tx, name.leases):
        if holder_of(lease.owner)[0]:
            raise LinkError(
                f"reader group {name.group!r} is read by a Spark query, as "
                f"{lease.name.removeprefix(name.leases)}, and queries cannot hand over what they "
                "have open to another region: end the query first, and read it with programs"
            )


# --- here ------------------------------------------------------------------------------------


def exists(tx: Tx, record: GroupRecord) -> bool:
    """Whether this region has the group itself."""
    row = reader_groups.get(tx, name_of(record.key).group)
    return row is not None and row.config is not None


def make(tx: Tx, record: GroupRecord) -> None:
    """Make a group that came from another region, with nothing acked yet; holds :func:`locks`.

    It begins with everything that there is: what is acked is told by its rows of progress.
    """
    name = name_of(record.key)
    if exists(tx, record):
        return
    made = elsewhere.decode(name, record.config)
    read = [streams.require(tx, stream) for stream in made.streams]
    stored = ReaderGroupRecord(
        id=admin.next_revision(tx, name),
        streams=places.ids_of(read),
        start=made.start,
        filter=made.filter,
        created_us=tx.now_us(),
        away=True,
    )
    moment = GroupMoment(tx, name, stored)
    found = moment.map()
    cut = {s: found.extents[s].tail for s, before in found.graph.items() if not before}
    admin.put_new(moment, cut, None, made.config)


def put(tx: Tx, record: GroupRecord, at: Mapping[SegmentId, tuple[int, Progress]]) -> None:
    """Put a group where a command of another region says; readers lose what they have."""
    name = name_of(record.key)
    for commit in () if _is_away(tx, name) else _commits(tx, record):
        claims.hold(tx, name.key, [unit_of(segment) for segment in commit.state.positions()])
        _put_offline(commit, f"{EVICTED}the group was put elsewhere by a command of another region")
        elsewhere.leave(commit)
    found = [SeekPlace(unit_of(segment), key, to) for segment, (key, to) in at.items()]
    put_progress(tx, name.key, found)


def restart(tx: Tx, record: GroupRecord) -> None:
    """A group that is here was begun anew elsewhere; what was known of it counts no more."""
    for commit in _commits(tx, record):
        _put_offline(commit, f"{EVICTED}the group was made anew in another region")
    admin.forget(tx, name_of(record.key))
    make(tx, record)


def reset(tx: Tx, record: GroupRecord) -> None:
    """Nothing is acked of a group that was here on its own: another region's progress counts."""
    configure(tx, record)
    at = {}
    for stream_name in record.streams:
        stream = streams.get(tx, stream_name)
        for segment in stream.segments if stream is not None else ():
            place = SegmentId(stream_name, segment.number)
            at[place] = segment.id, Progress(segment.tail)
    put(tx, record, at)


def configure(tx: Tx, record: GroupRecord) -> None:
    """A group that is here was changed elsewhere, or is to be like one that is there."""
    name = name_of(record.key)
    wanted = elsewhere.decode(name, record.config)
    for commit in _commits(tx, record):
        _configure(commit, wanted)


def _configure(commit: GroupCommit, wanted: elsewhere.ReaderGroupOfRegions) -> None:
    group = commit.name.group
    if {each.name for each in commit.record.streams} != set(wanted.streams):
        raise LinkError(
            f"reader group {group!r} reads other streams here than in the region that replicates "
            f"it ({', '.join(wanted.streams)}); delete it here: headrace reader rm {group}"
        )
    if commit.record.filter != wanted.filter:
        changed = msgspec.structs.replace(commit.record, filter=wanted.filter)
        commit.configure(changed)
    if commit.state.config != wanted.config:
        commit.put(Configure(wanted.config), by_region=True)


# --- leaving ---------------------------------------------------------------------------------


def bury(tx: Tx, record: GroupRecord) -> None:
    """Put readers offline that are dead, or frozen past their leases; holds :func:`locks`."""
    for commit in _commits(tx, record):
        liveness.bury(commit)


def is_drained(tx: Tx, record: GroupRecord) -> bool:
    """Whether nobody reads a group in this region any more."""
    return not any(commit.state.members for commit in _commits(tx, record))


def leave(tx: Tx, record: GroupRecord) -> None:
    """A group that nobody reads here goes elsewhere."""
    for commit in _commits(tx, record):
        elsewhere.leave(commit)


def fence(tx: Tx, record: GroupRecord) -> None:
    """Take a group away from whoever reads it here; what they ack from now on does not count."""
    for commit in _commits(tx, record):
        _put_offline(commit, f"{EVICTED}the group is at home in another region")
        elsewhere.leave(commit)


def _is_away(tx: Tx, name: ReaderGroupName) -> bool:
    """Whether nobody reads a group here, and its state counts no more: nothing is to be done."""
    row = reader_groups.get(tx, name.group)
    return row is not None and row.config is not None and names.decode(row).away


def _commits(tx: Tx, record: GroupRecord) -> Iterator[GroupCommit]:
    """The group, if it is here, and what is decided of it on record afterwards."""
    if exists(tx, record):
        made: list[Committed] = []
        name = name_of(record.key)
        commit = GroupCommit(tx, name, StampedReplica(name.group), made)
        yield commit
        recording.put(commit, made)


def _put_offline(commit: GroupCommit, why: str) -> None:
    for reader in list(commit.state.members):
        commit.put(RemoveReader(reader, why=why))
