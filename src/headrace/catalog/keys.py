"""Which texts may be keys of the catalog: short ones that every database and channel can carry."""

from __future__ import annotations

from headrace.errors import InvalidInputError

KEY_BYTES_MAX = 512


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
