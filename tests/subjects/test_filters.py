from __future__ import annotations

import itertools
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidFilterError, InvalidInputError, InvalidNameError
from headrace.subjects import (
    check_filter,
    from_mqtt,
    match_array,
    matches,
    overlaps,
    parse_filter,
    parse_share,
    surely_match,
)
from tests.subjects.strategies import filters, shaped, subjects, tiny_blocks

pytestmark = pytest.mark.usefixtures("either_way")


def reference(filter: str, subject: str) -> bool:
    spelled = {"*": "[^.]+", ">": ".+"}
    pattern = r"\.".join(spelled.get(token, re.escape(token)) for token in filter.split("."))
    return re.fullmatch(pattern, subject) is not None


@pytest.mark.parametrize(
    ("filter", "subject", "passes"),
    [
        (">", "a", True),
        (">", "a.b.c", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "ab.c", False),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c.d", True),
        ("a.*", "a.b", True),
        ("a.*", "b.b", False),
        ("*.b", "a.b", True),
        ("a.b", "a.b", True),
        ("a.b", "a.bc", False),
        ("a.*x", "a.*x", True),
        ("a.*x", "a.bx", False),
        ("A", "a", False),
        ("*.é", "日.é", True),
    ],
)
def test_wildcards_stand_for_whole_tokens(filter: str, subject: str, passes: bool) -> None:
    assert matches(filter, subject) is passes
    assert match_array(filter, pa.array([subject, "zz.z"])).to_pylist()[0] is passes


@settings(deadline=None)
@given(filters, st.lists(subjects, max_size=5))
def test_what_surely_matches_does_match(filter: str, rows: list[str]) -> None:
    column = pa.array(rows, pa.string())
    if surely_match(filter, column):
        assert all(matches(filter, row) for row in rows)
    elif filter == ">" or (filter.endswith(".>") and "*" not in filter):
        assert not all(matches(filter, row) for row in rows)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 17])
def test_one_byte_that_differs_is_seen_wherever_it_is(size: int) -> None:
    prefix = "a" * size
    rows = [f"{prefix}.{row}" for row in range(20)]
    assert surely_match(f"{prefix}.>", pa.array(rows))
    for row in (0, 10, 19):
        for place in range(size + 1):
            other = rows[row][:place] + "b" + rows[row][place + 1 :]
            assert not surely_match(f"{prefix}.>", pa.array([*rows[:row], other, *rows[row + 1 :]]))


def test_a_null_or_a_token_that_ends_with_a_wildcard_never_surely_matches() -> None:
    assert not surely_match(">", pa.array(["a", None]))
    assert not surely_match("a.>", pa.array(["a.b", None]))
    assert not surely_match("a.b>", pa.array(["a.bc"]))
    assert surely_match("a.>", pa.chunked_array([["a.b"], ["a.c.d"]]))


@given(filters, subjects)
def test_matching_agrees_with_the_definition(filter: str, subject: str) -> None:
    assert matches(filter, subject) == reference(filter, subject)


@given(st.data(), filters, st.lists(st.none() | subjects, max_size=12), st.integers(1, 5))
def test_a_column_is_matched_like_its_rows(
    data: st.DataObject, filter: str, rows: list[str | None], block_rows: int
) -> None:
    column = data.draw(shaped(rows))
    with tiny_blocks(block_rows):
        passed = match_array(filter, column)
    assert isinstance(passed, pa.BooleanArray)
    assert passed.to_pylist() == [row is not None and matches(filter, row) for row in rows]


@given(subjects, st.data())
def test_a_subject_passes_every_filter_made_from_it(subject: str, data: st.DataObject) -> None:
    tokens = subject.split(".")
    stars = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    made = ["*" if star else token for token, star in zip(tokens, stars, strict=True)]
    cut = data.draw(st.integers(0, len(tokens) - 1))
    for filter in (".".join(made), ".".join([*made[:cut], ">"])):
        assert matches(filter, subject)
        assert match_array(filter, pa.array([subject])).to_pylist() == [True]


def test_a_column_without_rows_or_chunks_gives_no_rows() -> None:
    for column in (pa.array([], pa.string()), pa.chunked_array([], pa.string())):
        for filter in (">", "a", "a.>", "*.a"):
            assert match_array(filter, column).equals(pa.array([], pa.bool_()))


def test_a_column_of_another_type_cannot_be_matched() -> None:
    with pytest.raises(InvalidInputError, match="column of strings, not of int64"):
        match_array(">", pa.array([1]))


