"""Segments that are over for good, and the groups that may still speak of them.

Floors tell what static, elastic, shared and private groups have passed
(:mod:`headrace.catalog.vacant`).  A reader group decides by its state, which may name a segment
that is acked to its end and not completed yet, or one that a checkpoint goes back to.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.catalog import Tx, entries, progress, reader_groups
from headrace.catalog.streams import Segment, Stream
from headrace.groups.readers import dropping, names
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.groups.shared import ended_units
from headrace.groups.shared.keys import finished_bucket
from headrace.log import limits, vacant
from headrace.log.log import Log


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


def _named_by_readers(tx: Tx, stream: Stream) -> set[int]:
    found: set[int] = set()
    for group in dropping.reading(tx, stream):
        row, _ = names.require(tx, group)
        replica = StampedReplica(group)
        replica.catch_up(tx, row)
        found |= {s.number for s in replica.state.named() if s.stream == stream.name}
    return found
