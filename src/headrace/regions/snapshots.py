"""What a region keeps of the snapshots of a segment, for groups in the mode of snapshots.

It stands in the region's own catalog, one entry for each segment that is followed: how far the log
was read, what the groups' cursors know beyond their rows of progress, and how snapshots went.  It
is written in the transaction that writes the markers which follow from it, so an agent that is
killed goes on, and one that was replaced writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.catalog import Tx, entries
from headrace.catalog.records import left_out
from headrace.errors import UnreadableRecordError
from headrace.groups.homes import SNAPSHOT
from headrace.regions.core.markers import LaneHole
from headrace.regions.core.stamps import Life
from headrace.regions.records import groups

SNAPSHOTS_BUCKET = "region-snapshots"
FORCED_BUCKET = "region-forced"
"""Snapshots that an operator wants to go on without who is silent, by segment."""


ASKED_BUCKET = "region-asked"
"""Snapshots that an operator wants now, by segment."""


class SavedGroup(msgspec.Struct, frozen=True, gc=False):
    """What a cursor under snapshots knows beyond its row of progress."""

    used: int = -1
    applied: int | None = None
    life: Life = Life()
    holes: tuple[LaneHole, ...] = ()
    acked: bytes = b""
    owed: bool = False
    """Whether an update brought acks that are not in the row of progress yet."""


class PendingSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that waits for answers."""

    snapshot_id: str
    phase: str
    waiting_for: tuple[str, ...]
    started_us: int


class ForcedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that went on without some regions, or would."""

    segment: int
    snapshot_id: str
    missing: tuple[str, ...]
    """Regions that were not waited for."""
    at_risk: tuple[str, ...] = ()
    """Events of which nobody can say that the consumers here have met them; they come again."""
    refused: str = ""
    """Why it was not forced."""


class AskedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that an operator wanted, and what came of it."""

    segment: int
    snapshot_id: str
    outcome: str = ""
    """``complete``, or why there is none; empty while it is under way."""


class SnapshotState(msgspec.Struct, frozen=True, kw_only=True):
    """One segment, as the agent of this region has followed it."""

    segment_id: int
    place: int
    """Everything below this offset was read, and what follows from it is done."""
    first: int = 0
    """Up to this offset it is taken in what was trimmed."""
    members: tuple[str, ...] = ()
    quiet: int = 0
    """No snapshot is due for what stands below this offset."""
    groups: dict[str, SavedGroup] = {}
    pending: tuple[PendingSnapshot, ...] = ()
    completed: int = 0
    completed_us: int | None = None
    aborted: int = 0
    last_abort: str = ""
    skipped: dict[str, int] = {}
    last_skip: str = ""
    forced: ForcedSnapshot | None = None
    asked: AskedSnapshot | None = None


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_decoder = msgspec.msgpack.Decoder(SnapshotState)


def state_key(stream: str, number: int) -> str:
    """The entry of a segment."""
    return f"{stream}/{number}"


def get_state(tx: Tx, stream: str, number: int) -> SnapshotState | None:
    """What is known of a segment; None if it is not followed."""
    entry = entries.get(tx, SNAPSHOTS_BUCKET, state_key(stream, number))
    return None if entry is None or entry.value is None else _decode(entry.key, entry.value)


def put_state(tx: Tx, stream: str, number: int, state: SnapshotState) -> None:
    """Store it; holds the bucket's lock."""
    key = state_key(stream, number)
    entries.store(tx, SNAPSHOTS_BUCKET, key, msgspec.msgpack.encode(state))


def states(tx: Tx) -> dict[tuple[str, int], SnapshotState]:
    """All segments that are followed, by stream and number."""
    found = {}
    for entry in entries.changes(tx, SNAPSHOTS_BUCKET, 0).entries:
        if entry.value is not None:
            with left_out():
                stream, _, number = entry.key.rpartition("/")
                found[stream, int(number)] = _decode(entry.key, entry.value)
    return found


def forget_readers(tx: Tx, readers: Collection[str]) -> None:
    """Groups are not replicated any more: begun again, they begin anew; holds the bucket's lock."""
    for (stream, number), state in states(tx).items():
        kept = {name: group for name, group in state.groups.items() if name not in readers}
        if len(kept) < len(state.groups):
            put_state(tx, stream, number, msgspec.structs.replace(state, groups=kept))


def _decode(key: str, data: bytes) -> SnapshotState:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnreadableRecordError(
            f"what is known of the snapshots of {key!r} cannot be read ({error}); restore the "
            "catalog from a backup, or replicate the groups of its stream no longer: headrace "
            "region group disable",
            key,
        ) from None


def streams_under_snapshots(tx: Tx) -> set[str]:
    """The streams of which a group in this region is in the mode of snapshots."""
    return {
        name
        for record in groups(tx).values()
        if record.mode == SNAPSHOT and not record.deleted
        for name in record.streams
    }
