"""Checksums of events by lane and block, so that regions can be compared."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from headrace.log.log import Log
from headrace.log.query import Query


def is_same(one: dict[int, int] | None, other: dict[int, int] | None) -> bool:
    """Whether the blocks that both have in full are the same."""
    one, other = one or {}, other or {}
    return all(one[block] == other[block] for block in one.keys() & other.keys())


BLOCK = 1024


def digests_of(log: Log, stream: str, number: int) -> dict[str, dict[int, int]]:
    """A checksum of every whole block of events, by lane."""
    found: dict[str, dict[int, int]] = {}
    counts: dict[tuple[str, int], int] = {}
    for lane, sequence, row in _rows(log, stream, number):
        block = sequence // BLOCK
        blocks = found.setdefault(lane, {})
        blocks[block] = zlib.crc32(row, blocks.get(block, 0))
        counts[lane, block] = counts.get((lane, block), 0) + 1
    return {
        lane: {
            block: digest
            for block, digest in blocks.items()
            if counts[lane, block] == BLOCK or block == max(blocks)
        }
        for lane, blocks in found.items()
    }


def _rows(log: Log, stream: str, number: int) -> Iterator[tuple[str, int, bytes]]:
    for batch in log.read(stream, Query(segments=[number])):
        plain = batch.select(["timestamp", "subject", "key", "value"])
        origins = batch.column("origin")
        names = origins.field("region").to_pylist()
        sequences = origins.field("sequence").to_pylist()
        stamps = batch.column("timestamp").view("int64").to_pylist()
        columns: list[list[object]] = [
            plain.column(name).to_pylist() for name in ("subject", "key", "value")
        ]
        for at in range(batch.num_rows):
            row = (stamps[at], *(column[at] for column in columns))
            yield names[at], sequences[at], repr(row).encode()
