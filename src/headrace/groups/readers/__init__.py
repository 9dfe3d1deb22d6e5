"""Reader groups: readers divide the segments of streams among themselves over one shared state.

>>> from headrace.groups.readers import AcquireShare, AddReader, GroupConfig, ReaderGroupState
>>> from headrace.groups.readers import SegmentId, apply
>>> state = ReaderGroupState(GroupConfig(), {SegmentId("orders", n): 0 for n in range(4)})
>>> token = apply(state, AddReader("r1")).revision
>>> len(apply(state, AcquireShare("r1", token)).claimed)
4
"""

from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.rules import Outcome, apply, decide
from headrace.groups.readers.core.segments import END, Position, SegmentId, Successor
from headrace.groups.readers.core.settings import GroupConfig, ReaderSettings
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    AddStreams,
    CancelCheckpoints,
    ClaimFree,
    ClaimSegment,
    CompleteSegments,
    Completion,
    Configure,
    CreateCheckpoint,
    DropStreams,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReportLag,
    Reset,
    ResetToCheckpoint,
    ReturnReader,
    Update,
)

__all__ = [
    "END",
    "AckCheckpoint",
    "AcquireShare",
    "AddReader",
    "AddStreams",
    "CancelCheckpoints",
    "CheckpointKind",
    "ClaimFree",
    "ClaimSegment",
    "CompleteSegments",
    "Completion",
    "Configure",
    "CreateCheckpoint",
    "DropStreams",
    "GroupConfig",
    "Outcome",
    "Position",
    "ReaderGroupState",
    "ReaderSettings",
    "RecordPositions",
    "ReleaseSegments",
    "RemoveReader",
    "ReportLag",
    "Reset",
    "ResetToCheckpoint",
    "ReturnReader",
    "SegmentId",
    "Successor",
    "Update",
    "apply",
    "decide",
]
