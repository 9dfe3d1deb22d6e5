"""Lanes: where the events of a linked segment come from.

Theory of operation
-------------------
What one region published to a segment for one audience is a *lane*, and an event has a dense
*sequence* in its lane.  Both are taken in the transaction that takes the offsets.  They are kept as
**runs** beside the batches: neighbours in the log mostly are neighbours in their lane, so a busy
region extends one row.  Offsets never change, so compaction and files have nothing to do with it,
and a file is copied to another region as it stands.

What a link's filter keeps in a region is a lane of its own (:mod:`headrace.catalog.lane_filters`).

A stream that is in no other region has no lane (``segments.lane`` is null) and pays nothing: the
statement that takes offsets returns the lane along with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.catalog import lane_filters
from headrace.catalog.transaction import Tx
from headrace.errors import LaneOrderError, NotLinkedError, NotWrittenHereError

NOT_WRITTEN = ""
"""The lane of a linked segment in a region that does not write it."""


class Run(msgspec.Struct, frozen=True):
    """The events of a lane from ``sequence`` on, at the offsets ``start`` to ``end`` - 1."""

    start: int
    end: int
    lane: str
    sequence: int

    @property
    def next_sequence(self) -> int:
        return self.sequence + self.end - self.start


class LaneStep(msgspec.Struct, frozen=True):
    """Which lane a batch belongs to, where that is not simply the one of its segment.

    A batch that was published here names its ``audience``, the end of the lane's name.  One that
    comes from another region names its ``lane`` and the ``sequence`` of its first event.  Where the
    link has a filter, ``stays`` are the rows that do not pass it, as ranges in ascending order.
    """

    audience: str = ""
    lane: str | None = None
    sequence: int = 0
    filter: str = ""
    stays: tuple[tuple[int, int], ...] = ()


def record(
    tx: Tx,
    segment_id: int,
    own: str | None,
    step: LaneStep | None,
    start: int,
    rows: int,
    markers: Sequence[int],
) -> bool:
    """Events and markers were placed at ``start``; ``own`` is the lane of the segment here.

    False if the rows were judged by another filter than the link's, and have to be judged again.
    """
    pieces = list(_between(start, rows, markers))
    judged_by = "" if step is None else step.filter
    if own is None:
        if step is not None and (step.audience or step.lane is not None):
            raise NotLinkedError(_stream_of(tx, segment_id))
        return not judged_by
    if step is not None and step.lane is not None:
        expected = next_sequence(tx, segment_id, step.lane)
        if step.sequence != expected:
            raise LaneOrderError(step.lane, step.sequence, expected)
        lane = step.lane
    elif own == NOT_WRITTEN:
        if not pieces:
            return True  # a marker
        raise NotWrittenHereError(_stream_of(tx, segment_id))
    else:
        region, wanted = lane_filters.parted(own)
        if pieces and wanted != judged_by:
            return False
        lane = region + (step.audience if step is not None else "")
        if step is not None and step.stays:
            parts = lane_filters.apart(pieces, step.stays, start)
            _record_apart(tx, segment_id, lane, region + lane_filters.STAYS, parts)
            return True
    for lo, hi in pieces:
        _extend(tx, segment_id, lane, lo, hi)
    return True


def _record_apart(tx: Tx, segment_id: int, lane: str, here: str, parts: lane_filters.Parts) -> None:
    """Neighbours are of different lanes, so all but the first are runs of their own."""
    found = list(parts)
    nexts: dict[str, int] = {}
    new: list[Run] = []
    for at, (lo, hi, stays) in enumerate(found):
        name = here if stays else lane
        if at == 0:
            _extend(tx, segment_id, name, lo, hi)
            continue
        if name not in nexts:
            nexts[name] = next_sequence(tx, segment_id, name)
        new.append(Run(lo, hi, name, nexts[name]))
        nexts[name] += hi - lo
    add(tx, segment_id, new)


def _stream_of(tx: Tx, segment_id: int) -> str:
    row = tx.row(
        "SELECT name FROM streams WHERE id = (SELECT stream_id FROM segments WHERE id = ?)",
        (segment_id,),
    )
    return "" if row is None else str(row[0])


def _between(start: int, rows: int, markers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ranges of offsets of a batch that hold events."""
    at = start
    for row in markers:
        if at < start + row:
            yield at, start + row
        at = start + row + 1
    if at < start + rows:
        yield at, start + rows


