"""Segments that are over for good, and the groups that may still speak of them.

Floors tell what static, elastic, shared and private groups have passed
(:mod:`headrace.catalog.vacant`).  A reader group decides by its state, which may name a segment
that is acked to its end and not completed yet, or one that a checkpoint goes back to.

Claims of segments that are gone, or whose streams are, go as well; who held one stays fenced
(:mod:`headrace.catalog.claims`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.catalog import Tx, claims, entries, progress, reader_groups, streams
from headrace.catalog.streams import Segment, Stream
from headrace.groups.partitioned.names import GroupName
from headrace.groups.readers import dropping, names
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.shared import ended_units
from headrace.groups.shared.keys import finished_bucket, unit_of_claim
from headrace.log import limits, vacant
from headrace.log.log import Log

CLAIMS_AT_ONCE = 200
"""Claims that are deleted in one transaction; PostgreSQL holds a lock for each of them."""


def drop_vacant(log: Log, stream: Stream, grace_s: float = limits.VACANT_GRACE_S) -> int:
    """Remove the segments of a stream that nobody needs any more; returns how many."""
    if not vacant.may_go(stream):
        return 0

    def look(tx: Tx) -> tuple[list[str], list[str]]:
        return dropping.reading(tx, stream), progress.subscribed(tx, stream.id)

    readers, subscribed = log.catalog.read(look)

    def forget(tx: Tx, found: Stream, going: Sequence[Segment]) -> None:
        """That a unit is over is known by its absence from now on."""
        for group in subscribed:
            units = [f"{found.name}/{segment.number}" for segment in going]
            ended_units.forget(tx, group, units)

    gone = vacant.drop_vacant(
        log.catalog,
        stream.name,
        named=_named_by_readers,
        locks=[
            *(reader_groups.lock(group) for group in readers),
            *(entries.lock(finished_bucket(group)) for group in subscribed),
        ],
        also=forget,
        grace_s=grace_s,
    )
    return len(gone)


def drop_claims(log: Log) -> int:
    """Remove the claims of segments that are gone; returns how many."""
    going = log.catalog.read(lambda tx: _without_segment(tx, claims.every(tx)), snapshot=True)
    dropped = 0
    for begin in range(0, len(going), CLAIMS_AT_ONCE):
        part = going[begin : begin + CLAIMS_AT_ONCE]

        def drop(tx: Tx, part: Sequence[tuple[str, str]] = part) -> int:
            units: dict[str, list[str]] = {}
            for group, unit in _without_segment(tx, part):
                units.setdefault(group, []).append(unit)
            return sum(claims.drop(tx, group, units[group]) for group in units)

        dropped += log.catalog.write(drop, locks=[claims.lock(*claim) for claim in part])
    return dropped


def _without_segment(tx: Tx, held: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of the claims, (group, unit), that are of a segment which is not there."""
    places = {claim: place for claim in held if (place := segment_of(*claim)) is not None}
    numbers: dict[str, set[int]] = {}
    for stream, number in places.values():
        numbers.setdefault(stream, set()).add(number)
    there = {
        (stream, number)
        for stream in numbers
        for number in streams.segment_ids(tx, stream, sorted(numbers[stream]))
    }
    return sorted(claim for claim, place in places.items() if place not in there)


def segment_of(group: str, unit: str) -> tuple[str, int] | None:
    """The stream and the number of the segment that a claim is about; None if it is a partition."""
    stream, _, number = unit_of_claim(unit).rpartition("/")
    source = stream or GroupName.source_of_share(group)
    return (source, int(number)) if source and number.isdecimal() else None


def _named_by_readers(tx: Tx, stream: Stream) -> set[int]:
    found: set[int] = set()
    for group in dropping.reading(tx, stream):
        row, _ = names.require(tx, group)
        replica = StampedReplica(group)
        replica.catch_up(tx, row)
        found |= {s.number for s in replica.state.named() if s.stream == stream.name}
    return found
