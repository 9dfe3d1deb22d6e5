"""Where segments begin and end and what follows them: few columns, for few of many segments."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.catalog.transaction import Tx, in_parts


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
