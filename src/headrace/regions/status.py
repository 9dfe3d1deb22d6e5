"""How regions are doing: links with their lag, groups with where they are and who waits.

What is looked at is this region's catalog, and of the others what can be read now.  Two clocks are
never compared: ages are told by the catalog that wrote both times.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.catalog import Tx, lanes, leases, replicas, streams
from headrace.errors import HeadraceError
from headrace.groups import homes
from headrace.groups.homes import ORIGIN, GroupRecord, HomeProof
from headrace.groups.names import of_key
from headrace.log.log import Log
from headrace.regions import kinds
from headrace.regions.core.origins import lane_reaches
from headrace.regions.records import (
    AGENT_LEASE,
    LinkMember,
    LinkRecord,
    Region,
    get_group,
    get_region,
    groups,
    links,
)
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.snapshots import states, streams_under_snapshots
from headrace.regions.twins import are_others, made_twice


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied of a stream from another region into this one."""

    stream: str
    region: str
    state: str
    """``active``, ``paused``, ``lost``, ``away`` or ``one-sided``."""
    writers: str
    lag_events: int | None = None
    """Events there that are not here yet; None while that cannot be seen."""
    moved_s: float | None = None
    """Seconds since something was last copied."""
    missed: int = 0
    """Events that were trimmed there before they came."""
    filter: str = ""
    """What events have to pass to cross; empty if all do."""
    error: str = ""


class ReplicatedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A replicated group as it stands in this region."""

    group: str
    """Its full name, such as ``orders/billing``."""
    key: str
    family: str
    streams: tuple[str, ...]
    home: str | None
    waits: str = ""
    """Why members here wait, or those of programs that begin now; empty if they may consume."""
    behind: dict[str, int | None] = {}
    """Cursors that other regions do not know yet, by region; None if one cannot be read."""
    moving_to: str | None = None
    absent: tuple[str, ...] = ()
    """Regions that do not have it yet: an agent there makes it, as soon as it has read this one."""
    mode: str = ORIGIN
    """How its progress is exchanged: by ``origin`` or by ``snapshot``."""


class SnapshotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one segment; only groups in the mode of snapshots have any."""

    stream: str
    segment: int
    age_s: float | None = None
    """Seconds since the last one was complete; None if none was."""
    phase: str = "idle"
    """``idle``, or the round of the one under way: ``first_round``, ``second_round``."""
    pending_s: float | None = None
    """Since when one is under way."""
    waiting_for: tuple[str, ...] = ()
    """Regions that have not answered."""
    completed: int = 0
    aborted: int = 0
    last_abort: str = ""
    """Why one was given up, and who was silent."""
    skipped: dict[str, int] = {}
    """How often a reason to take none arose."""
    last_skip: str = ""
    """The reason that there is now."""


class RegionsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    region: str | None
    incarnation: int = 1
    agent: bool = False
    """Whether an agent runs here."""
    links: tuple[LinkStatus, ...] = ()
    groups: tuple[ReplicatedGroup, ...] = ()
    snapshots: tuple[SnapshotStatus, ...] = ()
    findings: tuple[str, ...] = ()
    """What a person has to decide."""


def status(log: Log, neighbours: Neighbours) -> RegionsStatus:
    """Look at everything once."""

    def look(tx: Tx) -> tuple[Region | None, dict[str, LinkRecord], dict[str, GroupRecord], bool]:
        return get_region(tx), links(tx), groups(tx), leases.get(tx, AGENT_LEASE) is not None

    me, linked, known, agent = log.catalog.read(look, snapshot=True)
    if me is None:
        return RegionsStatus(region=None)
    return RegionsStatus(
        region=me.name,
        incarnation=me.incarnation,
        agent=agent,
        links=tuple(
            _link(log, neighbours, me, link, member)
            for link in linked.values()
            for member in link.members
        ),
        groups=tuple(
            _group(log, neighbours, me, record, linked)
            for record in known.values()
            if not record.deleted
        ),
        snapshots=log.catalog.read(_snapshots, snapshot=True),
        findings=tuple(_findings(log, neighbours, linked)),
    )


def _snapshots(tx: Tx) -> tuple[SnapshotStatus, ...]:
    """The segments that are followed for groups in the mode of snapshots."""
    now_us, wanted = tx.now_us(), streams_under_snapshots(tx)
    found = []
    for (stream, number), state in sorted(states(tx).items()):
        if stream not in wanted:
            continue
        pending = state.pending[0] if state.pending else None
        since = (state.completed_us, pending.started_us if pending is not None else None)
        age_s, pending_s = (None if at is None else max(0, now_us - at) / 1e6 for at in since)
        found.append(
            SnapshotStatus(
                stream=stream,
                segment=number,
                age_s=age_s,
                phase="idle" if pending is None else pending.phase,
                pending_s=pending_s,
                waiting_for=() if pending is None else pending.waiting_for,
                completed=state.completed,
                aborted=state.aborted,
                last_abort=state.last_abort,
                skipped=state.skipped,
                last_skip=state.last_skip,
            )
        )
    return tuple(found)


