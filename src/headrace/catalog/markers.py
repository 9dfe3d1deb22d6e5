"""Markers: where internal records stand among the events of a segment.

A marker takes an offset as an event does, and is no event: lag, counts, rates and limits by number
leave it out.  Each has a row with the running number of markers in its segment, so that how many
lie between two offsets takes two look-ups, whatever the distance.  A segment knows how many markers
it retains; where there are none, which is the rule, nothing is looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.catalog.transaction import Tx

if TYPE_CHECKING:
    from headrace.catalog.streams import Segment


def record(tx: Tx, segment_id: int, offsets: Sequence[int]) -> None:
    """Markers were appended at these offsets; the caller holds the stream's lock."""
    row = tx.row(
        "SELECT total FROM markers WHERE segment_id = ? ORDER BY at_offset DESC LIMIT 1",
        (segment_id,),
    )
    before = 0 if row is None else int(row[0])
    tx.executemany(
        "INSERT INTO markers (segment_id, at_offset, total) VALUES (?, ?, ?)",
        [(segment_id, offset, total) for total, offset in enumerate(offsets, before + 1)],
    )
    tx.execute("UPDATE segments SET markers = markers + ? WHERE id = ?", (len(offsets), segment_id))


def trim(tx: Tx, segment_id: int, before: int) -> int:
    """Forget the markers below an offset; returns how many there were."""
    return tx.execute(
        "DELETE FROM markers WHERE segment_id = ? AND at_offset < ?", (segment_id, before)
    )


def between(tx: Tx, segment_id: int, start: int, end: int) -> int:
    """How many markers stand at offsets from ``start`` to ``end`` - 1."""
    row = tx.row(
        "SELECT (SELECT total FROM markers WHERE segment_id = ? AND at_offset >= ? "
        "ORDER BY at_offset LIMIT 1), "
        "(SELECT total FROM markers WHERE segment_id = ? AND at_offset < ? "
        "ORDER BY at_offset DESC LIMIT 1)",
        (segment_id, start, segment_id, end),
    )
    assert row is not None
    first, last = row
    return 0 if first is None or last is None else max(0, int(last) - int(first) + 1)


def spans(tx: Tx, segment_id: int, start: int, end: int) -> list[tuple[int, int]]:
    """The ranges of offsets from ``start`` to ``end`` - 1 that hold nothing but markers."""
    found: list[tuple[int, int]] = []
    for (offset,) in tx.rows(
        "SELECT at_offset FROM markers WHERE segment_id = ? AND at_offset >= ? AND at_offset < ? "
        "ORDER BY at_offset",
        (segment_id, start, end),
    ):
        at = int(offset)
        if found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 1)
        else:
            found.append((at, at + 1))
    return found


def newest(tx: Tx, stream_id: int, limit: int) -> dict[int, list[int]]:
    """{segment: offsets} of the last markers of a stream."""
    found: dict[int, list[int]] = {}
    for segment_id, offset in tx.rows(
        "SELECT segment_id, at_offset FROM markers WHERE segment_id IN "
        "(SELECT id FROM segments WHERE stream_id = ? AND markers > 0) "
        "ORDER BY at_offset DESC LIMIT ?",
        (stream_id, limit),
    ):
        found.setdefault(int(segment_id), []).append(int(offset))
    return found


def events_in(tx: Tx, segment: Segment, ranges: Iterable[tuple[int, int]]) -> int:
    """How many retained events stand at the offsets of some ranges (each without its end)."""
    count = 0
    for lo, hi in ranges:
        start = max(lo, segment.tail)
        if start < hi:
            count += hi - start
            if segment.markers:
                count -= between(tx, segment.id, start, hi)
    return count
