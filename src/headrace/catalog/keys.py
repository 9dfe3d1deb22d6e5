"""Which texts may be keys of the catalog: short ones that every database and channel can carry.

No program writes a key that is none.  Where one stands all the same, a bit was lost: lists go on
without the record, and say how it is mended (``mending``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TypeVar

from headrace.errors import InvalidInputError, InvalidNameError, UnreadableRecordError

KEY_BYTES_MAX = 512
TABLES = {
    "streams": "streams",
    "reader-groups": "reader_groups",
    "epoch-publishers": "epoch_publishers",
    "epoch-subscriptions": "epoch_subscriptions",
}
"""Records that have rows of their own, by what a person calls them; all others are entries."""

N = TypeVar("N")


def check_key(text: str, what: str) -> str:
    """Return the text, or raise InvalidInputError saying what is wrong with it."""
    if not isinstance(text, str):
        raise InvalidInputError(f"{what} is {type(text).__name__}; it must be text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{what} is not valid text: {error.reason}") from None
    if not 0 < size <= KEY_BYTES_MAX:
        raise InvalidInputError(f"{what} has {size} bytes; it must have 1 to {KEY_BYTES_MAX}")
    if any(char < " " for char in text):
        raise InvalidInputError(f"{what} {text!r} holds a control character")
    return text


class DamagedText(str):
    """Text of the catalog that is not UTF-8: shown with escapes, and never found by those.

    As a parameter it is the bytes that are stored: ``key = CAST(? AS TEXT)``.
    """

    __slots__ = ("raw",)
    raw: bytes

    @classmethod
    def read(cls, raw: bytes) -> str:
        """Text as SQLite has it."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            found = cls(raw.decode(errors="backslashreplace"))
            found.raw = raw
            return found

    def __conform__(self, protocol: object) -> bytes:
        return self.raw


def is_damaged(key: str) -> bool:
    """Whether this is the key of nothing that a program ever stored."""
    return isinstance(key, DamagedText) or not key or not key.isprintable()


def shown(key: str) -> str:
    """A key that may hold anything, as it can be printed and typed.

    >>> print(shown("or\\x01ders.a"))
    or\\x01ders.a
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in key
    )


def remedy(where: str, key: str) -> str:
    """What a person can do about a damaged key."""
    command = f"headrace catalog mend {where} {shlex.quote(shown(key))}"
    if where in TABLES:
        return f"give it a name again: {command} NAME"
    return f"give it its name again: {command} NAME, or remove it: {command}"


def unreadable(where: str, key: str, why: str) -> UnreadableRecordError:
    """The error of a record whose key is damaged."""
    return UnreadableRecordError(
        f"the key '{shown(key)}' of {where} cannot be read ({why}); {remedy(where, key)}", key
    )


def undamaged(where: str, key: str) -> str:
    """The key; an error that says how to mend one that is damaged."""
    if is_damaged(key):
        raise unreadable(where, key, "it is damaged")
    return key


def named(where: str, key: str, read: Callable[[str], N]) -> N:
    """What a key stands for; an error that says how to mend one that is damaged."""
    try:
        return read(undamaged(where, key))
    except (InvalidInputError, InvalidNameError) as error:
        raise unreadable(where, key, str(error)) from None
