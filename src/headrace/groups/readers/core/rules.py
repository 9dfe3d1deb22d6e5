"""The rules: what an update changes; the one place where preconditions are judged.

Theory of operation
-------------------
:func:`decide` looks at a state and an update and returns the changes, or raises; it changes
nothing.  :func:`apply` decides and carries out.  Both are deterministic (no clock, no random
numbers), so replicas that apply the same log are equal: that is how readers follow each other.

An update may come to nothing (a reader put offline twice, a share of nothing); then there is no
new revision and nothing for others to follow.

What is checked, in this order: is the reader online under its token; does it own the segment
(release); does it owe a checkpoint; then what is particular to the update.  A reader that owes a
checkpoint neither claims, releases nor completes: the checkpoint would hold a segment twice, or
not at all.

These are the rules that every log of a reader group obeys.  What is demanded beyond them of an
update before it gets into the log stands in :mod:`headrace.groups.readers.core.guards`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.errors import (
    AlreadyMemberError,
    CheckpointPendingError,
    InvalidReaderUpdateError,
    NotMemberError,
    NotOverloadedError,
    NotOwnerError,
    NotUnassignedError,
    ReaderGroupError,
    ReaderRevisionError,
    UnknownCheckpointError,
)
from headrace.groups.readers.core import balance
from headrace.groups.readers.core.checkpoints import CheckpointKind, CheckpointStatus
from headrace.groups.readers.core.segments import (
    Position,
    SegmentId,
    SegmentStatus,
    as_cut,
    positions,
)
from headrace.groups.readers.core.state import OnlineReader, ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    AcquireShare,
    AddReader,
    Awaited,
    CheckpointAcked,
    CheckpointCreated,
    ClaimSegment,
    Completed,
    CompleteSegment,
    CreateCheckpoint,
    Freed,
    LagReported,
    Opened,
    PositionRecorded,
    ReaderAdded,
    ReaderRemoved,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReportLag,
    Reset,
    ResetToCheckpoint,
    SegmentClaimed,
    StateChange,
    Successor,
    Update,
    WasReset,
)
from headrace.log import order
from headrace.subjects import check_name

LAG_MS_MAX = 2**53
CHECKPOINT_NAME_CHARS_MAX = 128


class Outcome(msgspec.Struct, frozen=True):
    """What an update came to: the changes, and the revision that they made."""

    revision: int
    changes: tuple[StateChange, ...]

    @property
    def claimed(self) -> tuple[SegmentClaimed, ...]:
        """Segments that changed hands to a reader."""
        return tuple(change for change in self.changes if isinstance(change, SegmentClaimed))

    @property
    def freed(self) -> tuple[Freed, ...]:
        """Segments that a reader gave up or lost."""
        return tuple(change for change in self.changes if isinstance(change, Freed))


def apply(state: ReaderGroupState, update: Update, *, if_revision: int | None = None) -> Outcome:
    """Decide on an update and carry it out; with `if_revision`, only on that very revision."""
    if if_revision is not None and if_revision != state.revision:
        raise ReaderRevisionError(state.revision, if_revision)
    changes = decide(state, update)
    return Outcome(state.evolve(changes) if changes else state.revision, changes)


def decide(state: ReaderGroupState, update: Update) -> tuple[StateChange, ...]:
    """The changes that an update comes to on this state, which is left as it is."""
    return tuple(_RULES[type(update)](state, update))


# --- refusing ------------------------------------------------------------------------------


def name_of(update: Update) -> str:
    """An update as errors call it, with whom and what it names."""
    named = (getattr(update, field, None) for field in ("reader", "segment", "name"))
    return " ".join([type(update).__name__, *(str(each) for each in named if each is not None)])


def refusal(
    error: type[ReaderGroupError], state: ReaderGroupState, update: Update, why: str
) -> ReaderGroupError:
    """An error that names the update and the state."""
    return error(name_of(update), state.describe(), why)


def _member(state: ReaderGroupState, update: Update, reader: str, token: int) -> OnlineReader:
    member = state.member(reader, token)
    if member is None:
        why = f"reader {reader!r} is not online under token {token}; it must start again"
        raise refusal(NotMemberError, state, update, why)
    return member


def _check_nothing_owed(state: ReaderGroupState, update: Update, reader: str) -> None:
    owed = state.checkpoints.next_for(reader)
    if owed is not None:
        why = f"reader {reader!r} must acknowledge checkpoint {owed!r} first"
        raise refusal(CheckpointPendingError, state, update, why)


def _check_owned(
    state: ReaderGroupState, update: Update, member: OnlineReader, segment: SegmentId
) -> None:
    if segment not in member.owned:
        owner = state.owner(segment)
        whose = f"{owner.name!r} does" if owner else f"it is {state.status(segment)}"
        why = f"reader {member.name!r} does not own {segment}, {whose}"
        raise refusal(NotOwnerError, state, update, why)


# --- readers -------------------------------------------------------------------------------


def _add(state: ReaderGroupState, update: AddReader) -> Iterator[StateChange]:
    check_name(update.reader, "reader name")
    if update.reader in state.members:
        why = f"reader {update.reader!r} is online; put it offline first"
        raise refusal(AlreadyMemberError, state, update, why)
    yield ReaderAdded(update.reader, update.lease_token)


def _remove(state: ReaderGroupState, update: RemoveReader) -> Iterator[StateChange]:
    given = as_cut(update.positions, name_of(update))
    member = state.members.get(update.reader)
    if member is None or (update.token is not None and update.token != member.token):
        return
    left: dict[SegmentId, int] = {}
    for segment, holding in member.owned.items():
        left[segment] = given.get(segment, holding.offset)
    for segment, offset in left.items():
        yield Freed(member.name, segment, offset)
    for name in state.checkpoints.owed_by(member.name):
        yield _acked(state, name, member.name, positions(left))
    yield ReaderRemoved(member.name)


def _lag(state: ReaderGroupState, update: ReportLag) -> Iterator[StateChange]:
    member = _member(state, update, update.reader, update.token)
    if not 0 <= update.lag_ms <= LAG_MS_MAX:
        raise InvalidReaderUpdateError(
            f"{name_of(update)}: lag_ms is {update.lag_ms}; it must be 0 to {LAG_MS_MAX}"
        )
    if member.lag_ms != update.lag_ms:
        yield LagReported(member.name, update.lag_ms)


# --- segments ------------------------------------------------------------------------------


def _acquire(state: ReaderGroupState, update: AcquireShare) -> Iterator[StateChange]:
    member = _member(state, update, update.reader, update.token)
    for segment in state.first_unassigned(balance.acquire_count(state, member.name)):
        yield _claimed(state, member, segment)


def _claim(state: ReaderGroupState, update: ClaimSegment) -> Iterator[StateChange]:
    member = _member(state, update, update.reader, update.token)
    _check_nothing_owed(state, update, member.name)
    if update.segment not in state.unassigned:
        status = state.status(update.segment)
        why = f"{update.segment} is {status}; only unassigned segments can be claimed"
        raise refusal(NotUnassignedError, state, update, why)
    yield _claimed(state, member, update.segment)


def _claimed(state: ReaderGroupState, member: OnlineReader, segment: SegmentId) -> SegmentClaimed:
    return SegmentClaimed(member.name, segment, state.unassigned[segment], state.revision + 1)


def _release(state: ReaderGroupState, update: ReleaseSegments) -> Iterator[StateChange]:
    member = _member(state, update, update.reader, update.token)
    given = as_cut(update.positions, name_of(update))
    if not update.segments or len(set(update.segments)) < len(update.segments):
        raise InvalidReaderUpdateError(f"{name_of(update)}: name segments to release, each once")
    for segment in update.segments:
        _check_owned(state, update, member, segment)
    _check_nothing_owed(state, update, member.name)
    # The rule is judged segment by segment; each that goes is one more on offer.
    if not balance.is_overloaded(state, member.name, len(update.segments) - 1):
        why = f"reader {member.name!r} owns {len(member.owned)} segments, within its share"
        raise refusal(NotOverloadedError, state, update, why)
    going = dict.fromkeys(update.segments)
    kept = {segment: offset for segment, offset in given.items() if segment not in going}
    yield from _record(member, kept)
    for segment in going:
        offset = given.get(segment, member.owned[segment].offset)
        yield Freed(member.name, segment, offset)


def _record_all(state: ReaderGroupState, update: RecordPositions) -> Iterator[StateChange]:
    member = _member(state, update, update.reader, update.token)
    return _record(member, as_cut(update.positions, name_of(update)))


def _record(member: OnlineReader, given: dict[SegmentId, int]) -> Iterator[PositionRecorded]:
    """Moves of recorded positions; what the reader does not own is left out."""
    for segment, offset in given.items():
        holding = member.owned.get(segment)
        if holding is not None and holding.offset != offset:
            yield PositionRecorded(member.name, segment, offset)


def _complete(state: ReaderGroupState, update: CompleteSegment) -> Iterator[StateChange]:
    member = _member(state, update, update.reader, update.token)
    _check_nothing_owed(state, update, member.name)
    _check_owned(state, update, member, update.segment)
    for successor in update.successors:
        if update.segment not in successor.predecessors:
            raise InvalidReaderUpdateError(
                f"{name_of(update)}: {successor.segment} does not name it as a predecessor"
            )
    yield Completed(member.name, update.segment)
    if update.segment not in state.end_cut:
        for successor in update.successors:
            yield from _struck(state, successor, update.segment)


def _struck(
    state: ReaderGroupState, successor: Successor, completed: SegmentId
) -> Iterator[StateChange]:
    """A successor has one predecessor less to wait for."""
    segment = successor.segment
    status = state.status(segment)
    if status in (SegmentStatus.ASSIGNED, SegmentStatus.UNASSIGNED):
        return  # open already, by a cut that holds both: it is not opened again from 0
    known = state.future.get(segment)
    waiting = order.awaited(successor.predecessors if known is None else known, {completed})
    yield Awaited(segment, waiting) if waiting else Opened(segment)


# --- checkpoints ---------------------------------------------------------------------------


def _checkpoint(state: ReaderGroupState, update: CreateCheckpoint) -> Iterator[StateChange]:
    if not 1 <= len(update.name) <= CHECKPOINT_NAME_CHARS_MAX:
        raise InvalidReaderUpdateError(
            f"a checkpoint's name has 1 to {CHECKPOINT_NAME_CHARS_MAX} characters, "
            f"not {len(update.name)}"
        )
    if state.checkpoints.get(update.name) is not None:
        return
    yield CheckpointCreated(update.name, update.kind)


def _ack(state: ReaderGroupState, update: AckCheckpoint) -> Iterator[StateChange]:
    member = _member(state, update, update.reader, update.token)
    given = as_cut(update.positions, name_of(update))
    if update.name not in state.checkpoints.owed_by(member.name):
        return  # answered before, or gone meanwhile
    checkpoint = state.checkpoints.get(update.name)
    assert checkpoint is not None
    stood = [
        Position(segment, given.get(segment, holding.offset))
        for segment, holding in member.owned.items()
    ]
    if checkpoint.kind is CheckpointKind.NORMAL:
        yield from _record(member, given)
    yield _acked(state, update.name, member.name, tuple(stood))


def _acked(
    state: ReaderGroupState, name: str, reader: str, stood: tuple[Position, ...]
) -> CheckpointAcked:
    checkpoint = state.checkpoints.get(name)
    assert checkpoint is not None
    return CheckpointAcked(name, reader, stood, complete=len(checkpoint.pending) == 1)


# --- beginning again -----------------------------------------------------------------------


def _reset(state: ReaderGroupState, update: Reset) -> Iterator[StateChange]:
    cut = as_cut(update.cut, "cut")
    for wait in update.waits:
        if wait.segment in cut or not wait.predecessors:
            raise InvalidReaderUpdateError(
                f"cut: {wait.segment} cannot both be read and wait, nor wait for nothing"
            )
    kept = positions(state.end_cut)
    if update.end_cut is not None:
        as_cut(update.end_cut, "end cut")
        kept = update.end_cut
    yield WasReset(update.cut, update.waits, kept)


def _restore(state: ReaderGroupState, update: ResetToCheckpoint) -> Iterator[StateChange]:
    checkpoint = state.checkpoints.get(update.name)
    last = state.checkpoints.last
    if checkpoint is None and last is not None and last.name == update.name:
        checkpoint = last
    if checkpoint is None or checkpoint.status is not CheckpointStatus.COMPLETE:
        waits_for = ", ".join(checkpoint.pending) if checkpoint else ""
        why = f"it waits for {waits_for}" if waits_for else "there is no checkpoint of that name"
        raise refusal(UnknownCheckpointError, state, update, why)
    waits = tuple(Successor(s, tuple(sorted(p))) for s, p in checkpoint.waits.items())
    yield WasReset(positions(checkpoint.positions), waits, positions(state.end_cut))


_RULES: dict[type, Callable[[ReaderGroupState, Any], Iterator[StateChange]]] = {
    AddReader: _add,
    RemoveReader: _remove,
    ClaimSegment: _claim,
    AcquireShare: _acquire,
    ReleaseSegments: _release,
    CompleteSegment: _complete,
    CreateCheckpoint: _checkpoint,
    AckCheckpoint: _ack,
    RecordPositions: _record_all,
    ReportLag: _lag,
    Reset: _reset,
    ResetToCheckpoint: _restore,
}
