"""Reader groups: readers divide the segments of streams among themselves over one shared state.

>>> from headrace.groups.readers import AcquireShare, AddReader, GroupConfig, ReaderGroupState
>>> from headrace.groups.readers import SegmentId, apply
>>> state = ReaderGroupState(GroupConfig(), {SegmentId("orders", n): 0 for n in range(4)})
>>> token = apply(state, AddReader("r1")).revision
>>> len(apply(state, AcquireShare("r1", token)).claimed)
4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.loading import later

if TYPE_CHECKING:
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

# Whoever only names a group needs none of its core.
__getattr__ = later(
    __name__,
    {
        "headrace.groups.readers.core.checkpoints": ("CheckpointKind",),
        "headrace.groups.readers.core.rules": (
            "Outcome",
            "apply",
            "decide",
        ),
        "headrace.groups.readers.core.segments": (
            "END",
            "Position",
            "SegmentId",
            "Successor",
        ),
        "headrace.groups.readers.core.settings": (
            "GroupConfig",
            "ReaderSettings",
        ),
        "headrace.groups.readers.core.state": ("ReaderGroupState",),
        "headrace.groups.readers.core.updates": (
            "AckCheckpoint",
            "AcquireShare",
            "AddReader",
            "AddStreams",
            "CancelCheckpoints",
            "ClaimFree",
            "ClaimSegment",
            "CompleteSegments",
            "Completion",
            "Configure",
            "CreateCheckpoint",
            "DropStreams",
            "RecordPositions",
            "ReleaseSegments",
            "RemoveReader",
            "ReportLag",
            "Reset",
            "ResetToCheckpoint",
            "ReturnReader",
            "Update",
        ),
    },
)
