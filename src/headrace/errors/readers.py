"""Reader groups: updates that a group's state does not allow."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError, InvalidInputError


class ReaderGroupError(HeadraceError):
    """An update that the state of a reader group does not allow; nothing was changed.

    ``reason`` is a short word for programs; ``update`` and ``state`` say what met what.
    """

    reason = "refused"

    def __init__(self, update: str, state: str, why: str) -> None:
        super().__init__(f"{update}: {why} ({state})")
        self.update = update
        self.state = state
        self.why = why


class AlreadyMemberError(ReaderGroupError):
    """A reader of that name is online; put it offline first or choose another name."""

    reason = "already_member"


class NotMemberError(ReaderGroupError):
    """The reader is not online, or was put offline and must start again."""

    reason = "not_member"


class NotOwnerError(ReaderGroupError):
    """The reader does not own the segment."""

    reason = "not_owner"


class NotUnassignedError(ReaderGroupError):
    """The segment cannot be claimed: it is owned, waits for others, is over, or is unknown."""

    reason = "not_unassigned"


class CheckpointPendingError(ReaderGroupError):
    """The reader owes a checkpoint and must acknowledge it first."""

    reason = "checkpoint_pending"


class NotOverloadedError(ReaderGroupError):
    """The reader has no more than its share, so it keeps its segments."""

    reason = "not_overloaded"


class TooManyCheckpointsError(ReaderGroupError):
    """As many checkpoints as are allowed wait for readers already."""

    reason = "too_many_checkpoints"


class UnknownCheckpointError(ReaderGroupError, LookupError):
    """There is no complete checkpoint of that name."""

    reason = "unknown_checkpoint"


class PositionFellError(ReaderGroupError):
    """A position lies before the one recorded; only a reset moves a group back."""

    reason = "position_fell"


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


class ReaderStateDecodeError(HeadraceError, ValueError):
    """A stored state or update of a reader group cannot have been written by this code."""
