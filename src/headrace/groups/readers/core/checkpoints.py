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

A few complete ones of either kind are kept.  One may be forgotten in the very update that
completed it, so whoever waits for it learns of it from the change and not by looking for it.
A group that was reset to one keeps it and those before it: it can be gone back to again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    (CheckpointStatus.PENDING, "cancel"): CheckpointStatus.ABSENT,
    (CheckpointStatus.PENDING, "reset"): CheckpointStatus.ABSENT,
    (CheckpointStatus.COMPLETE, "reset to a cut"): CheckpointStatus.ABSENT,
    (CheckpointStatus.COMPLETE, "reset to an older one"): CheckpointStatus.ABSENT,
    (CheckpointStatus.COMPLETE, "reset to it or a newer one"): CheckpointStatus.COMPLETE,
    (CheckpointStatus.COMPLETE, "newer ones fill the limit"): CheckpointStatus.ABSENT,
}
"""Every change of a checkpoint's status and what brings it about."""

Waits = Mapping[SegmentId, frozenset[SegmentId]]


class Checkpoint:
    """One checkpoint; `pending` are the readers that block it, in order of joining."""

    __slots__ = ("created", "kind", "name", "pending", "positions", "waits")

    def __init__(
        self,
        name: str,
        kind: CheckpointKind,
        created: int,
        pending: Iterable[str],
        positions: Mapping[SegmentId, int],
        waits: Waits,
    ) -> None:
        self.name = name
        self.kind = kind
        self.created = created
        """The revision of its creation: names are used again, revisions are not."""
        self.pending = dict.fromkeys(pending)
        self.positions = dict(positions)
        self.waits = dict(waits)

    @property
    def status(self) -> CheckpointStatus:
        """Pending while a reader owes it."""
        return CheckpointStatus.PENDING if self.pending else CheckpointStatus.COMPLETE

    def add(self, positions: Mapping[SegmentId, int], waits: Waits) -> None:
        """Streams joined the group: here they stand where they begin."""
        self.positions.update(positions)
        self.waits.update(waits)

    def drop(self, stream: str) -> None:
        """A stream left the group."""
        self.positions = {s: at for s, at in self.positions.items() if s.stream != stream}
        self.waits = {s: before for s, before in self.waits.items() if s.stream != stream}


class Checkpoints:
    """The checkpoints of a group in the order of their creation."""

    def __init__(self) -> None:
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

    def known(self) -> list[Checkpoint]:
        """Every checkpoint that can be gone back to, also one whose name was used again."""
        last = [] if self.last is None else [self.last]
        return [*self._by_name.values(), *last]

    def outstanding(self, kind: CheckpointKind) -> int:
        """How many of a kind wait for readers."""
        return sum(1 for c in self._by_name.values() if c.pending and c.kind is kind)

    def owed_by(self, reader: str) -> tuple[str, ...]:
        """What a reader has to acknowledge, oldest first."""
        return tuple(self._owed.get(reader, ()))

    def next_for(self, reader: str) -> str | None:
        """The oldest checkpoint that a reader has to acknowledge."""
        return next(iter(self.owed_by(reader)), None) if reader in self._owed else None

    def too_many(self, kept_max: int, completing: Collection[str] = ()) -> list[Checkpoint]:
        """What is to be forgotten once those in `completing` are complete, too."""
        found: list[Checkpoint] = []
        for kind in CheckpointKind:
            complete = [
                c
                for c in self._by_name.values()
                if c.kind is kind and (not c.pending or c.name in completing)
            ]
            found += complete[:-kept_max]
        return found

    def add(self, checkpoint: Checkpoint) -> None:
        """Begin a checkpoint, or restore one."""
        self._by_name[checkpoint.name] = checkpoint
        for reader in checkpoint.pending:
            self._owed.setdefault(reader, {})[checkpoint.name] = None
        if not checkpoint.pending:
            self._completed(checkpoint)

    def acknowledge(
        self, name: str, reader: str, positions: Mapping[SegmentId, int], *, complete: bool
    ) -> Checkpoint:
        """Take the answer of a reader that owes the checkpoint."""
        checkpoint = self._by_name[name]
        del checkpoint.pending[reader]
        self._owes_no_more(reader, name)
        checkpoint.positions.update(positions)
        if complete:
            self._completed(checkpoint)
        return checkpoint

    def forget(self, name: str) -> None:
        """A checkpoint is no longer known by name, and nobody owes it."""
        for reader in self._by_name.pop(name).pending:
            self._owes_no_more(reader, name)

    def was_reset(self) -> None:
        """The group begins again: the last checkpoint is the newest that it still knows."""
        normal = [c for c in self._by_name.values() if c.kind is CheckpointKind.NORMAL]
        self.last = normal[-1] if normal else None

    def _owes_no_more(self, reader: str, name: str) -> None:
        owed = self._owed[reader]
        del owed[name]
        if not owed:
            del self._owed[reader]

    def _completed(self, checkpoint: Checkpoint) -> None:
        if checkpoint.kind is CheckpointKind.NORMAL:
            self.last = checkpoint
