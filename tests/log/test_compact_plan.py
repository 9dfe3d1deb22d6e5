"""Which batches become a file: a pure plan."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.batches import Piece
from headrace.catalog.streams import Consumed, Groups, Limits, Retention, Stream, StreamConfig
from headrace.errors import InvalidConfigError
from headrace.log.compact import runs
from headrace.log.compact_policy import CompactionPolicy, check_policy, within_retention

NOW_US = 10**15
MiB = 1 << 20
POLICY = CompactionPolicy(target_bytes=64 * MiB, min_batches=4, min_age_s=0)


def pieces(
    *sizes: int, rows: int = 10, age_s: int = 3600, gap_at: int | None = None
) -> list[Piece]:
    found, start, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at == gap_at:
            start += 1
        total += size
        created_us = NOW_US - age_s * 1_000_000 + at
        path = f"{at}.parquet" if size > MiB else None
        found.append(Piece(start, start + rows, size, total, 0, created_us, 11, at, path))
        start += rows
    return found


def sizes(found: list[tuple[Piece, ...]]) -> list[list[int]]:
    return [[piece.size_bytes for piece in run] for run in found]


def plan(given: list[Piece], policy: CompactionPolicy = POLICY, **more: object) -> list[list[int]]:
    return sizes(list(runs(policy, given, NOW_US, **more)))  # type: ignore[arg-type]


def test_small_neighbours_are_joined() -> None:
    assert plan(pieces(1, 1, 1, 1, 1)) == [[1] * 5]


def test_too_few_are_left_alone() -> None:
    assert plan(pieces(1, 1, 1)) == []


def test_a_few_that_fill_half_a_file_are_joined() -> None:
    assert plan(pieces(20 * MiB, 20 * MiB)) == [[20 * MiB] * 2]


def test_the_rest_of_a_sealed_segment_is_joined() -> None:
    assert plan(pieces(1, 1, 1), complete=True) == [[1] * 3]


def test_young_batches_are_left_alone() -> None:
    policy = CompactionPolicy(min_batches=2, min_age_s=60)
    assert plan(pieces(1, 1, age_s=61) + pieces(1, 1, age_s=59), policy) == [[1, 1]]


def test_large_batches_part_the_runs() -> None:
    large = 32 * MiB
    assert plan(pieces(1, 1, 1, 1, large, 2, 2, 2, 2)) == [[1] * 4, [2] * 4]


def test_a_missing_batch_parts_the_runs() -> None:
    assert plan(pieces(*[1] * 8, gap_at=4)) == [[1] * 4, [1] * 4]


def test_a_damaged_batch_parts_the_runs() -> None:
    assert plan(pieces(*[1] * 9), avoid={40}) == [[1] * 4, [1] * 4]


def test_a_run_ends_at_the_target() -> None:
    assert plan(pieces(*[30 * MiB] * 5)) == [[30 * MiB] * 2] * 2


def test_a_commit_frees_a_bounded_part_of_the_catalog() -> None:
    assert plan(pieces(*[MiB] * 40)) == [[MiB] * 16, [MiB] * 16, [MiB] * 8]


def test_a_batch_that_outweighs_the_others_is_not_rewritten_for_them() -> None:
    assert plan(pieces(30, 1, 1, 1, 1)) == [[1] * 4]
    assert plan(pieces(1, 1, 1, 30)) == []
    assert plan(pieces(9, 4, 2, 2)) == [[9, 4, 2, 2]]
    assert plan(pieces(20, 4, 2, 2)) == []


def test_a_file_holds_what_was_appended_within_its_span() -> None:
    policy = CompactionPolicy(min_batches=2, min_age_s=0, span_s=100)
    given = pieces(1, 1, age_s=400) + pieces(1, 1, age_s=200)
    given = [
        Piece(10 * at, 10 * at + 10, 1, at, 0, piece.created_us, 11, at, None)
        for at, piece in enumerate(given)
    ]
    assert plan(given, policy) == [[1, 1], [1, 1]]


def stream(retention: Retention) -> Stream:
    return Stream(1, "s", StreamConfig(subjects=("s.>",), retention=retention), 0, ())


def test_files_stay_small_beside_what_retention_keeps() -> None:
    policy = CompactionPolicy()
    assert within_retention(policy, stream(Consumed())) == (policy, 8_000_000)
    most = Limits(age_s=1000, bytes=MiB, events=500)
    for retention in (most, Groups(cap=most)):
        bound, events_max = within_retention(policy, stream(retention))
        assert (bound.span_s, bound.target_bytes, events_max) == (100, MiB // 10, 50)
    assert plan(pieces(*[1] * 10), events_max=50) == [[1] * 5, [1] * 5]


def test_a_policy_out_of_bounds_is_refused() -> None:
    for wrong in ({"target_bytes": 5}, {"min_batches": 1}, {"min_age_s": -1}, {"span_s": 0}):
        with pytest.raises(InvalidConfigError, match=next(iter(wrong))):
            check_policy(CompactionPolicy(**wrong))


@given(st.lists(st.integers(1, 70 * MiB), max_size=60), st.integers(2, 9), st.booleans(), st.data())
def test_runs_are_dense_bounded_and_in_order(
    given_sizes: list[int], min_batches: int, complete: bool, data: st.DataObject
) -> None:
    gap_at = data.draw(st.none() | st.integers(0, len(given_sizes)))
    given_pieces = pieces(*given_sizes, gap_at=gap_at)
    policy = CompactionPolicy(target_bytes=64 * MiB, min_batches=min_batches, min_age_s=0)
    last_end = 0
    for run in runs(policy, given_pieces, NOW_US, complete=complete):
        assert len(run) >= 2
        assert run[0].start >= last_end
        assert all(one.end == two.start for one, two in pairwise(run))
        assert sum(piece.size_bytes for piece in run) <= policy.target_bytes
        assert all(piece in given_pieces for piece in run)
        last_end = run[-1].end


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=400))
def test_an_event_is_rewritten_a_bounded_number_of_times(arrivals: list[int]) -> None:
    """Each batch that arrives is followed by a compaction, and files keep their size."""
    policy = CompactionPolicy(target_bytes=1 << 20, min_batches=2, min_age_s=0)
    held: list[Piece] = []
    rewritten = 0
    for at, size in enumerate(arrivals):
        held.append(Piece(at, at + 1, size, 0, 0, 0, 11, at, None))
        for run in list(runs(policy, held, NOW_US)):
            total = sum(piece.size_bytes for piece in run)
            rewritten += total
            joined = Piece(run[0].start, run[-1].end, total, 0, 0, 0, 11, 0, "f")
            first = held.index(run[0])
            held[first : first + len(run)] = [joined]
    assert rewritten <= sum(arrivals) * 2 * (sum(arrivals).bit_length() + 1)