def _extend(tx: Tx, segment_id: int, lane: str, lo: int, hi: int) -> None:
    extended = tx.execute(
        "UPDATE lane_runs SET end_offset = ? WHERE segment_id = ? AND end_offset = ? AND lane = ? "
        "AND start_offset = (SELECT MAX(start_offset) FROM lane_runs WHERE segment_id = ?) "
        "AND NOT EXISTS (SELECT 1 FROM lane_starts AS begun WHERE begun.segment_id = ? "
        "AND begun.lane = ? AND begun.sequence > "
        "lane_runs.sequence + lane_runs.end_offset - lane_runs.start_offset)",
        (hi, segment_id, lo, lane, segment_id, segment_id, lane),
    )
    if not extended:
        add(tx, segment_id, [Run(lo, hi, lane, next_sequence(tx, segment_id, lane))])


def add(tx: Tx, segment_id: int, runs: Iterable[Run]) -> None:
    """Record runs as they are given."""
    tx.executemany(
        "INSERT INTO lane_runs (segment_id, start_offset, end_offset, lane, sequence) "
        "VALUES (?, ?, ?, ?, ?)",
        [(segment_id, run.start, run.end, run.lane, run.sequence) for run in runs],
    )


def next_sequence(tx: Tx, segment_id: int, lane: str) -> int:
    """The sequence that the next event of a lane has."""
    row = tx.row(
        "SELECT sequence + end_offset - start_offset FROM lane_runs WHERE segment_id = ? "
        "AND lane = ? ORDER BY sequence DESC LIMIT 1",
        (segment_id, lane),
    )
    begun = tx.row(
        "SELECT sequence FROM lane_starts WHERE segment_id = ? AND lane = ?", (segment_id, lane)
    )
    return max(int(row[0]) if row else 0, int(begun[0]) if begun else 0)


def ends(tx: Tx, segment_id: int) -> dict[str, int]:
    """The next sequence of every lane of a segment."""
    rows = tx.rows(
        "SELECT lane, MAX(sequence + end_offset - start_offset) FROM lane_runs "
        "WHERE segment_id = ? GROUP BY lane",
        (segment_id,),
    )
    found = {str(lane): int(end) for lane, end in rows}
    for lane, sequence in starts(tx, segment_id).items():
        found[lane] = max(found.get(lane, 0), sequence)
    return found


def starts(tx: Tx, segment_id: int) -> dict[str, int]:
    """The lanes that were met in the middle, or have a gap, and where they go on."""
    rows = tx.rows("SELECT lane, sequence FROM lane_starts WHERE segment_id = ?", (segment_id,))
    return {str(lane): int(sequence) for lane, sequence in rows}


