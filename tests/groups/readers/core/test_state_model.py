"""Any sequence of updates against simple books: maps, statuses, replicas and records agree."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ReaderGroupError
from headrace.groups.readers import (
    END,
    AckCheckpoint,
    AcquireShare,
    AddReader,
    CheckpointKind,
    ClaimSegment,
    CompleteSegments,
    Completion,
    CreateCheckpoint,
    Outcome,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReportLag,
    Reset,
    ResetToCheckpoint,
    SegmentId,
    Successor,
    Update,
    decide,
)
from headrace.groups.readers.core.checkpoints import CHECKPOINT_TRANSITIONS, CheckpointStatus
from headrace.groups.readers.core.entries import decode_outcome, encode_outcome
from headrace.groups.readers.core.records import decode_state, encode_state
from headrace.groups.readers.core.segments import (
    RESETS,
    SEGMENT_TRANSITIONS,
    SegmentStatus,
    positions,
)
from headrace.groups.readers.core.synchronizer import Replica
from headrace.groups.readers.core.updates import brief
from tests.groups.readers.core.helpers import Group, cut

READERS = ("r1", "r2", "r3")
NAMES = ("c1", "c2", "s1")
# Two streams of one shape: 0 and 1 split and merge into 2, 3, 4; those merge into 5.
PREDECESSORS = {2: (0,), 3: (0, 1), 4: (1,), 5: (2, 3, 4)}
SEGMENTS = [SegmentId(stream, number) for stream in "ab" for number in range(6)]
START = cut(a0=0, a1=5, b0=0, b1=0)

WEIGHTS = {
    "join": 6, "offline": 2, "claim": 3, "acquire": 10, "release": 4, "complete": 12,
    "checkpoint": 4, "ack": 12, "record": 3, "lag": 3, "reset": 1, "restore": 2, "zombie": 1,
}  # fmt: skip
STEPS = 70

Step = tuple[str, str, int, int, str]


def steps_of(seed: int) -> list[Step]:
    """A long life: a generator of lists would reset most of them before anything happens."""
    chance = random.Random(seed)
    kinds = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
    high = [0]

    def offset() -> int:
        high[0] += chance.randint(0, 2)
        return chance.choice((END, high[0], high[0], high[0], chance.randint(0, 40)))

    return [
        (
            kind,
            chance.choice(READERS),
            chance.randrange(len(SEGMENTS)),
            offset(),
            chance.choice(NAMES),
        )
        for kind in kinds
    ]


def successors(segment: SegmentId) -> tuple[Successor, ...]:
    return tuple(
        Successor(
            SegmentId(segment.stream, number), tuple(SegmentId(segment.stream, p) for p in before)
        )
        for number, before in PREDECESSORS.items()
        if segment.number in before
    )


def update_of(group: Group, step: Step) -> Update:
    """Make the update that a step asks for; segments are chosen from what is owned where any."""
    what, reader, pick, offset, name = step
    token = group.token(reader)
    owned = list(group.state.owned(reader))
    segment = owned[pick % len(owned)] if owned else SEGMENTS[pick]
    at = positions({segment: offset, SEGMENTS[pick]: offset})
    match what:
        case "join":
            return AddReader(reader, pick)
        case "offline":
            return RemoveReader(reader, at if offset > 20 else ())
        case "claim":
            return ClaimSegment(reader, token, SEGMENTS[pick])
        case "acquire":
            return AcquireShare(reader, token)
        case "release":
            return ReleaseSegments(reader, token, (segment,), at)
        case "complete":
            some = {segment: None, owned[-1]: None} if owned else {segment: None}
            done = tuple(Completion(each, successors(each)) for each in some)
            return CompleteSegments(reader, token, done)
        case "checkpoint":
            kind = CheckpointKind.SILENT if name == "s1" else CheckpointKind.NORMAL
            return CreateCheckpoint(name, kind)
        case "ack":
            return AckCheckpoint(reader, token, name, at)
        case "record":
            return RecordPositions(reader, token, at)
        case "lag":
            return ReportLag(reader, token, abs(offset) * 5000)
        case "reset":
            return Reset(positions(START if pick % 2 else cut(a5=3, b0=END, b1=7)))
        case "restore":
            return ResetToCheckpoint(name)
    return AcquireShare(reader, token + 1)


def check_books(group: Group) -> None:
    """A segment is in one map; counts, owners and what is owed fit together."""
    state = group.state
    owned = [s for member in state.members.values() for s in member.owned]
    everywhere = [*owned, *state.unassigned, *state.future]
    assert len(everywhere) == len(set(everywhere))
    assert state.assigned_count == len(owned)
    assert state.segment_count == len(owned) + len(state.unassigned)
    assert state.end_of_data == (not everywhere)
    for name, member in state.members.items():
        assert all(state.owner(segment) is member for segment in member.owned)
        assert all(holding.token >= member.token for holding in member.owned.values())
        owed = [c.name for c in state.checkpoints.all() if name in c.pending]
        assert list(state.checkpoints.owed_by(name)) == owed
    assert all(pending for pending in state.future.values())
    for checkpoint in state.checkpoints.all():
        assert all(reader in state.members for reader in checkpoint.pending)


def causes(outcome: Outcome, update: Update, before: SegmentStatus, segment: SegmentId) -> set[str]:
    """What the table calls what just happened to a segment."""
    named = {s for c in outcome.changes if (s := getattr(c, "segment", None)) is not None}
    match update:
        case Reset() | ResetToCheckpoint():
            return set(RESETS)
        case _ if segment not in named:
            return set()
        case AcquireShare() | ClaimSegment():
            return {"claim"}
        case ReleaseSegments():
            return {"release"}
        case RemoveReader():
            return {"reader offline"}
        case CompleteSegments() if segment in {each.segment for each in update.completions}:
            return {"completion"}
        case CompleteSegments():
            first = before is SegmentStatus.UNKNOWN
            last = "its only predecessor is over" if first else "its last predecessor is over"
            return {last, "one of its predecessors is over"}
    return set()


def check_transition(
    before: dict[SegmentId, SegmentStatus], group: Group, update: Update, outcome: Outcome
) -> None:
    """Every change of a segment's status stands in the table (what is over is unknown)."""
    hidden = {SegmentStatus.UNKNOWN: (SegmentStatus.UNKNOWN, SegmentStatus.OVER)}
    for segment, was in before.items():
        now = group.state.status(segment)
        if was is now:
            continue
        found = {
            (SEGMENT_TRANSITIONS.get((w, cause)))
            for w in hidden.get(was, (was,))
            for cause in causes(outcome, update, was, segment)
        }
        assert found & set(hidden.get(now, (now,))), f"{segment}: {was} to {now} by {update}"


