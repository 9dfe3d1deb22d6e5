"""A stream that leaves other regions, or a region that leaves all streams.

What is known of its lanes and places is kept, so that it can be linked again and goes on exactly
where it ended.  Its groups belong to the regions that have them from then on.
"""

from __future__ import annotations

import msgspec

from headrace.catalog import Tx, entries, lanes, replicas, streams
from headrace.errors import HeadraceError, LinkError, UnreadableRecordError
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.regions import kinds
from headrace.regions.linking import LOCKS, change_member
from headrace.regions.records import (
    GROUPS_BUCKET,
    LINKS_BUCKET,
    LinkMember,
    LinkRecord,
    get_link,
    groups,
    links,
    name_of,
    put_group,
    require_link,
)
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.status import behind_of


class Unlinked(msgspec.Struct, frozen=True):
    """A stream that is in this region alone now."""

    stream: str
    regions: tuple[str, ...] = ()
    """The regions that it was in."""
    groups: tuple[str, ...] = ()
    """Groups that are consumed here on their own from now on."""


def unlink(log: Log, stream: str) -> Unlinked:
    """Take a stream out of all other regions, on this side; also by a link that is damaged.

    What is known of its lanes is kept: linked again, it goes on where it ended, and nothing comes
    twice.
    """
    found = log.catalog.read(lambda tx: streams.id_of(tx, stream))

    def run(tx: Tx) -> Unlinked:
        try:
            record = require_link(tx, stream)
        except UnreadableRecordError:
            record = LinkRecord(stream=stream)
        for segment in streams.removable(tx, stream).segments if found is not None else ():
            lanes.drop_cursors(tx, segment.id)
            lanes.end(tx, segment.id)
            for member in record.members:
                replicas.drop_taken(tx, segment.id, member.region)
        entries.delete(tx, LINKS_BUCKET, stream)
        regions = tuple(member.region for member in record.members)
        return Unlinked(stream, regions, _release(tx, stream))

    def held(tx: Tx) -> set[str]:
        own = [record for record in groups(tx).values() if stream in record.streams]
        return {lock for record in own for lock in kinds.begin_locks(record)}

    locks = {*LOCKS, entries.lock(GROUPS_BUCKET), replicas.LOCK, *log.catalog.read(held)}
    done = log.catalog.write(run, locks=sorted(locks | ({streams.lock(found)} if found else set())))
    log.routes.forget(stream)
    return done


def _release(tx: Tx, stream: str) -> tuple[str, ...]:
    """A stream leaves its replicated groups; one without any other belongs to this region alone."""
    released = []
    for key, record in groups(tx).items():
        if stream not in record.streams:
            continue
        left = tuple(name for name in record.streams if name != stream)
        if record.family == kinds.READER:
            left = ()  # what its readers share is of all of them
            replicas.forget_reader(tx, key)
        if left:
            put_group(tx, msgspec.structs.replace(record, streams=left))
        else:
            if not record.deleted:
                kinds.end(tx, record)
            entries.delete(tx, GROUPS_BUCKET, key)
            released += [] if record.deleted else [key]
    tx.notify(replicas.CHANNEL)
    return tuple(sorted(released))


class Removed(msgspec.Struct, frozen=True):
    """A region that was taken out of all links, or would be."""

    region: str
    streams: tuple[str, ...]
    told: tuple[str, ...] = ()
    """Regions that have done without it since then."""
    untold: tuple[str, ...] = ()
    """Regions that could not be told: the same command has to be run there."""
    dry_run: bool = False


def remove(
    log: Log, region: str, neighbours: Neighbours, *, force: bool = False, dry_run: bool = False
) -> Removed:
    """Take a region out of all streams that it shares with this one; its events stay here.

    Refused while something of it is still needed, unless by ``force``: groups at home there,
    streams that are written there, events that have not come.
    """
    linked = {n: link for n, link in log.catalog.read(links).items() if link.member(region)}
    if not linked:
        raise LinkError(f"no stream is linked to region {region!r}")
    if not force and (found := _needed(log, region, linked, neighbours)):
        raise LinkError(f"region {region!r} is still needed: {'; '.join(found)}; or say --force")
    report = Removed(region, tuple(sorted(linked)), dry_run=dry_run)
    if dry_run:
        return report
    others = {m.region: m for link in linked.values() for m in link.members}
    told: list[str] = []
    untold: list[str] = []
    for name, member in sorted(others.items()):
        done = _tell(member, region, sorted(linked), neighbours)
        (told if done else untold).append(name)
    for name in sorted(linked):
        _take_out(log, name, region)
    return msgspec.structs.replace(report, told=tuple(told), untold=tuple(untold))


def _needed(
    log: Log, region: str, linked: dict[str, LinkRecord], neighbours: Neighbours
) -> list[str]:
    """Why a region cannot leave yet."""
    found = [
        f"group {name_of(key)!r} is at home there, move it with: headrace region switch"
        for key, record in log.catalog.read(groups).items()
        if record.home == region and not record.deleted
    ]
    for name, link in sorted(linked.items()):
        member = link.member(region)
        if link.writers == region:
            found.append(f"stream {name!r} is written there, see: headrace region promote {name}")
        if member is None or member.state == "lost":
            continue
        try:
            behind = behind_of(log, neighbours, link, member)
        except HeadraceError as error:
            neighbours.drop(member)
            found.append(str(error))
        else:
            if behind:
                found.append(f"{behind} events of stream {name!r} have not come from there")
    return found


def _tell(member: LinkMember, region: str, names: list[str], neighbours: Neighbours) -> bool:
    """Take a region out in another one, or in itself; false if that cannot be written."""
    try:
        other = open_log(neighbours.address(member), member.store, create=False)
    except HeadraceError:
        return False
    try:
        for name in names:
            if member.region == region:
                unlink(other, name)
            else:
                _take_out(other, name, region)
    except HeadraceError:
        return False
    finally:
        other.catalog.close()
    return True


def _take_out(log: Log, stream: str, region: str) -> None:
    """Take a region out of a link; a stream that is in no other one is unlinked."""
    found = log.catalog.read(lambda tx: get_link(tx, stream))
    if found is None or found.member(region) is None:
        return
    if len(found.members) == 1:
        unlink(log, stream)
    else:
        change_member(log, stream, region, lambda _: None)
