"""Where copying begins in the segments of another region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from headrace.catalog import Tx, batches, lanes, replicas, streams
from headrace.catalog.replicas import ReplicaPlace
from headrace.catalog.streams import Segment
from headrace.log import events
from headrace.log.log import Log
from headrace.regions.records import ALL, NONE, LinkRecord, is_from
from headrace.regions.runtime.rounds import look_here


def begin_places(log: Log, source_log: Log, source: str) -> int:
    """Record where copying begins in segments that have no place yet; how many there were."""
    here = log.catalog.read(lambda tx: look_here(tx, source), snapshot=True)
    if here is None:
        return 0
    begun = 0
    for name, stream in here.streams.items():
        missing = [segment for segment in stream.segments if segment.id not in here.places]
        if not missing:
            continue
        begun += _begin_stream(log, source_log, source, here.links[name], missing)
    return begun


def _begin_stream(
    log: Log, source_log: Log, source: str, link: LinkRecord, missing: Sequence[Segment]
) -> int:
    def look(tx: Tx) -> dict[int, tuple[ReplicaPlace, dict[str, int]]]:
        """Where copying begins, and with which events: all of it in one snapshot."""
        theirs = streams.get(tx, link.stream)
        if theirs is None or any(segment.lane is None for segment in theirs.segments):
            return {}  # it has not linked the stream to us yet: its history has no lanes
        begin = {}
        for segment in missing:
            found = theirs.segment(segment.number)
            if found is not None:
                start, firsts = where_to_begin(tx, link, found)
                begin[segment.id] = ReplicaPlace(segment.id, source, found.id, start), firsts
        return begin

    lock = streams.lock(log.stream(link.stream).id)
    return sum(
        log.catalog.write(partial(begin_place, place=place, firsts=firsts), locks=(lock,))
        for place, firsts in source_log.catalog.read(look, snapshot=True).values()
    )


def where_to_begin(tx: Tx, link: LinkRecord, found: Segment) -> tuple[int, dict[str, int]]:
    """The first offset of a source's segment to be copied, and the first sequence of each lane.

    Of a segment that was opened since the stream was linked, that is all of it.
    """
    start = _backfill_start(tx, link, found)
    if start == 0:
        return 0, {}
    firsts = lanes.ends(tx, found.id)
    for run in reversed(lanes.runs(tx, found.id, start, found.head)):
        firsts[run.lane] = run.sequence + max(0, start - run.start)
    return start, firsts


def _backfill_start(tx: Tx, link: LinkRecord, found: Segment) -> int:
    if found.number >= link.first_new:
        return 0
    if link.backfill == ALL:
        return found.tail
    if link.backfill == NONE:
        return found.head
    ts_us = events.to_us(datetime.fromisoformat(link.backfill))
    place = batches.first_by_event_time(tx, found, ts_us)
    return found.head if place is None else place.start


def begin_place(tx: Tx, place: ReplicaPlace, firsts: Mapping[str, int]) -> bool:
    """Record where copying begins in a segment; false if it has begun."""
    begun = replicas.begin_place(tx, place)
    for lane, first in firsts.items() if begun else ():
        if is_from(lane, place.source) and first > lanes.next_sequence(tx, place.segment_id, lane):
            lanes.skip_to(tx, place.segment_id, lane, first)
    return begun
