"""Acks travel behind the data: whether all that a neighbour had, when it said so, is here."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog import Tx, lanes, replicas, streams
from headrace.catalog.streams import Segment
from headrace.groups.homes import this_region
from headrace.regions.core.origins import base_region, lane_reaches
from headrace.regions.records import ALL, links, lost_of
from headrace.regions.runtime.applying import Theirs


def is_behind(tx: Tx, theirs: Theirs) -> bool:
    """Whether something that the neighbour had published, or had copied, is not here yet.

    What it had copied counts, because acks travel on: it may tell of acks that were made in a third
    region, whose output it has and this region has not.
    """
    for name, link in links(tx).items():
        member = link.member(theirs.source)
        if member is None or member.state == "lost" or name not in theirs.heads:
            continue
        stream = streams.get(tx, name)
        ends = theirs.closed.get(name, {})
        lost = lost_of(link) | {base_region(n) for each in ends.values() for n in each}
        due = {theirs.source: theirs.heads[name]}
        for region, places in theirs.places.get(name, {}).items():
            if region not in lost and region != theirs.source:
                due[region] = places
        for region, heads in due.items():
            places = {s: p.next_offset for s, p in replicas.places(tx, region).items()}
            for segment in stream.segments if stream is not None else ():
                if heads.get(segment.number, 0) > places.get(segment.id, 0):
                    return True
            if stream is not None and link.writers != ALL:
                known = {segment.number for segment in stream.segments}
                if heads.keys() - known:
                    return True  # what was opened by a split that was not made here yet
        if stream is not None and any(_lacks(tx, each, ends) for each in stream.segments):
            return True
    return False


def _lacks(tx: Tx, segment: Segment, ends: Mapping[int, Mapping[str, int]]) -> bool:
    """Whether events of lost regions are not here yet that a neighbour has."""
    theirs, me = ends.get(segment.number), this_region(tx) or ""
    if not theirs:
        return False
    mine = lanes.ends(tx, segment.id)
    return any(
        end > mine.get(lane, 0)
        for lane, end in theirs.items()
        if lane_reaches(lane, me) and base_region(lane) != me
    )
