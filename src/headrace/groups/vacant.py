"""Segments that are over for good, and the groups that may still speak of them.

Floors tell what static, elastic, shared and private groups have passed
(:mod:`headrace.catalog.vacant`).  A reader group decides by its state, which may name a segment
that is acked to its end and not completed yet, or one that a checkpoint goes back to.
"""

from __future__ import annotations

from headrace.catalog import Tx, reader_groups
from headrace.catalog.streams import Stream
from headrace.groups.readers import dropping, names
from headrace.groups.readers.runtime.replicas import StampedReplica
from headrace.log import limits, vacant
from headrace.log.log import Log


def drop_vacant(log: Log, stream: Stream, grace_s: float = limits.VACANT_GRACE_S) -> int:
    """Remove the segments of a stream that nobody needs any more; returns how many."""
    if not vacant.may_go(stream):
        return 0
    groups = log.catalog.read(lambda tx: dropping.reading(tx, stream))
    gone = vacant.drop_vacant(
        log.catalog,
        stream.name,
        named=_named_by_readers,
        locks=[reader_groups.lock(group) for group in groups],
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
