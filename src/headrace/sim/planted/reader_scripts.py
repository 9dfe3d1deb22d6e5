"""Golden scripts of reader groups, for rules where any outcome would be safe, but one is right."""

from __future__ import annotations

from headrace.groups.readers.core import balance
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.rules import apply
from headrace.groups.readers.core.segments import Position, SegmentId
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    CreateCheckpoint,
    ReleaseSegments,
    ReportLag,
)


def _group(segments: int, *readers: str) -> tuple[ReaderGroupState, dict[str, int]]:
    start = {SegmentId("a", number): 0 for number in range(segments)}
    state = ReaderGroupState(GroupConfig(), start)
    return state, {reader: apply(state, AddReader(reader)).revision for reader in readers}


def shares() -> str | None:
    """Five segments over two readers: three and two, halves rounded up."""
    state, tokens = _group(5, "r1", "r2")
    first = len(apply(state, AcquireShare("r1", tokens["r1"])).claimed)
    return None if first == 3 else f"golden script: the first of two takes {first} of five"


def releases() -> str | None:
    """Six against none: three are given up, and not one more while nobody has claimed."""
    state, tokens = _group(6, "r1")
    apply(state, AcquireShare("r1", tokens["r1"]))
    apply(state, AddReader("r2"))
    going = balance.segments_to_release(state, "r1")
    apply(state, ReleaseSegments("r1", tokens["r1"], tuple(going)))
    if len(going) == 3 and not balance.wants_release(state, "r1"):
        return None
    return f"golden script: {len(going)} of six are given up, or more are wanted"


def silence() -> str | None:
    """A silent checkpoint is no place to begin again."""
    state, tokens = _group(1, "r1")
    apply(state, AcquireShare("r1", tokens["r1"]))
    apply(state, CreateCheckpoint("s", CheckpointKind.SILENT))
    at = (Position(SegmentId("a", 0), 70),)
    apply(state, AckCheckpoint("r1", tokens["r1"], "s", at))
    moved = state.position(SegmentId("a", 0)) != 0 or state.checkpoints.last is not None
    return "golden script: a silent checkpoint moves the group" if moved else None


def moves() -> str | None:
    """Ten readers share a hundred segments, an eleventh joins: nobody gives up half."""
    names = [f"r{number}" for number in range(10)]
    state, tokens = _group(100, *names)
    for name in names:
        apply(state, AcquireShare(name, tokens[name]))
    apply(state, AddReader("r10"))
    count = balance.release_count(state, "r0")
    return None if count == 1 else f"golden script: a reader of eleven gives up {count} of ten"


def lags() -> str | None:
    """A lag that was told once is no reason to move anything."""
    state, tokens = _group(10, "r1", "r2")
    for name, lag_ms in (("r1", 60_000), ("r2", 3_600_000)):
        apply(state, AcquireShare(name, tokens[name]))
        apply(state, ReportLag(name, tokens[name], lag_ms))
    wants = balance.wants_release(state, "r2")
    return "golden script: a reader gives up segments for one report" if wants else None
