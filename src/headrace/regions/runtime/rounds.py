"""A round of replication: a plan, a copy, and one transaction here.

Theory of operation
-------------------
*Pull.*  A region reads the other's catalog and store and writes only its own.  *Plan*: one snapshot
of the source, and this region's own places in it: for each segment, the runs of the source's own
lanes from the place on.  *Copy*: files that lie within one run go as they stand, all else is joined
to one batch per segment and lane.  *Commit*: every place must be exactly where the plan found it,
and every lane must go on exactly where it ended; then batches, places and what was acked before its
event came are stored together.  Otherwise nothing is, and the next plan begins where the other
round ended.  So a round counts once, whoever repeats it, and nothing is ever left out because it
looks old.

A source that trimmed what had not crossed yet leaves a *gap*: it is counted, and the lane goes on
behind it.  A source that has less than it had is refused (:class:`RegionWentBackError`).

From a source is taken what was published there, and of lanes that nobody continues what it has more
(:mod:`headrace.regions.core.evening`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.catalog import Tx, batches, lanes, markers, replicas, streams
from headrace.catalog.batches import NewBatch
from headrace.catalog.replicas import ReplicaPlace
from headrace.catalog.streams import Segment, Stream
from headrace.errors import RegionWentBackError, RoundOvertakenError
from headrace.log.log import Log
from headrace.regions.core.evening import life_of, passed_over
from headrace.regions.core.origins import lane_reaches
from headrace.regions.records import LinkRecord, Region, get_region, is_from, links
from headrace.regions.runtime import joining, readers

ROUND_EVENTS_MAX = 20_000
"""Events of a round that is carried out at once, without Spark."""
ROUND_BYTES = 16 * 1024 * 1024


MARKERS = ""
"""Stands for a lane where there are markers."""


class LanePiece(msgspec.Struct, frozen=True):
    """Offsets ``start`` to ``end`` - 1 of the source, the events of a lane from ``sequence`` on.

    Or markers: those for this region are written in line with the events, and no others.
    """

    start: int
    end: int
    lane: str
    sequence: int


class SegmentCopy(msgspec.Struct, frozen=True):
    """What a round copies of one segment."""

    stream: str
    stream_id: int
    number: int
    place: ReplicaPlace
    end: int
    """The place after it."""
    pieces: tuple[LanePiece, ...]
    skips: tuple[tuple[str, int], ...] = ()
    """Lanes that go on behind a gap, and where."""
    missed: int = 0
    evened: bool = False
    """Whether it is of lanes that nobody continues; the place stays where it is."""
    region: str = ""
    """The region that copies."""

    @property
    def events(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces if piece.lane != MARKERS)


class OpenedSegment(msgspec.Struct, frozen=True):
    """A segment that the source has opened, and where copying begins in it."""

    number: int
    range: tuple[int, int]
    predecessors: tuple[int, ...]
    source_id: int
    start: int
    firsts: dict[str, int]


class ScalingStep(msgspec.Struct, frozen=True):
    """A split or merge of the source, to be made here: all that came before it is here."""

    stream: str
    stream_id: int
    sealed: tuple[int, ...]
    opened: tuple[OpenedSegment, ...]


class CopyRound(msgspec.Struct, frozen=True):
    """A plan; it is empty when there is nothing to copy."""

    source: str
    copies: tuple[SegmentCopy, ...] = ()
    behind: int = 0
    """Offsets of the source that lie ahead, those of the plan included."""
    scalings: tuple[ScalingStep, ...] = ()
    differ: tuple[tuple[str, str], ...] = ()
    """Streams that went another way there, and why; they are left alone."""

    @property
    def events(self) -> int:
        return sum(copy.events for copy in self.copies)


# --- planning --------------------------------------------------------------------------------


class Here(msgspec.Struct, frozen=True):
    """What a plan needs of this region."""

    region: Region
    links: dict[str, LinkRecord]
    streams: dict[str, Stream]
    places: dict[int, ReplicaPlace]
    ends: dict[int, dict[str, int]]
    evened: dict[int, dict[str, int]] = {}


def look_here(tx: Tx, source: str) -> Here | None:
    """This region's side of everything that is copied from a source."""
    region = get_region(tx)
    if region is None:
        return None
    wanted = {name: link for name, link in links(tx).items() if link.reads(source)}
    found = {name: stream for name in wanted if (stream := streams.get(tx, name)) is not None}
    ends = {s.id: lanes.ends(tx, s.id) for stream in found.values() for s in stream.segments}
    return Here(region, wanted, found, replicas.places(tx, source), ends, replicas.evened(tx))


