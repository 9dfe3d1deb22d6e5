"""The rows of segments and of their edges, as the catalog has them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from headrace.catalog.transaction import Query, Row, Tx

FEW = 16
"""The segments of up to this many streams are read one by one."""

_SEGMENT = (
    "id, number, range_lo, range_hi, head, tail, bytes, trimmed_bytes, max_ts_us, created_us, "
    "sealed_us, markers, lane"
)
SEALED = 11
"""Where ``sealed_us`` stands, behind the stream."""


def read_segments(
    tx: Tx, rows: list[Row], many: Sequence[Query] | None = None
) -> tuple[list[Row], list[Row]]:
    """The rows of the segments of streams, and of their edges.

    ``many`` are the queries for both where the streams are not few; without them all are read.
    """
    if len(rows) > FEW:
        queries = [*(asking_segments() if many is None else many)]
    else:
        each = [asking_segments("WHERE stream_id = ? ", (row[0],)) for row in rows]
        queries = [query for both in each for query in both]
    found = tx.together(*queries)
    return [*chain(*found[::2])], [*chain(*found[1::2])]


def asking_segments(where: str = "", params: tuple[object, ...] = ()) -> tuple[Query, Query]:
    """The queries for the segments of streams, and for their edges, in this order.

    On PostgreSQL a stream may be scaled between the two.  Segments that were opened then are not
    known; the other way round they would seem to follow from none, and could be read too early.
    """
    segments = f"SELECT stream_id, {_SEGMENT} FROM segments {where}ORDER BY stream_id, number"
    edges = f"SELECT stream_id, predecessor, successor FROM segment_edges {where}"
    edges += "ORDER BY stream_id, predecessor, successor"
    return (segments, params), (edges, params)
