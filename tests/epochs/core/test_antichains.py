"""Antichains and counted ones against the plain definition."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.epochs import INTEGERS, PAIRS, Antichain, Time, TimeShape, counted
from headrace.epochs.core.active import ActiveEpochs
from headrace.epochs.core.antichains import check_frontier, join, leave_out, not_before
from headrace.errors import FrontierError, IllegalTimeError, TimeShapeError
from tests.epochs.core.support import SHAPES, grid, leq, maximal, minimal, shape_and_times, times


@settings(deadline=None)
@given(shape_and_times())
def test_a_minimal_antichain_is_the_minimal_ones_and_covers_what_follows(
    case: tuple[TimeShape, list[Time]],
) -> None:
    shape, given_times = case
    antichain = Antichain.minimal(shape, given_times)
    assert set(antichain.frontier) == minimal(given_times)
    assert len(antichain) == len(antichain.frontier)
    for time in grid(shape, 3):
        assert antichain.covers(time) == any(leq(held, time) for held in given_times)


@settings(deadline=None)
@given(shape_and_times())
def test_a_maximal_antichain_is_the_maximal_ones_and_covers_what_precedes(
    case: tuple[TimeShape, list[Time]],
) -> None:
    shape, given_times = case
    antichain = Antichain.maximal(shape, given_times)
    assert set(antichain.frontier) == maximal(given_times)
    for time in grid(shape, 3):
        assert antichain.covers(time) == any(leq(time, held) for held in given_times)


@settings(deadline=None)
@given(shape_and_times(min_size=1), st.data())
def test_insert_says_whether_anything_new_is_covered(
    case: tuple[TimeShape, list[Time]], data: st.DataObject
) -> None:
    shape, given_times = case
    antichain = Antichain.minimal(shape, given_times)
    time = data.draw(times(shape))
    known = antichain.covers(time)
    assert antichain.insert(time) != known
    assert antichain.covers(time)


def test_a_copy_stands_by_itself() -> None:
    first = Antichain.minimal(PAIRS, [(1, 0), (0, 2)])
    twin = first.copy()
    twin.remove((1, 0))
    assert first.frontier == ((0, 2), (1, 0))
    assert twin.frontier == ((0, 2),)
    assert twin.prune(lambda time: time != (0, 2))
    assert not twin.prune(lambda _: False)
    assert (0, 2) in first
    assert str(first) == "{(0, 2), (1, 0)}"


@settings(deadline=None)
@given(shape_and_times(max_size=4), st.data())
def test_joins_and_bounds_of_frontiers(
    case: tuple[TimeShape, list[Time]], data: st.DataObject
) -> None:
    shape, first = case
    second = data.draw(st.lists(times(shape), max_size=4))
    both = join(shape, first, second)
    without = leave_out(shape, first, second)
    low, high = Antichain.minimal(shape, first), Antichain.minimal(shape, second)
    cut = Antichain.maximal(shape, second)
    joined, left = Antichain.minimal(shape, both), Antichain.minimal(shape, without)
    for time in grid(shape, 4):
        assert joined.covers(time) == (low.covers(time) and high.covers(time))
        assert left.covers(time) == (low.covers(time) and not cut.covers(time))
    assert not_before(shape, first, second) == all(high.covers(time) for time in first)
    assert not_before(shape, both, first)


def test_a_frontier_of_the_wrong_shape_is_refused() -> None:
    assert check_frontier(INTEGERS, [5, 3]) == (3,)
    with pytest.raises(TimeShapeError):
        check_frontier(INTEGERS, [(3,)])


@settings(deadline=None)
@given(st.data())
def test_a_counted_antichain_shows_the_minimal_ones_of_its_multiset(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    held = counted(shape)
    truth: Counter[Time] = Counter()
    for _ in range(data.draw(st.integers(1, 12))):
        update = [(time, 1) for time in data.draw(st.lists(times(shape), max_size=3))]
        gone = data.draw(st.lists(st.sampled_from(sorted(truth)), max_size=3)) if truth else []
        gone = [time for time in set(gone) if truth[time]]
        update += [(time, -1) for time in gone]
        before = set(held.frontier)
        changes = held.update(update)
        for time, delta in update:
            truth[time] += delta
        truth += Counter()
        after = minimal(truth)
        assert set(held.frontier) == after
        assert held.counts == dict(truth)
        assert len(held) == len(truth)
        assert {time for time, delta in changes if delta < 0} == before - after
        assert {time for time, delta in changes if delta > 0} == after - before
        for time in grid(shape, 2):
            assert held.covers(time) == any(leq(low, time) for low in after)


@settings(deadline=None)
@given(st.data())
def test_an_update_is_legal_from_held_times_on_and_refused_whole(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    start = data.draw(st.lists(times(shape), min_size=1, max_size=4))
    held = counted(shape, start)
    update = data.draw(st.lists(st.tuples(times(shape), st.integers(-2, 2)), max_size=5))
    net: Counter[Time] = Counter()
    for time, delta in update:
        net[time] += delta
    before = dict(held.counts), held.frontier
    too_few = any(held.counts.get(time, 0) + delta < 0 for time, delta in net.items())
    back = any(
        delta > 0 and not any(leq(low, time) for low in start) for time, delta in net.items()
    )
    if too_few or back:
        with pytest.raises((FrontierError, IllegalTimeError)) as refused:
            held.update(update, forward=True)
        assert "lower frontier" in refused.value.state
        assert (dict(held.counts), held.frontier) == before
    else:
        held.update(update, forward=True)
        assert not_before(shape, held.frontier, before[1])


def test_an_exchange_is_one_step_and_hidden_changes_are_not_told() -> None:
    held = counted(INTEGERS, [0])
    assert held.update([(0, 1)]) == ()
    assert held.update([(0, -1)]) == ()
    assert held.update([(7, 1)]) == ()
    assert held.update([(0, -1), (3, 1)]) == ((0, -1), (3, 1))
    assert held.update([(3, -1)]) == ((3, -1), (7, 1))
    assert held.update([(7, -1)]) == ((7, -1),)
    assert held.frontier == ()


def test_integers_that_come_and_go_do_not_pile_up() -> None:
    held = counted(INTEGERS, [0])
    for number in range(10_000):
        held.update([(10 + number % 7, 1)])
        held.update([(10 + number % 7, -1)])
    assert len(held._heap) < 200  # type: ignore[attr-defined]
    assert held.frontier == (0,)


@settings(deadline=None)
@given(shape_and_times(max_size=12), st.data())
def test_active_epochs_are_given_up_when_a_frontier_leaves_them(
    case: tuple[TimeShape, list[Time]], data: st.DataObject
) -> None:
    shape, given_times = case
    active: ActiveEpochs[int] = ActiveEpochs(shape)
    for number, time in enumerate(given_times):
        active.put(time, number)
    for time in (
        data.draw(st.lists(st.sampled_from(given_times), unique=True)) if given_times else ()
    ):
        value = active.drop(time)
        if data.draw(st.booleans()):
            active.put(time, value)
    left = dict(active.items())
    frontier = Antichain.minimal(shape, data.draw(st.lists(times(shape), max_size=3)))
    expected = sorted(time for time in left if not frontier.covers(time))
    assert sorted(active.covered(frontier.frontier)) == sorted(set(left) - set(expected))
    assert active.completed(frontier.frontier) == expected
    assert active.take_completed(frontier.frontier) == [(time, left[time]) for time in expected]
    assert sorted(active) == sorted(set(left) - set(expected))
    assert active.completed(frontier.frontier) == []
