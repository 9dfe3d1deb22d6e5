"""Segments and positions, and the life of a segment in a reader group.

A segment is named by its stream *and* its number.  Numbers alone repeat: two streams of one group
both have a segment 0, and striking a bare 0 would open what still waits for the other one.

The life of a segment as a group sees it is the table below; a segment that the table does not
reach is unknown to the group.  A segment that is over is forgotten, which keeps the state as
small as what is still to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from headrace.errors import InvalidReaderUpdateError
from headrace.groups.progress.bounds import OFFSET_MAX

END: Final = -1
"""The offset of a segment that is sealed (or has an end cut) and was read to its end."""


class SegmentId(msgspec.Struct, frozen=True, order=True, array_like=True, cache_hash=True):
    """A segment of a stream, written ``stream/number``.

    >>> str(SegmentId("orders", 3)), SegmentId.parse("orders/3").number
    ('orders/3', 3)
    """

    stream: str
    number: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> SegmentId:
        """The inverse of ``str``."""
        stream, slash, number = text.rpartition("/")
        if not (slash and stream and number.isascii() and number.isdecimal()):
            raise InvalidReaderUpdateError(f"{text!r} is not a segment; write stream/number")
        return cls(stream, int(number))


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A place in a segment: the offset of the next event, or :data:`END`."""

    segment: SegmentId
    offset: int


class Successor(msgspec.Struct, frozen=True, array_like=True):
    """A successor of a completed segment, with *all* its predecessors."""

    segment: SegmentId
    predecessors: tuple[SegmentId, ...]


Cut = Mapping[SegmentId, int]
"""Offsets by segment: a place in all streams of a group at once."""


def positions(cut: Cut) -> tuple[Position, ...]:
    """A cut as a record."""
    return tuple(Position(segment, offset) for segment, offset in cut.items())


def as_cut(given: Iterable[Position], what: str) -> dict[SegmentId, int]:
    """Positions as a mapping; offsets out of range and segments named twice are refused."""
    cut: dict[SegmentId, int] = {}
    for position in given:
        if not END <= position.offset < OFFSET_MAX:
            raise InvalidReaderUpdateError(
                f"{what}: {position.offset} is not an offset of {position.segment}; "
                f"it must be {END} (its end) to {OFFSET_MAX - 1}"
            )
        if position.segment in cut:
            raise InvalidReaderUpdateError(f"{what}: {position.segment} is named twice")
        cut[position.segment] = position.offset
    return cut


def falls(before: int, after: int) -> bool:
    """Whether `after` lies before `before`; the end lies after every offset."""
    return after != END and (before == END or after < before)


class SegmentStatus(StrEnum):
    """Where a segment stands in a group."""

    UNKNOWN = "unknown"
    FUTURE = "future"
    UNASSIGNED = "unassigned"
    ASSIGNED = "assigned"
    OVER = "over"


RESETS: Final = {
    "reset within the cut": SegmentStatus.UNASSIGNED,
    "reset behind the cut": SegmentStatus.OVER,
    "reset ahead of the cut": SegmentStatus.UNKNOWN,
    "reset halfway ahead of the cut": SegmentStatus.FUTURE,
}
"""Where a reset puts a segment; *halfway*: with predecessors both behind and within the cut."""

SEGMENT_TRANSITIONS: Final[dict[tuple[SegmentStatus, str], SegmentStatus]] = {
    (SegmentStatus.UNKNOWN, "start of the group"): SegmentStatus.UNASSIGNED,
    (SegmentStatus.UNKNOWN, "one of its predecessors is over"): SegmentStatus.FUTURE,
    (SegmentStatus.UNKNOWN, "its only predecessor is over"): SegmentStatus.UNASSIGNED,
    (SegmentStatus.FUTURE, "one of its predecessors is over"): SegmentStatus.FUTURE,
    (SegmentStatus.FUTURE, "its last predecessor is over"): SegmentStatus.UNASSIGNED,
    (SegmentStatus.UNASSIGNED, "claim"): SegmentStatus.ASSIGNED,
    (SegmentStatus.ASSIGNED, "release"): SegmentStatus.UNASSIGNED,
    (SegmentStatus.ASSIGNED, "reader offline"): SegmentStatus.UNASSIGNED,
    (SegmentStatus.ASSIGNED, "completion"): SegmentStatus.OVER,
    **{
        (status, cause): target
        for status in SegmentStatus
        for cause, target in RESETS.items()
        if status is not target
    },
}
"""Every change of a segment's status and what brings it about."""
