"""Filling the work queue of an elastic group from its source stream.

Theory of operation
-------------------
The queue is filled in *rounds*.  A round is planned in a read transaction: from which offset to
which each segment of the source is read, given how far earlier rounds came and how much room
there is in the queue.  The events are then read, and :func:`partitioned` turns them into the
rows of each partition; where that happens (in a Spark task, in a test) makes no difference.  At
last one write transaction appends the rows and moves the places in the source forward.

That transaction first checks that the places are still those of the plan.  So a round counts
once, whoever repeats it and however many fill the same queue at the same time: of two rounds
that were planned from the same places, the second one raises ``RoundOvertakenError`` and
appends nothing.

Order per key holds because a key has one partition, a partition is one segment, rounds follow
each other, and the segments of the source are read in order (:mod:`headrace.log.order`).

A *replicated* group has one more row of progress, for its source: what is acked of it
(:attr:`GroupName.consumed`), here or in another region.  Only where the group is at home is its
queue filled.  A round leaves out what is acked, writes down where its rows come from, and acks what
it left out; the agent of the region adds what members ack.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.catalog import Tx, entries, markers, queue_places, streams
from headrace.catalog.queue_places import SourceSpan
from headrace.errors import GroupUpdateError, RoundOvertakenError, UnknownGroupError
from headrace.groups import homes
from headrace.groups.partitioned.core.changes import check_change
from headrace.groups.partitioned.core.config import ElasticGroupConfig
from headrace.groups.partitioned.names import ELASTIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.places import left_out
from headrace.groups.partitioned.runtime.queued import unconsumed
from headrace.groups.partitioned.runtime.units import consumed_lock
from headrace.groups.partitioned.stored import elastic_config
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join, load_all
from headrace.log import order
from headrace.log.events import COLUMNS, REQUIRED
from headrace.subjects import match_array, partition_array

ROUND_EVENTS_MAX = 1_000_000

T = TypeVar("T")


class SegmentRead(msgspec.Struct, frozen=True):
    """Offsets ``start`` to ``end`` (not included) of one segment of the source."""

    segment: int
    segment_id: int
    start: int
    end: int
    place: int
    """Where earlier rounds had come; below ``start`` if the segment was trimmed since."""
    acked: tuple[tuple[int, int], ...] = ()
    """What of it is acked already and so left out, in a replicated group."""


class Round(msgspec.Struct, frozen=True):
    """What the next round reads; nothing when there is no news or no room."""

    name: GroupName
    config: ElasticGroupConfig
    source_id: int
    queue_id: int
    reads: tuple[SegmentRead, ...]
    trimmed: tuple[SegmentRead, ...]
    """Ends of segments that are finished because they were trimmed before a round read them."""
    room: int | None
    """Events that the queue takes at most; None when it has no limit."""
    behind: int
    """Events of the source that no round has read yet."""
    replicated: bool = False
    """Whether what is acked is counted in the source as well."""
    placed: bool = False
    """Whether it is written down where the rows come from: the source is in several regions."""
    waits: str = ""
    """Why the queue is not filled in this region."""

    @property
    def waits_for_room(self) -> bool:
        """Whether only the members' acks make the next round possible."""
        return self.behind > 0 and self.room == 0


