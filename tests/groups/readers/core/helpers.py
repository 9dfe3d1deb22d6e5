"""A reader group in a few words, for tests."""

from __future__ import annotations

from headrace.groups.readers import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    CheckpointKind,
    ClaimSegment,
    CompleteSegments,
    Completion,
    CreateCheckpoint,
    GroupConfig,
    Outcome,
    ReaderGroupState,
    ReleaseSegments,
    RemoveReader,
    SegmentId,
    Successor,
    Update,
)
from headrace.groups.readers.core.records import encode_state
from headrace.groups.readers.core.segments import positions
from headrace.groups.readers.core.synchronizer import Replica


def seg(text: str) -> SegmentId:
    return SegmentId.parse(text)


def cut(**offsets: int) -> dict[SegmentId, int]:
    """``cut(a0=5)`` is {a/0: 5}."""
    return {SegmentId(name[0], int(name[1:])): offset for name, offset in offsets.items()}


class Group:
    """A state, and updates by short names; tokens are looked up."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        end: dict[SegmentId, int] | None = None,
        **start: int,
    ) -> None:
        self.state = ReaderGroupState(config or GroupConfig(), cut(**start), end_cut=end)

    @classmethod
    def of(cls, segments: int, *readers: str) -> Group:
        """A group over so many unassigned segments of one stream, at their beginning."""
        group = cls()
        start = {SegmentId("a", number): 0 for number in range(segments)}
        group.state = ReaderGroupState(GroupConfig(), start)
        group.join(*readers)
        return group

    def token(self, reader: str) -> int:
        member = self.state.members.get(reader)
        return 0 if member is None else member.token

    def apply(self, update: Update) -> Outcome:
        """Apply an update as it would get into the log."""
        outcome = Replica(self.state).prepare(update, now_ms=0)
        if outcome.changes:
            self.state.evolve(outcome.changes)
        return outcome

    def join(self, *readers: str) -> None:
        for reader in readers:
            self.apply(AddReader(reader))

    def claim(self, reader: str, *segments: str) -> None:
        for segment in segments:
            self.apply(ClaimSegment(reader, self.token(reader), seg(segment)))

    def acquire(self, reader: str) -> int:
        return len(self.apply(AcquireShare(reader, self.token(reader))).claimed)

    def release(self, reader: str, *segments: str, **at: int) -> None:
        going = tuple(map(seg, segments))
        self.apply(ReleaseSegments(reader, self.token(reader), going, positions(cut(**at))))

    def complete(self, reader: str, segment: str, **successors: str) -> Outcome:
        """``complete("r1", "a/0", a2="a/0 a/1")``: a/2 follows a/0 and a/1."""
        following = tuple(
            Successor(SegmentId(name[0], int(name[1:])), tuple(map(seg, before.split())))
            for name, before in successors.items()
        )
        done = Completion(seg(segment), following)
        return self.apply(CompleteSegments(reader, self.token(reader), (done,)))

    def checkpoint(self, name: str, *, silent: bool = False) -> None:
        kind = CheckpointKind.SILENT if silent else CheckpointKind.NORMAL
        self.apply(CreateCheckpoint(name, kind))

    def ack(self, reader: str, name: str, **at: int) -> None:
        self.apply(AckCheckpoint(reader, self.token(reader), name, positions(cut(**at))))

    def offline(self, reader: str, **at: int) -> None:
        self.apply(RemoveReader(reader, positions(cut(**at))))

    def owned(self, reader: str) -> dict[str, int]:
        return {str(s): held.offset for s, held in self.state.owned(reader).items()}

    @property
    def unassigned(self) -> dict[str, int]:
        return {str(s): offset for s, offset in self.state.unassigned.items()}

    @property
    def future(self) -> dict[str, set[str]]:
        return {str(s): set(map(str, pending)) for s, pending in self.state.future.items()}

    def checkpoint_at(self, name: str) -> dict[str, int]:
        checkpoint = self.state.checkpoints.get(name)
        assert checkpoint is not None
        return {str(s): offset for s, offset in checkpoint.positions.items()}

    def image(self) -> list[bytes]:
        """Everything, for comparing."""
        return encode_state(self.state)
