"""What the catalog says of a group's segments at one moment, within a transaction.

Segments are looked up by the *ids* of the group's streams: a stream that was made anew under the
name of a deleted one has none of the segments that the group knows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from headrace.catalog import Tx, claims, extents
from headrace.catalog import progress as stored
from headrace.catalog.extents import Extent
from headrace.groups.consumer import OwnedUnit
from headrace.groups.progress import Progress
from headrace.groups.progress.store import decode
from headrace.groups.readers.core.cuts import floors_at
from headrace.groups.readers.core.segments import Cut, SegmentId, Successor
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord, unit_of


class GroupMoment:
    """Reads of one transaction; progress is read when nobody else can be storing any."""

    def __init__(self, tx: Tx, name: ReaderGroupName, record: ReaderGroupRecord) -> None:
        self.tx = tx
        self.name = name
        self.record = record

    def extents(self, segments: Iterable[SegmentId]) -> dict[SegmentId, Extent]:
        """Where segments begin and end; those that are gone are left out."""
        found: dict[SegmentId, Extent] = {}
        for stream, numbers in _by_stream(segments).items():
            stream_id = self.record.stream_id(stream)
            if stream_id is not None:
                here = extents.extents_of(self.tx, stream_id, numbers)
                found |= {SegmentId(stream, number): each for number, each in here.items()}
        return found

    def progress(self, places: dict[SegmentId, Extent]) -> dict[SegmentId, Progress]:
        """Where the group is in segments; what was trimmed before it came by counts as read."""
        return self.progress_of(places, self.rows(places))

    def rows(self, places: dict[SegmentId, Extent]) -> dict[int, stored.Progress]:
        """What is stored of the group's progress in segments, by the ids of those that have it."""
        ids = [extent.id for extent in places.values()]
        found = stored.of_group(self.tx, self.name.key, ids) if ids else ()
        return {row.segment_id: row for row in found}

    def progress_of(
        self, places: dict[SegmentId, Extent], rows: Mapping[int, stored.Progress]
    ) -> dict[SegmentId, Progress]:
        """The progress that rows hold; see :meth:`progress`."""
        found = {}
        for segment, extent in places.items():
            row = rows.get(extent.id)
            progress = Progress() if row is None else decode(row)
            if progress.floor < extent.tail:
                progress = progress.merge(Progress(extent.tail))
            found[segment] = progress
        return found

    def held_progress(self, segments: Iterable[SegmentId]) -> dict[SegmentId, Progress]:
        """The progress of segments that somebody owns, with every ack that counts.

        Their claims are held first: an ack that is being stored is waited for.
        """
        wanted = list(segments)
        claims.hold(self.tx, self.name.key, map(unit_of, wanted))
        return self.progress(self.extents(wanted))

    def successors(self, segments: Iterable[SegmentId]) -> dict[SegmentId, tuple[Successor, ...]]:
        """What follows segments now, each with all its predecessors."""
        found: dict[SegmentId, tuple[Successor, ...]] = {}
        for stream, numbers in _by_stream(segments).items():
            stream_id = self.record.stream_id(stream)
            after = {} if stream_id is None else extents.followers(self.tx, stream_id, numbers)
            for number in numbers:
                found[SegmentId(stream, number)] = tuple(
                    Successor(
                        SegmentId(stream, successor),
                        tuple(SegmentId(stream, before) for before in predecessors),
                    )
                    for successor, predecessors in sorted(after.get(number, {}).items())
                )
        return found

    def map(self, only: Container[str] | None = None) -> Map:
        """All segments of the group's streams, or of ``only`` some of them."""
        graph: dict[SegmentId, tuple[SegmentId, ...]] = {}
        places: dict[SegmentId, Extent] = {}
        for stream in self.record.streams:
            if only is not None and stream.name not in only:
                continue
            for number, key, head, tail, sealed in extents.every(self.tx, stream.id):
                segment = SegmentId(stream.name, number)
                places[segment] = Extent(key, head, tail, sealed)
                graph[segment] = ()
            for before, after in extents.edges(self.tx, stream.id):
                follower, first = SegmentId(stream.name, after), SegmentId(stream.name, before)
                if follower in graph and first in graph:
                    graph[follower] = (*graph[follower], first)
        return Map(graph, places)

    def units(self, state: ReaderGroupState, tokens: dict[SegmentId, int]) -> list[OwnedUnit]:
        """Segments that are owned under these tokens, ready to be consumed."""
        places = self.extents(tokens)
        rows = self.rows(places)
        return [
            OwnedUnit(
                group=self.name.key,
                unit=unit_of(segment),
                token=tokens[segment],
                stream=segment.stream,
                segment=segment.number,
                segment_id=extent.id,
                # What was trimmed is passed over when it is met, and written down as unread.
                progress=decode(rows[extent.id]) if extent.id in rows else Progress(),
                filter=self.record.filter,
                end=end_of(state, segment, extent),
            )
            for segment, extent in places.items()
        ]


class Map(NamedTuple):
    """The segments of streams: what follows from what, and where each begins and ends."""

    graph: dict[SegmentId, tuple[SegmentId, ...]]
    extents: dict[SegmentId, Extent]

    def floors(self, cut: Cut, waiting: Iterable[SegmentId]) -> dict[SegmentId, int]:
        """How far every segment counts as read by a group that stands at a cut."""
        heads = {segment: extent.head for segment, extent in self.extents.items()}
        return floors_at(cut, waiting, self.graph, heads)


def end_of(state: ReaderGroupState, segment: SegmentId, extent: Extent) -> int | None:
    """Up to where a group reads a segment; None: as far as it goes."""
    end = state.end_cut.get(segment)
    if end is None:
        return None
    return extent.head if end < 0 else end


def _by_stream(segments: Iterable[SegmentId]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for segment in segments:
        found.setdefault(segment.stream, []).append(segment.number)
    return found