def absent(tx: Tx, segment_id: int) -> dict[str, list[tuple[int, int]]]:
    """What never was here of each lane, ascending: it was met in the middle, or has gaps.

    Of a lane with gaps, what was trimmed and forgotten before the last of them counts as well.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for lane, start in starts(tx, segment_id).items():
        at, holes = 0, []
        for run in runs_of(tx, segment_id, lane, 0, start):
            if at < run.sequence:
                holes.append((at, run.sequence))
            at = run.next_sequence
        if at < start:
            holes.append((at, start))
        found[lane] = holes
    return found


def skip_to(tx: Tx, segment_id: int, lane: str, sequence: int) -> None:
    """The events of a lane below ``sequence`` that are not here never come."""
    tx.execute(
        "INSERT INTO lane_starts (segment_id, lane, sequence) VALUES (?, ?, ?) "
        "ON CONFLICT (segment_id, lane) DO UPDATE SET sequence = excluded.sequence",
        (segment_id, lane, sequence),
    )


def runs(tx: Tx, segment_id: int, start: int, end: int) -> list[Run]:
    """The runs that cover offsets ``start`` to ``end`` - 1; the first may begin before."""
    rows = tx.rows(
        "SELECT start_offset, end_offset, lane, sequence FROM lane_runs WHERE segment_id = ? "
        "AND start_offset >= COALESCE((SELECT MAX(start_offset) FROM lane_runs "
        "WHERE segment_id = ? AND start_offset <= ?), 0) AND start_offset < ? AND end_offset > ? "
        "ORDER BY start_offset",
        (segment_id, segment_id, start, end, start),
    )
    return [Run(*row) for row in rows]


def runs_of(tx: Tx, segment_id: int, lane: str, lo: int, hi: int) -> list[Run]:
    """The runs of one lane that hold sequences ``lo`` to ``hi`` - 1, in order."""
    rows = tx.rows(
        "SELECT start_offset, end_offset, lane, sequence FROM lane_runs WHERE segment_id = ? "
        "AND lane = ? AND sequence >= COALESCE((SELECT MAX(sequence) FROM lane_runs "
        "WHERE segment_id = ? AND lane = ? AND sequence <= ?), 0) AND sequence < ? "
        "ORDER BY sequence",
        (segment_id, lane, segment_id, lane, lo, hi),
    )
    return [run for row in rows if (run := Run(*row)).next_sequence > lo]


def is_linked(tx: Tx, segment_id: int) -> bool:
    """Whether a segment's stream is in other regions too."""
    row = tx.row("SELECT lane FROM segments WHERE id = ?", (segment_id,))
    return row is not None and row[0] is not None


def follow_from(tx: Tx, stream_id: int, segment_id: int, predecessors: Sequence[int]) -> None:
    """A segment was opened in the place of others: it is linked as they are.

    Whose progress is exchanged in them has a cursor from its first moment on, with nothing in it:
    so what is trimmed of it unconsumed is told apart from what is acked.
    """
    marks = ", ".join("?" for _ in predecessors)
    before = f"SELECT id FROM segments WHERE stream_id = ? AND number IN ({marks})"
    linked = tx.execute(
        f"UPDATE segments SET lane = (SELECT MAX(lane) FROM segments WHERE id IN ({before})) "
        f"WHERE id = ? AND EXISTS (SELECT 1 FROM segments WHERE lane IS NOT NULL "
        f"AND id IN ({before}))",
        (stream_id, *predecessors, segment_id, stream_id, *predecessors),
    )
    if linked:
        readers = tx.rows(
            f"SELECT DISTINCT reader FROM region_cursors WHERE segment_id IN ({before})",
            (stream_id, *predecessors),
        )
        tx.executemany(
            "INSERT INTO region_cursors (reader, segment_id, revision, ahead, sought, state, "
            "local) VALUES (?, ?, 0, 0, 0, ?, ?)",
            [(reader, segment_id, b"", b"") for (reader,) in readers],
        )
        # Nobody has copied anything of it yet; see replicas.taken.
        tx.execute(
            "INSERT INTO replica_places (segment_id, source, source_id, next_offset, missed, "
            "moved_us) SELECT DISTINCT CAST(? AS BIGINT), source, 0, 0, 0, CAST(? AS BIGINT) "
            f"FROM replica_places WHERE source LIKE '>%' AND segment_id IN ({before})",
            (segment_id, tx.now_us(), stream_id, *predecessors),
        )


def begin(tx: Tx, segment_id: int, lane: str) -> None:
    """From now on, what is published to a segment here belongs to a lane."""
    tx.execute("UPDATE segments SET lane = ? WHERE id = ?", (lane, segment_id))


def end(tx: Tx, segment_id: int) -> None:
    """What is published to a segment belongs to no lane any more."""
    tx.execute("UPDATE segments SET lane = NULL WHERE id = ?", (segment_id,))


