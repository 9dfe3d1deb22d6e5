"""Which segments a group has: what a leader is told of the log.

A look computes a checksum of each matching stream (sums over its segments), reads the segments of
streams whose sums have changed, and compares them with the last look: a leader hears only of
changes.  Heads, tails and numbers only grow, so equal sums mean that nothing has happened.  Edges
between segments never change, and are read when a segment is new.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

import msgspec

from headrace.catalog import Tx, extents, markers, streams
from headrace.catalog.streams import decode_config
from headrace.groups.shared.core.messages import Unit, unit_of
from headrace.groups.shared.core.records import Listing, SegmentInfo
from headrace.groups.shared.runtime.state import SegmentKey
from headrace.subjects import overlaps


class Place(NamedTuple):
    """One segment as a look found it; a tuple, since ten thousand are compared each second."""

    stream_id: int
    number: int
    segment_id: int
    head: int
    tail: int
    sealed: bool
    markers: tuple[int, ...] = ()


Sums: TypeAlias = tuple[int, ...]
"""Sums over a stream's segments: count, numbers, heads, tails, how many are sealed, and markers."""
MARKERS_MAX = 10_000
"""The most markers of a stream that are told from its events; older ones weigh as events."""


class Look(msgspec.Struct, frozen=True):
    """What a look found, by unit."""

    streams: dict[int, str]
    sums: dict[int, Sums]
    """Sums of the streams whose segments were read; in the others nothing is new."""
    places: dict[Unit, Place]
    predecessors: dict[Unit, tuple[Unit, ...]]

    def segment_id(self, unit: Unit) -> int | None:
        """The segment that a unit is now."""
        place = self.places.get(unit)
        return None if place is None else place.segment_id


class Segments:
    """The segments of one group, as they were last seen."""

    def __init__(self, filter: str) -> None:
        self._filter = filter
        self._configs: dict[int, tuple[bytes, bool]] = {}
        self._sums: dict[int, Sums] = {}
        self._places: dict[Unit, Place] = {}
        self._predecessors: dict[Unit, tuple[Unit, ...]] = {}
        self._revision = 0
        self.keys: dict[Unit, SegmentKey] = {}
        """The ids of the units in the log; those that are gone stay until they are found again."""
        self.streams: dict[int, str] = {}

    def look(self, tx: Tx, *, everything: bool = False) -> Look:
        """Read what is new, or `everything`; runs on a thread, changes nothing but a cache."""
        found: dict[int, str] = {}
        for stream_id, name, config in streams.stored_configs(tx):
            if self._can_match(stream_id, config):
                found[stream_id] = name
        tx.foresee(
            *(
                query
                for each in found
                for query in extents.asking(each, new=everything or each not in self._sums)
            )
        )
        places: dict[Unit, Place] = {}
        predecessors: dict[Unit, tuple[Unit, ...]] = {}
        sums: dict[int, Sums] = {}
        for stream_id, name in found.items():
            here = extents.fingerprint(tx, stream_id)
            if self._sums.get(stream_id) == here and not everything:
                continue
            sums[stream_id] = here
            new = False
            marked = markers.newest(tx, stream_id, MARKERS_MAX) if here[-1] else {}
            for number, segment_id, head, tail, sealed in extents.every(tx, stream_id):
                unit = unit_of(name, number)
                own = tuple(marked.get(segment_id, ()))
                places[unit] = Place(stream_id, number, segment_id, head, tail, sealed, own)
                new = new or unit not in self._predecessors
            if new:
                predecessors.update(_edges(tx, stream_id, name, places))
        return Look(found, sums, places, predecessors)

    def predecessors(self, unit: Unit) -> tuple[Unit, ...]:
        """The segments that a unit follows from."""
        return self._predecessors.get(unit, ())

    def _can_match(self, stream_id: int, config: bytes) -> bool:
        known = self._configs.get(stream_id)
        if known is None or known[0] != config:
            subjects = decode_config(config).subjects
            matches = any(overlaps(self._filter, subject) for subject in subjects)
            known = self._configs[stream_id] = (config, matches)
        return known[1]

    def changes(self, look: Look, still_known: Collection[Unit] = ()) -> Listing:
        """What is new since the last look.

        A stream that was deleted and made again has new segments under old names: the old ones
        are told as gone first, and the new ones once the leader has let go of them
        (`still_known`: what it has not).
        """
        self._revision += 1
        over = set(self.streams) - set(look.streams)
        self._sums.update(look.sums)
        for stream_id in over:
            self._sums.pop(stream_id, None)
        self.streams = look.streams
        self._predecessors.update(look.predecessors)
        changed: list[SegmentInfo] = []
        gone = []
        if over or look.sums:
            read = over | set(look.sums)
            gone = [
                unit
                for unit, place in self._places.items()
                if place.stream_id in read and unit not in look.places
            ]
        for unit, place in look.places.items():
            before = self._places.get(unit)
            if before == place:
                continue
            key = SegmentKey(place.stream_id, place.segment_id)
            known = self.keys.get(unit)
            if known is not None and known != key:
                if before is not None:
                    gone.append(unit)
                    del self._places[unit]
                if before is not None or unit in still_known:
                    self._sums.pop(place.stream_id, None)  # looked at again
                    continue
            self.keys[unit] = key
            self._places[unit] = place
            end = place.head if place.sealed else None
            predecessors = self._predecessors.get(unit, ())
            changed.append(
                SegmentInfo(unit, place.head, end, place.tail, predecessors, place.markers)
            )
        for unit in gone:
            self._places.pop(unit, None)
        return Listing(self._revision, tuple(changed), tuple(gone))


def _edges(
    tx: Tx, stream_id: int, name: str, places: dict[Unit, Place]
) -> dict[Unit, tuple[Unit, ...]]:
    before: dict[Unit, list[Unit]] = {}
    for predecessor, successor in extents.edges(tx, stream_id):
        before.setdefault(unit_of(name, successor), []).append(unit_of(name, predecessor))
    return {
        unit: tuple(before.get(unit, ()))
        for unit, place in places.items()
        if place.stream_id == stream_id
    }
