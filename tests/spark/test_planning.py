"""What a batch reads: order through the graph of segments, limits, and parts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.catalog.streams import Segment
from headrace.errors import ForeignCheckpointError
from headrace.spark import planning
from headrace.spark.offsets import Offset, StreamAt, lag_events, parse
from headrace.spark.planning import Span


def segment(
    number: int, head: int, *, sealed: bool = False, after: tuple[int, ...] = (), tail: int = 0
) -> Segment:
    return Segment(number, number, 0, 1, head, tail, 0, 0, 0, 0, 1 if sealed else None, after, ())


SPLIT = [segment(0, 100, sealed=True), segment(1, 5, after=(0,)), segment(2, 7, after=(0,))]
MERGE = [
    segment(0, 10, sealed=True),
    segment(1, 20, sealed=True),
    segment(2, 3, after=(0, 1)),
]


def test_a_successor_waits_for_its_predecessor() -> None:
    assert planning.standing(SPLIT, {0: 99}).ready == {0: 99}
    assert planning.standing(SPLIT, {0: 99}).waiting == {1: 0, 2: 0}
    assert planning.standing(SPLIT, {0: 100}).ready == {1: 0, 2: 0}


def test_a_merged_segment_waits_for_all_its_predecessors() -> None:
    assert planning.standing(MERGE, {0: 10, 1: 5}).ready == {1: 5}
    assert planning.standing(MERGE, {0: 10, 1: 20}).ready == {2: 0}


def test_what_was_finished_and_dropped_is_not_read_again() -> None:
    assert planning.standing(MERGE, {1: 5, 2: 0}).ready == {1: 5}
    assert planning.standing(SPLIT, {1: 2, 2: 0}).ready == {1: 2, 2: 0}


def test_an_empty_sealed_segment_in_between_does_not_let_its_successor_pass() -> None:
    chain = [
        segment(0, 10, sealed=True),
        segment(1, 0, sealed=True, after=(0,)),
        segment(2, 4, after=(1,)),
    ]
    assert planning.standing(chain, {0: 9}).ready == {0: 9}
    assert planning.standing(chain, {0: 10}).ready == {2: 0}


def test_segments_before_the_start_are_not_read() -> None:
    assert planning.standing(SPLIT, {1: 1, 2: 2}).all == {1: 1, 2: 2}


def test_a_start_that_misses_an_open_segment_is_noticed() -> None:
    assert planning.uncovered(SPLIT, {1: 0}) == [2]
    assert planning.uncovered(SPLIT, {0: 0}) == []


def test_earliest_leaves_out_what_is_trimmed_and_sealed() -> None:
    trimmed = [segment(0, 10, sealed=True, tail=10), segment(1, 8, after=(0,), tail=3)]
    assert planning.earliest(trimmed) == {1: 3}
    assert planning.latest(SPLIT) == {1: 5, 2: 7}


@given(
    st.dictionaries(st.integers(0, 50), st.integers(0, 10_000), max_size=12),
    st.integers(1, 20_000),
)
def test_admission_takes_as_much_as_allowed_and_no_more(lags: dict[int, int], most: int) -> None:
    taken = planning.admit(lags, most)
    assert sum(taken.values()) == min(most, sum(lags.values()))
    assert all(0 < count <= lags[number] for number, count in taken.items())
    behind = [number for number, lag in lags.items() if lag]
    if most >= len(behind):
        assert set(taken) == set(behind), "nobody starves"


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000), st.integers(1, 1000)), max_size=6),
    st.integers(1, 50),
)
def test_cutting_keeps_every_offset_once(runs: list[tuple[int, int, int]], least: int) -> None:
    spans = [Span("s", number, start, start + count) for number, start, count in runs]
    parts = planning.cut(spans, least)
    assert [(p.segment, o) for p in parts for o in range(p.start, p.end)] == [
        (s.segment, o) for s in spans for o in range(s.start, s.end)
    ]
    total = sum(span.events for span in spans)
    assert len(parts) >= min(least // 2, total // 2)


@example([(0, 1)] * 9 + [(0, 11)], 4, 1)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40_000)), max_size=30),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_packing_keeps_spans_in_order_and_leaves_no_core_idle(
    runs: list[tuple[int, int]], least: int, cores: int
) -> None:
    spans = [Span("s", number, 0, count) for number, count in runs]
    tasks = planning.pack(spans, least, cores)
    assert [span for task in tasks for span in task] == spans
    assert all(tasks)
    assert len(tasks) >= min(len(spans), least)
    total = sum(span.events for span in spans)
    assert len(tasks) <= max(least, cores, -(-total // planning.TASK_EVENTS)) * 2 + 1


def test_equal_places_have_equal_text_whatever_the_order_of_their_keys() -> None:
    one = Offset(catalog="c", streams={"b": StreamAt(2, {10: 1, 9: 2}), "a": StreamAt(1, {0: 0})})
    other = Offset(catalog="c", streams={"a": StreamAt(1, {0: 0}), "b": StreamAt(2, {9: 2, 10: 1})})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert parse(json.loads(json.dumps(one.to_json()))) == other


@pytest.mark.parametrize("data", [{}, {"catalog": 1}, {"catalog": "c", "streams": {"s": 5}}])
def test_a_checkpoint_of_another_source_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ForeignCheckpointError, match="checkpointLocation"):
        parse(data)


def test_lag_counts_segments_that_were_not_met_yet() -> None:
    latest = Offset(catalog="c", streams={"s": StreamAt(1, {0: 10, 1: 5})})
    at = Offset(catalog="c", streams={"s": StreamAt(1, {0: 4})})
    assert lag_events(latest, at) == {("s", 0): 6, ("s", 1): 5}


def test_in_the_place_of_a_segment_that_is_gone_comes_what_followed_it() -> None:
    # 0 was split into 1 and 2; 0 and 2 are gone, with 3 in the place of 2, and 4 merges 1 and 3.
    left = [
        segment(1, 5, sealed=True),
        segment(3, 9, sealed=True, tail=2),
        segment(4, 1, after=(1, 3)),
    ]
    assert planning.without_gone(left, {1: 4, 2: 7}) == {1: 4, 3: 2}
    assert planning.without_gone(left, {0: 7}) == {1: 0, 3: 2}
    assert planning.without_gone(left, {4: 0}) == {4: 0}
    assert planning.standing(left, {1: 4, 3: 2}).waiting == {4: 0}
