"""The oracle's own books of a reader group's checkpoints: what each must hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.groups.progress.ranges import AckedRanges
from headrace.groups.readers.core.checkpoints import CheckpointKind
from headrace.groups.readers.core.segments import SegmentId

Acked = Mapping[SegmentId, AckedRanges]


class KnownCheckpoint:
    """What was acked at a checkpoint; a reader's part is known when it answers."""

    def __init__(self, kind: CheckpointKind, created: int, acked: Acked) -> None:
        self.kind = kind
        self.created = created
        self.acked = {segment: ranges.copy() for segment, ranges in acked.items()}
        self.owned: dict[str, list[SegmentId]] = {}


class CheckpointBooks:
    """Every checkpoint that can be gone back to, or waits for readers."""

    def __init__(self) -> None:
        self.known: dict[str, KnownCheckpoint] = {}
        self.completed = 0
        """The creation of the one that completed last."""

    def create(
        self,
        name: str,
        made: KnownCheckpoint,
        owners: Iterable[tuple[SegmentId, str]],
    ) -> None:
        """A checkpoint begins with what is acked now, and who owns what."""
        self.known[name] = made
        for segment, reader in owners:
            made.owned.setdefault(reader, []).append(segment)

    def answer(self, name: str, reader: str, acked: Acked) -> KnownCheckpoint:
        """What a reader owned counts as it stands at its answer."""
        found = self.known[name]
        for segment in found.owned.pop(reader, []):
            found.acked[segment] = acked[segment].copy()
        return found

    def add(self, acked: Acked) -> None:
        """A stream joined: every checkpoint holds it where it begins."""
        for checkpoint in self.known.values():
            checkpoint.acked |= {segment: ranges.copy() for segment, ranges in acked.items()}

    def drop(self, stream: str) -> None:
        """A stream left."""
        for checkpoint in self.known.values():
            kept = {s: acked for s, acked in checkpoint.acked.items() if s.stream != stream}
            checkpoint.acked = kept
            checkpoint.owned = {
                reader: [s for s in owned if s.stream != stream]
                for reader, owned in checkpoint.owned.items()
            }
