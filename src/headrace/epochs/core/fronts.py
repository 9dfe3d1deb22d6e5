"""Which lines may hold rows of epochs that are not complete, in bounded memory.

A short list of *fronts*: a line, and the maximal times of the rows from it to the next front.  A
front goes when none of its times is open.  When there are too many, two neighbours become one:
whoever starts there starts earlier than needed, never later.  An antichain of maximal times that
gets too large becomes the join of its times, which is at or after all of them: what it stands for
grows, and again a start comes earlier or a filter drops more, never less.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec

from headrace.epochs.core.antichains import Antichain, Frontier
from headrace.epochs.core.times import Time, TimeShape

FRONTS_MAX = 16
MAXIMAL_MAX = 16


class Front(msgspec.Struct, frozen=True, array_like=True):
    """Lines from ``line`` on hold rows of no later times than the ``maximal`` ones."""

    line: int
    maximal: Frontier


def after_line(
    shape: TimeShape,
    known: tuple[Front, ...],
    number: int,
    times: Sequence[Time],
    lower: Frontier,
) -> tuple[Front, ...]:
    """The fronts after line ``number`` with rows of these times, under a lower frontier."""
    held = Antichain.minimal(shape, lower)
    fronts = list(known)
    if times:
        last = Antichain.maximal(shape, fronts[-1].maximal) if fronts else None
        if last is None or not all(last.covers(time) for time in times):
            fronts.append(Front(number, raised(shape, (), times, MAXIMAL_MAX)))
    fronts = [front for front in fronts if any(held.covers(time) for time in front.maximal)]
    while len(fronts) > FRONTS_MAX:
        at = min(range(len(fronts) - 1), key=lambda at: fronts[at + 1].line - fronts[at].line)
        both = raised(shape, fronts[at].maximal, fronts[at + 1].maximal, MAXIMAL_MAX)
        fronts[at : at + 2] = [Front(fronts[at].line, both)]
    return tuple(fronts)


def raised(shape: TimeShape, maximal: Frontier, times: Sequence[Time], most: int) -> Frontier:
    """The maximal ones of an antichain and more times; if too many, one at or after them all."""
    if shape.length == 0:
        return (max((*maximal, *times)),)
    leq = shape.leq
    found = list(maximal)
    for time in times:
        if not any(leq(time, other) for other in found):
            found = [other for other in found if not leq(other, time)]
            found.append(time)
    if len(found) > most:
        return (reduce(shape.join, found),)
    return tuple(found)
