"""Replicated groups move by command: switch, and how far the others are.

A switch is clean: the members at home give up what they have, all that they acked is in the group's
cursors, the other region has those and all events behind them, and only then may its members begin.
The moment that counts is when the home says *drained*; until then a switch that takes too long is
taken back and all stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.catalog import Tx, entries, replicas
from headrace.errors import (
    HeadraceError,
    LinkError,
    SwitchError,
    SwitchRefusedError,
)
from headrace.groups.homes import (
    GROUPS_BUCKET,
    SNAPSHOT,
    GroupRecord,
    Handing,
    HomeStamp,
)
from headrace.host.clock import rest_s, steady_s
from headrace.log.log import Log
from headrace.regions import kinds
from headrace.regions.records import (
    AGENT_LEASE,
    LinkMember,
    LinkRecord,
    check_timeout,
    get_group,
    get_link,
    name_of,
    put_group,
    require_group,
    require_link,
    require_region,
)
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
    handing = record.handing
    if record.home != me and handing is not None and handing.source == me and not handing.drained:
        raise SwitchRefusedError(
            f"group {name_of(record.key)!r} is on its way to {record.home} already; see how far "
            "with: headrace region status"
        )
    if record.home == to:
        raise SwitchRefusedError(f"group {name_of(record.key)!r} is at home in {to} already")
    if record.home != me:
        raise SwitchRefusedError(
            f"group {name_of(record.key)!r} is at home in {record.home}; run the switch there, or "
            f"`headrace region fail-over --lost {record.home}` if that region is gone"
        )
    if handing is not None and handing.source != me:
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
