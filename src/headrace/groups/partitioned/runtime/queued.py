"""What is in a work queue."""

from __future__ import annotations

from headrace.catalog import Tx
from headrace.catalog.streams import Stream
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress.store import load_all


def unconsumed(tx: Tx, name: GroupName, queue: Stream) -> int:
    """Events in the queue that the group has not acked."""
    acked = load_all(tx, name.key, [segment.id for segment in queue.segments])
    return sum(segment.head for segment in queue.segments) - sum(
        progress.floor + sum(hi - lo for lo, hi in progress.above) for progress in acked.values()
    )