def plan(
    here: Here,
    there: Tx,
    source: str,
    events_max: int = ROUND_EVENTS_MAX,
    bytes_max: int = ROUND_BYTES,
) -> CopyRound:
    """What the next round copies; ``there`` is one snapshot of the source."""
    copies: list[SegmentCopy] = []
    behind, left = 0, events_max
    for name, mine in sorted(here.streams.items()):
        theirs = streams.get(there, name)
        if theirs is None:
            continue
        for segment in mine.segments:
            place = here.places.get(segment.id)
            found = theirs.segment(segment.number)
            if place is None or found is None or found.lane is None:
                continue  # of a stream that the source has unlinked, nobody knows what is whose
            check_place(source, name, place, found)
            behind += max(0, found.head - place.next_offset)
            if found.head <= place.next_offset or left <= 0:
                continue
            copy = _plan_segment(here, there, mine, segment, place, found, (left, bytes_max))
            left -= copy.end - place.next_offset
            copies.append(copy)
    return CopyRound(source, tuple(copies), behind)


def check_place(source: str, stream: str, place: ReplicaPlace, found: Segment) -> None:
    """Raise ``RegionWentBackError`` if a source's segment is not the one that was copied."""
    if place.source_id != found.id:
        raise RegionWentBackError(source, stream, f"segment {found.number} was made anew")
    if found.head < place.next_offset:
        raise RegionWentBackError(
            source,
            stream,
            f"segment {found.number} ends at {found.head}, and {place.next_offset} was copied",
        )


def _plan_segment(
    here: Here,
    there: Tx,
    stream: Stream,
    segment: Segment,
    place: ReplicaPlace,
    found: Segment,
    most: tuple[int, int],
) -> SegmentCopy:
    start = max(place.next_offset, found.tail)
    end = _end_of(there, found, start, *most)
    ends = dict(here.ends[segment.id])
    pieces, skips, missed = list[LanePiece](), dict[str, int](), 0
    life = (get_region(there) or here.region).incarnation
    if place.next_offset < found.tail:
        skips, missed = _gap(here, there, place, found, ends)
    for run in lanes.runs(there, found.id, start, end):
        if not is_from(run.lane, place.source) or not lane_reaches(run.lane, here.region.name):
            continue
        lo, hi = max(run.start, start), min(run.end, end)
        expected = ends.get(run.lane, 0)
        known = here.evened.get(segment.id, {}).get(run.lane, 0)
        if life_of(run.lane) < life:
            known = max(known, expected)  # it has its old lanes back from others
        lo += passed_over(run.sequence + lo - run.start, hi - lo, known)
        sequence = run.sequence + lo - run.start
        if lo >= hi:
            continue
        if sequence < expected:
            raise RegionWentBackError(
                place.source,
                stream.name,
                f"lane {run.lane!r} goes on at {sequence}, and {expected} was to come",
            )
        if sequence > expected:
            skips[run.lane] = sequence
            missed += sequence - expected
        ends[run.lane] = sequence + hi - lo
        pieces.append(LanePiece(lo, hi, run.lane, sequence))
    return SegmentCopy(
        stream=stream.name,
        stream_id=stream.id,
        number=segment.number,
        place=place,
        end=end,
        pieces=_in_line(there, found, start, end, pieces),
        skips=tuple(sorted(skips.items())),
        missed=missed,
        region=here.region.name,
    )


