"""Lanes that nobody continues, as parts of a round; and sources that began a new life.

See :mod:`headrace.regions.core.evening`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.catalog import Tx, lanes, replicas, streams
from headrace.catalog.replicas import ReplicaPlace
from headrace.catalog.streams import Segment
from headrace.log.log import Log
from headrace.regions.core.evening import life_of, lives_of, to_even
from headrace.regions.core.origins import lane_reaches
from headrace.regions.records import Region, get_link, get_region, is_from, lost_of
from headrace.regions.runtime.rounds import CopyRound, Here, LanePiece, SegmentCopy


def with_evened(here: Here, there: Tx, planned: CopyRound, events_max: int) -> CopyRound:
    """A plan, and what the source has more of lanes that nobody continues."""
    source = get_region(there)
    if source is None:
        return planned
    lives = {here.region.name: here.region.incarnation, source.name: source.incarnation}
    copies, left = [*planned.copies], events_max
    for name, mine in sorted(here.streams.items()):
        lost = lost_of(here.links.get(name), get_link(there, name))
        theirs = streams.get(there, name)
        if theirs is None or not (lost or max(lives.values()) > 1):
            continue
        for segment in mine.segments:
            place, found = here.places.get(segment.id), theirs.segment(segment.number)
            if place is None or found is None or found.lane is None:
                continue
            at = _after(planned, segment.id, place)
            copy = SegmentCopy(name, mine.id, segment.number, at, at.next_offset, (), evened=True)
            ends = here.ends[segment.id]
            lacking = to_even(here.region.name, ends, lanes.ends(there, found.id), lost, lives)
            for lane, first, end in lacking:
                if is_from(lane, source.name):
                    continue  # in the order of its own log
                most = max(0, left - copy.events)
                copy = _take(there, found, copy, (lane, first, min(end, first + most)))
            if copy.pieces or copy.skips:
                copies.append(copy)
                left -= copy.events
    return msgspec.structs.replace(planned, copies=tuple(copies))


def _after(planned: CopyRound, segment_id: int, place: ReplicaPlace) -> ReplicaPlace:
    """The place of a segment after what is planned already."""
    for copy in planned.copies:
        if copy.place.segment_id == segment_id:
            return msgspec.structs.replace(place, next_offset=copy.end)
    return place


def _take(there: Tx, found: Segment, copy: SegmentCopy, lane: tuple[str, int, int]) -> SegmentCopy:
    """Add the events of a lane to a copy, as far as the source retains them."""
    name, first, end = lane
    pieces: list[LanePiece] = []
    at = first
    skips, missed = list(copy.skips), copy.missed
    for run in lanes.runs_of(there, found.id, name, first, end):
        lo = max(run.start + max(0, at - run.sequence), found.tail)
        hi = min(run.end, run.start + end - run.sequence)
        if lo >= hi:
            continue
        sequence = run.sequence + lo - run.start
        if sequence > at:
            if pieces:
                break  # a gap in the middle is met when it is the next
            skips.append((name, sequence))
            missed += sequence - at
        pieces.append(LanePiece(lo, hi, name, sequence))
        at = sequence + hi - lo
    return msgspec.structs.replace(
        copy, pieces=(*copy.pieces, *pieces), skips=tuple(skips), missed=missed
    )


# --- sources that began a new life -----------------------------------------------------------


def restart_places(log: Log, source_log: Log, here: Here, segments: set[int]) -> None:
    """Go on, in some segments, with the first event of a source that is not here yet."""

    def look(tx: Tx) -> list[tuple[ReplicaPlace, int, int]]:
        return list(_restarts(tx, here, segments))

    for place, source_id, start in source_log.catalog.read(look, snapshot=True):

        def run(tx: Tx, at: tuple[ReplicaPlace, int, int] = (place, source_id, start)) -> None:
            was, to, offset = at
            replicas.move_place(tx, was, offset, source_id=to)

        if (place.source_id, place.next_offset) != (source_id, start):
            log.catalog.write(run)


def _restarts(there: Tx, here: Here, segments: set[int]) -> Iterator[tuple[ReplicaPlace, int, int]]:
    for name, mine in here.streams.items():
        theirs = streams.get(there, name)
        for segment in mine.segments:
            found = theirs.segment(segment.number) if theirs is not None else None
            if found is None or segment.id not in segments:
                continue
            place, ends = here.places[segment.id], here.ends[segment.id]
            starts = (
                run.start + max(0, ends.get(run.lane, 0) - run.sequence)
                for run in lanes.runs(there, found.id, found.tail, found.head)
                if is_from(run.lane, place.source)
                and lane_reaches(run.lane, here.region.name)
                and run.next_sequence > ends.get(run.lane, 0)
            )
            yield place, found.id, min(starts, default=found.head)


def is_current(lane: str, source: Region) -> bool:
    """Whether a region publishes to a lane in its present life."""
    return is_from(lane, source.name) and life_of(lane) == source.incarnation


def latest_life(here: Here, source: str) -> int:
    """The latest life of a source that something is known of here."""
    return max((lives_of(ends, {}).get(source, 1) for ends in here.ends.values()), default=1)
