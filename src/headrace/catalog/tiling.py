"""Making streams and their segments: opened, and sealed when others take their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headrace.catalog import lanes
from headrace.catalog.stream_config import StreamConfig
from headrace.catalog.streams import NO_TIME_US, Stream, channel, require
from headrace.catalog.transaction import Tx


def create(
    tx: Tx,
    name: str,
    config: StreamConfig,
    ranges: Iterable[tuple[int, int]],
    numbers: Sequence[int] | None = None,
) -> Stream:
    """Create a stream; ``numbers`` are those of its segments, if they do not count from 0."""
    row = tx.row(
        "INSERT INTO streams (name, config, created_us, next_segment) VALUES (?, ?, ?, 0) "
        "RETURNING id",
        (name, msgspec.json.encode(config), tx.now_us()),
    )
    assert row is not None
    stream_id = int(row[0])
    if numbers is None:
        open_segments(tx, stream_id, ranges, predecessors=())
    else:
        for number, range_ in zip(numbers, ranges, strict=True):
            open_numbered(tx, stream_id, number, range_, ())
    return require(tx, name)


def open_segments(
    tx: Tx,
    stream_id: int,
    ranges: Iterable[tuple[int, int]],
    predecessors: Iterable[tuple[int, int, int]],
) -> list[int]:
    """Open a segment for each range, with edges from the (number, lo, hi) that it overlaps."""
    before = list(predecessors)
    numbers = []
    for lo, hi in ranges:
        row = tx.row(
            "UPDATE streams SET next_segment = next_segment + 1 WHERE id = ? "
            "RETURNING next_segment - 1",
            (stream_id,),
        )
        assert row is not None
        number = int(row[0])
        numbers.append(number)
        after = [each for each, its_lo, its_hi in before if its_lo < hi and lo < its_hi]
        _open(tx, stream_id, number, (lo, hi), after)
    tx.notify(channel(stream_id))
    return numbers


def open_numbered(
    tx: Tx, stream_id: int, number: int, range_: tuple[int, int], predecessors: Iterable[int]
) -> int:
    """Open a segment as another region has it, under the number that it has there; its id."""
    tx.execute(
        "UPDATE streams SET next_segment = ? WHERE id = ? AND next_segment <= ?",
        (number + 1, stream_id, number),
    )
    made = _open(tx, stream_id, number, range_, list(predecessors))
    tx.notify(channel(stream_id))
    return made


def _open(
    tx: Tx, stream_id: int, number: int, range_: tuple[int, int], predecessors: list[int]
) -> int:
    row = tx.row(
        "INSERT INTO segments (stream_id, number, range_lo, range_hi, head, tail, bytes, "
        "trimmed_bytes, max_ts_us, created_us) VALUES (?, ?, ?, ?, 0, 0, 0, 0, ?, ?) RETURNING id",
        (stream_id, number, *range_, NO_TIME_US, tx.now_us()),
    )
    assert row is not None
    segment_id = int(row[0])
    tx.executemany(
        "INSERT INTO segment_edges (stream_id, predecessor, successor) VALUES (?, ?, ?)",
        [(stream_id, predecessor, number) for predecessor in predecessors],
    )
    if predecessors:
        lanes.follow_from(tx, stream_id, segment_id, predecessors)
    return segment_id


def seal(tx: Tx, segment_id: int) -> bool:
    """Close the segment for appends; false if it was closed already."""
    return (
        tx.execute(
            "UPDATE segments SET sealed_us = ? WHERE id = ? AND sealed_us IS NULL",
            (tx.now_us(), segment_id),
        )
        > 0
    )
