from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInputError, InvalidPartitioningError, SubjectMismatchError
from headrace.subjects import (
    PARTITIONS_MAX,
    columns,
    key_hash,
    key_hash_array,
    matches,
    partition,
    partition_array,
    route_hash,
    route_hash_array,
)
from tests.subjects.strategies import filters, shaped, subjects, texts, tiny_blocks, tokens

pytestmark = pytest.mark.usefixtures("either_way")

FNV1A = {"": 0x811C9DC5, "a": 0xE40C292C, "foobar": 0xBF9CF968}


def fnv1a(text: str) -> int:
    state = FNV1A[""]
    for byte in text.encode():
        state = (state ^ byte) * 16777619 % 2**32
    return state


# --- golden values -------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [case for case in FNV1A.items() if case[0]])
def test_partitions_are_fnv1a_of_the_bytes(text: str, expected: int) -> None:
    for count in (1, 2, 7, 1024, PARTITIONS_MAX):
        assert partition(text, ">", [], count) == expected % count
        assert partition_array(pa.array([text] * 50), ">", [], count).tolist() == (
            [expected % count] * 50
        )


@pytest.mark.parametrize(
    ("key", "expected"),
    [("", 0xAB3E7C0B), ("a", 0x1A80B1B3), ("foobar", 0x0C0DA6DC), ("日本", 0xF004911F)],
)
def test_key_hashes_never_change(key: str, expected: int) -> None:
    """Stored segments own ranges of these numbers: another hash would break key order."""
    assert key_hash(key) == expected
    assert key_hash(key.encode()) == expected
    for rows in (1, 100):
        assert key_hash_array(pa.array([key] * rows)).tolist() == [expected] * rows
        assert key_hash_array(pa.array([key.encode()] * rows)).tolist() == [expected] * rows


# --- partitions ----------------------------------------------------------------------------


def test_wildcard_tokens_are_joined_in_the_order_given() -> None:
    assert partition("x.ab.c", "x.*.*", [1, 2], 9973) == fnv1a("abc") % 9973
    assert partition("x.ab.c", "x.*.*", [2, 1], 9973) == fnv1a("cab") % 9973
    assert partition("x.ab.c", "x.*.*", [2], 9973) == fnv1a("c") % 9973
    assert partition("x.ab.c", "x.*.*", [], 9973) == fnv1a("x.ab.c") % 9973
    assert partition("x.ab.c.d", "x.*.>", [1], 9973) == fnv1a("ab") % 9973


@st.composite
def partitioned(draw: st.DrawFn) -> tuple[str, list[int], list[str]]:
    """A filter, wildcard numbers, and subjects that pass the filter."""
    filter = draw(filters)
    wanted = filter.split(".")
    stars = wanted.count("*")
    wildcards = draw(st.lists(st.integers(1, stars), max_size=3)) if stars else []
    fillers = {"*": tokens, ">": st.lists(tokens, min_size=1, max_size=3).map(".".join)}
    one = st.tuples(*[fillers.get(token, st.just(token)) for token in wanted]).map(".".join)
    return filter, wildcards, draw(st.lists(one, max_size=12))


@given(st.data(), partitioned(), st.integers(1, PARTITIONS_MAX), st.integers(1, 5))
def test_a_column_is_partitioned_like_its_rows(
    data: st.DataObject,
    given: tuple[str, list[int], list[str]],
    partitions: int,
    block_rows: int,
) -> None:
    filter, wildcards, rows = given
    expected = [partition(row, filter, wildcards, partitions) for row in rows]
    column = data.draw(shaped(list(rows)))
    assert partition_array(column, filter, wildcards, partitions).tolist() == expected
    with tiny_blocks(block_rows):
        assert partition_array(column, filter, wildcards, partitions).tolist() == expected


