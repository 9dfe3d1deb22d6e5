"""Batches of a Spark query: what is opened, bound, counted and settled, and by whom."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BatchFenced, CheckpointPutBackError, Fenced
from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core import spark_batches
from headrace.groups.readers.core.spark_batches import (
    PlannedSpan,
    SegmentView,
    SparkLine,
    SparkPlan,
    Taking,
    Views,
    bind,
    count,
    forget_opening,
    intersected,
    open_batch,
    plan_spans,
    settle,
    take_name,
)
from tests.groups.readers.core.helpers import seg

A, B = seg("a/0"), seg("a/1")
LIFE = 7


def view(*acked: tuple[int, int], owner: int | None = LIFE, token: int = 3) -> SegmentView:
    ranges = AckedRanges()
    for low, high in acked:
        ranges.ack_range(low, high)
    return SegmentView(owner, token, ranges)


def plan(*ranges: tuple[int, int], batch: str = "b1", number: int = 1) -> SparkPlan:
    return SparkPlan("line", batch, (PlannedSpan(A, ranges),), number)


def opened(views: Views, *ranges: tuple[int, int], line: SparkLine | None = None) -> SparkLine:
    return open_batch(line or SparkLine(), plan(*ranges), opening="o1", life=LIFE, views=views)


def spans(line: SparkLine) -> dict[str, spark_batches.SpanRanges]:
    assert line.opening is not None
    return {str(span.segment): span.ranges for span in line.opening.spans}


def test_docstring_examples_hold() -> None:
    assert doctest.testmod(spark_batches).failed == 0


def test_a_fresh_plan_is_opened_as_it_was_planned() -> None:
    line = opened({A: view((0, 2))}, (2, 5))
    assert spans(line) == {"a/0": ((2, 5),)}
    assert line.opening is not None
    assert line.opening.times == 1
    assert not line.opening.settled


@pytest.mark.parametrize(
    ("found", "left"),
    [
        (view((0, 3)), {"a/0": ((3, 5),)}),
        (view((0, 2), (3, 4)), {"a/0": ((2, 3), (4, 5))}),
        (view((0, 5)), {}),
        (view((0, 2), owner=9), {}),
        (view((0, 2), owner=None), {}),
        (view((0, 1)), {}),
        (view(), {}),
    ],
    ids=["partly done", "in parts", "done", "of others", "of nobody", "reset", "reset to 0"],
)
def test_a_replay_reads_what_is_left_and_only_in_order(
    found: SegmentView, left: dict[str, spark_batches.SpanRanges]
) -> None:
    assert spans(opened({A: found}, (2, 5))) == left


def test_what_was_counted_is_opened_with_nothing_whatever_was_reset() -> None:
    counted = forget_opening(SparkLine(None, counted="b1"))
    line = opened({A: view((0, 2))}, (2, 5), line=counted)
    assert spans(line) == {}
    assert line.opening is not None
    assert line.opening.settled


def test_a_task_of_a_replaced_opening_ends() -> None:
    views = {A: view((0, 2))}
    first = opened(views, (2, 5))
    second = open_batch(first, plan((2, 5)), opening="o2", life=LIFE, views=views)
    assert bind(second, "line", "o2").batch == "b1"
    for line in (second, SparkLine()):
        with pytest.raises(BatchFenced, match="another run"):
            bind(line, "line", "o1")


def test_a_batch_counts_once_with_its_acks() -> None:
    views = {A: view((0, 2))}
    line = opened(views, (2, 5))
    counted = count([bind(line, "line", "o1")], {"line": line}, None, {"line": views})
    assert counted.acks == {"line": {A: ((2, 5),)}}
    assert counted.lines["line"].counted == "b1"
    assert counted.batches == {"b1"}
    again = count([bind(line, "line", "o1")], counted.lines, counted.batches, {})
    assert (again.repeated, again.acks) == (True, {})
    assert count([], {}, counted.batches, {}).repeated


def test_an_older_batch_that_is_counted_late_does_not_hide_what_was_counted_after_it() -> None:
    """A driver slept since it had planned b1, which another opened empty and finished."""
    start, later = {A: view((0, 2))}, {A: view((0, 2), (5, 7))}
    first = open_batch(SparkLine(), plan((2, 5)), opening="o1", life=LIFE, views={})
    newer = plan((5, 7), batch="b2", number=2)
    second = open_batch(first, newer, opening="o2", life=LIFE, views={A: view((0, 5))})
    done = count([bind(second, "line", "o2")], {"line": second}, None, {"line": {A: view((0, 5))}})
    assert done.lines["line"].counted == "b2"

    reset = forget_opening(done.lines["line"])
    late = open_batch(reset, plan((2, 5)), opening="o3", life=LIFE, views=start)
    assert spans(late) == {"a/0": ((2, 5),)}
    counted = count([bind(late, "line", "o3")], {"line": late}, None, {"line": start})
    assert counted.acks == {"line": {A: ((2, 5),)}}
    assert counted.lines["line"].counted == "b2"

    replayed = open_batch(counted.lines["line"], newer, opening="o4", life=LIFE, views=later)
    assert spans(replayed) == {}
    again = count([bind(replayed, "line", "o4")], {"line": replayed}, done.batches, {})
    assert again.repeated


def test_a_number_that_was_counted_with_another_batch_is_a_checkpoint_put_back() -> None:
    views = {A: view((0, 2))}
    line = opened(views, (2, 5))
    with pytest.raises(CheckpointPutBackError, match="new checkpoint"):
        count([bind(line, "line", "o1")], {"line": line}, frozenset({"b0"}), {})


def test_a_counted_batch_that_is_open_again_is_a_checkpoint_put_back() -> None:
    """The group was reset to before it, and the checkpoint put back to where it was logged."""
    views = {A: view((0, 2))}
    later = forget_opening(SparkLine(None, counted="b2"))
    line = opened(views, (2, 5), line=later)
    with pytest.raises(CheckpointPutBackError):
        count([bind(line, "line", "o1")], {"line": line}, frozenset({"b1"}), {"line": views})


@pytest.mark.parametrize(
    "now",
    [view((0, 2), token=4), view((0, 2), owner=8), view((0, 2), owner=None), view((0, 3))],
    ids=["another token", "another life", "given up", "acked meanwhile"],
)
def test_what_changed_hands_is_fenced_and_nothing_counts(now: SegmentView) -> None:
    line = opened({A: view((0, 2))}, (2, 5))
    bound = bind(line, "line", "o1")
    with pytest.raises(Fenced, match="start the query again"):
        count([bound], {"line": line}, None, {"line": {A: now}})


def test_a_zombie_is_known_by_its_binding_after_its_opening_was_replaced() -> None:
    views = {A: view((0, 2))}
    first = opened(views, (2, 5))
    bound = bind(first, "line", "o1")
    second = open_batch(first, plan((2, 5)), opening="o2", life=LIFE, views=views)
    for line in (second, forget_opening(first)):
        with pytest.raises(BatchFenced):
            count([bound], {"line": line}, None, {"line": views})


def test_rows_that_were_read_in_another_job_are_refused() -> None:
    views = {A: view((0, 2))}
    line = opened(views, (2, 5))
    bound = bind(line, "line", "o1")
    with pytest.raises(BatchFenced, match="broadcast"):
        count([], {"line": line}, None, {}, elsewhere=[bound])
    replaced = open_batch(line, plan((2, 5)), opening="o2", life=LIFE, views=views)
    counted = count([], {"line": replaced}, None, {}, elsewhere=[bound])
    assert (counted.repeated, counted.acks) == (False, {})


def test_acks_that_are_taken_back_forget_what_is_open_of_that_segment_alone() -> None:
    line = opened({A: view((0, 2))}, (2, 5))
    assert forget_opening(line, (B,)) is line
    assert forget_opening(line, (A, B)).opening is None


@pytest.mark.parametrize("owner", [LIFE, None, 12])
def test_a_finished_batch_is_settled_if_nobody_had_its_segments_since(owner: int | None) -> None:
    line = opened({A: view((0, 2))}, (2, 5))
    now = {A: view((0, 2), owner=owner)}
    settled, acks = settle(line, "b1", mine=None, life=12, views=now)
    assert acks == {A: ((2, 5),)}
    assert settle(settled, "b1", mine=None, life=12, views=now)[1] == {}


def test_a_finished_batch_is_not_settled_for_another_run_nor_after_others() -> None:
    views = {A: view((0, 2))}
    first = opened(views, (2, 5))
    assert settle(first, "b1", mine="o9", life=LIFE, views=views)[1] == {}
    assert settle(first, "b0", mine=None, life=LIFE, views=views)[1] == {}
    for now in (view((0, 2), owner=99), view((0, 2), token=4)):
        assert settle(first, "b1", mine="o1", life=LIFE, views={A: now})[1] == {}
    views = {A: view((0, 3))}
    second = open_batch(first, plan((2, 5)), opening="o2", life=LIFE, views=views)
    assert settle(second, "b1", mine=None, life=LIFE, views=views)[1] == {}
    assert settle(second, "b1", mine="o2", life=LIFE, views=views)[1] == {A: ((3, 5),)}


def test_a_finished_batch_is_settled_if_every_run_that_opened_it_read_the_same() -> None:
    """Drivers are killed in it one after another, and nobody took over: its rows are out once."""
    views = {A: view((0, 2))}
    line = opened(views, (2, 5))
    for again in ("o2", "o3"):
        line = open_batch(line, plan((2, 5)), opening=again, life=LIFE, views=views)
    assert settle(line, "b1", mine=None, life=LIFE, views=views)[1] == {A: ((2, 5),)}
    less = open_batch(line, plan((2, 5)), opening="o4", life=LIFE, views={A: view((0, 3))})
    more = open_batch(less, plan((2, 5)), opening="o5", life=LIFE, views=views)
    for each in (less, more):
        assert settle(each, "b1", mine=None, life=LIFE, views=views)[1] == {}


def test_what_was_opened_before_a_reset_is_not_settled_for_whoever_opens_it_after() -> None:
    """Spark knows the batch as finished by the run before the reset; this one wrote nothing."""
    views = {A: view((0, 2))}
    line = forget_opening(opened(views, (2, 5)))
    again = open_batch(line, plan((2, 5)), opening="o2", life=LIFE, views=views)
    assert settle(again, "b1", mine=None, life=LIFE, views=views)[1] == {}
    assert settle(again, "b1", mine="o2", life=LIFE, views=views)[1] == {A: ((2, 5),)}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_older_plan_that_is_opened_late_is_not_settled_for_others(number: int) -> None:
    views = {A: view((0, 2))}
    newer = open_batch(
        SparkLine(), plan((2, 3), batch="b2", number=2), opening="o1", life=LIFE, views=views
    )
    late = open_batch(newer, plan((2, 5), number=number), opening="o2", life=LIFE, views=views)
    assert settle(late, "b1", mine=None, life=LIFE, views=views)[1] == {}


def test_a_process_takes_the_name_of_an_earlier_run_once() -> None:
    assert take_name(None, "line", "i1", took=True) is Taking.TAKE
    assert take_name(("line", "i1"), "line", "i1", took=True) is Taking.TAKE
    assert take_name(("line", "i0"), "line", "i1", took=False) is Taking.TAKE
    assert take_name(("line", "i2"), "line", "i1", took=True) is Taking.OVER
    assert take_name(("other", "i0"), "line", "i1", took=False) is Taking.WAIT


def test_the_lowest_that_is_missing_is_planned_first_and_nothing_of_what_rests() -> None:
    views = {A: view((0, 2), (4, 5)), B: view()}
    heads = {A: 9, B: 4}
    assert plan_spans(views, LIFE, heads, (), 3) == (
        PlannedSpan(A, ((2, 4), (5, 6))),
        PlannedSpan(B, ((0, 3),)),
    )
    assert plan_spans(views, LIFE, heads, (A,), 9) == (PlannedSpan(B, ((0, 4),)),)
    assert plan_spans(views, LIFE + 1, heads, (), 9) == ()


offsets = st.sets(st.integers(0, 30))


def to_ranges(some: set[int]) -> spark_batches.SpanRanges:
    found: list[tuple[int, int]] = []
    for offset in sorted(some):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)


@given(offsets, offsets)
def test_what_two_lists_of_ranges_have_in_common(some: set[int], others: set[int]) -> None:
    found = intersected(to_ranges(some), to_ranges(others))
    assert {o for low, high in found for o in range(low, high)} == some & others
