"""Segments with offsets in columns: how many of them are stored in few bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from headrace.errors import ReaderStateDecodeError
from headrace.groups.readers.core.segments import END, SegmentId


class SegmentColumns(msgspec.Struct, frozen=True, array_like=True):
    """Neighbours of one stream; `tokens` only where somebody owns them."""

    stream: str
    numbers: list[int]
    offsets: list[int]
    tokens: list[int] = []


def to_columns(items: Iterable[tuple[SegmentId, int]]) -> list[SegmentColumns]:
    """Segments with their offsets, in the order in which they come."""
    found: list[SegmentColumns] = []
    for segment, offset in items:
        if not found or found[-1].stream != segment.stream:
            found.append(SegmentColumns(segment.stream, [], []))
        found[-1].numbers.append(segment.number)
        found[-1].offsets.append(offset)
    return found


def from_columns(columns: Iterable[SegmentColumns]) -> Iterator[tuple[SegmentId, int, int]]:
    """(segment, offset, token); the inverse of :func:`to_columns`."""
    for c in columns:
        tokens = c.tokens or [0] * len(c.numbers)
        if not len(c.numbers) == len(c.offsets) == len(tokens):
            raise ReaderStateDecodeError(f"segments of {c.stream!r} in columns of unequal length")
        for number, offset, token in zip(c.numbers, c.offsets, tokens, strict=True):
            if number < 0 or offset < END:
                raise ReaderStateDecodeError(f"{c.stream}/{number} cannot be at {offset}")
            yield SegmentId(c.stream, number), offset, token