@given(filters, st.lists(subjects, min_size=1, max_size=8), st.integers(1, 3))
def test_the_first_row_that_does_not_pass_is_named(
    filter: str, rows: list[str], block_rows: int
) -> None:
    wildcards = [1] if "*" in filter.split(".") else []
    failing = [row for row, subject in enumerate(rows) if not matches(filter, subject)]
    with tiny_blocks(block_rows):
        if not failing:
            assert len(partition_array(pa.array(rows), filter, wildcards, 4)) == len(rows)
            return
        with pytest.raises(SubjectMismatchError) as caught:
            partition_array(pa.array(rows), filter, wildcards, 4)
    assert caught.value.subject == rows[failing[0]]
    assert caught.value.filter == filter
    assert f"of row {failing[0]} does not pass filter" in str(caught.value)


def test_a_subject_outside_the_filter_has_no_partition() -> None:
    with pytest.raises(SubjectMismatchError, match=r"subject 'a\.b' does not pass filter 'x\.\*'"):
        partition("a.b", "x.*", [1], 4)


@pytest.mark.parametrize("number", [0, -1, 3])
def test_wildcard_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(InvalidPartitioningError, match=f"invalid wildcard number {number} "):
        partition("x.a.b", "x.*.*", [1, number], 4)
    with pytest.raises(InvalidPartitioningError, match=r"it has 2 '\*', numbered from 1"):
        partition_array(pa.array([], pa.string()), "x.*.*", [number], 4)


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
def test_numbers_of_partitions_out_of_range_are_refused(partitions: int) -> None:
    with pytest.raises(InvalidPartitioningError, match="invalid number of partitions"):
        partition("a", ">", [], partitions)
    with pytest.raises(InvalidPartitioningError, match="invalid number of partitions"):
        partition_array(pa.array(["a"]), ">", [], partitions)


# --- key hashes ----------------------------------------------------------------------------


@given(st.data(), st.lists(texts, max_size=12), st.integers(1, 5))
def test_a_column_of_keys_is_hashed_like_its_rows(
    data: st.DataObject, rows: list[str], block_rows: int
) -> None:
    expected = [key_hash(row) for row in rows]
    column = data.draw(shaped(list(rows)))
    assert key_hash_array(column).tolist() == expected
    with tiny_blocks(block_rows):
        hashes = key_hash_array(column)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == expected


@given(st.lists(st.binary(max_size=9), max_size=20), st.integers(1, 9), st.integers(0, 3))
def test_a_column_of_bytes_is_hashed_like_its_rows(
    rows: list[bytes], block_rows: int, few: int
) -> None:
    expected = [key_hash(row) for row in rows]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        with tiny_blocks(block_rows, few):
            assert key_hash_array(pa.array(rows, kind)).tolist() == expected


@given(
    st.data(),
    st.lists(st.tuples(st.none() | texts, subjects), max_size=12),
    st.lists(st.integers(1, 7), max_size=3),
    st.integers(1, 5),
)
def test_events_are_routed_in_a_column_as_one_at_a_time(
    data: st.DataObject,
    events: list[tuple[str | None, str]],
    key_tokens: list[int],
    block_rows: int,
) -> None:
    expected = [route_hash(key, subject, key_tokens) for key, subject in events]
    keys = data.draw(shaped([key for key, _ in events]))
    names = data.draw(shaped([subject for _, subject in events]))
    assert route_hash_array(keys, names, key_tokens).tolist() == expected
    with tiny_blocks(block_rows):
        hashes = route_hash_array(keys, names, key_tokens)
        by_subject = route_hash_array(None, names, key_tokens)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == expected
    assert by_subject.tolist() == [route_hash(None, subject, key_tokens) for _, subject in events]


def test_an_event_is_routed_by_key_else_by_chosen_tokens_else_by_subject() -> None:
    assert route_hash("k", "a.b.c", [2]) == key_hash("k")
    assert route_hash("", "a.b.c") == key_hash("")
    assert route_hash(None, "a.b.c") == key_hash("a.b.c")
    assert route_hash(None, "a.b.c", [3, 1]) == key_hash("c.a")
    assert route_hash(None, "a.b.c", [9, 2]) == key_hash("b")
    assert route_hash(None, "a.b.c", [9]) == key_hash("a.b.c")


