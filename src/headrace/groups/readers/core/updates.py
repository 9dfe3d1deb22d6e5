"""Every update of a reader group's state: what somebody asks for.

The rules decide what an update comes to, and the log holds that (:mod:`.changes`).  The update
stands beside it in the log for people who ask why, without its positions.

Whatever a reader asks for carries the token it got when it joined.  A reader that was put offline
and does not know it, even one whose name has joined again since, is told so and changes nothing.
"""

from __future__ import annotations

import msgspec

from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.segments import Position, SegmentId, Successor
from headrace.groups.readers.core.settings import GroupConfig

WHY_CHARS_MAX = 512


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
    With a token only that very life of the reader is meant; `rewind` allows positions before the
    recorded ones, so that what was read is read again.
    """

    reader: str
    positions: tuple[Position, ...] = ()
    token: int | None = None
    rewind: bool = False
    why: str = ""


class ReturnReader(msgspec.Struct, frozen=True, tag="return", omit_defaults=True):
    """A reader joins under a name that may be online still, and has its segments again.

    The earlier life ends as by :class:`RemoveReader`, at `positions`.  The new one owns what that
    one had and, of `wants`, what is unassigned; whoever else owns something keeps it.
    """

    reader: str
    lease_token: int = 0
    positions: tuple[Position, ...] = ()
    wants: tuple[SegmentId, ...] = ()


class ClaimSegment(_ByReader, frozen=True, tag="claim"):
    """A reader takes one segment, whatever its share.  Only what is unassigned."""

    segment: SegmentId


class ClaimFree(_ByReader, frozen=True, tag="claim free"):
    """A reader takes what of these segments is unassigned, whatever its share."""

    segments: tuple[SegmentId, ...]


class AcquireShare(_ByReader, frozen=True, tag="acquire"):
    """A reader takes what its share allows, longest waiting first; nothing is no error."""


class ReleaseSegments(_ByReader, frozen=True, tag="release", omit_defaults=True):
    """A reader gives up segments that are beyond its share.

    `positions` is its internal checkpoint: the place of what it gives up, and of as much of what
    it keeps as it likes to record.
    """

    segments: tuple[SegmentId, ...]
    positions: tuple[Position, ...] = ()


class Completion(msgspec.Struct, frozen=True, array_like=True):
    """A segment that is read to its end, and what follows it."""

    segment: SegmentId
    successors: tuple[Successor, ...] = ()


class CompleteSegments(_ByReader, frozen=True, tag="complete"):
    """A reader has read segments to their ends; successors without open predecessors open.

    A segment of the end cut has no successors in this group, whatever is reported.
    """

    completions: tuple[Completion, ...]


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


class CancelCheckpoints(msgspec.Struct, frozen=True, tag="cancel", omit_defaults=True):
    """Give up a checkpoint that waits for readers; without names, all of the application's."""

    names: tuple[str, ...] = ()


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
    """Drop all readers and begin at a complete checkpoint, which stays, as do those before it."""

    name: str


class AddStreams(msgspec.Struct, frozen=True, tag="add streams", omit_defaults=True):
    """Read more streams, from a cut (and up to another); nobody is interrupted."""

    cut: tuple[Position, ...]
    waits: tuple[Successor, ...] = ()
    end_cut: tuple[Position, ...] = ()


class DropStreams(msgspec.Struct, frozen=True, tag="drop streams"):
    """Have done with streams: readers lose their segments, checkpoints forget them."""

    streams: tuple[str, ...]


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """Give the group another config."""

    config: GroupConfig


Update = (
    AddReader
    | ReturnReader
    | RemoveReader
    | ClaimSegment
    | ClaimFree
    | AcquireShare
    | ReleaseSegments
    | CompleteSegments
    | CreateCheckpoint
    | AckCheckpoint
    | CancelCheckpoints
    | RecordPositions
    | ReportLag
    | Reset
    | ResetToCheckpoint
    | AddStreams
    | DropStreams
    | Configure
)


def brief(update: Update) -> Update:
    """An update without positions and segments: the changes that it came to name them."""
    long = {
        field: ()
        for field in update.__struct_fields__
        if isinstance(value := getattr(update, field), tuple)
        and not all(isinstance(each, str) for each in value)
    }
    return msgspec.structs.replace(update, **long) if long else update
