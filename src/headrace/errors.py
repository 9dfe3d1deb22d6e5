"""One class per failure that a person can meet, all under :class:`HeadraceError`.

Every message says what happened, to what, and what to do next.  Errors that carry data
carry it as attributes, so that a program never has to read a message.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""


# --- input ---------------------------------------------------------------------------------


class InvalidInputError(HeadraceError, ValueError):
    """An input breaks a rule; nothing was changed."""


class InvalidSubjectError(InvalidInputError):
    """A subject is malformed or too long."""


class InvalidFilterError(InvalidInputError):
    """A subject filter is malformed."""


class InvalidNameError(InvalidInputError):
    """A stream, group, member or producer name is malformed."""
