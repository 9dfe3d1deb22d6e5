"""What is in a work queue, for those who only look: nothing that reads events is loaded."""

from __future__ import annotations

from headrace.catalog import Tx, claims
from headrace.catalog.streams import Stream
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress.store import load_all


def consumed_lock(reader: str) -> str:
    """Held while it changes what is acked of the source of a replicated group."""
    return claims.lock(reader, "")


def unconsumed(tx: Tx, name: GroupName, queue: Stream) -> int:
    """Events in the queue that the group has not acked."""
    acked = load_all(tx, name.key, [segment.id for segment in queue.segments])
    return sum(segment.head for segment in queue.segments) - sum(
        progress.floor + sum(hi - lo for lo, hi in progress.ranges) for progress in acked.values()
    )
