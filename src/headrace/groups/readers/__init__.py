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
from headrace.groups.readers.core.segments import END, Position, SegmentId, positions
from headrace.groups.readers.core.settings import GroupConfig, ReaderSettings
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    ClaimSegment,
    CompleteSegment,
    CreateCheckpoint,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReportLag,
    Reset,
    ResetToCheckpoint,
    Successor,
    Update,
)

__all__ = [
    "END",
    "AckCheckpoint",
    "AcquireShare",
    "AddReader",
    "CheckpointKind",
    "ClaimSegment",
    "CompleteSegment",
    "CreateCheckpoint",
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
    "SegmentId",
    "Successor",
    "Update",
    "apply",
    "decide",
    "positions",
]
