"""Rules for segments: claiming, releasing, recording where one is, and completing."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import InvalidReaderUpdateError, NotOverloadedError, NotUnassignedError
from headrace.groups.readers.core import balance
from headrace.groups.readers.core.changes import (
    Awaited,
    Completed,
    Freed,
    Opened,
    PositionRecorded,
    SegmentClaimed,
    StateChange,
)
from headrace.groups.readers.core.refusals import (
    check_nothing_owed,
    check_owned,
    check_segments_once,
    member_of,
    name_of,
    refusal,
)
from headrace.groups.readers.core.segments import SegmentId, SegmentStatus, Successor, as_cut
from headrace.groups.readers.core.state import OnlineReader, ReaderGroupState
from headrace.groups.readers.core.updates import (
    AcquireShare,
    ClaimFree,
    ClaimSegment,
    CompleteSegments,
    Completion,
    RecordPositions,
    ReleaseSegments,
    Update,
)
from headrace.log import order


def acquire(state: ReaderGroupState, update: AcquireShare) -> Iterator[StateChange]:
    """A reader takes what its share allows."""
    member = member_of(state, update, update.reader, update.token)
    for segment in state.first_unassigned(balance.acquire_count(state, member.name)):
        yield _claimed(state, member, segment)


def claim(state: ReaderGroupState, update: ClaimSegment) -> Iterator[StateChange]:
    """A reader takes one segment."""
    member = member_of(state, update, update.reader, update.token)
    check_nothing_owed(state, update, member.name)
    if update.segment not in state.unassigned:
        status = state.status(update.segment)
        why = f"{update.segment} is {status}; only unassigned segments can be claimed"
        raise refusal(NotUnassignedError, state, update, why)
    yield _claimed(state, member, update.segment)


def claim_free(state: ReaderGroupState, update: ClaimFree) -> Iterator[StateChange]:
    """A reader takes of some segments those that nobody has."""
    member = member_of(state, update, update.reader, update.token)
    check_segments_once(update, update.segments)
    check_nothing_owed(state, update, member.name)
    for segment in update.segments:
        if segment in state.unassigned:
            yield _claimed(state, member, segment)


def _claimed(state: ReaderGroupState, member: OnlineReader, segment: SegmentId) -> SegmentClaimed:
    return SegmentClaimed(member.name, segment, state.unassigned[segment], state.revision + 1)


def release(state: ReaderGroupState, update: ReleaseSegments) -> Iterator[StateChange]:
    """A reader gives up what is beyond its share."""
    member = member_of(state, update, update.reader, update.token)
    given = as_cut(update.positions, name_of(update))
    check_segments_once(update, update.segments)
    for segment in update.segments:
        check_owned(state, update, member, segment)
    check_nothing_owed(state, update, member.name)
    # The rule is judged segment by segment; each that goes is one more on offer.
    if not balance.is_overloaded(state, member.name, len(update.segments) - 1):
        why = f"reader {member.name!r} owns {len(member.owned)} segments, within its share"
        raise refusal(NotOverloadedError, state, update, why)
    going = dict.fromkeys(update.segments)
    kept = {segment: offset for segment, offset in given.items() if segment not in going}
    yield from recorded(member, kept)
    for segment in going:
        offset = given.get(segment, member.owned[segment].offset)
        yield Freed(member.name, segment, offset)


def record(state: ReaderGroupState, update: RecordPositions) -> Iterator[StateChange]:
    """A reader records where it is."""
    member = member_of(state, update, update.reader, update.token)
    return recorded(member, as_cut(update.positions, name_of(update)))


def recorded(member: OnlineReader, given: dict[SegmentId, int]) -> Iterator[PositionRecorded]:
    """Moves of recorded positions; what the reader does not own is left out."""
    for segment, offset in given.items():
        holding = member.owned.get(segment)
        if holding is not None and holding.offset != offset:
            yield PositionRecorded(member.name, segment, offset)


def complete(state: ReaderGroupState, update: CompleteSegments) -> Iterator[StateChange]:
    """A reader is through with segments; what follows them waits for less, or opens."""
    member = member_of(state, update, update.reader, update.token)
    check_segments_once(update, tuple(each.segment for each in update.completions))
    check_nothing_owed(state, update, member.name)
    for completion in update.completions:
        check_owned(state, update, member, completion.segment)
        _check_successors(update, completion)
    waits: dict[SegmentId, frozenset[SegmentId]] = {}
    for completion in update.completions:
        yield Completed(member.name, completion.segment)
        if completion.segment not in state.end_cut:
            for successor in completion.successors:
                waits |= _struck(state, waits, successor, completion.segment)
    for segment, waiting in waits.items():
        yield Awaited(segment, waiting) if waiting else Opened(segment)


def _check_successors(update: Update, completion: Completion) -> None:
    segment = completion.segment
    for successor in completion.successors:
        where = f"{name_of(update)}: {successor.segment} cannot follow {segment}"
        if segment not in successor.predecessors:
            raise InvalidReaderUpdateError(f"{where}: it does not name it as a predecessor")
        streams = {each.stream for each in (successor.segment, *successor.predecessors)}
        if streams != {segment.stream}:
            raise InvalidReaderUpdateError(f"{where}: it has to do with another stream")
        if successor.segment in successor.predecessors:
            raise InvalidReaderUpdateError(f"{where}: it would follow itself")


def _struck(
    state: ReaderGroupState,
    struck: dict[SegmentId, frozenset[SegmentId]],
    successor: Successor,
    completed: SegmentId,
) -> dict[SegmentId, frozenset[SegmentId]]:
    """A successor has one predecessor less to wait for; `struck` are those of this update."""
    segment = successor.segment
    status = state.status(segment)
    if status in (SegmentStatus.ASSIGNED, SegmentStatus.UNASSIGNED):
        return {}  # open already, by a cut that holds both: it is not opened again from 0
    known = struck.get(segment, state.future.get(segment))
    return {segment: order.awaited(successor.predecessors if known is None else known, {completed})}
