"""Shapes of times: what is one, and in which order they stand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import INTEGERS, PAIRS, TimeShape
from headrace.epochs.core.times import TIME_MAX
from headrace.errors import TimeShapeError
from tests.epochs.core.support import SHAPES, grid, leq, times


@pytest.mark.parametrize("good", [0, 7, TIME_MAX])
def test_integers_take_integers(good: int) -> None:
    assert INTEGERS.check(good) == good


@pytest.mark.parametrize("bad", [-1, TIME_MAX + 1, True, 1.0, "1", None, (1,), (1, 2), [1]])
def test_integers_take_nothing_else(bad: object) -> None:
    with pytest.raises(TimeShapeError, match="is not a time of this stream"):
        INTEGERS.check(bad)


@pytest.mark.parametrize(
    "bad", [0, (), (1,), (1, 2, 3), [1, 2], (1, -1), (1, True), (1, 2.0), (1, TIME_MAX + 1), None]
)
def test_pairs_take_pairs_only(bad: object) -> None:
    assert PAIRS.check((1, 2)) == (1, 2)
    with pytest.raises(TimeShapeError, match="a tuple of 2 integers"):
        PAIRS.check(bad)


@pytest.mark.parametrize("length", [-1, 17])
def test_tuples_have_a_sensible_length(length: int) -> None:
    with pytest.raises(TimeShapeError):
        TimeShape(length)


def test_product_order_is_not_the_order_of_python() -> None:
    assert (0, 3) < (1, 2)
    assert not PAIRS.leq((0, 3), (1, 2))
    assert not PAIRS.leq((1, 2), (0, 3))


@settings(deadline=None)
@given(st.data())
def test_order_join_and_bottom_agree_with_the_components(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    first, second = data.draw(times(shape)), data.draw(times(shape))
    assert shape.leq(first, second) == leq(first, second)
    joined = shape.join(first, second)
    assert leq(first, joined)
    assert leq(second, joined)
    assert all(
        leq(joined, other) for other in grid(shape) if leq(first, other) and leq(second, other)
    )
    assert leq(shape.bottom, first)


@settings(deadline=None)
@given(st.data())
def test_beyond_leaves_out_exactly_what_is_at_or_before(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    time = data.draw(times(shape, 4))
    beyond = shape.beyond(time)
    for other in grid(shape, 5):
        assert leq(other, time) == (not any(leq(step, other) for step in beyond))


@settings(deadline=None)
@given(st.data())
def test_a_time_survives_the_epoch_column(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    time = data.draw(times(shape))
    assert shape.from_row(shape.to_row(time)) == time


def test_a_row_of_another_shape_is_refused() -> None:
    for shape, row in ((INTEGERS, [1, 2]), (PAIRS, [1]), (PAIRS, []), (INTEGERS, [])):
        with pytest.raises(TimeShapeError):
            shape.from_row(row)
