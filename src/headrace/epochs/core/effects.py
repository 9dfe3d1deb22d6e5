"""What a subscriber core tells its runtime to do, and the words it uses for that."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.messages import Data
from headrace.epochs.core.times import Time


class Mode(StrEnum):
    """What a subscriber is given, and when."""

    STREAMING = "streaming"
    UNFILTERED = "unfiltered"
    WHOLE = "whole"


class End(StrEnum):
    """How a subscription stands with its stream."""

    OPEN = "open"
    CLOSED = "closed"  # every partition is complete
    REACHED = "reached"  # everything before `until` is complete
    ABORTED = "aborted"  # a partition ended with times still held
    FULL = "full"  # an epoch did not fit, and that was to be the end


class WhenFull(StrEnum):
    """What comes of an epoch that does not fit into the room of a subscriber of whole epochs."""

    GIVE_UP = "give up"
    END = "end"


class Drop(StrEnum):
    """Why a batch is not delivered."""

    FILTERED = "filtered"  # its epoch had begun, or part of it was skipped
    BEFORE_START = "before start"
    AFTER_END = "after end"
    LOST = "lost"  # a partition was lost before it told what had begun there
    GIVEN_UP = "given up"  # its epoch did not fit


class Ready(msgspec.Struct, frozen=True):
    """All snapshots are there: the merged frontiers as they were taken."""

    lower: Frontier
    upper: Frontier


class Joined(msgspec.Struct, frozen=True):
    """A partition that was added has spoken; what had begun there is filtered from now on.

    That is what lies between `at`, where the partition began, and `upper`.
    """

    partition: str
    at: Frontier
    upper: Frontier


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Hand a batch to the consumer."""

    partition: str
    data: Data


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """Let go of a batch without looking into it."""

    partition: str
    data: Data
    why: Drop


class Epoch(msgspec.Struct, frozen=True, gc=False):
    """A whole epoch; `resume` is the frontier to resume from once it is dealt with."""

    time: Time
    batches: tuple[Deliver, ...]
    resume: Frontier


class Advanced(msgspec.Struct, frozen=True, gc=False):
    """The frontier of the subscription has moved."""

    frontier: Frontier


class Skipped(msgspec.Struct, frozen=True):
    """Epochs at or before `upper` that were not complete have lost data: they are void."""

    partition: str
    upper: Frontier


class GaveUp(msgspec.Struct, frozen=True):
    """An epoch did not fit, and will not be given; `batches` of it were let go."""

    time: Time
    batches: int


class TakenBack(msgspec.Struct, frozen=True):
    """A source has taken back its rows at or after `held`; none was part of a whole epoch."""

    partition: str
    source: str
    held: Frontier


class Ended(msgspec.Struct, frozen=True):
    """The subscription has ended, and why."""

    end: End
    reason: str


Effect = (
    Ready | Joined | Deliver | Dropped | Epoch | Advanced | Skipped | GaveUp | TakenBack | Ended
)
