"""Splits and merges that another region made, to be made here in the same way.

Only the region that writes a stream splits and merges it.  The others repeat it when they have all
that was published to the segments that it ended, with the numbers, the ranges and the order that
the segments have there.  So a segment holds the same events everywhere, and a key's events follow
each other in the same order.

What regions know of each other is the graph of segments alone.  A segment is opened by one scaling,
together with the other successors of its predecessors; so what is connected by edges to a segment
that is missing here is what has to be done at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec


class Tile(Protocol):
    """A segment, as far as scaling has to do with it."""

    @property
    def number(self) -> int: ...
    @property
    def range_lo(self) -> int: ...
    @property
    def range_hi(self) -> int: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def predecessors(self) -> tuple[int, ...]: ...
    @property
    def successors(self) -> tuple[int, ...]: ...


Tiles = Mapping[int, Tile]


class Scaling(msgspec.Struct, frozen=True):
    """Segments that end, and those that are opened in their place."""

    sealed: tuple[int, ...]
    opened: tuple[int, ...]


def missing_scalings(mine: Tiles, theirs: Tiles) -> list[Scaling]:
    """The scalings that another region has made and this one has not, in their order."""
    found: list[Scaling] = []
    known = set(mine)
    for number in sorted(theirs):
        if number not in known:
            scaling = _scaling_of(theirs, number)
            found.append(scaling)
            known.update(scaling.opened)
    return found


def _scaling_of(theirs: Tiles, number: int) -> Scaling:
    """The scaling that opened a segment."""
    sealed: set[int] = set()
    opened = {number}
    grown = True
    while grown:
        before = {p for each in opened for p in theirs[each].predecessors}
        after = {s for each in before if each in theirs for s in theirs[each].successors}
        grown = not (before <= sealed and after <= opened)
        sealed |= before
        opened |= {each for each in after if each in theirs}
    return Scaling(tuple(sorted(sealed)), tuple(sorted(opened)))


def conflict(mine: Tiles, theirs: Tiles) -> str:
    """Why one of two regions cannot repeat what the other one did; nothing if it can.

    Numbers are taken in order, so regions that went different ways have one number for two things.
    """
    for number in sorted(mine.keys() & theirs.keys()):
        one, other = mine[number], theirs[number]
        if (one.range_lo, one.range_hi) != (other.range_lo, other.range_hi):
            return f"segment {number} has another key range there"
        if one.sealed and other.sealed and one.successors != other.successors:
            return f"segment {number} was split or merged in another way there"
    return _cannot_follow(mine, theirs) or _cannot_follow(theirs, mine)


def _cannot_follow(behind: Tiles, ahead: Tiles) -> str:
    for scaling in missing_scalings(behind, ahead):
        if not scaling.sealed:
            return f"segment {scaling.opened[0]} is in one region only, and follows from no other"
        for number in scaling.sealed:
            if number not in ahead:
                return f"segment {number} is gone where others were opened in its place"
            if number in behind and behind[number].sealed:
                return f"segment {number} was split or merged in another way there"
    return ""


def is_due(mine: Tiles, scaling: Scaling, complete: Collection[int]) -> bool:
    """Whether a scaling can be made here now; ``complete`` are segments whose events are all here.

    >>> is_due({}, Scaling((0,), (1, 2)), {0})
    False
    """
    return all(number in mine and number in complete for number in scaling.sealed)
