"""Replicated groups by command: enable, switch, fail over, rejoin.

A switch is clean: the members at home give up what they have, all that they acked is in the group's
cursors, the other region has those and all events behind them, and only then may its members begin.
The moment that counts is when the home says *drained*; until then a switch that takes too long is
taken back and all stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from headrace.catalog import Tx, entries, replicas
from headrace.errors import (
    HeadraceError,
    InvalidGroupConfigError,
    InvalidInputError,
    LinkError,
    RegionUnreachableError,
    SwitchError,
    SwitchRefusedError,
    UnreadableRecordError,
)
from headrace.groups.homes import (
    GROUPS_BUCKET,
    MODES,
    ORIGIN,
    SNAPSHOT,
    GroupRecord,
    Handing,
    HomeStamp,
)
from headrace.host.clock import rest_s, steady_s
from headrace.log.log import Log
from headrace.regions import kinds, snapshots
from headrace.regions.linking import require_link
from headrace.regions.records import (
    AGENT_LEASE,
    ALL,
    LinkMember,
    LinkRecord,
    Region,
    check_timeout,
    get_group,
    get_link,
    links,
    name_of,
    put_group,
    require_group,
    require_region,
)
from headrace.regions.runtime import cursors
from headrace.regions.runtime.joining import decode_cursor, decode_delta
from headrace.regions.runtime.neighbours import Neighbours

POLL_S = 0.02
LOCKS = (entries.lock(GROUPS_BUCKET), replicas.LOCK)


class SwitchReport(msgspec.Struct, frozen=True):
    """A switch that was made, or that would be."""

    group: str
    source: str
    target: str
    took_s: float = 0.0
    dry_run: bool = False
    findings: tuple[str, ...] = ()


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


def switch(
    log: Log,
    key: str,
    to: str,
    neighbours: Neighbours,
    *,
    timeout_s: float = 30.0,
    dry_run: bool = False,
    clock: Callable[[], float] = steady_s,
) -> SwitchReport:
    """Move a group to another region: its members there begin exactly where it was."""
    check_timeout(timeout_s)
    began = clock()
    me = log.catalog.read(require_region).name
    record = log.catalog.read(lambda tx: require_group(tx, key))
    member = _target(log, record, me, to)
    findings = obstacles(log, member, neighbours)
    if findings:
        raise SwitchRefusedError(f"group {name_of(key)!r} stays in {me}: {'; '.join(findings)}")
    if dry_run:
        return SwitchReport(key, me, to, dry_run=True)
    stamp = _begin_switch(log, key, me, to)
    while not _has_begun(neighbours, member, key, stamp):
        if clock() - began > timeout_s:
            _take_back(log, key, me, to, stamp, timeout_s)
        rest_s(POLL_S)
    return SwitchReport(key, me, to, clock() - began)


def _target(log: Log, record: GroupRecord, me: str, to: str) -> LinkMember:
    if record.home is None:
        raise SwitchRefusedError(
            f"group {name_of(record.key)!r} is consumed in every region and has no home to move; "
            "see whether it is in step with: headrace region synced"
        )
    if record.home == to:
        raise SwitchRefusedError(f"group {name_of(record.key)!r} is at home in {to} already")
    if record.home != me:
        raise SwitchRefusedError(
            f"group {name_of(record.key)!r} is at home in {record.home}; run the switch there, or "
            f"`headrace region fail-over --lost {record.home}` if that region is gone"
        )
    if record.handing is not None and record.handing.source != me:
        raise SwitchRefusedError(
            f"group {name_of(record.key)!r} is still on its way here; try again later"
        )
    found: LinkRecord | None = log.catalog.read(lambda tx: get_link(tx, record.streams[0]))
    member = None if found is None else found.member(to)
    if found is None or member is None:
        raise LinkError(f"{to!r} is none of the regions of group {name_of(record.key)!r}")
    return member


def obstacles(log: Log, member: LinkMember, neighbours: Neighbours) -> list[str]:
    """What would keep a switch or a promotion from ending."""
    found = []
    try:
        other = neighbours.log(member)
        if other.catalog.leases.get(AGENT_LEASE) is None:
            found.append(
                f"no agent runs in {member.region}; start one there with: headrace region run"
            )
    except HeadraceError as error:
        found.append(str(error))
    if log.catalog.leases.get(AGENT_LEASE) is None:
        found.append("no agent runs here; start one with: headrace region run")
    if member.state != "active":
        found.append(f"{member.region} is {member.state}")
    return found


def _begin_switch(log: Log, key: str, me: str, to: str) -> HomeStamp:
    def run(tx: Tx) -> HomeStamp:
        found = require_group(tx, key)
        if found.home != me:
            raise SwitchRefusedError(
                f"group {name_of(key)!r} is on its way to {found.home} already"
            )
        stamp = HomeStamp(found.stamp.counter + 1, me)
        put_group(tx, msgspec.structs.replace(found, home=to, stamp=stamp, handing=Handing(me)))
        tx.notify(replicas.CHANNEL)
        return stamp

    return log.catalog.write(run, locks=LOCKS)


def _has_begun(neighbours: Neighbours, member: LinkMember, key: str, stamp: HomeStamp) -> bool:
    try:
        found = neighbours.log(member).catalog.read(lambda tx: get_group(tx, key))
    except HeadraceError:
        neighbours.drop(member)
        return False
    return found is not None and found.stamp >= stamp and found.handing is None and found.ready


def _take_back(log: Log, key: str, me: str, to: str, stamp: HomeStamp, timeout_s: float) -> None:
    def run(tx: Tx) -> bool:
        found = require_group(tx, key)
        if found.stamp != stamp or found.handing is None or found.handing.drained:
            return False
        again = HomeStamp(stamp.counter + 1, me)
        put_group(tx, msgspec.structs.replace(found, home=me, stamp=again, handing=None))
        tx.notify(replicas.CHANNEL)
        return True

    if log.catalog.write(run, locks=LOCKS):
        raise SwitchError(
            f"group {name_of(key)!r} stays in {me}: its members did not give it up within "
            f"{timeout_s:g} s"
        )
    raise SwitchError(
        f"group {name_of(key)!r} is handed over, and {to} has not taken it up within {timeout_s:g} "
        "s; it begins there as soon as that region has read it"
    )


# --- synced ----------------------------------------------------------------------------------


def unsynced(log: Log, key: str, neighbours: Neighbours) -> dict[str, int]:
    """How many cursors of a group are not known in each other region; empty if all are."""
    record = log.catalog.read(lambda tx: require_group(tx, key))
    if record.mode == SNAPSHOT:
        raise LinkError(
            f"group {name_of(key)!r} is replicated by snapshot: the other regions know it as of "
            "the last snapshot that it passed; see how old that is with: headrace region status"
        )
    link = log.catalog.read(lambda tx: require_link(tx, record.streams[0]))
    found: dict[str, int] = {}

    def look(tx: Tx) -> dict[tuple[str, str, int], bytes]:
        wanted = set(kinds.readers(tx, record))
        return {
            (row.reader, stream, number): row.state
            for row, stream, number in replicas.changed_since(tx, -1)
            if row.reader in wanted
        }

    mine = log.catalog.read(look, snapshot=True)
    untranslated = int(log.catalog.read(lambda tx: kinds.is_untranslated(tx, record)))
    for member in link.members:
        if member.state == "lost":
            continue
        theirs = neighbours.log(member).catalog.read(look, snapshot=True)
        missing = untranslated
        for place, state in mine.items():
            known = decode_cursor(place[0], theirs.get(place, b""))
            missing += known.merge(decode_delta(state)).changed
        if missing:
            found[member.region] = missing
    return found