def _findings(log: Log, neighbours: Neighbours, linked: dict[str, LinkRecord]) -> Iterator[str]:
    members = {m.region: m for link in linked.values() for m in link.members if m.state != "lost"}
    for region, member in sorted(members.items()):
        try:
            theirs = neighbours.log(member).catalog.read(groups, snapshot=True)
        except HeadraceError:
            neighbours.drop(member)
            continue
        for key in log.catalog.read(lambda tx, theirs=theirs: are_others(tx, theirs)):  # type: ignore[misc]
            yield made_twice(key, region)


def behind_of(log: Log, neighbours: Neighbours, link: LinkRecord, member: LinkMember) -> int | None:
    """Events of a neighbour that are not here yet; None if it does not link the stream."""
    me = log.catalog.read(get_region)
    places, _ = log.catalog.read(lambda tx: _places(tx, link, member), snapshot=True)
    if me is None:
        return None
    other = neighbours.log(member).catalog
    return other.read(lambda tx: _lag(tx, me, link, places), snapshot=True)[0]


def _places(
    tx: Tx, link: LinkRecord, member: LinkMember
) -> tuple[dict[int, replicas.ReplicaPlace], int]:
    """How far a neighbour's segments were copied, by number, and what time it is."""
    stream = streams.get(tx, link.stream)
    ids = {s.id: s.number for s in stream.segments} if stream is not None else {}
    found = replicas.places(tx, member.region)
    return {ids[at]: place for at, place in found.items() if at in ids}, tx.now_us()


def _link(
    log: Log, neighbours: Neighbours, me: Region, link: LinkRecord, member: LinkMember
) -> LinkStatus:
    places, now_us = log.catalog.read(lambda tx: _places(tx, link, member), snapshot=True)
    moved_us = max((place.moved_us for place in places.values()), default=None)
    state, error, lag = str(member.state), "", None
    try:
        other = neighbours.log(member).catalog
        lag, known_there = other.read(lambda tx: _lag(tx, me, link, places), snapshot=True)
        if state == "active" and not known_there:
            state = "one-sided"
            error = f"it is not linked from {member.region}; link it there as well"
    except HeadraceError as failure:
        neighbours.drop(member)
        error = str(failure)
        state = "away" if state == "active" else state
    return LinkStatus(
        stream=link.stream,
        region=member.region,
        state=state,
        writers=link.writers,
        lag_events=lag,
        moved_s=None if moved_us is None else max(0, now_us - moved_us) / 1e6,
        missed=sum(place.missed for place in places.values()),
        filter=link.filter,
        error=error,
    )


def _lag(
    tx: Tx, me: Region, link: LinkRecord, places: dict[int, replicas.ReplicaPlace]
) -> tuple[int | None, bool]:
    """Events of a neighbour that wait to be copied, and whether it has the link too."""
    stream = streams.get(tx, link.stream)
    theirs = links(tx).get(link.stream)
    if stream is None or theirs is None or theirs.member(me.name) is None:
        return None, False
    region = get_region(tx)
    count = 0
    for segment in stream.segments:
        place = places.get(segment.number)
        start = segment.tail if place is None else place.next_offset
        for run in lanes.runs(tx, segment.id, start, segment.head):
            life = run.lane.partition("!")[0]
            if region is None or life != region.lane or not lane_reaches(run.lane, me.name):
                continue
            count += run.end - max(run.start, start)
    return count, True


def _group(
    log: Log,
    neighbours: Neighbours,
    me: Region,
    record: GroupRecord,
    linked: dict[str, LinkRecord],
) -> ReplicatedGroup:
    def look(tx: Tx) -> tuple[dict[tuple[str, str, int], bytes], HomeProof]:
        return _cursors(tx, record), homes.proof(tx)

    mine, proof = log.catalog.read(look, snapshot=True)
    behind: dict[str, int | None] = {}
    link = linked.get(record.streams[0]) if record.streams else None
    by_origin = record.mode == ORIGIN  # else they know it as of a snapshot
    absent: list[str] = []
    for member in link.members if link is not None else ():
        try:
            other = neighbours.log(member).catalog
            theirs = other.read(lambda tx: _cursors(tx, record), snapshot=True)
            if other.read(lambda tx: get_group(tx, record.key)) is None:
                absent.append(member.region)
            if by_origin:
                behind[member.region] = sum(theirs.get(at) != state for at, state in mine.items())
        except HeadraceError:
            neighbours.drop(member)
            if by_origin:
                behind[member.region] = None
    leaving = record.handing is not None and record.handing.source == me.name
    return ReplicatedGroup(
        group=str(of_key(record.key)),
        key=record.key,
        family=record.family,
        streams=record.streams,
        home=record.home,
        waits=record.waits(me.name) or (proof.waits(proof.asked) if record.home else ""),
        behind=behind,
        absent=tuple(absent),
        moving_to=record.home
        if leaving and record.handing is not None and not record.handing.drained
        else None,
        mode=record.mode,
    )


def _cursors(tx: Tx, record: GroupRecord) -> dict[tuple[str, str, int], bytes]:
    wanted = set(kinds.readers(tx, record))
    return {
        (row.reader, stream, number): row.state
        for row, stream, number in replicas.changed_since(tx, 0)
        if row.reader in wanted
    }
