"""What the property tests of subjects draw from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import strategies as st

from headrace.subjects import SUBJECT_BYTES_MAX, columns, hashing

# Few letters, so that tokens meet; some of several bytes, and those that are special somewhere.
_LETTERS = "ab*>+#/%,$^[]()\\|é日😀"

tokens = st.text(st.sampled_from(_LETTERS), min_size=1, max_size=5).filter(
    lambda token: token not in {"*", ">"}
)
subjects = (
    st.lists(tokens, min_size=1, max_size=6)
    .map(".".join)
    .filter(lambda subject: len(subject.encode()) <= SUBJECT_BYTES_MAX)
)
filters = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]),
    st.lists(st.one_of(st.just("*"), st.sampled_from(["a", "b", "é"]), tokens), max_size=4),
    st.sampled_from([["a"], ["*"], [">"]]),
)
# Nearly subjects: dots, whitespace and wildcards in all places, and any other character.
_odd_chars = st.one_of(
    st.sampled_from("..aé*> \t\x00\x7f\x85\xa0\u2028\u3000\ufeff"), st.characters()
)
oddities = st.one_of(st.text(_odd_chars, max_size=8), subjects, st.text(st.characters()))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

_SHAPES = ("plain", "sliced", "large", "large sliced", "dictionary", "view", "chunked")


@st.composite
def shaped(draw: st.DrawFn, rows: list[str | None]) -> Any:
    """An Arrow column of these strings in one of the layouts that such columns come in."""
    match draw(st.sampled_from(_SHAPES)):
        case "plain":
            return pa.array(rows, pa.string())
        case "sliced":
            return pa.array(["before", None, *rows, "after"], pa.string()).slice(2, len(rows))
        case "large":
            return pa.array(rows, pa.large_string())
        case "large sliced":
            return pa.array(["x", *rows, None], pa.large_string()).slice(1, len(rows))
        case "dictionary":
            return pa.array(rows, pa.string()).dictionary_encode()
        case "view":
            return pa.array(rows, pa.string_view())
        case _:
            cut = draw(st.integers(0, len(rows)))
            parts = [pa.array(part, pa.string()) for part in (rows[:cut], rows[cut:], [])]
            return pa.chunked_array(parts)


@contextmanager
def tiny_blocks(rows: int, few: int = 0) -> Iterator[None]:
    """Cut columns into blocks of so few rows, and judge and hash only ``few`` one at a time."""
    with (
        mock.patch.object(columns, "BLOCK_ROWS", rows),
        mock.patch.object(hashing, "_FEW_ROWS", few),
    ):
        yield
