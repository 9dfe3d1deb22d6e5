"""Which groups are replicated: enable and disable, by command."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.catalog import Tx, entries, replicas
from headrace.errors import (
    InvalidGroupConfigError,
    InvalidInputError,
    LinkError,
    RegionUnreachableError,
    UnreadableRecordError,
)
from headrace.groups.homes import (
    GROUPS_BUCKET,
    MODES,
    ORIGIN,
    SNAPSHOT,
    GroupRecord,
    HomeStamp,
)
from headrace.log.log import Log
from headrace.regions import kinds, snapshots
from headrace.regions.moving import LOCKS
from headrace.regions.records import (
    ALL,
    LinkMember,
    LinkRecord,
    Region,
    get_group,
    links,
    name_of,
    put_group,
    require_group,
    require_region,
)
from headrace.regions.runtime import cursors
from headrace.regions.runtime.neighbours import Neighbours


def enable(
    log: Log,
    key: str,
    neighbours: Neighbours,
    *,
    home: str | None = None,
    eager: bool = False,
    adopt: str | None = None,
    mode: str = ORIGIN,
) -> GroupRecord:
    """Let a group's progress follow its consumers to the other regions of its streams."""
    check_mode(mode, eager=eager)

    def look(tx: Tx) -> tuple[GroupRecord, list[LinkMember], GroupRecord | None]:
        linked = links(tx)
        record = kinds.describe(tx, key, linked)
        members = {m.region: m for name in record.streams for m in linked[name].members}
        _refuse_one_way(mode, [linked[name] for name in record.streams])
        return record, list(members.values()), get_group(tx, key)

    me = log.catalog.read(require_region)
    record, members, known = log.catalog.read(look, snapshot=True)
    kinds.check_home(record.family, key, home or (known.home if known else None), mode)
    check_regions({me.name, *(member.region for member in members)}, me.name, home, adopt)
    elsewhere = _elsewhere(record, members, neighbours)
    if adopt is None and known is None:
        _refuse_if_elsewhere(record, elsewhere, me.name)
    stamps = [each.stamp.counter for _, each in elsewhere.values() if each is not None]
    _refuse_other_mode(mode, known, *(each for _, each in elsewhere.values()))

    def put(tx: Tx) -> GroupRecord:
        before = get_group(tx, key)
        _refuse_other_mode(mode, before)
        if before is not None and not before.deleted and adopt is None:
            return _as_it_is(before, home)
        counters = stamps if before is None else [*stamps, before.stamp.counter]
        stamp = HomeStamp(max(counters) + 1 if counters else 0, me.name)
        made = msgspec.structs.replace(
            kinds.describe(tx, key, links(tx)),
            home=home if before is None or home is not None else before.home,
            stamp=stamp,
            life=stamp if counters or adopt else HomeStamp(),
            eager=eager,
            adopted=adopt is not None,
            mode=mode,
        )
        _put_anew(tx, me, before, made)
        return made

    return log.catalog.write(put, locks=sorted({*LOCKS, *kinds.begin_locks(record)}))


def _as_it_is(known: GroupRecord, home: str | None) -> GroupRecord:
    """A group that is replicated already stays where it is."""
    if known.home != home and home is not None:
        raise LinkError(
            f"group {name_of(known.key)!r} is replicated already and at home in {known.home}; move "
            "it with: headrace region switch"
        )
    return known


def check_mode(mode: str, *, eager: bool = False) -> None:
    """Refuse what is no way of exchanging progress."""
    if mode not in MODES:
        raise InvalidInputError(f"mode={mode!r} is none of {', '.join(MODES)}")
    if mode == SNAPSHOT and eager:
        raise LinkError(
            "eager=True is for groups whose progress is exchanged by origin; in the mode of "
            "snapshots updates always travel behind the data: leave it out"
        )


def _refuse_one_way(mode: str, linked: Iterable[LinkRecord]) -> None:
    """A snapshot is answered in line with the data, so there must be data in both directions."""
    for link in linked:
        if mode == SNAPSHOT and link.writers != ALL:
            raise LinkError(
                f"stream {link.stream!r} is written in {link.writers} alone, and snapshots need a "
                "way back: replicate the group by origin (leave mode out), or link the stream with "
                "--writers all"
            )


