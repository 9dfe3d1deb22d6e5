"""Times and frontiers as people type them."""

from __future__ import annotations

import re
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.failures import UsageError
from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.runtime.starting import frontier_of

StreamArgument = Annotated[str, Parameter(help="The stream's name.")]
PublisherArgument = Annotated[str, Parameter(help="The publisher's name.")]
PublisherOption = Annotated[str, Parameter(help="The publisher's name.")]

USUAL_PUBLISHER = "cli"
TEXT_CHARS_MAX = 4096
_TIME = re.compile(r"\(?([0-9]{1,19}(?:,[0-9]{1,19})*),?\)?")

Typed = tuple[tuple[int, ...], ...]
"""Times before it is known what shape they must have."""


def typed(text: str, option: str) -> Typed:
    """The times in a text.

    >>> typed("17", "--time"), typed("(3, 0) 0,4", "--until")
    (((17,),), ((3, 0), (0, 4)))
    """
    found = []
    for word in re.sub(r",\s+", ",", text[: TEXT_CHARS_MAX + 1]).split():
        match = _TIME.fullmatch(word)
        if match is None or len(text) > TEXT_CHARS_MAX:
            raise UsageError(
                f"{option}: {text[:60]!r} is not a time; write 17, or 3,0 for a pair, from 0 on"
            )
        found.append(tuple(int(part) for part in match[1].split(",")))
    if not found:
        raise UsageError(
            f"{option}: there is no time in {text[:60]!r}; write 17, or 3,0 for a pair"
        )
    return tuple(found)


def time_of(shape: TimeShape, given: Typed, option: str) -> Time:
    """The one time that was typed, of a stream's shape."""
    if len(given) != 1:
        raise UsageError(f"{option}: give one time, not {len(given)}")
    return _shaped(shape, given[0])


def times_of(shape: TimeShape, given: Typed, option: str) -> Frontier:
    """The frontier that was typed, of a stream's shape."""
    return frontier_of(shape, [_shaped(shape, one) for one in given], option)


def _shaped(shape: TimeShape, parts: tuple[int, ...]) -> Time:
    return shape.check(parts[0] if shape.length == 0 and len(parts) == 1 else parts)