def statuses(group: Group) -> dict[str, CheckpointStatus]:
    found = {c.name: c.status for c in group.state.checkpoints.all()}
    return {name: found.get(name, CheckpointStatus.ABSENT) for name in NAMES}


@given(st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_any_updates_keep_the_books_in_order(seed: int) -> None:
    group = Group()
    group.apply(Reset(positions(START)))
    follower = Replica(decode_state(group.image()))
    checkpoint_moves = {(w, n) for (w, _), n in CHECKPOINT_TRANSITIONS.items()}
    for step in steps_of(seed):
        update = update_of(group, step)
        image = group.image()
        before = {segment: group.state.status(segment) for segment in SEGMENTS}
        recorded = group.state.positions()
        checkpoints = statuses(group)
        try:
            decided = decide(group.state, update)
            assert group.image() == image
            outcome = group.apply(update)
        except ReaderGroupError:
            assert group.image() == image
            continue
        assert outcome.changes == decided
        check_books(group)
        check_transition(before, group, update, outcome)
        for name, status in statuses(group).items():
            moved = (checkpoints[name], status)
            assert moved[0] is moved[1] or moved in checkpoint_moves
        if not isinstance(update, Reset | ResetToCheckpoint):
            for segment, offset in group.state.positions().items():
                was = recorded.get(segment, 0)
                assert offset == END or (was != END and offset >= was)
        if outcome.changes:
            entry = decode_outcome(encode_outcome(outcome))
            assert (entry.revision, entry.changes) == (outcome.revision, outcome.changes)
            assert entry.update == brief(update)
            follower.follow([entry])
            assert follower.snapshot() == group.image()
    restored = decode_state(group.image())
    assert encode_state(restored) == group.image()
    assert {r: restored.loads.size(r) for r in restored.members} == {
        r: group.state.loads.size(r) for r in group.state.members
    }
