"""What a reader that has caught up asks a server far away: heads and new blobs in one query."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.catalog import streams
from headrace.catalog.batches import Batch
from headrace.catalog.transaction import Tx

BATCHES_MAX = 8
BATCH_BYTES_MAX = 64 * 1024


def heads_and_batches(
    tx: Tx, stream_id: int, positions: Mapping[int, int]
) -> tuple[list[streams.Head], dict[int, list[Batch]]]:
    """The heads of a stream, and the next few blobs of some of its segments, if they are small.

    ``positions`` are offsets by segment id.  One query, for drivers where each is a round trip.
    """
    rows = tx.rows(
        "SELECT id, number, tail, head, sealed_us IS NOT NULL, start_offset, end_offset, size, "
        "layout, checksum, path, data FROM segments "
        "LEFT JOIN unnest(CAST(? AS BIGINT[]), CAST(? AS BIGINT[])) AS places (place_id, place) "
        "ON place_id = id AND head > place "
        "LEFT JOIN LATERAL (SELECT start_offset, end_offset, bytes AS size, layout, checksum, "
        "path, CASE WHEN bytes <= ? THEN data END AS data FROM batches WHERE segment_id = place_id "
        "AND start_offset >= place ORDER BY start_offset LIMIT ?) AS load ON true "
        "WHERE stream_id = ? ORDER BY number, start_offset",
        (list(positions), list(positions.values()), BATCH_BYTES_MAX, BATCHES_MAX, stream_id),
    )
    heads: dict[int, streams.Head] = {}
    found: dict[int, list[Batch]] = {}
    larger: set[int] = set()
    for segment_id, number, tail, head, sealed, *batch in rows:
        heads[number] = (number, tail, head, bool(sealed))
        if batch[-1] is None:
            larger.add(segment_id)
        elif segment_id not in larger:
            found.setdefault(segment_id, []).append(Batch(*batch))
    return list(heads.values()), found
