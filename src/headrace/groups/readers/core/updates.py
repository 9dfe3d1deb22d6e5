"""Every update of a reader group's state, and the changes it comes to.

An *update* is what somebody asks for; a *change* is one step of what then happens.  Updates are
what the log of a group holds: small, and the same state makes the same changes of them.

Whatever a reader asks for carries the token it got when it joined.  A reader that was put offline
and does not know it, even one whose name has joined again since, is told so and changes nothing.
"""

from __future__ import annotations

import msgspec

from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.segments import Position, SegmentId


class Successor(msgspec.Struct, frozen=True, array_like=True):
    """A successor of a completed segment, with *all* its predecessors."""

    segment: SegmentId
    predecessors: tuple[SegmentId, ...]


class _ByReader(msgspec.Struct, frozen=True):
    reader: str
    token: int


class AddReader(msgspec.Struct, frozen=True, tag="join"):
    """A reader joins, with the lease that shows it is alive.  Not if it is online."""

    reader: str
    lease_token: int = 0


class RemoveReader(msgspec.Struct, frozen=True, tag="offline", omit_defaults=True):
    """A reader leaves or is put offline; a second time changes nothing.

    Its segments can be claimed from `positions`, or where none is given from what is recorded.
    Positions of what it does not own are ignored.  Its owed checkpoints are acknowledged.
    With a token only that very life of the reader is meant.
    """

    reader: str
    positions: tuple[Position, ...] = ()
    token: int | None = None


class ClaimSegment(_ByReader, frozen=True, tag="claim"):
    """A reader takes one segment, whatever its share.  Only what is unassigned."""

    segment: SegmentId


class AcquireShare(_ByReader, frozen=True, tag="acquire"):
    """A reader takes what its share allows, longest waiting first; nothing is no error."""


class ReleaseSegments(_ByReader, frozen=True, tag="release", omit_defaults=True):
    """A reader gives up segments that are beyond its share.

    `positions` is its internal checkpoint: the place of what it gives up, and of as much of what
    it keeps as it likes to record.
    """

    segments: tuple[SegmentId, ...]
    positions: tuple[Position, ...] = ()


class CompleteSegment(_ByReader, frozen=True, tag="complete", omit_defaults=True):
    """A reader has read a segment to its end; successors without open predecessors open.

    A segment of the end cut has no successors in this group, whatever is reported.
    """

    segment: SegmentId
    successors: tuple[Successor, ...] = ()


class CreateCheckpoint(msgspec.Struct, frozen=True, tag="checkpoint", omit_defaults=True):
    """Begin a checkpoint that every reader now online must acknowledge.

    A name that exists changes nothing.
    """

    name: str
    kind: CheckpointKind = CheckpointKind.NORMAL


class AckCheckpoint(_ByReader, frozen=True, tag="ack", omit_defaults=True):
    """A reader says where it stood at a checkpoint.

    Positions of what it does not own are ignored, those left out are the recorded ones.  Once it
    has been acknowledged (or has gone) a further answer changes nothing.
    """

    name: str
    positions: tuple[Position, ...] = ()


class RecordPositions(_ByReader, frozen=True, tag="record"):
    """The internal checkpoint of one reader: it records where it is and holds nobody up."""

    positions: tuple[Position, ...]


class ReportLag(_ByReader, frozen=True, tag="lag"):
    """How far a reader is behind the tail."""

    lag_ms: int


class Reset(msgspec.Struct, frozen=True, tag="reset", omit_defaults=True):
    """Drop all readers and checkpoints and begin at a cut.

    `waits` holds segments ahead of the cut some of whose predecessors lie behind it: the
    predecessors still to be completed.  Without `end_cut` the group keeps the one it has.
    """

    cut: tuple[Position, ...]
    waits: tuple[Successor, ...] = ()
    end_cut: tuple[Position, ...] | None = None


class ResetToCheckpoint(msgspec.Struct, frozen=True, tag="restore"):
    """Drop all readers and checkpoints and begin at a complete checkpoint."""

    name: str


Update = (
    AddReader
    | RemoveReader
    | ClaimSegment
    | AcquireShare
    | ReleaseSegments
    | CompleteSegment
    | CreateCheckpoint
    | AckCheckpoint
    | RecordPositions
    | ReportLag
    | Reset
    | ResetToCheckpoint
)


# --- changes -------------------------------------------------------------------------------


class _OfReader(msgspec.Struct, frozen=True):
    reader: str


class _OfSegment(_OfReader, frozen=True):
    segment: SegmentId


class ReaderAdded(_OfReader, frozen=True):
    """A reader is online and idle; its token is the revision of this change."""

    lease_token: int


class ReaderRemoved(_OfReader, frozen=True):
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


class LagReported(_OfReader, frozen=True):
    """A reader's distance to the tail."""

    lag_ms: int


class CheckpointCreated(msgspec.Struct, frozen=True):
    """A checkpoint waits for every reader that is online."""

    name: str
    kind: CheckpointKind


class CheckpointAcked(msgspec.Struct, frozen=True):
    """A reader has acknowledged a checkpoint; `complete` when it was the last."""

    name: str
    reader: str
    positions: tuple[Position, ...]
    complete: bool


class WasReset(msgspec.Struct, frozen=True):
    """The group begins again."""

    cut: tuple[Position, ...]
    waits: tuple[Successor, ...]
    end_cut: tuple[Position, ...]


StateChange = (
    ReaderAdded
    | ReaderRemoved
    | SegmentClaimed
    | Freed
    | Completed
    | Awaited
    | Opened
    | PositionRecorded
    | LagReported
    | CheckpointCreated
    | CheckpointAcked
    | WasReset
)
