"""Subscriptions to epochs."""

from __future__ import annotations

from headrace.errors.log import HeadraceError, InvalidInputError


class EpochRowsError(HeadraceError):
    """The rows of a commit are not as many as its line in the progress log tells: damage."""

    def __init__(self, stream: str, line: int, place: str, told: int, got: int) -> None:
        super().__init__(
            f"stream {stream!r}, {place}: line {line} of its progress log tells of {told} rows and "
            f"{got} are there; run headrace doctor, and restore what is damaged from a backup"
        )
        self.stream = stream
        self.line = line
        self.place = place


class EpochTrimmedError(HeadraceError):
    """Rows of an epoch went while it was read, so it cannot be given whole."""

    def __init__(self, stream: str, epochs: str, why: str) -> None:
        super().__init__(
            f"stream {stream!r}: rows of epoch {epochs} are gone ({why}); start again at a later "
            "frontier, at_least=True takes the first that is left"
        )
        self.stream = stream


class EpochsAbortedError(HeadraceError):
    """A stream was aborted: what is before ``frontier`` is complete, the rest never will be."""

    def __init__(self, stream: str, reason: str, frontier: object) -> None:
        super().__init__(
            f"stream {stream!r} was aborted at frontier {frontier}: {reason}; what is before that "
            "frontier is complete, and there will be no more"
        )
        self.stream = stream
        self.reason = reason
        self.frontier = frontier


class EpochAckError(InvalidInputError):
    """An epoch was acked twice, out of order, or without a named subscription."""


class EpochSubscriptionError(InvalidInputError):
    """A named subscription is used in another way than it was made for."""


class EpochSubscriptionInUseError(HeadraceError):
    """Another program holds the named subscription."""


class UnknownEpochSubscriptionError(InvalidInputError, LookupError):
    """There is no named subscription of that name."""
