"""Splits and merges of a stream that one region writes, made in the others as well.

A round finds what the source has opened and this region has not
(:mod:`headrace.regions.core.scaling`), and makes it here when everything is here that the segments
hold which ended there: the place has come to their heads, and so has every lane.  A sealed segment
takes no more events, so nothing can come after that.  One transaction ends and opens the segments
and records where copying begins in the new ones, unless another round has done it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.catalog import Tx, lanes, replicas, streams, tiling
from headrace.catalog.replicas import ReplicaPlace
from headrace.catalog.streams import Segment, Stream
from headrace.errors import RoundOvertakenError
from headrace.log.log import Log
from headrace.regions.core.origins import lane_reaches
from headrace.regions.core.scaling import Scaling, conflict, is_due, missing_scalings
from headrace.regions.records import ALL, LinkRecord, get_link, is_from
from headrace.regions.runtime.beginning import begin_place, where_to_begin
from headrace.regions.runtime.rounds import (
    CopyRound,
    Here,
    OpenedSegment,
    ScalingStep,
)


def with_scalings(here: Here, there: Tx, planned: CopyRound) -> CopyRound:
    """A plan, and the splits and merges of the source that can be made here now."""
    steps: list[ScalingStep] = []
    differ: dict[str, str] = {}
    behind = planned.behind
    for name, mine in sorted(here.streams.items()):
        link = here.links[name]
        theirs = None if link.writers == ALL else streams.get(there, name)
        if theirs is None or any(segment.lane is None for segment in theirs.segments):
            continue
        why = conflict(_tiles(mine), _tiles(theirs)) or _past_the_end(mine, planned)
        if why:
            differ[name] = why
            continue
        missing = [s for s in theirs.segments if mine.segment(s.number) is None]
        behind += sum(segment.head for segment in missing)
        if missing and _follows(link, here.region.name, planned.source):
            steps += _due(here, there, mine, theirs)
    copies = tuple(copy for copy in planned.copies if copy.stream not in differ)
    return msgspec.structs.replace(
        planned,
        copies=copies,
        behind=behind,
        scalings=tuple(steps),
        differ=tuple(sorted(differ.items())),
    )


def _tiles(stream: Stream) -> dict[int, Segment]:
    return {segment.number: segment for segment in stream.segments}


def _past_the_end(mine: Stream, planned: CopyRound) -> str:
    """Whether events would come to a segment that has ended here: somebody went another way."""
    for copy in planned.copies:
        segment = mine.segment(copy.number)
        if copy.stream == mine.name and copy.pieces and segment is not None and segment.sealed:
            return f"events were published there to segment {copy.number}, which has ended here"
    return ""


def _follows(link: LinkRecord, me: str, source: str) -> bool:
    """Whether splits and merges are taken from a source: it writes, or nobody else that is there.

    A region that was made the writer by force takes them from the old one, which knew nothing.
    """
    writer = link.member(link.writers)
    gone = writer is None or writer.state == "lost"
    return gone or link.writers in (source, me)


def _due(here: Here, there: Tx, mine: Stream, theirs: Stream) -> Iterator[ScalingStep]:
    parts, tiles = _tiles(theirs), _tiles(mine)
    for scaling in missing_scalings(tiles, parts):
        ended = [parts[number] for number in scaling.sealed]
        complete = {s.number for s in ended if _is_complete(here, there, mine, s)}
        if is_due(tiles, scaling, complete):
            yield _step(here, there, mine, parts, scaling)


def _is_complete(here: Here, there: Tx, mine: Stream, found: Segment) -> bool:
    """Whether all that a segment of the source holds for this region is here."""
    segment = mine.segment(found.number)
    place = None if segment is None else here.places.get(segment.id)
    if segment is None or place is None or place.next_offset < found.head:
        return False
    ends, me = here.ends[segment.id], here.region.name
    return all(
        ends.get(lane, 0) >= end
        for lane, end in lanes.ends(there, found.id).items()
        if lane_reaches(lane, me) or is_from(lane, me)
    )


def _step(
    here: Here, there: Tx, mine: Stream, parts: dict[int, Segment], scaling: Scaling
) -> ScalingStep:
    opened = []
    for number in scaling.opened:
        found = parts[number]
        start, firsts = where_to_begin(there, here.links[mine.name], found)
        opened.append(
            OpenedSegment(
                number=number,
                range=(found.range_lo, found.range_hi),
                predecessors=found.predecessors,
                source_id=found.id,
                start=start,
                firsts=firsts,
            )
        )
    return ScalingStep(mine.name, mine.id, scaling.sealed, tuple(opened))


def commit(log: Log, source: str, step: ScalingStep) -> None:
    """Make a split or merge; raises ``RoundOvertakenError`` if it is made, or not to be made."""

    def run(tx: Tx) -> None:
        stream, link = streams.get(tx, step.stream), get_link(tx, step.stream)
        if stream is None or stream.id != step.stream_id or link is None or not link.reads(source):
            raise RoundOvertakenError(source, "the stream was taken out of the regions")
        ended = [s for s in stream.segments if s.number in step.sealed and not s.sealed]
        if len(ended) < len(step.sealed):
            raise RoundOvertakenError(source, "another round has split or merged it")
        for segment in ended:
            tiling.seal(tx, segment.id)
        for each in step.opened:
            made = tiling.open_numbered(tx, stream.id, each.number, each.range, each.predecessors)
            place = ReplicaPlace(made, source, each.source_id, each.start)
            begin_place(tx, place, each.firsts)
        tx.notify(replicas.CHANNEL)

    log.catalog.write(run, locks=sorted((streams.lock(step.stream_id), replicas.LOCK)))
    log.routes.forget(step.stream)
