"""What commands print of snapshots, for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.regions.forcing import ForceReport
    from headrace.regions.status import SnapshotStatus
    from headrace.regions.taking import ListedSnapshot, TakeReport


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


class TakenShape(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a segment that was asked for."""

    segment: int
    snapshot_id: str
    complete: bool
    outcome: str
    """Why there is none; empty while it is under way."""


class TakenSnapshots(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots of a stream that were asked for."""

    stream: str
    complete: bool
    took_ms: int
    snapshots: tuple[TakenShape, ...]


class ListedShape(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that stands in this region's log."""

    segment: int
    snapshot_id: str
    taken_at: datetime
    here_offset: int
    """Who has acked everything up to this offset here has met what lies up to the others."""
    there_offsets: dict[str, int]
    """Offsets by region."""
    missing: tuple[str, ...]
    """Regions that an operator did not wait for."""
    passed_by: tuple[str, ...]
    """Groups that have passed it, or their members' shares."""


def taken_shape(done: TakeReport) -> TakenSnapshots:
    """Snapshots that were asked for, for programs."""
    return TakenSnapshots(
        stream=done.stream,
        complete=done.complete,
        took_ms=round(done.took_s * 1000),
        snapshots=tuple(
            TakenShape(
                segment=each.segment,
                snapshot_id=each.snapshot_id,
                complete=each.outcome == "complete",
                outcome=each.outcome,
            )
            for each in done.snapshots
        ),
    )


def listed_shape(found: ListedSnapshot, passed_by: tuple[str, ...]) -> ListedShape:
    """A snapshot of the log for programs."""
    return ListedShape(
        segment=found.segment,
        snapshot_id=found.snapshot_id,
        taken_at=datetime.fromtimestamp(found.taken_us / 1e6, UTC),
        here_offset=found.local,
        there_offsets=found.positions,
        missing=found.missing,
        passed_by=passed_by,
    )


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
