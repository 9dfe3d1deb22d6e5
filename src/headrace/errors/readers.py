"""What can go wrong with reader groups."""

from __future__ import annotations

import re

from headrace.errors.log import HeadraceError, InvalidInputError


class ReaderGroupError(HeadraceError):
    """An update that the state of a reader group does not allow; nothing was changed.

    ``reason`` is a word for programs, made of the class's name; ``update`` and ``state`` say what
    met what.
    """

    reason = "refused"

    def __init_subclass__(cls) -> None:
        words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
        cls.reason = "_".join(words).lower()

    def __init__(self, update: str, state: str, why: str) -> None:
        super().__init__(f"{update}: {why} ({state})")
        self.update = update
        self.state = state
        self.why = why


class AlreadyMemberError(ReaderGroupError):
    """A reader of that name is online; put it offline first or choose another name."""


class NotMemberError(ReaderGroupError):
    """The reader is not online, or was put offline and must start again."""


class NotOwnerError(ReaderGroupError):
    """The reader does not own the segment."""


class NotUnassignedError(ReaderGroupError):
    """The segment cannot be claimed: it is owned, waits for others, is over, or is unknown."""


class CheckpointPendingError(ReaderGroupError):
    """The reader owes a checkpoint and must acknowledge it first."""


class NotOverloadedError(ReaderGroupError):
    """The reader has no more than its share, so it keeps its segments."""


class TooManyCheckpointsError(ReaderGroupError):
    """As many checkpoints as are allowed wait for readers already."""


class UnknownCheckpointError(ReaderGroupError, LookupError):
    """There is no complete checkpoint of that name."""


class PositionFellError(ReaderGroupError):
    """A position lies before the one recorded; only a reset moves a group back."""


class InvalidReaderUpdateError(InvalidInputError):
    """An update, a cut or a setting of a reader group is malformed."""


class ReaderRevisionError(HeadraceError):
    """An update was decided on, or a log continues from, another revision than this one."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(
            f"the reader group is at revision {found}, not {expected}; catch up and decide again"
        )
        self.found = found
        self.expected = expected


class CheckpointCompleteError(ReaderGroupError):
    """The checkpoint is complete, so there is nothing left to cancel."""


class UnknownStreamOfGroupError(ReaderGroupError, LookupError):
    """The reader group does not read that stream."""


class StreamOfGroupExistsError(ReaderGroupError):
    """The reader group reads that stream already."""


class ReaderFormatError(HeadraceError):
    """A reader group was written by a newer version of Headrace, whose format is unknown here."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(
            f"{what} has format {found}, and this version of Headrace knows {known} at most; "
            f"upgrade this program to the version that the others of its group have"
        )
        self.found = found
        self.known = known


class ReaderStateDecodeError(HeadraceError, ValueError):
    """A stored state or update of a reader group cannot have been written by this code."""
