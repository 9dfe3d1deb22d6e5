"""Pieces: runs of events that are handed out, answered and counted as one."""

from __future__ import annotations

import msgspec

from headrace.groups.progress import AckedRanges
from headrace.groups.progress.arrays import Int64s


class Piece(msgspec.Struct, frozen=True, eq=False):
    """Events that go together; ``attempts`` counts deliveries in vain."""

    start: int
    end: int
    offsets: Int64s
    attempts: int = 0

    @property
    def events(self) -> int:
        """How many there are."""
        return int(self.offsets.size)


def halves(piece: Piece) -> tuple[Piece, Piece]:
    """A piece in two, each of which counts anew."""
    middle = piece.events // 2
    cut = int(piece.offsets[middle])
    return (
        Piece(piece.start, cut, piece.offsets[:middle]),
        Piece(cut, piece.end, piece.offsets[middle:]),
    )


def left_of(piece: Piece, acked: AckedRanges) -> Piece | None:
    """What of a piece is not acked; attempts of a larger one say nothing about one event."""
    left = piece.offsets[~acked.contains_many(piece.offsets)]
    if left.size == piece.events:
        return piece
    attempts = piece.attempts if left.size > 1 else 0
    return Piece(piece.start, piece.end, left, attempts) if left.size else None
