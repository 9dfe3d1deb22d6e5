"""What is kept for other regions: retention by groups waits until they have copied it.

Each region records its own places, and nobody writes in another one.  So the agent reads how far
the others have come and notes it here, where retention looks (:mod:`headrace.log.retain`).
Retention by limits does not wait, and neither does a trim by hand: the others are told of the gap.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog import Tx, entries, replicas, streams
from headrace.catalog.streams import Limits
from headrace.errors import HeadraceError
from headrace.log.log import Log
from headrace.regions.records import LINKS_BUCKET, LinkMember, LinkRecord, Region, links
from headrace.regions.runtime.neighbours import Neighbours

CopiedThere = dict[int, int]
"""How far a region has copied this one, by the segment here."""


def begin(tx: Tx, link: LinkRecord) -> None:
    """Everything is kept for the regions of a link that is not known to be there; not if lost."""
    stream = streams.get(tx, link.stream)
    segments = [] if stream is None else [segment.id for segment in stream.segments]
    wanted = {member.region for member in link.members if member.state != "lost"}
    known = replicas.taken(tx, segments)
    for segment_id in segments:
        there = known.get(segment_id, {})
        for region in there.keys() - wanted:
            replicas.drop_taken(tx, segment_id, region)
        for region in wanted - there.keys():
            replicas.put_taken(tx, segment_id, region, 0)


def keep_for_others(log: Log, me: Region, neighbours: Neighbours) -> None:
    """Note how far the other regions have copied streams that are kept for groups."""
    waiting = log.catalog.read(_waiting, snapshot=True)
    members = {m.region: m for link in waiting for m in link.members if m.state != "lost"}
    reached = {}
    for region, member in sorted(members.items()):
        found = _reached(neighbours, member, me)
        if found is not None:
            reached[region] = found
    if log.catalog.read(lambda tx: _changes(tx, reached), snapshot=True):
        lock = entries.lock(LINKS_BUCKET)
        log.catalog.write(lambda tx: _note(tx, reached), locks=(lock,), sync=False)


def _waiting(tx: Tx) -> list[LinkRecord]:
    """The links of streams that are not kept by limits alone."""
    found = []
    for name, link in links(tx).items():
        stream = streams.get(tx, name)
        if stream is not None and not isinstance(stream.config.retention, Limits):
            found.append(link)
    return found


def _reached(neighbours: Neighbours, member: LinkMember, me: Region) -> CopiedThere | None:
    try:
        places = neighbours.log(member).catalog.read(lambda tx: replicas.places(tx, me.name))
    except HeadraceError:
        return None  # whoever takes over its progress tells of it
    return {place.source_id: place.next_offset for place in places.values()}


def _changes(tx: Tx, reached: Mapping[str, CopiedThere]) -> list[tuple[int, str, int]]:
    """(segment, region, offset) of what is not noted yet."""
    found = []
    for link in _waiting(tx):
        segments = [segment.id for segment in streams.require(tx, link.stream).segments]
        known = replicas.taken(tx, segments)
        for member in link.members:
            if member.state == "lost" or member.region not in reached:
                continue
            for segment_id in segments:
                offset = reached[member.region].get(segment_id, 0)
                if known.get(segment_id, {}).get(member.region) != offset:
                    found.append((segment_id, member.region, offset))
    return found


def _note(tx: Tx, reached: Mapping[str, CopiedThere]) -> None:
    for segment_id, region, offset in _changes(tx, reached):
        replicas.put_taken(tx, segment_id, region, offset)
