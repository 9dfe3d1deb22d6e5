from __future__ import annotations

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    InvalidFilterError,
    InvalidInputError,
    InvalidNameError,
    InvalidSubjectError,
)
from headrace.subjects import (
    SUBJECT_BYTES_MAX,
    SUBJECT_TOKENS_MAX,
    check_filter,
    check_name,
    check_subject,
    first_invalid_subject,
)
from tests.subjects.strategies import filters, oddities, shaped, subjects, tiny_blocks

pytestmark = pytest.mark.usefixtures("either_way")

LONGEST = "a" * SUBJECT_BYTES_MAX
MOST_TOKENS = ".".join("ab" * (SUBJECT_TOKENS_MAX // 2))

GOOD_SUBJECTS = [
    "a",
    "orders.eu.42",
    "foo.a/b",
    "foo.100%",
    "foo.3,14",
    "foo.$SYSX",
    "foo.a*",
    "foo.>>",
    "**",
    "foo.*a.>b",
    "日本語.😀",
    "a\ufeffb",
    LONGEST,
    MOST_TOKENS,
    "é" * (SUBJECT_BYTES_MAX // 2),
]
BAD_SUBJECTS = [
    ("", "it is empty"),
    (".", "token 1 is empty"),
    (".a", "token 1 is empty"),
    ("a.", "token 2 is empty"),
    ("a..b", "token 2 is empty"),
    ("*", "token 1 is the wildcard '*'"),
    ("a.>", "token 2 is the wildcard '>'"),
    ("a.*.b", "token 2 is the wildcard '*'"),
    ("a b", "character 2 is ' '"),
    ("a.b\n", r"character 4 is '\n'"),
    ("\x00", r"character 1 is '\x00'"),
    ("a\x7f", r"character 2 is '\x7f'"),
    ("a\u3000b", r"character 2 is '\u3000'"),
    (LONGEST + "a", "it has 513 bytes, more than the 512 allowed"),
    ("é" * 257, "it has 514 bytes, more than the 512 allowed"),
    (MOST_TOKENS + ".c", "it has 65 tokens, more than the 64 allowed"),
]


def fault_of(subject: str) -> str | None:
    try:
        assert check_subject(subject) == subject
    except InvalidSubjectError as error:
        return str(error)
    return None


def unchecked(*rows: bytes) -> pa.Array:
    """A column of strings whose bytes nobody looked at."""
    raw = pa.array(rows, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


@pytest.mark.parametrize("name", ["a", "orders", "A-Z_09", "x" * 64])
def test_names_of_letters_digits_dash_and_underscore_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a.b", "a b", "é", "a\n", "a/b", 7, None, b"a"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="invalid stream name"):
        check_name(name, "stream name")


@pytest.mark.parametrize("subject", GOOD_SUBJECTS)
def test_well_formed_subjects_are_taken(subject: str) -> None:
    assert check_subject(subject) == subject
    assert first_invalid_subject(pa.array([subject])) is None


@pytest.mark.parametrize(("subject", "fault"), BAD_SUBJECTS)
def test_malformed_subjects_are_refused_with_the_reason(subject: str, fault: str) -> None:
    with pytest.raises(InvalidSubjectError) as caught:
        check_subject(subject)
    assert fault in str(caught.value)
    column = pa.array(["fine.subject"] * 40 + [subject])
    found = first_invalid_subject(column)
    assert found is not None
    assert found[0] == 40
    assert fault in found[1]


@pytest.mark.parametrize("subject", [None, 7, b"orders.eu", ["a"]])
def test_a_subject_must_be_a_string(subject: str) -> None:
    with pytest.raises(InvalidSubjectError, match="it must be a string"):
        check_subject(subject)


def test_a_lone_surrogate_is_refused_and_shown_escaped() -> None:
    with pytest.raises(InvalidSubjectError, match=r"'a\\ud800': it cannot be encoded"):
        check_subject("a\ud800")


def test_a_long_subject_is_shown_shortened() -> None:
    with pytest.raises(InvalidSubjectError) as caught:
        check_subject("q" * 100_000)
    assert "(100000 characters)" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_whitespace_and_control_characters_and_no_others_are_refused() -> None:
    chars = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    bad = [
        char
        for char in chars
        if char.isspace() or unicodedata.category(char) in {"Cc", "Zs", "Zl", "Zp"}
    ]
    good = sorted(set(chars) - set(bad))
    # One by one as far as characters are assigned, and the ends of planes; all of them in a column.
    alone = [char for char in chars if ord(char) < 0x33500 or ord(char) & 0xFFFF in (0, 0xFFFF)]
    assert [char for char in alone if fault_of(f"a{char}b") is not None] == bad
    assert first_invalid_subject(pa.array([f"a{char}b" for char in good])) is None
    with tiny_blocks(8):
        for char in bad:
            assert first_invalid_subject(pa.array([f"a{char}b"])) is not None


@pytest.mark.parametrize(
    "filter", [">", "*", "a.*", "a.>", "*.*.>", "a.*b.c", "a.>b.c", "a/b.*", *GOOD_SUBJECTS]
)
def test_well_formed_filters_are_taken(filter: str) -> None:
    assert check_filter(filter) == filter


@pytest.mark.parametrize(
    ("filter", "fault"),
    [
        (">.a", "'>' may only be the last token"),
        ("a.>.>", "'>' may only be the last token"),
        *[bad for bad in BAD_SUBJECTS if "wildcard" not in bad[1]],
    ],
)
def test_malformed_filters_are_refused_with_the_reason(filter: str, fault: str) -> None:
    with pytest.raises(InvalidFilterError) as caught:
        check_filter(filter)
    assert fault in str(caught.value)


def test_a_filter_must_be_a_string() -> None:
    with pytest.raises(InvalidFilterError, match="it must be a string"):
        check_filter(None)  # type: ignore[arg-type]


@given(filters)
def test_filters_of_the_strategy_are_well_formed(filter: str) -> None:
    assert check_filter(filter) == filter


@given(st.data(), st.lists(st.one_of(subjects, oddities), max_size=12), st.integers(1, 5))
def test_column_and_single_subject_agree(
    data: st.DataObject, rows: list[str], block_rows: int
) -> None:
    rows = [row for row in rows if not any("\ud800" <= char <= "\udfff" for char in row)]
    expected = next(
        ((row, fault) for row, fault in enumerate(map(fault_of, rows)) if fault is not None), None
    )
    column = data.draw(shaped(list(rows)))
    few = first_invalid_subject(column)
    with tiny_blocks(block_rows):
        many = first_invalid_subject(column)
    assert few == many
    if expected is None:
        assert few is None
    else:
        assert few is not None
        assert few[0] == expected[0]
        assert expected[1].endswith(few[1])


@pytest.mark.parametrize("padding", [0, 40])
def test_a_null_subject_is_refused_unless_an_earlier_one_is_bad(padding: int) -> None:
    fine = ["a"] * padding
    assert first_invalid_subject(pa.array([*fine, "a", None, ""])) == (padding + 1, "it is null")
    assert first_invalid_subject(pa.array([*fine, "", None])) == (padding, "it is empty")


@pytest.mark.parametrize("padding", [0, 40])
@pytest.mark.parametrize(
    "raw", [b"a\xff", b"\xc3", b"a.\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf"]
)
def test_bytes_that_are_not_utf8_are_refused(raw: bytes, padding: int) -> None:
    column = unchecked(*[b"fine"] * padding, raw, b"fine")
    assert first_invalid_subject(column) == (padding, "it is not valid UTF-8")


def test_empty_columns_have_no_fault() -> None:
    for column in (pa.array([], pa.string()), pa.chunked_array([], pa.string())):
        assert first_invalid_subject(column) is None


@pytest.mark.parametrize("column", [pa.array([1]), pa.array([b"a"]), pa.nulls(2)])
def test_a_column_of_another_type_is_refused(column: pa.Array) -> None:
    with pytest.raises(InvalidInputError, match="subjects must be a column of strings, not of"):
        first_invalid_subject(column)
