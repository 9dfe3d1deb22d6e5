"""The work queue of an elastic group that is replicated: its acks are those of the source's events.

Other regions have no use for places in a queue.  What counts is a row of progress in the source
(:attr:`~headrace.groups.partitioned.names.GroupName.consumed`), which is exchanged as that of any
other group.  At home the acks of the queue are taken into it; rounds leave out what is acked there
(:mod:`headrace.groups.partitioned.runtime.work_queue`).

Where the group is not at home its queue is *empty*: whoever loses the group takes in what was
acked, and passes over the rest, which the new home fills from the source.  So a group that comes
home begins with nothing but the row in the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.catalog import Tx, claims, progress, queue_places, replicas, streams
from headrace.catalog.replicas import CursorRow
from headrace.catalog.streams import Stream
from headrace.errors import QueueNotEmptyError
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import units
from headrace.groups.partitioned.runtime.units import consumed_lock
from headrace.groups.progress import AckedRanges, Progress, store

if TYPE_CHECKING:
    from headrace.groups.partitioned.runtime.places import Offsets

UNTOLD = -1
"""The revision of a row that remembers how far a queue was taken in: no region asks for it."""


def locks(name: GroupName, config: ElasticGroupConfig) -> set[str]:
    """The locks under which a queue may be emptied: no ack and no round may come in between."""
    numbers = range(config.max_members)
    return {
        name.lock,
        consumed_lock(name.consumed),
        *store.seek_locks(name.key, map(str, numbers)),
    }


def begin(tx: Tx, name: GroupName) -> None:
    """A group of this region is replicated from now on.

    What was read of the source is acked, but for what waits in the queue.
    """
    from headrace.groups.partitioned.runtime.places import all_below, waiting
    from headrace.groups.partitioned.runtime.queued import unconsumed

    queue, source = streams.require(tx, name.work_queue), streams.require(tx, name.stream)
    left: dict[int, list[Offsets]] = {}
    acked = store.load_all(tx, name.key, [segment.id for segment in queue.segments])
    for segment in queue.segments:
        known = acked.get(segment.id, Progress())
        if known.floor < segment.head:
            spans = queue_places.between(tx, segment.id, known.floor, segment.head)
            for at, offsets in waiting(spans, known.acked()).items():
                left.setdefault(at, []).extend(offsets)
    placed = sum(len(part) for parts in left.values() for part in parts)
    if unplaced := unconsumed(tx, name, queue) - placed:
        raise QueueNotEmptyError(
            f"the work queue of group {name.group!r} of stream {name.stream!r} holds {unplaced:,} "
            "events that are not acked and were put there before the stream was linked, and other "
            "regions cannot be told which ones: stop the pipeline, let its members ack them, and "
            "enable it then"
        )
    job = store.load_all(tx, name.partition_job, [segment.id for segment in source.segments])
    begun = {at: all_below(place.floor, left.get(at, ())) for at, place in job.items()}
    store.join(tx, name.consumed, {at: Progress.of(each, {}) for at, each in begun.items()})
    enlist(tx, name, source)


def enlist(tx: Tx, name: GroupName, source: Stream) -> None:
    """The source's retention waits for what is acked, and not for what was put into the queue."""
    progress.subscribe(tx, source.id, name.consumed)
    progress.let_go(tx, source.id, name.partition_job)


def end(tx: Tx, name: GroupName) -> None:
    """The group is in this region alone from now on, and goes on here where it is acked up to."""
    queue, source = streams.get(tx, name.work_queue), streams.get(tx, name.stream)
    if queue is None or source is None:
        return
    known = store.load_all(tx, name.consumed, [segment.id for segment in source.segments])
    store.join(tx, name.partition_job, {at: Progress(each.floor) for at, each in known.items()})
    progress.subscribe(tx, source.id, name.partition_job)
    progress.unsubscribe(tx, source.id, name.consumed)
    for segment in queue.segments:
        queue_places.drop(tx, segment.id)
        replicas.forget_cursor(tx, name.key, segment.id)


def is_untaken(tx: Tx, name: GroupName) -> bool:
    """Whether something of the queue was acked that the row in the source does not tell yet."""
    return replicas.is_untaken(tx, name.key, name.work_queue)


def take_in(tx: Tx, name: GroupName) -> None:
    """Bring the row in the source up to date; holds ``replicas.LOCK`` and :func:`consumed_lock`."""
    # Loaded where it is used: a look at regions does without arrays.
    from headrace.groups.partitioned.runtime.places import acked_in_source
    from headrace.regions.core.translation import newly_acked

    queue, source = streams.get(tx, name.work_queue), streams.get(tx, name.stream)
    if queue is None or source is None:
        return
    acked = {segment.id: AckedRanges() for segment in source.segments}
    known = replicas.cursors(tx, [name.key])
    for row in progress.of_group(tx, name.key, [segment.id for segment in queue.segments]):
        at = row.segment_id
        cursor = known.get((name.key, at))
        if cursor is not None and cursor.local == row.state:
            continue
        before = store.decode_kept(tx, name.key, at, b"" if cursor is None else cursor.local)
        after = store.decode(row)
        new = newly_acked(before, after)
        if new:
            spans = queue_places.between(tx, at, new[0][0], new[-1][1])
            acked_in_source(spans, after.acked(), acked)
            queue_places.forget(tx, at, after.floor)
        replicas.put_cursor(tx, CursorRow(name.key, at, UNTOLD, False, 0, b"", row.state))
    found = {at: Progress.of(each, {}) for at, each in acked.items() if each.floor or len(each)}
    if found:
        store.join(tx, name.consumed, found)


def empty(tx: Tx, name: GroupName) -> None:
    """Take in what is acked of the queue, and pass over the rest; holds :func:`locks`."""
    queue, source = streams.get(tx, name.work_queue), streams.get(tx, name.stream)
    if queue is None or source is None:
        return
    take_in(tx, name)
    ends = {segment.number: (segment.id, Progress(segment.head)) for segment in queue.segments}
    units.seek(tx, name, name.key, ends)
    for segment in queue.segments:
        queue_places.drop(tx, segment.id)
    begun = {segment.number: (segment.id, Progress()) for segment in source.segments}
    units.seek(tx, name, name.partition_job, begun)
    claims.fence(tx, name.key)
