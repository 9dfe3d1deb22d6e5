"""Local progress as progress by origin: what other regions read of this one.

Runs in one transaction of the agent.  A row of progress that changed since it was last translated
is compared with what it was then, and the difference is acked by origin.  A seek, which takes acks
back, is a command with a stamp (:mod:`headrace.regions.core.progress`).  What was trimmed before
anybody consumed it is never acked: a trim leaves what had been acked until then.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.catalog import Tx, lanes, progress, queue_places, replicas, streams
from headrace.catalog.replicas import CursorRow
from headrace.catalog.streams import Segment
from headrace.groups.homes import ORIGIN, GroupRecord
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import Progress, store
from headrace.regions import kinds
from headrace.regions.core.progress import CursorDelta, OriginProgress
from headrace.regions.core.spans import RangeList, difference, intersection, union
from headrace.regions.core.stamps import Life, Stamp
from headrace.regions.core.translation import (
    LaneRange,
    command_lanes,
    is_ahead,
    newly_acked,
    origins_of,
)
from headrace.regions.records import Region
from headrace.regions.runtime.joining import decode_cursor, encode_cursor


def begin(tx: Tx, me: Region, record: GroupRecord, *, placed: bool) -> None:
    """Begin to translate a group; ``placed``: what it begins with counts in every region.

    From here on, whatever is acked is told apart from what is trimmed unconsumed, and from what is
    trimmed already.
    """
    for reader in kinds.readers(tx, record):
        for name in record.streams:
            stream = streams.get(tx, name)
            segments = stream.segments if stream is not None else ()
            rows = {
                r.segment_id: r for r in progress.of_group(tx, reader, [s.id for s in segments])
            }
            for segment in segments:
                _begin_in(tx, me, record, reader, segment, rows.get(segment.id), placed=placed)


def _begin_in(
    tx: Tx,
    me: Region,
    record: GroupRecord,
    reader: str,
    segment: Segment,
    row: progress.Progress | None,
    *,
    placed: bool,
) -> None:
    known = OriginProgress(reader, _life(record))
    placed = placed and row is not None
    if row is not None and placed:
        for lane, lo, hi in _place(tx, segment, store.decode(row)):
            known.ack(lane, lo, hi)
    replicas.put_cursor(
        tx,
        CursorRow(
            reader=reader,
            segment_id=segment.id,
            revision=replicas.next_revision(tx) if placed else 0,
            ahead=is_ahead(known, lanes.ends(tx, segment.id), me.name),
            sought=0,
            state=encode_cursor(known),
            local=Progress(segment.tail).encode() if row is None else row.state,
        ),
    )
    if row is not None:
        gone = store.decode(row).acked().missing(segment.tail)
        replicas.pass_unread(tx, reader, segment.id, gone)


def translate(tx: Tx, me: Region, readers: Mapping[str, GroupRecord]) -> int:
    """Bring the cursors of readers up to date; how many changed.  Holds ``replicas.LOCK``."""
    changed = 0
    segments: dict[str, dict[int, Segment]] = {}
    for reader, record in readers.items():
        if record.deleted or record.mode != ORIGIN:
            continue
        for name in record.streams:
            if name not in segments:
                found = streams.get(tx, name)
                here = found.segments if found is not None else ()
                segments[name] = {s.id: s for s in here if s.lane is not None}
            changed += _translate_reader(tx, me, record, reader, segments[name])
    return changed


def translate_seek(
    tx: Tx, me: Region, record: GroupRecord, segment: Segment, cursor: CursorRow
) -> CursorRow:
    """A seek that was made here counts before anything that another region says."""
    rows = progress.of_group(tx, cursor.reader, [segment.id]) if cursor.sought else ()
    for row in rows:
        _translate_row(tx, me, record, segment, row, cursor)
    return replicas.cursor(tx, cursor.reader, segment.id) or cursor


def _translate_reader(
    tx: Tx, me: Region, record: GroupRecord, reader: str, segments: Mapping[int, Segment]
) -> int:
    changed = 0
    rows = {row.segment_id: row for row in progress.of_group(tx, reader, list(segments))}
    known = replicas.cursors(tx, [reader])
    for segment_id, row in rows.items():
        cursor = known.get((reader, segment_id))
        if cursor is not None and cursor.local == row.state and not cursor.sought:
            continue
        changed += _translate_row(tx, me, record, segments[segment_id], row, cursor)
    return changed


def _translate_row(
    tx: Tx,
    me: Region,
    record: GroupRecord,
    segment: Segment,
    row: progress.Progress,
    cursor: CursorRow | None,
) -> bool:
    after = store.decode(row)
    if cursor is None:  # a segment that is younger than the group
        cursor = CursorRow(row.group, segment.id, 0, False, 0, b"", b"")
    known = known_of(record, cursor)
    if cursor.sought:
        changed = _command(tx, me, known, segment, after, cursor.sought == replicas.SOUGHT_END)
    else:
        # If it is not known any more, all that is acked is taken in once more.
        before = store.decode_kept(tx, row.group, segment.id, cursor.local)
        find = _acked_of_queue if record.family == kinds.ELASTIC else _acked
        changed = _ack(tx, known, segment, find(tx, row, segment, before, after))
    ahead = is_ahead(known, lanes.ends(tx, segment.id), me.name)
    replicas.put_cursor(
        tx,
        msgspec.structs.replace(
            cursor,
            revision=replicas.next_revision(tx) if changed else cursor.revision,
            ahead=ahead,
            sought=0,
            state=encode_cursor(known),
            local=row.state,
        ),
    )
    return changed


def known_of(record: GroupRecord, cursor: CursorRow) -> OriginProgress:
    """What a cursor knows; one of a segment that was just opened knows nothing yet."""
    if not cursor.state:
        return OriginProgress(cursor.reader, _life(record))
    return decode_cursor(cursor.reader, cursor.state)


def _life(record: GroupRecord) -> Life:
    return Life(Stamp(record.life.counter, record.life.region))


def _place(tx: Tx, segment: Segment, at: Progress, *, at_end: bool = False) -> list[LaneRange]:
    """All that is acked by a place that was set, not consumed up to: also what is trimmed."""
    ranges = intersection([(segment.tail, segment.head)], [(0, at.floor), *at.above])
    found = origins_of(lanes.runs(tx, segment.id, segment.tail, segment.head), ranges)
    if at.floor <= segment.tail and not at_end:
        return found  # from the beginning of everything, which other regions may still have
    # Everything below a place is acked, as far as this region ever had it.
    starts = lanes.starts(tx, segment.id)
    firsts: dict[str, int] = dict(lanes.ends(tx, segment.id))
    for run in reversed(lanes.runs(tx, segment.id, segment.tail, segment.head)):
        firsts[run.lane] = run.sequence + max(0, segment.tail - run.start)
    below = [
        (lane, starts.get(lane, 0), first)
        for lane, first in firsts.items()
        if starts.get(lane, 0) < first
    ]
    return below + found


def _command(
    tx: Tx, me: Region, known: OriginProgress, segment: Segment, after: Progress, at_end: bool
) -> bool:
    """A seek was made here: it counts in every region."""
    parts = command_lanes(
        known,
        me.name,
        _place(tx, segment, after, at_end=at_end),
        lanes.absent(tx, segment.id),
        lanes.ends(tx, segment.id),
        at_end=at_end,
    )
    known.merge(CursorDelta(known.group, known.life, parts))
    return True


def _acked(
    tx: Tx, row: progress.Progress, segment: Segment, before: Progress, after: Progress
) -> RangeList:
    """What was acked since a row was last translated, and not only passed over unread.

    What is trimmed is needed until it is passed: some of it may be in flight still.
    """
    unread = union(replicas.unread(tx, row.group, segment.id), ())
    replicas.forget_trims(tx, row.group, segment.id, after.floor)
    return difference(newly_acked(before, after), unread)


def _acked_of_queue(
    tx: Tx, row: progress.Progress, segment: Segment, before: Progress, after: Progress
) -> RangeList:
    """The same, of a row that no trim moves: what is in a work queue outlives it there.

    Its trims only keep the runs that are still needed.
    """
    name = GroupName.of_consumed(row.group)
    queued = queue_places.lowest(tx, name.work_queue, segment.id)
    replicas.forget_trims(tx, row.group, segment.id, segment.tail if queued is None else queued)
    return newly_acked(before, after)


def _ack(tx: Tx, known: OriginProgress, segment: Segment, ranges: RangeList) -> bool:
    if not ranges:
        return False
    changed = False
    runs = lanes.runs(tx, segment.id, ranges[0][0], ranges[-1][1])
    for lane, lo, hi in origins_of(runs, ranges):
        changed |= known.ack(lane, lo, hi)
    return changed
