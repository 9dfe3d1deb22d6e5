"""What callers pass in, and what all errors have in common."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""


class InvalidInputError(HeadraceError, ValueError):
    """An input breaks a rule; nothing was changed."""


class InvalidSubjectError(InvalidInputError):
    """A subject is malformed or too long."""


class InvalidFilterError(InvalidInputError):
    """A subject filter is malformed."""


class InvalidNameError(InvalidInputError):
    """A stream, group, member or producer name is malformed."""


class InvalidEventError(InvalidInputError):
    """An event breaks a rule; ``row`` is its place in the input."""

    def __init__(self, message: str, *, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class EventTooLargeError(InvalidEventError):
    """A value, key or header is larger than the limits allow."""


class AppendTooLargeError(InvalidInputError):
    """One append holds more rows or bytes than fit in one transaction."""


class InvalidConfigError(InvalidInputError):
    """A stream's configuration breaks a rule."""


class InvalidPositionError(InvalidInputError):
    """A start or an end of a read is not a place in the stream."""


class InvalidPartitioningError(InvalidInputError):
    """A number of partitions or a wildcard number is out of range."""


class SubjectMismatchError(InvalidInputError):
    """A subject was to be partitioned by a filter that it does not pass."""

    def __init__(self, message: str, *, subject: str, filter: str) -> None:
        super().__init__(message)
        self.subject = subject
        self.filter = filter
