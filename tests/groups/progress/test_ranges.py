"""Acked ranges against a plain set of offsets, at their bounds, and at scale."""

from __future__ import annotations

import doctest
import itertools
import random
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidRangeError, ProgressDecodeError
from headrace.groups.progress import ranges as ranges_module
from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.groups.progress.ranges import AckedRanges

offsets = st.integers(0, 60)
spans = st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair)))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), offsets),
        st.tuples(st.just("range"), spans),
        st.tuples(st.just("many"), st.lists(offsets, max_size=20)),
        st.tuples(st.just("merge"), st.lists(spans, max_size=6)),
    ),
    max_size=25,
)


def content(acked: AckedRanges, hi: int = 70) -> set[int]:
    return {offset for offset in range(hi) if offset in acked}


def check_shape(acked: AckedRanges) -> None:
    """What must hold of the representation, whatever was done."""
    boundaries = [acked.floor, *(b for pair in acked.to_tuples() for b in pair)]
    assert all(a < b for a, b in itertools.pairwise(boundaries))
    assert acked.acked_above_floor == sum(hi - lo for lo, hi in acked.to_tuples())
    assert len(acked) == len(acked.to_tuples())
    assert acked.end == boundaries[-1]
    assert acked.floor not in acked


def test_docstring_example_holds() -> None:
    assert doctest.testmod(ranges_module).failed == 0


@given(st.integers(0, 5), operations, st.sampled_from([4, 1024]), st.booleans())
def test_behaves_as_a_set_of_offsets(
    floor: int, steps: list[tuple[str, object]], block: int, vectorised: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "_BLOCK_BOUNDARIES_MAX", block)
        if vectorised:
            patch.setattr(ranges_module, "_UNION_RANGES_MIN", 0)
        acked, model = AckedRanges(floor), set(range(floor))
        for name, argument in steps:
            before = len(model)
            match name, argument:
                case "ack", int(offset):
                    assert acked.ack(offset) is (offset not in model)
                    model.add(offset)
                case "range", (int(lo), int(hi)):
                    model |= set(range(lo, hi))
                    assert acked.ack_range(lo, hi) == len(model) - before
                case "many", list(items):
                    model |= set(items)
                    assert acked.ack_many(items) == len(model) - before
                case "merge", list(pairs):
                    other = AckedRanges()
                    for lo, hi in pairs:
                        other.ack_range(lo, hi)
                    model |= content(other)
                    assert acked.merge(other) == len(model) - before
            check_shape(acked)
            assert content(acked) == model
        gaps = {o for lo, hi in acked.missing(50) for o in range(lo, hi)}
        assert gaps == set(range(50)) - model
        assert AckedRanges.decode(acked.encode()) == acked
        assert AckedRanges.from_tuples(acked.floor, acked.to_tuples()) == acked


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_arbitrary_bytes_decode_to_themselves_or_are_refused(data: bytes) -> None:
    try:
        acked = AckedRanges.decode(data)
    except ProgressDecodeError:
        return
    check_shape(acked)
    assert AckedRanges.decode(acked.encode()) == acked


@pytest.mark.parametrize(
    "record",
    [
        (2, 0, []),
        (1, -1, []),
        (1, 2**63, []),
        (1, 0, [1]),
        (1, 0, [0, 1]),
        (1, 0, [1, -1]),
        (1, 0, [1, 0]),
        (1, 5, [2**63 - 6, 2]),
        (1, 0, [2**64 - 1, 2**64 - 1]),
        (1, 0),
        "text",
    ],
)
def test_records_out_of_bounds_are_refused(record: object) -> None:
    with pytest.raises(ProgressDecodeError):
        AckedRanges.decode(msgspec.msgpack.encode(record))


def test_truncated_records_are_refused() -> None:
    acked = AckedRanges.from_tuples(3, [(5, 9), (100, 100_000)])
    data = acked.encode()
    for cut in range(len(data)):
        with pytest.raises(ProgressDecodeError):
            AckedRanges.decode(data[:cut])


@pytest.mark.parametrize(("lo", "hi"), [(-1, 3), (5, 4), (0, OFFSET_MAX + 1)])
def test_impossible_ranges_are_refused_and_change_nothing(lo: int, hi: int) -> None:
    acked = AckedRanges.from_tuples(3, [(5, 9)])
    with pytest.raises(InvalidRangeError):
        acked.ack_range(lo, hi)
    with pytest.raises(InvalidRangeError):
        acked.ack_many([1, -1])
    assert acked == AckedRanges.from_tuples(3, [(5, 9)])


@pytest.mark.parametrize(
    "ranges",
    [[(3, 5)], [(2, 5)], [(6, 6)], [(9, 5)], [(5, 7), (7, 9)], [(5, 2**63)], [(8, 9), (5, 6)]],
)
def test_tuples_that_this_class_cannot_have_written_are_refused(
    ranges: list[tuple[int, int]],
) -> None:
    with pytest.raises(InvalidRangeError):
        AckedRanges.from_tuples(3, ranges)


def test_copy_is_independent() -> None:
    acked = AckedRanges.from_tuples(3, [(5, 9)])
    twin = acked.copy()
    twin.ack_range(3, 5)
    assert acked.floor == 3
    assert twin.floor == 9


def test_a_million_ranges_stay_quick() -> None:
    count = 1_000_000
    acked = AckedRanges()
    acked.ack_many(np.arange(1, 2 * count, 2, dtype=np.int64))
    assert len(acked) == count
    picks = random.Random(1).sample(range(0, 2 * count, 2), 20_000)
    started = time.thread_time()
    for offset in picks:
        assert acked.ack(offset)
    singles_s = time.thread_time() - started
    # Flat lists would move sixteen megabytes per call: 20,000 of them take tens of seconds.
    assert singles_s < 2.0
    assert AckedRanges.decode(acked.encode()) == acked
    acked.ack_range(0, 2 * count)
    assert (acked.floor, len(acked)) == (2 * count, 0)


def test_many_offsets_are_looked_up_as_one_is() -> None:
    rng = random.Random(5)
    acked = AckedRanges(floor=40)
    for _ in range(6_000):
        lo = rng.randrange(60_000)
        acked.ack_range(lo, lo + rng.randrange(1, 4))
    assert len(acked) > 3_000
    for _ in range(50):
        first = rng.randrange(60_100)
        wanted = np.sort(np.array([rng.randrange(first, first + 3_000) for _ in range(200)]))
        assert acked.contains_many(wanted).tolist() == [int(each) in acked for each in wanted]
    assert acked.contains_many(np.array([], dtype=np.int64)).tolist() == []
    assert acked.contains_many(np.array([-1, 0, 39])).tolist() == [False, True, True]


def test_a_look_at_a_few_offsets_costs_the_same_beside_any_number_of_ranges() -> None:
    """Every batch that was read took the ranges of the whole segment into an array."""
    acked = AckedRanges.from_tuples(0, tuple((2 * n + 1, 2 * n + 2) for n in range(200_000)))
    wanted = np.arange(100_000, 100_500)
    looked = acked._bounds(100_000, 100_499)
    assert len(looked) < 4_000
    assert acked.contains_many(wanted).tolist() == [bool(n % 2) for n in range(500)]
