"""What a well-formed name, subject or filter is, one at a time and for a whole column.

Theory of operation.  A subject is one or more tokens joined by dots.  A token is one or more
characters that are neither whitespace nor control characters, and is not exactly ``*`` or ``>``
(inside a longer token both are ordinary characters).  A filter is the same, except that a token
may be exactly ``*`` (one token) or, as the last one, ``>`` (one or more tokens).  Length is
bounded in bytes of UTF-8, because that is what is stored and hashed.

A column is judged in two steps.  Plain passes over its bytes (one, where that is compiled) accept
ASCII subjects without any ``*`` or ``>``, which is nearly every block there is.  All other blocks
are matched by one regular expression, and a row that fails is explained by the same function that
explains a single subject: the two never disagree.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from headrace import compiled
from headrace.errors import (
    InvalidFilterError,
    InvalidNameError,
    InvalidSubjectError,
)
from headrace.subjects.columns import DOT, NARROW, Block, blocks, largest, smallest, text_chunks

SUBJECT_BYTES_MAX = 512
SUBJECT_TOKENS_MAX = 64
SUBJECT_PLAIN_BYTES = 2 * SUBJECT_TOKENS_MAX
"""A subject up to this length cannot have too many tokens, as long as none of them is empty."""
NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"

_SHOWN_CHARS_MAX = 60
# Below this many rows the passes over a column cost more than judging each row.
_FEW_ROWS = 16

# Control characters (C0, DEL, C1) and every character that Unicode calls whitespace.
_FORBIDDEN_RANGES = (
    (0x00, 0x20),
    (0x7F, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)
_FORBIDDEN = "".join(rf"\U{low:08x}-\U{high:08x}" for low, high in _FORBIDDEN_RANGES)
_FORBIDDEN_RE2 = "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in _FORBIDDEN_RANGES)

_name = re.compile(NAME_PATTERN)
_forbidden_char = re.compile(f"[{_FORBIDDEN}]")
# RE2 (Arrow) and Python agree on this one, but spell code points differently.
_SUBJECT = r"(?:[^.*>{0}][^.{0}]*|[*>][^.{0}]+)(?:\.(?:[^.*>{0}][^.{0}]*|[*>][^.{0}]+))*"
_subject = re.compile(_SUBJECT.format(_FORBIDDEN))
_SUBJECT_RE2 = r"\A" + _SUBJECT.format(_FORBIDDEN_RE2 + r"\x{d800}-\x{dfff}") + r"\z"


def shown(value: object) -> str:
    """A value as an error message shows it: quoted, and cut when it is long."""
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    if len(value) <= _SHOWN_CHARS_MAX:
        return repr(value)
    return f"{value[:_SHOWN_CHARS_MAX]!r}... ({len(value)} characters)"


def check_name(name: str, what: str = "name") -> str:
    """Return the name of a stream, group, member or the like, or raise InvalidNameError."""
    if isinstance(name, str) and _name.fullmatch(name):
        return name
    raise InvalidNameError(
        f"invalid {what} {shown(name)}: use 1 to 64 of the characters A-Z a-z 0-9 _ -"
    )


def check_subject(subject: str) -> str:
    """Return the subject, or raise InvalidSubjectError saying what is wrong with it."""
    fault = _subject_fault(subject)
    if fault is None:
        return subject
    raise InvalidSubjectError(f"invalid subject {shown(subject)}: {fault}")


def check_filter(filter: str) -> str:
    """Return the filter, or raise InvalidFilterError saying what is wrong with it."""
    fault = _text_fault(filter)
    if fault is None:
        tokens = filter.split(".")
        if ">" in tokens[:-1]:
            fault = "'>' may only be the last token"
        else:
            return filter
    raise InvalidFilterError(f"invalid filter {shown(filter)}: {fault}")


def _subject_fault(subject: str) -> str | None:
    if (
        isinstance(subject, str)
        and len(subject) <= SUBJECT_PLAIN_BYTES
        and subject.isascii()
        and _subject.fullmatch(subject)
    ):
        return None
    fault = _text_fault(subject)
    if fault is not None:
        return fault
    for number, token in enumerate(subject.split("."), 1):
        if token in {"*", ">"}:
            return f"token {number} is the wildcard {token!r}, which only a filter may have"
    return None


def _text_fault(text: str) -> str | None:
    """What is wrong with a text as a filter, apart from the place of its wildcards."""
    if not isinstance(text, str):
        return "it must be a string"
    if not text:
        return "it is empty"
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        return "it cannot be encoded as UTF-8"
    if size_bytes > SUBJECT_BYTES_MAX:
        return f"it has {size_bytes} bytes, more than the {SUBJECT_BYTES_MAX} allowed"
    bad = _forbidden_char.search(text)
    if bad is not None:
        return (
            f"character {bad.start() + 1} is {bad.group()!a}; "
            "whitespace and control characters are not allowed"
        )
    tokens = text.split(".")
    if len(tokens) > SUBJECT_TOKENS_MAX:
        return f"it has {len(tokens)} tokens, more than the {SUBJECT_TOKENS_MAX} allowed"
    if "" in tokens:
        return f"token {tokens.index('') + 1} is empty"
    return None


def first_invalid_subject(subjects: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    """Row and fault of the first subject of a column that is not well-formed, or None."""
    base = 0
    for chunk in text_chunks(subjects, "subjects"):
        found = _first_invalid(chunk)
        if found is not None:
            return base + found[0], found[1]
        base += len(chunk)
    return None


def _first_invalid(array: pa.Array) -> tuple[int, str] | None:
    if array.null_count:
        row = array.is_null().index(True).as_py()
        earlier = _first_invalid(array.slice(0, row))
        return earlier if earlier is not None else (row, "it is null")
    if len(array) <= _FEW_ROWS:
        return _first_invalid_of_few(array)
    if _surely_valid(array):
        return None
    for low, block in blocks(array):
        if _is_plainly_valid(block):
            continue
        row = _first_fault_row(array.slice(low, len(block.starts)), block)
        if row is not None:
            fault = _scalar_fault(array[low + row])
            assert fault is not None, "a column and a single subject were judged differently"
            return low + row, fault
    return None


def _first_invalid_of_few(array: pa.Array) -> tuple[int, str] | None:
    for row, scalar in enumerate(array):
        fault = _scalar_fault(scalar)
        if fault is not None:
            return row, fault
    return None


def _scalar_fault(scalar: pa.Scalar) -> str | None:
    try:
        return _subject_fault(scalar.as_py())
    except UnicodeDecodeError:
        return "it is not valid UTF-8"


def _surely_valid(array: pa.Array) -> bool:
    kernels = compiled.kernels
    if kernels is None or array.type.id not in NARROW:
        return False
    return bool(kernels.plain_subjects(array, SUBJECT_PLAIN_BYTES))


def _is_plainly_valid(block: Block) -> bool:
    """Whether a few passes over the bytes suffice to accept all rows."""
    data, offsets = block
    lengths = block.lengths
    if smallest(lengths) < 1 or largest(lengths) > SUBJECT_PLAIN_BYTES or smallest(data) <= 0x20:
        return False
    raw = data.tobytes()
    if not raw.isascii() or b"*" in raw or b">" in raw or b"\x7f" in raw:
        return False
    dots = data == DOT
    # Two dots in a row make an empty token, or stand at the edges of two subjects.
    if (dots[1:] & dots[:-1]).any():
        return False
    return not (dots.take(offsets[:-1]).any() or dots.take(offsets[1:] - 1).any())


def _first_fault_row(rows: pa.Array, block: Block) -> int | None:
    well_formed = pc.match_substring_regex(rows, _SUBJECT_RE2).to_numpy(zero_copy_only=False)
    lengths = block.lengths
    faulty = ~well_formed | (lengths > SUBJECT_BYTES_MAX)
    if lengths.max() > SUBJECT_PLAIN_BYTES:
        dots = pc.count_substring(rows, ".").to_numpy(zero_copy_only=False)
        faulty |= dots >= SUBJECT_TOKENS_MAX
    return int(faulty.argmax()) if faulty.any() else None
