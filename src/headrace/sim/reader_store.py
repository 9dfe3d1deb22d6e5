"""A reader group in the store of a simulated world, as the catalog keeps it.

The log of outcomes with a snapshot before it, the claims of segments under their tokens, and the
progress in each; an update changes all of them in one transaction.  A checkpoint keeps the
progress as it was, since its offsets say nothing of what was acked out of order.  Those copies
belong to its creation, since its name may be used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from headrace.errors import ReaderGroupError
from headrace.groups.progress import Progress
from headrace.groups.readers.core.changes import (
    CheckpointAcked,
    CheckpointCreated,
    CheckpointForgotten,
    Completed,
    Freed,
    SegmentClaimed,
    SegmentDropped,
    StateChange,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.entries import decode_outcome, encode_outcome
from headrace.groups.readers.core.rules import Outcome as Applied
from headrace.groups.readers.core.segments import END, Cut, SegmentId
from headrace.groups.readers.core.synchronizer import Replica
from headrace.groups.readers.core.updates import ResetToCheckpoint, Update
from headrace.log import order
from headrace.sim.reader_oracle import ReaderOracle
from headrace.sim.store import Snapshot

GROUP = "group"
PROGRESS = "progress"
AT_CHECKPOINT = "at checkpoint"
LOG_KEPT = 40

decoded = lru_cache(maxsize=1024)(decode_outcome)
"""Everybody reads the same few entries, and an outcome never changes."""


class UpdateRefused(msgspec.Struct, frozen=True):
    """The group does not allow an update."""

    why: str


def create(tx: Snapshot, chunks: list[bytes]) -> None:
    """Begin a group with its first snapshot."""
    tx.put(GROUP, "snapshot", chunks)
    tx.put(GROUP, "first", 1)
    tx.put(GROUP, "head", 0)


def read_log(tx: Snapshot, revision: int) -> tuple[list[bytes] | None, list[bytes]]:
    """The log after a revision, and the snapshot before it where the log is too short."""
    head, first = value_of(tx, "head"), value_of(tx, "first")
    snapshot = None
    if revision + 1 < first:
        snapshot, revision = value_of(tx, "snapshot"), first - 1
    return snapshot, [value_of(tx, r) for r in range(revision + 1, head + 1)]


def value_of(tx: Snapshot, key: Any) -> Any:
    """An entry of the group that is known to be there."""
    entry = tx.get(GROUP, key)
    assert entry is not None
    return entry.value


def catch_up(replica: Replica, news: tuple[list[bytes] | None, list[bytes]]) -> None:
    """Bring a replica up to date."""
    snapshot, log = news
    if snapshot is not None:
        restored = Replica.restore(snapshot)
        if restored.revision > replica.revision:
            replica.state = restored.state
    replica.follow(map(decoded, log))


def commit(
    tx: Snapshot, replica: Replica, update: Update, oracle: ReaderOracle
) -> Applied | UpdateRefused:
    """Put an update to the group, with claims and progress to match."""
    catch_up(replica, read_log(tx, replica.revision))
    try:
        outcome = replica.prepare(update, oracle.world.now_ms)
    except ReaderGroupError as error:
        oracle.world.reach(f"refused.{error.reason}")
        return UpdateRefused(str(error))
    if not outcome.changes:
        return outcome
    _compact(tx, replica)
    tx.put(GROUP, outcome.revision, encode_outcome(outcome))
    tx.put(GROUP, "head", outcome.revision)
    for change in outcome.changes:
        _carry_out(tx, replica, outcome, change, oracle)
    return outcome


def _carry_out(
    tx: Snapshot, replica: Replica, outcome: Applied, change: StateChange, oracle: ReaderOracle
) -> None:
    """Claims, progress and the copies of checkpoints follow the changes."""
    checkpoints = replica.state.checkpoints
    match change:
        case SegmentClaimed(reader=reader, segment=segment, token=token):
            tx.claim(GROUP, segment, reader, token)
        case Freed(segment=segment) | Completed(segment=segment):
            _release_claim(tx, segment)
        case SegmentDropped(segment=segment):
            _release_claim(tx, segment)
        case StreamDropped(stream=stream):
            for segment in oracle.of_stream(stream):
                tx.delete(PROGRESS, segment)
                for checkpoint in checkpoints.known():
                    tx.delete(AT_CHECKPOINT, (checkpoint.created, segment))
        case StreamsAdded(cut=cut):
            _begin_progress(tx, oracle, {p.segment: p.offset for p in cut})
        case CheckpointCreated():
            _save_progress(tx, outcome.revision, replica.state.unassigned)
        case CheckpointAcked(name=name, positions=stood):
            found = checkpoints.get(name)
            assert found is not None
            _save_progress(tx, found.created, (position.segment for position in stood))
        case CheckpointForgotten(created=created):
            for segment in oracle.segments():
                tx.delete(AT_CHECKPOINT, (created, segment))
        case WasReset(cut=cut):
            target = None
            if isinstance(outcome.update, ResetToCheckpoint):
                target = checkpoints.get(outcome.update.name)
            created = target.created if target else 0
            _reset_progress(tx, oracle, created, {p.segment: p.offset for p in cut})


def _compact(tx: Snapshot, replica: Replica) -> None:
    first = value_of(tx, "first")
    if replica.revision - first >= LOG_KEPT:
        tx.put(GROUP, "snapshot", replica.snapshot())
        tx.put(GROUP, "first", replica.revision + 1)
        for revision in range(first, replica.revision + 1):
            tx.delete(GROUP, revision)


def _release_claim(tx: Snapshot, segment: SegmentId) -> None:
    claim = tx.claim_of(GROUP, segment)
    assert claim is not None
    tx.release_claim(GROUP, segment, claim.token)


def _save_progress(tx: Snapshot, created: int, segments: Iterable[SegmentId]) -> None:
    """Keep what is acked out of order at a checkpoint: its offsets say only the floor."""
    for segment in segments:
        entry = tx.get(PROGRESS, segment)
        if entry is not None:
            tx.put(AT_CHECKPOINT, (created, segment), entry.value)


def _begin_progress(tx: Snapshot, oracle: ReaderOracle, cut: Cut) -> None:
    """Streams begin: within the cut as it says, behind it at the head."""
    ahead = order.following(cut, oracle.graph())
    for stream in {segment.stream for segment in cut}:
        for segment in oracle.of_stream(stream):
            if segment not in ahead:
                floor = cut.get(segment, oracle.segment(segment).head)
                tx.put(PROGRESS, segment, Progress(floor=floor))


def _reset_progress(tx: Snapshot, oracle: ReaderOracle, created: int, cut: Cut) -> None:
    """What is within the cut stands as it says, and what lies ahead of it is unread."""
    for segment, offset in cut.items():
        saved = tx.get(AT_CHECKPOINT, (created, segment))
        floor = oracle.limit(segment) if offset == END else offset
        tx.put(PROGRESS, segment, saved.value if saved else Progress(floor=floor))
    for segment in order.following(cut, oracle.graph()):
        tx.delete(PROGRESS, segment)
    for group, segment in list(oracle.world.store.claims):
        if group == GROUP:
            _release_claim(tx, segment)