def test_overlap_is_exact_for_all_small_filters() -> None:
    names = [
        ".".join(tokens)
        for count in range(1, 5)
        for tokens in itertools.product("ab", repeat=count)
    ]
    small = [
        check_filter(".".join([*tokens, *rest]))
        for count in range(4)
        for tokens in itertools.product("ab*", repeat=count)
        for rest in ([], [">"])
        if tokens or rest
    ]
    passing = {filter: {name for name in names if matches(filter, name)} for filter in small}
    for a, b in itertools.product(small, repeat=2):
        assert overlaps(a, b) == bool(passing[a] & passing[b]), (a, b)


@given(filters, filters, subjects)
def test_filters_that_share_a_subject_overlap(a: str, b: str, subject: str) -> None:
    if matches(a, subject) and matches(b, subject):
        assert overlaps(a, b)
    assert overlaps(a, b) == overlaps(b, a)
    assert overlaps(a, a)


@pytest.mark.parametrize(
    ("mqtt", "ours"),
    [
        ("orders/eu/42", "orders.eu.42"),
        ("orders/+/new", "orders.*.new"),
        ("orders/#", "orders.>"),
        ("+/+/#", "*.*.>"),
        ("+", "*"),
        ("#", ">"),
        ("orders", "orders"),
        ("日本/a*b", "日本.a*b"),
    ],
)
def test_mqtt_filters_are_translated(mqtt: str, ours: str) -> None:
    assert from_mqtt(mqtt) == ours
    assert parse_filter(mqtt) == ours


@pytest.mark.parametrize(
    ("mqtt", "fault"),
    [
        ("", "level 1 is empty"),
        ("/a", "level 1 is empty"),
        ("a//b", "level 2 is empty"),
        ("a/", "level 2 is empty"),
        ("a/#/b", "level 2 is '#', which may only be the last"),
        ("a/b+/c", "level 2 has '+' or '#' beside other characters"),
        ("a/b#", "level 2 has '+' or '#' beside other characters"),
        ("a/*/b", "level 2 is '*'; MQTT writes '+' and '#'"),
        ("a/>", "level 2 is '>'; MQTT writes '+' and '#'"),
        ("a.b/c", "level 1 has a '.', which separates tokens here"),
        ("a /b", "whitespace and control characters are not allowed"),
        ("a/" * 64 + "a", "it has 65 tokens"),
        (7, "it must be a string"),
    ],
)
def test_malformed_mqtt_filters_are_refused(mqtt: str, fault: str) -> None:
    with pytest.raises(InvalidFilterError) as caught:
        from_mqtt(mqtt)
    assert fault in str(caught.value)


@pytest.mark.parametrize("filter", ["orders", "orders.*.>", "foo.a/b", ">", "*", "a.b+.c#", "a+b"])
def test_filters_in_our_spelling_stay_as_they_are(filter: str) -> None:
    assert parse_filter(filter) == filter


@pytest.mark.parametrize("text", ["orders.+", "orders.#", "a.b/#", "a.b/+/c", "+.a", "a/+.b"])
def test_filters_that_mix_the_spellings_are_refused(text: str) -> None:
    with pytest.raises(InvalidFilterError, match="it mixes"):
        parse_filter(text)


@pytest.mark.parametrize("text", ["", "a..b", "a.>.b", "a b", "a/*", None])
def test_malformed_filters_are_refused_in_either_spelling(text: str) -> None:
    with pytest.raises(InvalidFilterError):
        parse_filter(text)


@given(filters)
def test_a_filter_survives_being_spelled_for_mqtt(filter: str) -> None:
    tokens = filter.split(".")
    if not any(set(token) & set("+#/") for token in tokens):
        spelled = "/".join({"*": "+", ">": "#"}.get(token, token) for token in tokens)
        assert from_mqtt(spelled) == filter


@pytest.mark.parametrize("prefix", ["$share", "$shared", "$queue"])
@pytest.mark.parametrize("filter", ["orders.*.>", "orders/+/#"])
def test_shared_subscriptions_name_a_group_and_a_filter(prefix: str, filter: str) -> None:
    assert parse_share(f"{prefix}/audit/{filter}") == ("audit", "orders.*.>")


@pytest.mark.parametrize(
    "text", ["orders.>", "$share", "$shares/g/a", "$SYS/a", "x$share/g/a", "", 7]
)
def test_other_texts_are_not_shared_subscriptions(text: str) -> None:
    assert parse_share(text) is None


@pytest.mark.parametrize("text", ["$share/audit", "$queue/audit/", "$shared/audit//a"])
def test_a_shared_subscription_needs_a_filter(text: str) -> None:
    with pytest.raises(InvalidFilterError):
        parse_share(text)


@pytest.mark.parametrize("text", ["$share//a", "$share/", "$queue/a.b/c", "$shared/a b/c"])
def test_a_shared_subscription_needs_a_group_name(text: str) -> None:
    with pytest.raises(InvalidNameError, match="group name"):
        parse_share(text)
