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


class ClaimSegment(msgspec.Struct, frozen=True, tag="claim"):
    """A reader takes one segment, whatever its share.  Only what is unassigned."""

    reader: str
    token: int
    segment: SegmentId


class AcquireShare(msgspec.Struct, frozen=True, tag="acquire"):
    """A reader takes what its share allows, longest waiting first; nothing is no error."""

    reader: str
    token: int


class ReleaseSegments(msgspec.Struct, frozen=True, tag="release", omit_defaults=True):
    """A reader gives up segments that are beyond its share.

    `positions` is its internal checkpoint: the place of what it gives up, and of as much of what
    it keeps as it likes to record.
    """

    reader: str
    token: int
    segments: tuple[SegmentId, ...]
    positions: tuple[Position, ...] = ()


class CompleteSegment(msgspec.Struct, frozen=True, tag="complete", omit_defaults=True):
    """A reader has read a segment to its end; successors without open predecessors open.

    A segment of the end cut has no successors in this group, whatever is reported.
    """

    reader: str
    token: int
    segment: SegmentId
    successors: tuple[Successor, ...] = ()


class CreateCheckpoint(msgspec.Struct, frozen=True, tag="checkpoint", omit_defaults=True):
    """Begin a checkpoint that every reader now online must acknowledge.

    A name that exists changes nothing.
    """

    name: str
    kind: CheckpointKind = CheckpointKind.NORMAL


class AckCheckpoint(msgspec.Struct, frozen=True, tag="ack", omit_defaults=True):
    """A reader says where it stood at a checkpoint.

    Positions of what it does not own are ignored, those left out are the recorded ones.  Once it
    has been acknowledged (or has gone) a further answer changes nothing.
    """

    reader: str
    token: int
    name: str
    positions: tuple[Position, ...] = ()


class RecordPositions(msgspec.Struct, frozen=True, tag="record"):
    """The internal checkpoint of one reader: it records where it is and holds nobody up."""

    reader: str
    token: int
    positions: tuple[Position, ...]


class ReportLag(msgspec.Struct, frozen=True, tag="lag"):
    """How far a reader is behind the tail."""

    reader: str
    token: int
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


class ReaderAdded(msgspec.Struct, frozen=True):
    """A reader is online and idle; its token is the revision of this change."""

    reader: str
    lease_token: int


class ReaderRemoved(msgspec.Struct, frozen=True):
    """A reader is gone; what it owned was freed before."""

    reader: str


class SegmentClaimed(msgspec.Struct, frozen=True):
    """A reader owns a segment, under a token that is higher than all before."""

    reader: str
    segment: SegmentId
    offset: int
    token: int


class Freed(msgspec.Struct, frozen=True):
    """A segment can be claimed again, from `offset`."""

    reader: str
    segment: SegmentId
    offset: int


class Completed(msgspec.Struct, frozen=True):
    """A segment is over and forgotten."""

    reader: str
    segment: SegmentId


class Awaited(msgspec.Struct, frozen=True):
    """A segment is known and waits for these predecessors."""

    segment: SegmentId
    predecessors: frozenset[SegmentId]


class Opened(msgspec.Struct, frozen=True):
    """A segment's predecessors are all over: it can be claimed from its beginning."""

    segment: SegmentId


class PositionRecorded(msgspec.Struct, frozen=True):
    """The recorded position of an owned segment moved."""

    reader: str
    segment: SegmentId
    offset: int


class LagReported(msgspec.Struct, frozen=True):
    """A reader's distance to the tail."""

    reader: str
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