def number_history(tx: Tx, segment_id: int, lane: str, tail: int, head: int) -> None:
    """What stands in a segment without a lane becomes a part of one, in the order of the log.

    A stream that was never linked begins with it.  One that was, and is linked again, goes on with
    it where its lane ended: what it knows of lanes is kept while it is in one region alone.
    """
    row = tx.row("SELECT MAX(end_offset) FROM lane_runs WHERE segment_id = ?", (segment_id,))
    begun = None if row is None or row[0] is None else int(row[0])
    first = tail if begun is None else max(tail, begun)
    sequence = tail if begun is None else next_sequence(tx, segment_id, lane) + first - begun
    rows = tx.rows(
        "SELECT at_offset FROM markers WHERE segment_id = ? ORDER BY at_offset", (segment_id,)
    )
    markers = [int(row[0]) - first for row in rows if first <= row[0] < head]
    numbered = sequence
    for lo, hi in _between(first, head - first, markers):
        add(tx, segment_id, [Run(lo, hi, lane, sequence)])
        sequence += hi - lo
    if numbered == sequence > next_sequence(tx, segment_id, lane):
        skip_to(tx, segment_id, lane, sequence)  # all of it is trimmed


def trim(tx: Tx, segment_id: int, before: int) -> None:
    """A linked segment begins at ``before`` now: remember what readers had acked of the rest.

    Runs are forgotten once that was translated (:func:`forget`).
    """
    # Of whoever has not begun here, the last trim says everything.
    idle = (
        "NOT EXISTS (SELECT 1 FROM progress AS p WHERE p.group_name = {0}.reader "
        "AND p.segment_id = {0}.segment_id)"
    )
    tx.execute(
        f"DELETE FROM region_trims WHERE segment_id = ? AND {idle.format('region_trims')}",
        (segment_id,),
    )
    tx.execute(
        "INSERT INTO region_trims (segment_id, reader, upto, floor, state) "
        "SELECT c.segment_id, c.reader, ?, COALESCE(p.floor, 0), COALESCE(p.state, c.local) "
        "FROM region_cursors AS c LEFT JOIN progress AS p "
        "ON p.group_name = c.reader AND p.segment_id = c.segment_id "
        "WHERE c.segment_id = ? AND COALESCE(p.floor, 0) < ? "
        "ON CONFLICT (segment_id, reader, upto) DO NOTHING",
        (before, segment_id, before),
    )
    # Whoever has not begun here begins behind it, unread: see replicas.pass_unread.
    tx.execute(
        "INSERT INTO region_trims (segment_id, reader, upto, floor, state) "
        "SELECT c.segment_id, c.reader, -1 - CAST(? AS BIGINT), 0, c.local "
        f"FROM region_cursors AS c WHERE c.segment_id = ? AND {idle.format('c')} "
        "ON CONFLICT (segment_id, reader, upto) DO NOTHING",
        (before, segment_id),
    )


def forget(tx: Tx, segment_id: int, before: int) -> int:
    """Forget runs below an offset but the last of every lane; returns how many."""
    return tx.execute(
        "DELETE FROM lane_runs WHERE segment_id = ? AND end_offset <= ? AND sequence < "
        "(SELECT MAX(later.sequence) FROM lane_runs AS later "
        "WHERE later.segment_id = lane_runs.segment_id AND later.lane = lane_runs.lane)",
        (segment_id, before),
    )


def few_below(tx: Tx, segment_id: int, before: int, most: int) -> bool:
    """Whether there are not more than so many runs below an offset."""
    row = tx.row(
        "SELECT 1 FROM lane_runs WHERE segment_id = ? AND end_offset <= ? "
        "ORDER BY start_offset LIMIT 1 OFFSET ?",
        (segment_id, before, most),
    )
    return row is None


def drop(tx: Tx, segment_id: int) -> None:
    """Forget all that is known of a segment's lanes: its stream is deleted."""
    for table in ("lane_runs", "lane_starts", "replica_places", "queue_places"):
        tx.execute(f"DELETE FROM {table} WHERE segment_id = ?", (segment_id,))
    drop_cursors(tx, segment_id)


def drop_cursors(tx: Tx, segment_id: int) -> None:
    """Forget what is known of progress in a segment by origin."""
    for table in ("region_cursors", "region_trims"):
        tx.execute(f"DELETE FROM {table} WHERE segment_id = ?", (segment_id,))