@pytest.mark.parametrize("number", [0, -2])
def test_key_tokens_are_numbered_from_1(number: int) -> None:
    with pytest.raises(InvalidInputError, match=f"invalid key token {number}"):
        route_hash(None, "a.b", [1, number])
    with pytest.raises(InvalidInputError, match=f"invalid key token {number}"):
        route_hash_array(None, pa.array(["a.b"]), [number])


def test_as_many_keys_as_subjects_are_needed() -> None:
    with pytest.raises(InvalidInputError, match="2 keys for 1 subjects"):
        route_hash_array(pa.array(["a", "b"]), pa.array(["s"]))
    with pytest.raises(InvalidInputError, match="2 keys for 1 subjects"):
        route_hash_array(pa.array([None, None], pa.string()), pa.array(["s"]))


def test_a_column_of_no_keys_at_all_may_have_no_type() -> None:
    names = pa.array(["a.b", "c"])
    assert route_hash_array(pa.nulls(2), names).tolist() == [key_hash("a.b"), key_hash("c")]


def test_nulls_inside_a_dictionary_are_seen() -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["k", None]))
    names = pa.array(["a.b", "c"])
    assert route_hash_array(keys, names).tolist() == [key_hash("k"), key_hash("c")]


NULLS = pa.chunked_array([pa.array(["a", "b"]), pa.array(["c", None])])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: key_hash_array(NULLS), "row 3 has no key"),
        (lambda: route_hash_array(None, NULLS, [1]), "row 3 has no subject"),
        (lambda: route_hash_array(None, NULLS), "row 3 has no subject"),
        (lambda: partition_array(NULLS, ">", [], 4), "row 3 has no subject"),
        (lambda: partition_array(NULLS, "*", [1], 4), "row 3 has no subject"),
    ],
)
def test_null_cannot_be_hashed(call: Callable[[], object], what: str) -> None:
    with pytest.raises(InvalidInputError, match=what):
        call()


def test_columns_of_another_type_cannot_be_hashed() -> None:
    numbers = pa.array([1, 2])
    with pytest.raises(InvalidInputError, match="keys must be a column of strings or bytes"):
        key_hash_array(numbers)
    with pytest.raises(InvalidInputError, match="subjects must be a column of strings"):
        route_hash_array(None, numbers)
    with pytest.raises(InvalidInputError, match="subjects must be a column of strings"):
        partition_array(numbers, ">", [], 4)


def test_rows_of_very_different_length_over_several_blocks_are_hashed_alike() -> None:
    chance = random.Random(5)
    rows = columns.BLOCK_ROWS * 2 + 17
    keys = [chance.choice("abcé") * int(chance.expovariate(0.1)) for _ in range(rows)]
    for row in chance.sample(range(rows), 40):
        keys[row] = "long" * chance.randrange(1000)
    keys[7] = "x" * 100_000
    assert key_hash_array(pa.array(keys)).tolist() == [key_hash(key) for key in keys]


# --- evenness ------------------------------------------------------------------------------

KEY_SHAPES: dict[str, Callable[[int], str]] = {
    "numbers": str,
    "padded numbers": "{:08d}".format,
    "customers": "customer-{}".format,
    "subjects": lambda number: f"orders.{'eu' if number % 2 else 'us'}.{number // 2}",
    "even numbers": lambda number: str(number * 2),
    "hex": lambda number: f"{number * 2654435761 % 2**32:08x}",
}


@pytest.mark.parametrize("shape", KEY_SHAPES)
@pytest.mark.parametrize("ranges", [4, 64, 1000])
def test_ranges_of_key_hashes_are_even(shape: str, ranges: int) -> None:
    count = 100_000
    hashes = key_hash_array(pa.array([KEY_SHAPES[shape](number) for number in range(count)]))
    held = np.bincount(hashes.astype(np.int64) * ranges >> 32, minlength=ranges)
    # Chi-squared has mean ranges - 1 and variance twice that; chance stays within 5 deviations.
    chi_squared = float(((held - count / ranges) ** 2).sum() / (count / ranges))
    assert abs(chi_squared - (ranges - 1)) < 5 * (2 * (ranges - 1)) ** 0.5