def _refuse_other_mode(mode: str, *found: GroupRecord | None) -> None:
    for known in found:
        if known is None or known.deleted or known.mode == mode:
            continue
        raise LinkError(
            f"group {name_of(known.key)!r} is replicated by {known.mode} already, and a name has "
            f"one mode in all regions; enable it with mode={known.mode!r}, or disable it in every "
            "region first with: headrace region group disable"
        )


def _put_anew(tx: Tx, me: Region, before: GroupRecord | None, made: GroupRecord) -> None:
    """Store a group that begins with the progress that it has in this region."""
    if before is None or before.deleted:
        kinds.begin(tx, made)
    put_group(tx, made)
    for reader in kinds.readers(tx, before) if before is not None else ():
        replicas.forget_reader(tx, reader)
    cursors.begin(tx, me, made, placed=True)
    tx.notify(replicas.CHANNEL)


def check_regions(known: set[str], here: str, home: str | None, adopt: str | None) -> None:
    """Refuse a home that is none of the regions, and progress to adopt that is not at hand."""
    if home is not None and home not in known:
        raise LinkError(f"home={home!r} is none of the regions {', '.join(sorted(known))}")
    if adopt is not None and adopt not in known:
        raise LinkError(f"adopt={adopt!r} is none of the regions {', '.join(sorted(known))}")
    if adopt is not None and adopt != here:
        raise LinkError(
            f"adopt={adopt!r}: run the command in {adopt!r}, whose progress is to count"
        )


def _elsewhere(
    record: GroupRecord, members: list[LinkMember], neighbours: Neighbours
) -> dict[str, tuple[bool, GroupRecord | None]]:
    """Whether each other region that answers has the group, and what it knows of its replication.

    One that is silent finds out by itself: a group of the name that is there is not joined unasked.
    """

    def look(tx: Tx) -> tuple[bool, GroupRecord | None]:
        return kinds.exists(tx, record), get_group(tx, record.key)

    found = {}
    for member in members:
        try:
            found[member.region] = neighbours.log(member).catalog.read(look, snapshot=True)
        except RegionUnreachableError:
            continue
    return found


def _refuse_if_elsewhere(
    record: GroupRecord, elsewhere: dict[str, tuple[bool, GroupRecord | None]], here: str
) -> None:
    """Two groups that were made on their own: a union of their progress would skip events."""
    for region, (exists, known) in elsewhere.items():
        if exists and (known is None or not known.deleted):
            raise LinkError(
                f"group {name_of(record.key)!r} exists in {region!r} as well, made on its own; say "
                f"whose progress counts with --adopt {here}, or delete one of them"
            )


def disable(log: Log, key: str) -> GroupRecord:
    """The group's progress is no longer exchanged, on this side.

    A record that cannot be read goes as well.
    """

    def run(tx: Tx) -> GroupRecord:
        try:
            found = require_group(tx, key)
            readers = kinds.readers(tx, found)
        except (UnreadableRecordError, InvalidGroupConfigError):
            found = kinds.salvaged(key)
            readers = [each for each in replicas.readers(tx) if kinds.is_reader(key, each)]
        for reader in readers:
            replicas.forget_reader(tx, reader)
        snapshots.forget_readers(tx, readers)
        kinds.end(tx, found)
        entries.delete(tx, GROUPS_BUCKET, key)
        return found

    locks = {*LOCKS, entries.lock(snapshots.SNAPSHOTS_BUCKET), *_end_locks(log, key)}
    return log.catalog.write(run, locks=sorted(locks))


def _end_locks(log: Log, key: str) -> set[str]:
    try:
        found = log.catalog.read(lambda tx: get_group(tx, key))
        return set() if found is None else kinds.begin_locks(found)
    except (UnreadableRecordError, InvalidGroupConfigError):
        return set()


# --- switch ----------------------------------------------------------------------------------