def _in_line(
    there: Tx, found: Segment, start: int, end: int, pieces: list[LanePiece]
) -> tuple[LanePiece, ...]:
    """Pieces of lanes, and the markers where they stand between them."""
    if found.markers:
        spans = markers.spans(there, found.id, start, end)
        pieces = [*pieces, *(LanePiece(lo, hi, MARKERS, 0) for lo, hi in spans)]
    return tuple(sorted(pieces, key=lambda piece: piece.start))


def _end_of(there: Tx, found: Segment, start: int, events_max: int, bytes_max: int) -> int:
    """Where a round ends in a segment."""
    end = min(found.head, start + events_max)
    if found.bytes > found.trimmed_bytes:
        begin = batches.bytes_before(there, found, start)
        end = min(end, max(start + 1, batches.offset_at_bytes(there, found, begin + bytes_max)))
    whole = batches.first_ending_after(there, found.id, end - 1)
    if whole is not None and end < found.head:
        return whole.end  # a batch goes as a whole, so that files need not be taken apart
    return end


def _gap(
    here: Here, there: Tx, place: ReplicaPlace, found: Segment, ends: dict[str, int]
) -> tuple[dict[str, int], int]:
    """Lanes whose next events were trimmed before they crossed, and how many those were."""
    firsts: dict[str, int] = {}
    for run in lanes.runs(there, found.id, found.tail, found.head):
        firsts.setdefault(run.lane, run.sequence + max(0, found.tail - run.start))
    skips: dict[str, int] = {}
    missed = 0
    for lane, end in lanes.ends(there, found.id).items():
        if not is_from(lane, place.source) or not lane_reaches(lane, here.region.name):
            continue
        first = firsts.get(lane, end)
        if first > ends.get(lane, 0):
            missed += first - ends.get(lane, 0)
            ends[lane] = skips[lane] = first
    return skips, missed


class Copied(msgspec.Struct, frozen=True):
    """What was copied of one segment, in order; nothing names it yet."""

    copy: SegmentCopy
    batches: tuple[NewBatch, ...]


# --- committing ------------------------------------------------------------------------------


def commit(log: Log, source: str, done: Sequence[Copied]) -> None:
    """Store a round; raises ``RoundOvertakenError`` if another one came before it."""
    ids = sorted({copied.copy.place.segment_id for copied in done})
    held = log.catalog.read(lambda tx: joining.readers_ahead(tx, ids))
    locks = {streams.lock(copied.copy.stream_id) for copied in done}
    numbers = {c.copy.place.segment_id: (c.copy.stream, c.copy.number) for c in done}
    firsts: dict[int, dict[str, int]] = {}
    for copied in done:
        first = firsts.setdefault(copied.copy.place.segment_id, {})
        for piece in copied.copy.pieces:
            if piece.lane != MARKERS:
                first.setdefault(piece.lane, piece.sequence)
    for segment_id, reader in held:
        locks |= joining.locks(reader, *numbers[segment_id])

    def run(tx: Tx) -> None:
        for copied in done:
            _commit_segment(tx, source, copied)
        readers.hold(tx, [(reader, "{}/{}".format(*numbers[at])) for at, reader in held])
        joining.acks_that_were_ahead(tx, firsts, frozenset(held))
        for stream_id in {copied.copy.stream_id for copied in done}:
            tx.notify(streams.channel(stream_id))
        tx.notify(replicas.CHANNEL)

    # A place that moves over other regions' events alone may be lost: it is found again.
    sync = any(copied.batches for copied in done)
    log.catalog.write(run, locks=sorted(locks | {replicas.LOCK}), sync=sync)


def _commit_segment(tx: Tx, source: str, copied: Copied) -> None:
    copy = copied.copy
    if not replicas.move_place(tx, copy.place, copy.end, copy.missed):
        raise RoundOvertakenError(source, "another round came before it")
    for lane, sequence in copy.skips:
        lanes.skip_to(tx, copy.place.segment_id, lane, sequence)
    for batch in copied.batches:
        if batches.append(tx, [batch]) is None:
            raise RoundOvertakenError(source, "its segment was sealed or is gone")
    for piece in copy.pieces if copy.evened else ():
        upto = piece.sequence + piece.end - piece.start
        replicas.put_evened(tx, copy.place.segment_id, piece.lane, upto)