def plan_round(tx: Tx, name: GroupName, *, events_max: int = ROUND_EVENTS_MAX) -> Round:
    """What to read next, from one moment of the catalog (use ``snapshot=True``)."""
    config = _config(tx, name)
    source = streams.require(tx, name.stream)
    queue = streams.require(tx, name.work_queue)
    room = _room(tx, name, config, queue)
    left = events_max if room is None else min(events_max, room)
    replicated = homes.replicated(tx, name.key) is not None
    waits = homes.waits_here(tx, name.key)
    stored = load_all(tx, name.partition_job)
    consumed = load_all(tx, name.consumed)
    places = {s.number: stored.get(s.id, Progress()).floor for s in source.segments}
    floors = {
        s.number: max(s.tail, places[s.number], consumed.get(s.id, Progress()).floor)
        for s in source.segments
    }
    ids = {s.number: s.id for s in source.segments}
    found = [] if waits else next_reads(source.segments, floors, left)
    return Round(
        name=name,
        config=config,
        source_id=source.id,
        queue_id=queue.id,
        reads=tuple(
            SegmentRead(
                number,
                ids[number],
                start,
                end,
                places[number],
                _acked(consumed.get(ids[number]), start, end),
            )
            for number, start, end in found
        ),
        trimmed=tuple(
            SegmentRead(s.number, s.id, s.tail, s.tail, places[s.number])
            for s in source.segments
            if s.sealed and places[s.number] < s.tail == s.head and not waits
        ),
        room=room,
        behind=0
        if waits
        else sum(markers.events_in(tx, s, [(floors[s.number], s.head)]) for s in source.segments),
        replicated=replicated,
        placed=replicated or any(segment.lane is not None for segment in source.segments),
        waits=waits,
    )


def _acked(consumed: Progress | None, lo: int, hi: int) -> tuple[tuple[int, int], ...]:
    return () if consumed is None else tuple(consumed.acked().between(lo, hi))


