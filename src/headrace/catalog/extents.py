"""Where segments begin and end and what follows them: few columns, for few of many segments."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.catalog.transaction import Query, Tx, in_parts

_EXTENTS = (
    "SELECT number, id, head, tail, sealed_us IS NOT NULL FROM segments "
    "WHERE stream_id = ? ORDER BY number"
)
_FINGERPRINT = (
    "SELECT COUNT(*), SUM(number), SUM(head), SUM(tail), COUNT(sealed_us), SUM(markers) "
    "FROM segments WHERE stream_id = ?"
)
_EDGES = (
    "SELECT predecessor, successor FROM segment_edges WHERE stream_id = ? "
    "ORDER BY predecessor, successor"
)


class Extent(msgspec.Struct, frozen=True):
    """A segment's place in the log; see :class:`~headrace.catalog.streams.Segment`."""

    id: int
    head: int
    tail: int
    sealed: bool


def extents_of(tx: Tx, stream_id: int, numbers: Sequence[int]) -> dict[int, Extent]:
    """Those of the segments that there are, by number."""
    found: dict[int, Extent] = {}
    for part, marks in in_parts(numbers):
        rows = tx.rows(
            "SELECT number, id, head, tail, sealed_us IS NOT NULL FROM segments "
            f"WHERE stream_id = ? AND number IN ({marks})",
            (stream_id, *part),
        )
        found |= {
            number: Extent(key, head, tail, bool(sealed))
            for number, key, head, tail, sealed in rows
        }
    return found


def followers(tx: Tx, stream_id: int, numbers: Sequence[int]) -> dict[int, dict[int, list[int]]]:
    """{segment: {successor: all its predecessors}} of segments that were sealed."""
    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for part, marks in in_parts(numbers):
        for first, second in tx.rows(
            "SELECT predecessor, successor FROM segment_edges "
            f"WHERE stream_id = ? AND predecessor IN ({marks})",
            (stream_id, *part),
        ):
            after.setdefault(first, []).append(second)
    wanted = sorted({successor for found in after.values() for successor in found})
    for part, marks in in_parts(wanted):
        for first, second in tx.rows(
            "SELECT predecessor, successor FROM segment_edges "
            f"WHERE stream_id = ? AND successor IN ({marks}) ORDER BY predecessor",
            (stream_id, *part),
        ):
            before.setdefault(second, []).append(first)
    return {first: {second: before[second] for second in found} for first, found in after.items()}


def asking(stream_id: int, *, new: bool) -> list[Query]:
    """The query of :func:`fingerprint`; of a ``new`` stream also those of extents and edges."""
    wanted = (_FINGERPRINT, _EXTENTS, _EDGES) if new else (_FINGERPRINT,)
    return [(query, (stream_id,)) for query in wanted]


def every(tx: Tx, stream_id: int) -> list[tuple[int, int, int, int, bool]]:
    """(number, id, head, tail, sealed) of every segment."""
    rows = tx.rows(_EXTENTS, (stream_id,))
    return [(number, key, head, tail, bool(sealed)) for number, key, head, tail, sealed in rows]


def fingerprint(tx: Tx, stream_id: int) -> tuple[int, ...]:
    """Sums over a stream's segments that change whenever one of them does; markers come last."""
    row = tx.row(_FINGERPRINT, (stream_id,))
    return () if row is None else tuple(int(value or 0) for value in row)


def edges(tx: Tx, stream_id: int) -> list[tuple[int, int]]:
    """(predecessor, successor), sorted, of all segments that follow from others."""
    rows = tx.rows(_EDGES, (stream_id,))
    return [(before, after) for before, after in rows]
