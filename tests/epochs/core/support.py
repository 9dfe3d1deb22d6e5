"""Times and frontiers drawn at random, and the order spelled out a second time."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from headrace.epochs import INTEGERS, PAIRS, Time, TimeShape

TRIPLES = TimeShape(3)
SHAPES = st.sampled_from([INTEGERS, PAIRS, TRIPLES])


def times(shape: TimeShape, high: int = 6) -> st.SearchStrategy[Time]:
    """Small times, so that many are equal, comparable and incomparable."""
    part = st.integers(0, high)
    if shape.length == 0:
        return st.integers(0, 2 * high)
    return st.tuples(*[part] * shape.length)


@st.composite
def shape_and_times(
    draw: st.DrawFn, *, min_size: int = 0, max_size: int = 8
) -> tuple[TimeShape, list[Time]]:
    """A shape and some times of it."""
    shape = draw(SHAPES)
    return shape, draw(st.lists(times(shape), min_size=min_size, max_size=max_size))


def leq(first: Time, second: Time) -> bool:
    """Component by component."""
    if isinstance(first, int):
        assert isinstance(second, int)
        return first <= second
    assert isinstance(second, tuple)
    return not any(a > b for a, b in zip(first, second, strict=True))


def minimal(given: Iterable[Time]) -> set[Time]:
    """Those with nothing else at or before them."""
    known = set(given)
    return {t for t in known if not any(leq(other, t) for other in known if other != t)}


def maximal(given: Iterable[Time]) -> set[Time]:
    """Those with nothing else at or after them."""
    known = set(given)
    return {t for t in known if not any(leq(t, other) for other in known if other != t)}


def grid(shape: TimeShape, high: int = 6) -> list[Time]:
    """Every small time of a shape."""
    if shape.length == 0:
        return list(range(2 * high + 1))
    grown: list[tuple[int, ...]] = [()]
    for _ in range(shape.length):
        grown = [(*head, part) for head in grown for part in range(high + 1)]
    return list(grown)
