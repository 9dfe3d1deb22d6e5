"""Rules for readers: joining, coming back, leaving, and telling how far behind one is.

A lag counts only by comparison.  A reader becomes *far behind* when it tells
:data:`STREAK` times in a row that its lag is several times that of the reader in the middle, and
stops being so in the same manner, at a lower factor.  So lags that differ a little move nothing,
nor does one that jumps about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.errors import AlreadyMemberError, InvalidReaderUpdateError
from headrace.groups.readers.core.changes import (
    Freed,
    LagReported,
    ReaderAdded,
    ReaderRemoved,
    SegmentClaimed,
    StateChange,
)
from headrace.groups.readers.core.checkpoint_rules import answered
from headrace.groups.readers.core.refusals import check_number, member_of, name_of, refusal
from headrace.groups.readers.core.segments import Position, SegmentId, as_cut, positions
from headrace.groups.readers.core.state import OnlineReader, ReaderGroupState
from headrace.groups.readers.core.updates import (
    WHY_CHARS_MAX,
    AddReader,
    RemoveReader,
    ReportLag,
    ReturnReader,
)
from headrace.subjects import check_name

LAG_MS_MAX = 2**53
STREAK: Final = 3
"""Reports in a row that it takes for a reader to count as something else."""
_TOKEN_MAX = 2**63 - 1


def add(state: ReaderGroupState, update: AddReader) -> Iterator[StateChange]:
    """A reader joins."""
    check_name(update.reader, "reader name")
    check_number(update, "lease_token", 0, _TOKEN_MAX)
    if update.reader in state.members:
        why = f"reader {update.reader!r} is online; put it offline first"
        raise refusal(AlreadyMemberError, state, update, why)
    yield ReaderAdded(update.reader, update.lease_token)


def remove(state: ReaderGroupState, update: RemoveReader) -> Iterator[StateChange]:
    """A reader leaves, or is put offline."""
    if len(update.why) > WHY_CHARS_MAX:
        raise InvalidReaderUpdateError(
            f"{name_of(update)}: the reason has {len(update.why)} characters; "
            f"{WHY_CHARS_MAX} are allowed"
        )
    given = as_cut(update.positions, name_of(update))
    member = state.members.get(update.reader)
    if member is not None and update.token in (None, member.token):
        yield from _leaves(state, member, given)


def come_back(state: ReaderGroupState, update: ReturnReader) -> Iterator[StateChange]:
    """A reader joins; an earlier life of it ends, and what that had is its own again."""
    check_name(update.reader, "reader name")
    check_number(update, "lease_token", 0, _TOKEN_MAX)
    given = as_cut(update.positions, name_of(update))
    free: dict[SegmentId, int] = {}
    member = state.members.get(update.reader)
    if member is not None:
        free = _left(member, given)
        yield from _leaves(state, member, given)
    for segment in update.wants:
        if segment in state.unassigned:
            free[segment] = state.unassigned[segment]
    yield ReaderAdded(update.reader, update.lease_token)
    for segment, offset in free.items():
        yield SegmentClaimed(update.reader, segment, offset, state.revision + 1)


def _left(member: OnlineReader, given: dict[SegmentId, int]) -> dict[SegmentId, int]:
    return {s: given.get(s, holding.offset) for s, holding in member.owned.items()}


def _leaves(
    state: ReaderGroupState, member: OnlineReader, given: dict[SegmentId, int]
) -> Iterator[StateChange]:
    left = _left(member, given)
    for segment, offset in left.items():
        yield Freed(member.name, segment, offset)
    yield from _answers(state, member, positions(left))
    yield ReaderRemoved(member.name)


def _answers(
    state: ReaderGroupState, member: OnlineReader, stood: tuple[Position, ...]
) -> Iterable[StateChange]:
    return answered(state, state.checkpoints.owed_by(member.name), member.name, stood)


def lag(state: ReaderGroupState, update: ReportLag) -> Iterator[StateChange]:
    """A reader tells its lag; without segments it has none to tell."""
    member = member_of(state, update, update.reader, update.token)
    lag_ms = check_number(update, "lag_ms", 0, LAG_MS_MAX)
    against = state.loads.seems_far(member.name, lag_ms) is not member.far_behind
    streak = member.streak + 1 if against else 0
    turns = streak >= STREAK
    told = LagReported(member.name, lag_ms, member.far_behind is not turns, 0 if turns else streak)
    if not member.owned and not member.far_behind:
        return
    if (told.lag_ms, told.far_behind, told.streak) != (
        member.lag_ms, member.far_behind, member.streak
    ):  # fmt: skip
        yield told
