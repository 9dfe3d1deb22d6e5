"""Changes: the steps that a decision on an update comes to, and all that the log tells followers.

A change is complete: whoever carries it out decides nothing, so versions of this package that
decide differently agree about who owns what as long as they follow one log.  The number of the
outcome is part of what its changes say: a reader's and a claim's token are that revision.
"""

from __future__ import annotations

import msgspec

from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.segments import Position, SegmentId, Successor
from headrace.groups.readers.core.settings import GroupConfig


class _OfReader(msgspec.Struct, frozen=True, array_like=True):
    reader: str


class _OfSegment(_OfReader, frozen=True):
    segment: SegmentId


class ReaderAdded(_OfReader, frozen=True, tag="join"):
    """A reader is online and idle; its token is the revision of this change."""

    lease_token: int


class ReaderRemoved(_OfReader, frozen=True, tag="leave"):
    """A reader is gone; what it owned was freed before."""


class SegmentClaimed(_OfSegment, frozen=True):
    """A reader owns a segment, under a token that is higher than all before."""

    offset: int
    token: int


class Freed(_OfSegment, frozen=True):
    """A segment can be claimed again, from `offset`."""

    offset: int


class Completed(_OfSegment, frozen=True):
    """A segment is over and forgotten."""


class SegmentDropped(_OfSegment, frozen=True):
    """A segment is taken from its reader, because its stream leaves the group."""


class Awaited(msgspec.Struct, frozen=True):
    """A segment is known and waits for these predecessors."""

    segment: SegmentId
    predecessors: frozenset[SegmentId]


class Opened(msgspec.Struct, frozen=True):
    """A segment's predecessors are all over: it can be claimed from its beginning."""

    segment: SegmentId


class PositionRecorded(_OfSegment, frozen=True):
    """The recorded position of an owned segment moved."""

    offset: int


class LagReported(_OfReader, frozen=True, tag="lag"):
    """A reader's distance to the tail, and whether it counts as far behind the others.

    `streak` is the number of reports in a row that speak against what it counts as.
    """

    lag_ms: int
    far_behind: bool
    streak: int


class CheckpointCreated(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """A checkpoint holds what is unassigned or waits now, and waits for these readers.

    The revision of this change tells it from others of its name, earlier and later.
    """

    name: str
    kind: CheckpointKind
    readers: tuple[str, ...]


class CheckpointAcked(msgspec.Struct, frozen=True):
    """A reader has acknowledged a checkpoint; `complete` when it was the last."""

    name: str
    reader: str
    positions: tuple[Position, ...]
    complete: bool


class CheckpointForgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """A checkpoint is no longer known by name: cancelled, reset behind it, or one too many."""

    name: str
    created: int
    """The revision of its creation."""


class StreamsAdded(msgspec.Struct, frozen=True, array_like=True, tag="streams"):
    """Streams that the group reads from here on; checkpoints hold them where they begin."""

    cut: tuple[Position, ...]
    waits: tuple[Successor, ...]
    end_cut: tuple[Position, ...]


class StreamDropped(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """The group has nothing to do with a stream any more, nor have its checkpoints."""

    stream: str


class Configured(msgspec.Struct, frozen=True, array_like=True, tag="config"):
    """The group has another config."""

    config: GroupConfig


class WasReset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """The group begins again, without readers; checkpoints that go were forgotten before."""

    cut: tuple[Position, ...]
    waits: tuple[Successor, ...]
    end_cut: tuple[Position, ...]


StateChange = (
    ReaderAdded
    | ReaderRemoved
    | SegmentClaimed
    | Freed
    | Completed
    | SegmentDropped
    | Awaited
    | Opened
    | PositionRecorded
    | LagReported
    | CheckpointCreated
    | CheckpointAcked
    | CheckpointForgotten
    | StreamsAdded
    | StreamDropped
    | Configured
    | WasReset
)
