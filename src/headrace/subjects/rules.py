"""What a well-formed name, subject or filter is.

Theory of operation.  A subject is one or more tokens joined by dots.  A token is one or more
characters that are neither whitespace nor control characters, and is not exactly ``*`` or ``>``
(inside a longer token both are ordinary characters).  A filter is the same, except that a token
may be exactly ``*`` (one token) or, as the last one, ``>`` (one or more tokens).  Length is
bounded in bytes of UTF-8, because that is what is stored and hashed.

Columns are judged in ``judging``, which loads Arrow.
"""

from __future__ import annotations

import re

from headrace.errors import (
    InvalidFilterError,
    InvalidNameError,
    InvalidSubjectError,
)

SUBJECT_BYTES_MAX = 512
SUBJECT_TOKENS_MAX = 64
SUBJECT_PLAIN_BYTES = 2 * SUBJECT_TOKENS_MAX
"""A subject up to this length cannot have too many tokens, as long as none of them is empty."""
KEY_HASH_BITS = 32
PARTITIONS_MAX = 2**31 - 1
NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"

_SHOWN_CHARS_MAX = 60

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
SUBJECT_RE2 = r"\A" + _SUBJECT.format(_FORBIDDEN_RE2 + r"\x{d800}-\x{dfff}") + r"\z"


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
    fault = subject_fault(subject)
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


def subject_fault(subject: str) -> str | None:
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
