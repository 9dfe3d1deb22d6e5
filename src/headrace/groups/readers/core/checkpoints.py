"""Checkpoints: agreed places in all streams of a group, and who still has to answer.

Theory of operation
-------------------
A checkpoint begins with what nobody reads: the positions of the unassigned segments, and which
segments wait for which predecessors.  Every reader that is online then adds its own positions,
once, idle readers too (they add nothing, and that is an answer).  Until it has, a reader may
neither claim, release nor complete, so what it adds is what it owned when the checkpoint began.
A reader that goes offline answers with the positions it leaves behind.

What a segment waits for belongs to the checkpoint.  Suppose A/3 follows A/0 and A/1, and A/1 was
over before the checkpoint: the positions alone would let a restored group wait for A/1 forever.

Offsets are floors: what was acked out of order above them is not in the state.  Whoever keeps the
progress of segments keeps a copy of it with the checkpoint, in the same transaction (when it is
created for what is unassigned, when it is acknowledged for the rest), and a reset to the
checkpoint puts it back.  Then exactly what was acked at the checkpoint is acked again.

Readers are asked in the order of creation, so of two outstanding checkpoints the first completes
first, or both at once when their last reader leaves.  *Silent* ones serve to learn a cut: they
move nothing, neither recorded positions nor the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from headrace.groups.readers.core.segments import SegmentId


class CheckpointKind(StrEnum):
    """Whether a checkpoint moves the recorded positions."""

    NORMAL = "normal"
    SILENT = "silent"


class CheckpointStatus(StrEnum):
    """Where a checkpoint stands."""

    ABSENT = "absent"
    PENDING = "pending"
    COMPLETE = "complete"


CHECKPOINT_TRANSITIONS: Final[dict[tuple[CheckpointStatus, str], CheckpointStatus]] = {
    (CheckpointStatus.ABSENT, "create with readers online"): CheckpointStatus.PENDING,
    (CheckpointStatus.ABSENT, "create with nobody online"): CheckpointStatus.COMPLETE,
    (CheckpointStatus.PENDING, "ack while others owe"): CheckpointStatus.PENDING,
    (CheckpointStatus.PENDING, "last ack"): CheckpointStatus.COMPLETE,
    (CheckpointStatus.PENDING, "last owing reader offline"): CheckpointStatus.COMPLETE,
    (CheckpointStatus.PENDING, "reset"): CheckpointStatus.ABSENT,
    (CheckpointStatus.COMPLETE, "reset"): CheckpointStatus.ABSENT,
    (CheckpointStatus.COMPLETE, "newer ones fill the limit"): CheckpointStatus.ABSENT,
}
"""Every change of a checkpoint's status and what brings it about."""

Waits = Mapping[SegmentId, frozenset[SegmentId]]


class Checkpoint:
    """One checkpoint; `pending` are the readers that block it, in order of joining."""

    __slots__ = ("kind", "name", "pending", "positions", "waits")

    def __init__(
        self,
        name: str,
        kind: CheckpointKind,
        pending: Iterable[str],
        positions: Mapping[SegmentId, int],
        waits: Waits,
    ) -> None:
        self.name = name
        self.kind = kind
        self.pending = dict.fromkeys(pending)
        self.positions = dict(positions)
        self.waits = dict(waits)

    @property
    def status(self) -> CheckpointStatus:
        """Pending while a reader owes it."""
        return CheckpointStatus.PENDING if self.pending else CheckpointStatus.COMPLETE


class Checkpoints:
    """The checkpoints of a group in the order of their creation."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._by_name: dict[str, Checkpoint] = {}
        self._owed: dict[str, dict[str, None]] = {}
        self.last: Checkpoint | None = None
        """The last complete checkpoint that is not silent."""

    def get(self, name: str) -> Checkpoint | None:
        """The checkpoint of that name, pending or complete."""
        return self._by_name.get(name)

    def all(self) -> list[Checkpoint]:
        """Every checkpoint that is known by name, oldest first."""
        return list(self._by_name.values())

    def outstanding(self, kind: CheckpointKind) -> int:
        """How many of a kind wait for readers."""
        return sum(1 for c in self._by_name.values() if c.pending and c.kind is kind)

    def owed_by(self, reader: str) -> tuple[str, ...]:
        """What a reader has to acknowledge, oldest first."""
        return tuple(self._owed.get(reader, ()))

    def next_for(self, reader: str) -> str | None:
        """The oldest checkpoint that a reader has to acknowledge."""
        return next(iter(self.owed_by(reader)), None)

    def add(self, checkpoint: Checkpoint) -> None:
        """Begin a checkpoint, or restore one."""
        self._by_name[checkpoint.name] = checkpoint
        for reader in checkpoint.pending:
            self._owed.setdefault(reader, {})[checkpoint.name] = None
        if not checkpoint.pending:
            self._completed(checkpoint)

    def acknowledge(self, name: str, reader: str, positions: Mapping[SegmentId, int]) -> None:
        """Take the answer of a reader that owes the checkpoint."""
        checkpoint = self._by_name[name]
        del checkpoint.pending[reader]
        owed = self._owed[reader]
        del owed[name]
        if not owed:
            del self._owed[reader]
        checkpoint.positions.update(positions)
        if not checkpoint.pending:
            self._completed(checkpoint)

    def _completed(self, checkpoint: Checkpoint) -> None:
        if checkpoint.kind is CheckpointKind.NORMAL:
            self.last = checkpoint
        complete = [
            c for c in self._by_name.values() if not c.pending and c.kind is checkpoint.kind
        ]
        for old in complete[: -self._kept_max]:
            del self._by_name[old.name]
