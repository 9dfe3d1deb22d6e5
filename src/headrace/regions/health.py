"""What is wrong between this region and the others, in sentences with the next step.

Looked at are this catalog and, of every other region, what can be read of it now.  Nothing is
changed anywhere.  Each check is a function of what was found, so that each is told the same way,
whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from headrace.catalog import Tx, batches, entries, lanes, leases, markers, replicas, schema, streams
from headrace.catalog.stream_config import Groups, Limits, Retention
from headrace.catalog.streams import Segment, Stream
from headrace.errors import HeadraceError, RegionWentBackError
from headrace.groups.homes import GROUPS_BUCKET
from headrace.log.log import Log
from headrace.regions.linkable import differences
from headrace.regions.records import AGENT_LEASE, LinkMember, LinkRecord, Region, get_region, links
from headrace.regions.runtime import copying, evening
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.runtime.rounds import check_place, look_here
from headrace.regions.status import SnapshotStatus, status

CLOCK_S = 1.0
"""Clocks that are further apart make times of events and ages hard to read."""
SNAPSHOT_S = 60.0
"""A snapshot is due every second; without one for so long, groups fall behind."""
TRIM_SOON = 0.5
"""Told from half the time on that the source keeps what has not been copied."""


class RegionFinding(msgspec.Struct, frozen=True):
    """One thing that was looked at; ``mend`` says what to do when it is not as it should be."""

    name: str
    state: Literal["ok", "warning", "failed"]
    found: str
    mend: str = ""


class _Neighbour(msgspec.Struct, frozen=True):
    """What was read of another region."""

    region: Region | None
    version: int
    catalog_id: str | None
    agent: bool
    ahead_s: float
    links: dict[str, LinkRecord]
    streams: dict[str, Stream]


def examine(log: Log, neighbours: Neighbours, *, pipeline: bool = False) -> Iterator[RegionFinding]:
    """All findings; none for a catalog that is no region.  ``pipeline``: whether one runs here."""

    def look(tx: Tx) -> tuple[Region | None, dict[str, LinkRecord], bool]:
        return get_region(tx), links(tx), leases.get(tx, AGENT_LEASE) is not None

    me, linked, agent = log.catalog.read(look, snapshot=True)
    if me is None:
        if linked:
            yield RegionFinding(
                "region",
                "failed",
                "streams are linked, and this catalog has no region's name",
                "restore the catalog from a backup, or name it: headrace region name NAME",
            )
        return
    count = len(linked)
    yield RegionFinding("region", "ok", f"{me.name}, life {me.incarnation}; {count} linked streams")
    if linked:
        yield check_agent(me.name, here=True, agent=agent, pipeline=pipeline)
    members = {m.region: m for link in linked.values() for m in link.members}
    for name in sorted(members):
        yield from _examine_member(log, neighbours, me, members[name], linked)
    found = status(log, neighbours)
    for snapshot in found.snapshots:
        yield from check_snapshot(snapshot)
    for group in found.groups:
        if group.waits and group.home == me.name:
            yield RegionFinding("groups", "warning", f"{group.group} waits: {group.waits}")
    for each in found.findings:
        yield RegionFinding("groups", "failed", each, "headrace region group enable … --adopt")


def _examine_member(
    log: Log, neighbours: Neighbours, me: Region, member: LinkMember, linked: dict[str, LinkRecord]
) -> Iterator[RegionFinding]:
    title = f"region {member.region}"
    try:
        other = neighbours.log(member)
        theirs = _look(log, other, linked)
    except HeadraceError as error:
        neighbours.drop(member)
        yield RegionFinding(title, "failed", str(error), _away(member))
        return
    mine_id = log.catalog.read(lambda tx: schema.get_setting(tx, "catalog_id"))
    if theirs.catalog_id == mine_id:
        yield RegionFinding(
            title,
            "failed",
            "it has the id of this catalog: one is a copy of the other, or they are the same",
            "make a catalog of its own for each region; files of both would mix in one store",
        )
    life = 1 if theirs.region is None else theirs.region.incarnation
    yield RegionFinding(title, "ok", f"answers, life {life}, at {member.catalog}")
    yield check_agent(member.region, here=False, agent=theirs.agent)
    yield from check_version(member.region, theirs.version)
    yield from check_clock(member.region, theirs.ahead_s)
    for link in sorted(linked.values(), key=lambda each: each.stream):
        if link.member(member.region) is None:
            continue
        yield from _examine_link(log, other, me, member, link, theirs)


def _away(member: LinkMember) -> str:
    return (
        f"see that {member.catalog} can be reached from here, with a role that may read it; if the "
        f"region is gone: headrace region fail-over --lost {member.region}"
    )


def _look(log: Log, other: Log, linked: dict[str, LinkRecord]) -> _Neighbour:
    def look(tx: Tx) -> tuple[_Neighbour, int]:
        found = {name: s for name in linked if (s := streams.get(tx, name)) is not None}
        version = schema.get_setting(tx, "schema_version")
        return _Neighbour(
            region=get_region(tx),
            version=int(version or 0),
            catalog_id=schema.get_setting(tx, "catalog_id"),
            agent=leases.get(tx, AGENT_LEASE) is not None,
            ahead_s=0.0,
            links=links(tx),
            streams=found,
        ), tx.now_us()

    before = log.catalog.read(lambda tx: tx.now_us())
    found, there = other.catalog.read(look)
    after = log.catalog.read(lambda tx: tx.now_us())
    # Between the two looks at the own clock it may have been any time there.
    ahead_us = there - after if there > after else min(0, there - before)
    return msgspec.structs.replace(found, ahead_s=ahead_us / 1e6)


# --- one check each --------------------------------------------------------------------------


def check_agent(region: str, *, here: bool, agent: bool, pipeline: bool = False) -> RegionFinding:
    """Whether somebody works for a region."""
    where = "here" if here else f"in {region}"
    if agent:
        how = "; a pipeline copies large rounds by Spark" if pipeline else ""
        return RegionFinding("agent", "ok", f"an agent runs {where}{how}")
    return RegionFinding(
        "agent",
        "failed" if here else "warning",
        f"no agent runs {where}: nothing is copied to {region}, and groups there learn nothing",
        f"start one {where} with: headrace region run",
    )


def check_version(region: str, version: int) -> Iterator[RegionFinding]:
    """Whether the other catalog has the same schema; a neighbouring one can be read."""
    if version != schema.VERSION:
        older = version < schema.VERSION
        what = "older" if older else "newer"
        mend = f"upgrade Headrace in {region} and run there: headrace catalog migrate"
        yield RegionFinding(
            "schema",
            "warning",
            f"{region} has schema version {version}, and {schema.VERSION} is known here: it is "
            f"{what}, and can be read",
            mend if older else "upgrade Headrace here, and run: headrace catalog migrate",
        )


def check_clock(region: str, ahead_s: float) -> Iterator[RegionFinding]:
    """Whether two clocks are together; no decision depends on it, but times that people read do."""
    if abs(ahead_s) >= CLOCK_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield RegionFinding(
            "clock",
            "warning",
            f"the clock of {region} is {abs(ahead_s):.1f} s {way} the one here",
            "set both by the same time servers (NTP): events carry the time of their region",
        )


def check_snapshot(found: SnapshotStatus) -> Iterator[RegionFinding]:
    """Whether groups in the mode of snapshots fall behind."""
    title = f"snapshots of {found.stream}/{found.segment}"
    why = found.last_skip or found.last_abort
    if found.phase != "idle" and (found.pending_s or 0) >= SNAPSHOT_S:
        why = f"one waits for {', '.join(found.waiting_for)} since {found.pending_s:.0f} s"
    elif not why or (found.age_s is not None and found.age_s < SNAPSHOT_S):
        age = "none was needed yet" if found.age_s is None else f"the last {found.age_s:.0f} s ago"
        yield RegionFinding(title, "ok", age)
        return
    age = "there is none yet" if found.age_s is None else f"the last is {found.age_s:.0f} s old"
    yield RegionFinding(
        title,
        "warning",
        f"{age}: {why}",
        "bring that region back, or go on without it: headrace region snapshot force "
        f"{found.stream}",
    )


def _examine_link(
    log: Log, other: Log, me: Region, member: LinkMember, link: LinkRecord, theirs: _Neighbour
) -> Iterator[RegionFinding]:
    title, region = f"{link.stream} from {member.region}", member.region
    mine, there = log.stream(link.stream), theirs.streams.get(link.stream)
    back = theirs.links.get(link.stream)
    known = None if back is None else back.member(me.name)
    if member.state != "active":
        yield RegionFinding(
            title, "warning", f"nothing is copied: {region} is {member.state}",
            f"headrace region {'rejoin' if member.state == 'lost' else 'resume'} {region}",
        )  # fmt: skip
    if there is None or back is None or known is None:
        yield RegionFinding(
            title,
            "failed",
            f"{region} does not link it to {me.name}: nothing comes from there",
            f"link it there too: headrace --catalog {member.catalog} region link {link.stream} "
            f"{me.name}=CATALOG",
        )
        return
    if known.state != "active":
        yield RegionFinding(
            title, "warning", f"{region} copies nothing from here: {me.name} is {known.state} there"
        )
    if found := differences(mine, there):
        yield RegionFinding(
            title,
            "failed",
            f"the stream differs there: {'; '.join(found)}",
            "make both the same; nothing is copied right until then",
        )
    if back.writers != link.writers:
        yield RegionFinding(
            title,
            "failed",
            f"it is written in {link.writers} by what is known here, in {back.writers} there",
            "wait until both agents have met; else: headrace region promote",
        )
    if back.filter != link.filter:
        yield RegionFinding(
            title,
            "failed",
            f"{link.filter or 'everything'} crosses by what is known here, "
            f"{back.filter or 'everything'} by what is known there",
            f"link it anew by one filter: headrace region unlink {link.stream}, in each region",
        )
    yield from _examine_copies(log, other, member, mine, there)


def _examine_copies(
    log: Log, other: Log, member: LinkMember, mine: Stream, there: Stream
) -> Iterator[RegionFinding]:
    """How far a stream was copied, what was missed, and whether all of it can be read."""
    title, region = f"{mine.name} from {member.region}", member.region
    here = log.catalog.read(lambda tx: look_here(tx, region), snapshot=True)
    if here is None:
        return
    places = {s.number: here.places[s.id] for s in mine.segments if s.id in here.places}
    missed = sum(place.missed for place in places.values())
    if missed:
        yield RegionFinding(
            title,
            "warning",
            f"{missed:,} events were removed in {region} before they came: a gap",
            f"let {region} keep events for longer: headrace stream set {mine.name}",
        )
    try:
        theirs = other.catalog.read(get_region)
        life = evening.latest_life(here, region)
        if theirs is not None and life > theirs.incarnation:
            raise RegionWentBackError(region, mine.name, f"events of its life {life} were copied")
        waiting = 0
        for segment in there.segments:
            place = places.get(segment.number)
            if place is not None and (theirs is None or theirs.incarnation == 1):
                check_place(region, mine.name, place, segment)
            start = max(segment.tail, 0 if place is None else place.next_offset)
            _read_all_kinds(other, mine.name, segment, start)
            waiting += max(0, segment.head - start)
            yield from _examine_lag(other, region, there, segment, start)
    except RegionWentBackError as error:
        mend = f"if it was restored from a copy: headrace --catalog {member.catalog} region renew"
        yield RegionFinding(title, "failed", str(error), mend)
        return
    except HeadraceError as error:
        mend = (
            f"let the role of {member.catalog} read every table (SELECT), and its store; nothing "
            "needs to be written there"
        )
        yield RegionFinding(title, "failed", f"it cannot be read: {error}", mend)
        return
    lag = f"{waiting:,} offsets behind" if waiting else "in step"
    yield RegionFinding(title, "ok", lag if places or not waiting else f"not begun, {lag}")


def _read_all_kinds(other: Log, stream: str, segment: Segment, start: int) -> None:
    """Read a little of everything that copying and the agent need: who may not, hears of it."""

    def look(tx: Tx) -> list[batches.Piece]:
        lanes.ends(tx, segment.id)
        lanes.absent(tx, segment.id)
        markers.spans(tx, segment.id, segment.head, segment.head)
        replicas.changed_since(tx, replicas.revision(tx))
        entries.latest(tx, GROUPS_BUCKET)
        return batches.pieces(tx, segment.id, start, 100)

    for piece in other.catalog.read(look):
        if piece.path is not None and other.store is not None:
            copying.source_file(other, stream, segment.number, piece, read=False)
            return


def _examine_lag(
    other: Log, region: str, stream: Stream, segment: Segment, start: int
) -> Iterator[RegionFinding]:
    """Whether the source removes events before they are copied; by its own clock."""

    def look(tx: Tx) -> tuple[int, int] | None:
        first = batches.pieces(tx, segment.id, start, 1)
        return (first[0].created_us, tx.now_us()) if first else None

    found = other.catalog.read(look) if start < segment.head else None
    if found is not None:
        behind_s = max(0, found[1] - found[0]) / 1e6
        events = segment.head - start
        yield from check_retention(
            f"{stream.name}/{segment.number}", region, stream.config.retention, behind_s, events
        )


def check_retention(
    name: str, region: str, retention: Retention, behind_s: float, events: int
) -> Iterator[RegionFinding]:
    """Whether what has not been copied is soon older, or more, than the source keeps."""
    limits = retention.cap if isinstance(retention, Groups) else retention
    if not isinstance(limits, Limits):
        return
    over = []
    if limits.age_s is not None and behind_s >= TRIM_SOON * limits.age_s:
        over.append(f"the first is {behind_s:.0f} s old and {limits.age_s} s are kept")
    if limits.events is not None and events >= TRIM_SOON * limits.events:
        over.append(f"{limits.events:,} are kept")
    if over:
        yield RegionFinding(
            f"retention of {name}",
            "warning",
            f"{events:,} offsets wait in {region}, and {' and '.join(over)}: they may be removed "
            "before they come",
            f"see why nothing comes (headrace region status), or let {region} keep more: headrace "
            f"stream set {stream_of(name)}",
        )


def stream_of(name: str) -> str:
    """The stream of a segment's name.

    >>> stream_of("orders/0")
    'orders'
    """
    return name.rpartition("/")[0]
