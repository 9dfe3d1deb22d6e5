"""What commands print of snapshots, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.regions.forcing import ForceReport
    from headrace.regions.status import SnapshotStatus


class SnapshotShape(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots of a segment that a group in the mode of snapshots reads."""

    stream: str
    segment: int
    age_seconds: float | None
    """Since the last one was complete; null if none was."""
    phase: str
    """``idle``, ``first_round`` or ``second_round``."""
    pending_seconds: float | None
    """Since when one is under way."""
    waiting_for: tuple[str, ...]
    """Regions that have not answered."""
    completed: int
    aborted: int
    last_abort: str
    """Why one was given up, and who was silent."""
    skipped: dict[str, int]
    """How often a reason to take none arose."""
    last_skip: str
    """The reason that there is now."""


class ForcedShape(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that went on without some regions, or would."""

    segment: int
    snapshot_id: str
    missing: tuple[str, ...]
    """Regions that were not waited for."""
    at_risk: tuple[str, ...]
    """Events of which nobody can say that consumers here have met them; they come again."""
    refused: str
    """Why it was not forced."""


class ForcedSnapshots(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of a stream that were forced, or would be."""

    stream: str
    dry_run: bool
    snapshots: tuple[ForcedShape, ...]


def snapshot_shape(found: SnapshotStatus) -> SnapshotShape:
    """The snapshots of a segment for programs."""
    return SnapshotShape(
        stream=found.stream,
        segment=found.segment,
        age_seconds=found.age_s,
        phase=found.phase,
        pending_seconds=found.pending_s,
        waiting_for=found.waiting_for,
        completed=found.completed,
        aborted=found.aborted,
        last_abort=found.last_abort,
        skipped=found.skipped,
        last_skip=found.last_skip,
    )


def forced_shape(done: ForceReport) -> ForcedSnapshots:
    """Forced snapshots for programs."""
    return ForcedSnapshots(
        stream=done.stream,
        dry_run=done.dry_run,
        snapshots=tuple(
            ForcedShape(
                segment=each.segment,
                snapshot_id=each.snapshot_id,
                missing=each.missing,
                at_risk=each.at_risk,
                refused=each.refused,
            )
            for each in done.snapshots
        ),
    )
