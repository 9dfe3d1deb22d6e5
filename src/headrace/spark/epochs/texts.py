"""Frontiers as text: Spark keeps, compares and hands on texts.

``17`` is a frontier of integers, ``0,4;3,0`` one of pairs, and the empty text the end of a closed
stream.  Times are sorted, so that equal frontiers give equal texts.
"""

from __future__ import annotations

from headrace.epochs.core.antichains import Frontier, check_frontier
from headrace.epochs.core.times import TimeShape
from headrace.errors import InvalidOptionError, TimeShapeError


def frontier_text(frontier: Frontier) -> str:
    """A frontier as text.

    >>> frontier_text((17,)), frontier_text(((3, 0), (0, 4))), frontier_text(())
    ('17', '0,4;3,0', '')
    """
    return ";".join(
        str(time) if isinstance(time, int) else ",".join(map(str, time))
        for time in sorted(frontier)
    )


def parse_frontier(shape: TimeShape, text: str, what: str) -> Frontier:
    """The frontier that a text stands for; ``what`` names where it was given."""
    if not text.strip():
        return ()
    example = "17" if shape.length == 0 else ",".join("0" * shape.length)
    try:
        rows = [tuple(int(part) for part in time.split(",")) for time in text.split(";")]
        times = [row[0] if shape.length == 0 and len(row) == 1 else row for row in rows]
        found = check_frontier(shape, times)
    except (ValueError, TimeShapeError) as error:
        raise InvalidOptionError(
            f"{what}={text!r} is no frontier of this stream ({error}); give a time such as "
            f"{example}, or several with ';' between"
        ) from error
    if len(found) != len(times):
        raise InvalidOptionError(f"{what}={text!r}: of these times some are at or after others")
    return found