def next_reads(
    segments: Collection[order.Part], floors: Mapping[int, int], events_max: int
) -> list[tuple[int, int, int]]:
    """(segment, start, end) of what may be read next, each segment that is ready with its share."""
    heads = {segment.number: segment.head for segment in segments}
    found = order.standing_at(segments, floors).ready
    ready = [number for number in found if floors[number] < heads[number]]
    left = events_max
    reads = []
    for at, number in enumerate(ready):
        # The rest is divided among the segments left, so that none of the limit is wasted.
        share = -(-left // (len(ready) - at))
        start = floors[number]
        end = min(heads[number], start + share)
        if end > start:
            reads.append((number, start, end))
            left -= end - start
    return reads


def round_locks(planned: Round) -> list[str]:
    """The locks for :func:`commit_round`, beside those of the append."""
    found = [planned.name.lock, streams.lock(planned.queue_id)]
    return [*found, consumed_lock(planned.name.consumed)] if planned.replicated else found


def commit_round(
    tx: Tx,
    planned: Round,
    append: Callable[[Tx], T],
    queued: Collection[SourceSpan] = (),
) -> T:
    """Append the rows of a round (with ``append``) and move the places in the source forward.

    ``queued`` are the events that are appended, if it is written down where they come from.

    Raises ``RoundOvertakenError``, with nothing appended, when another round came first or the
    group is no longer the one that the round was planned for.
    """
    name = planned.name
    try:
        check_change(planned.config, _config(tx, name))
    except (UnknownGroupError, GroupUpdateError) as error:
        raise RoundOvertakenError(name.key, f"the group has changed: {error}") from error
    if streams.name_of(tx, planned.queue_id) != name.work_queue:
        raise RoundOvertakenError(name.key, "its work queue was made anew")
    # The ends of trimmed segments are checked and stored, too: a round planned earlier may have
    # read such a segment, and must not commit after rounds that take it for finished.
    reads = (*planned.trimmed, *planned.reads)
    stored = load_all(tx, name.partition_job, [read.segment_id for read in reads])
    for read in reads:
        place = stored.get(read.segment_id, Progress()).floor
        if place != read.place:
            what = f"read up to {place} by another round"
            if place < read.place:
                what = f"put back to {place}"
            raise RoundOvertakenError(name.key, f"segment {read.segment} was {what}")
    _count_consumed(tx, planned, queued)
    appended = append(tx)
    join(tx, name.partition_job, {read.segment_id: Progress(read.end) for read in reads})
    return appended


def _count_consumed(tx: Tx, planned: Round, queued: Collection[SourceSpan]) -> None:
    """Ack what a round leaves out; it must leave out exactly what is acked by now."""
    name = planned.name
    if (homes.replicated(tx, name.key) is not None) != planned.replicated:
        raise RoundOvertakenError(name.key, "it is replicated since, or no longer")
    if not planned.replicated:
        if planned.placed:
            _forget_places(tx, name)
        return
    if waits := homes.waits_here(tx, name.key):
        raise RoundOvertakenError(name.key, waits)
    consumed = load_all(tx, name.consumed, [read.segment_id for read in planned.reads])
    for read in planned.reads:
        known = consumed.get(read.segment_id)
        # Below its start everything was read before, is acked, or is gone.
        reached = max(read.place, known.floor if known is not None else 0)
        if _acked(known, read.start, read.end) != read.acked or (
            reached < read.start and (streams.tail_of(tx, read.segment_id) or 0) < read.start
        ):
            raise RoundOvertakenError(name.key, f"acks of segment {read.segment} came meanwhile")
    join(
        tx,
        name.consumed,
        {
            read.segment_id: Progress.of(
                left_out(queued, read.segment_id, read.start, read.end), {}
            )
            for read in planned.reads
        },
    )


def _forget_places(tx: Tx, name: GroupName) -> None:
    """Nobody has to be told where rows come from that are acked; see ``regions.runtime.queues``."""
    queue = streams.require(tx, name.work_queue)
    for segment_id, acked in load_all(tx, name.key, [s.id for s in queue.segments]).items():
        queue_places.forget(tx, segment_id, acked.floor)


def partitioned(
    events: pa.RecordBatch, config: ElasticGroupConfig, *, placed: bool = False
) -> dict[int, pa.RecordBatch]:
    """The rows of each partition, in their order, as they are appended to the queue.

    Events that do not pass the filter of the group are left out.  The partition's number becomes
    the first token of the subject.  ``placed``: with their offsets in the source, which are no
    column of the queue.
    """
    passed = match_array(config.filter, events.column("subject"))
    chosen = events if passed.true_count == len(passed) else events.filter(passed)
    if chosen.num_rows == 0:
        return {}
    subjects = chosen.column("subject")
    numbers = partition_array(
        subjects, config.filter, config.partitioning_wildcards, config.max_members
    )
    arrays, names = [], []
    for column, _ in COLUMNS:
        if column not in chosen.schema.names or column == "marker":
            continue
        array = chosen.column(column)
        if column == "subject":
            prefixes = pc.cast(pa.array(numbers), pa.string())
            array = pc.binary_join_element_wise(prefixes, subjects, ".")
        if column in REQUIRED or array.null_count < len(array):
            arrays.append(array)
            names.append(column)
    if placed:
        arrays.append(chosen.column("offset"))
        names.append("offset")
    rows = pa.RecordBatch.from_arrays(arrays, names)
    order = np.argsort(numbers, kind="stable")
    ordered = rows.take(pa.array(order))
    found, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    return {
        int(number): _without_null_columns(ordered.slice(start, end - start))
        for number, start, end in zip(found.tolist(), starts.tolist(), ends, strict=True)
    }


def _without_null_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns that are all null are not stored."""
    kept = [
        name
        for name in batch.schema.names
        if name in REQUIRED or batch.column(name).null_count < batch.num_rows
    ]
    return batch if len(kept) == batch.num_columns else batch.select(kept)


def _room(tx: Tx, name: GroupName, config: ElasticGroupConfig, queue: streams.Stream) -> int | None:
    if not config.buffered_events_max:
        return None
    return max(0, config.buffered_events_max - unconsumed(tx, name, queue))


def _config(tx: Tx, name: GroupName) -> ElasticGroupConfig:
    entry = entries.get(tx, ELASTIC_BUCKET, name.key)
    if entry is None or entry.value is None:
        raise UnknownGroupError(name.stream, name.group)
    return elastic_config(name, entry.value)
