"""Times of epochs: integers, or tuples of a fixed length in product order.

In product order (a, b) ≤ (c, d) means a ≤ c and b ≤ d.  Two times may be incomparable, which the
comparison of Python's tuples (the first difference decides) would hide: it is never used to
compare times here, only to put unrelated times in a fixed sequence.  Every sequence sorted that
way is one in which an earlier epoch never comes after a later one.

Times are from 0 to 2^63 - 2, of 1 to 8 parts, by the one rule that the ``epoch`` column has too: so
there is a place beyond every time, and whatever ``since`` is told can be started from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from headrace.errors import TimeShapeError
from headrace.log import limits

Time = int | tuple[int, ...]

TIME_MAX: Final = limits.EPOCH_TIME_MAX
TUPLE_LENGTH_MAX: Final = limits.EPOCH_LENGTH_MAX


class TimeShape(msgspec.Struct, frozen=True):
    """The shape of a stream's times: ``length`` 0 for integers, else the length of the tuples.

    >>> TimeShape(2).leq((0, 3), (1, 2)), TimeShape(2).leq((0, 2), (1, 2))
    (False, True)
    """

    length: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.length <= TUPLE_LENGTH_MAX:
            raise TimeShapeError(
                f"times cannot have {self.length} parts; 0 (integers) to {TUPLE_LENGTH_MAX}"
            )

    def __str__(self) -> str:
        return "an integer" if self.length == 0 else f"a tuple of {self.length} integers"

    @property
    def bottom(self) -> Time:
        """The first of all times."""
        return 0 if self.length == 0 else (0,) * self.length

    def check(self, time: object) -> Time:
        """`time` if it is of this shape; raises if not."""
        if self.length == 0:
            if type(time) is int and 0 <= time <= TIME_MAX:
                return time
        elif (
            type(time) is tuple
            and len(time) == self.length
            and all(type(part) is int and 0 <= part <= TIME_MAX for part in time)
        ):
            return time
        raise TimeShapeError(
            f"{time!r} is not a time of this stream: it takes {self} from 0 to 2^63 - 2"
        )

    def leq(self, first: Time, second: Time) -> bool:
        """Whether `first` ≤ `second` in the order of this shape."""
        if self.length == 0:
            return first <= second  # type: ignore[operator]
        return all(a <= b for a, b in zip(first, second, strict=True))  # type: ignore[arg-type]

    def join(self, first: Time, second: Time) -> Time:
        """The least time at or after both."""
        if self.length == 0:
            return max(first, second)
        return tuple(map(max, first, second))  # type: ignore[arg-type]

    def beyond(self, time: Time) -> tuple[Time, ...]:
        """The least times that are not ≤ `time`: one step past it in each direction.

        In a direction in which `time` is the last there is none.
        """
        if isinstance(time, int):
            return (time + 1,) if time < TIME_MAX else ()
        return tuple(
            tuple(part + 1 if place == axis else 0 for place in range(self.length))
            for axis, part in enumerate(time)
            if part < TIME_MAX
        )

    def to_row(self, time: Time) -> list[int]:
        """The time as the ``epoch`` column holds it."""
        return [time] if isinstance(time, int) else list(time)

    def from_row(self, row: Sequence[int]) -> Time:
        """The time that an ``epoch`` column holds; raises if it is of another shape."""
        if self.length == 0 and len(row) == 1:
            return self.check(row[0])
        return self.check(tuple(row))


@lru_cache(maxsize=TUPLE_LENGTH_MAX + 1)
def shape_of(length: int) -> TimeShape:
    """The shape of times with `length` parts, made once."""
    return TimeShape(length)


INTEGERS: Final = TimeShape(0)
PAIRS: Final = TimeShape(2)
