"""What is demanded of an update before it gets into the log, beyond the rules of the group.

The rules take a reader at its word: whatever position it gives is recorded, and it may answer
checkpoints in any order.  An honest reader never needs that freedom, and one with a fault would
do harm with it, so nobody who prepares an update for the log is given it:

* recorded positions move forward; a reset, or putting a reader offline with a rewind, are the
  ways back;
* checkpoints are answered in the order of their creation, so they complete in that order and
  the last one is the newest;
* the number of checkpoints of either kind that wait for readers is bounded.

Followers carry out what is in the log and ask nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import CheckpointPendingError, PositionFellError, TooManyCheckpointsError
from headrace.groups.readers.core.refusals import refusal
from headrace.groups.readers.core.segments import Position, falls
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    CreateCheckpoint,
    RecordPositions,
    ReleaseSegments,
    RemoveReader,
    ReturnReader,
    Update,
)


def check(state: ReaderGroupState, update: Update) -> None:
    """Raise unless an update that the rules allow may also get into the log."""
    match update:
        case AckCheckpoint(reader=reader, name=name, positions=given):
            _check_order(state, update, reader, name)
            _check_forward(state, update, reader, given)
        case RemoveReader(rewind=True):
            pass
        case (
            RemoveReader(reader=reader, positions=given)
            | ReturnReader(reader=reader, positions=given)
            | ReleaseSegments(reader=reader, positions=given)
            | RecordPositions(reader=reader, positions=given)
        ):
            _check_forward(state, update, reader, given)
        case CreateCheckpoint():
            _check_room(state, update)


def _check_forward(
    state: ReaderGroupState, update: Update, reader: str, given: Iterable[Position]
) -> None:
    owned = state.owned(reader)
    for position in given:
        holding = owned.get(position.segment)
        if holding is not None and falls(holding.offset, position.offset):
            why = f"{position.segment} is recorded at {holding.offset}, after {position.offset}"
            raise refusal(PositionFellError, state, update, why)


def _check_order(state: ReaderGroupState, update: Update, reader: str, name: str) -> None:
    owed = state.checkpoints.owed_by(reader)
    if name in owed and owed[0] != name:
        why = f"checkpoint {owed[0]!r} is older and comes first"
        raise refusal(CheckpointPendingError, state, update, why)


def _check_room(state: ReaderGroupState, update: CreateCheckpoint) -> None:
    limit = state.config.checkpoints_outstanding_max
    known = state.checkpoints.get(update.name) is not None
    if not known and state.checkpoints.outstanding(update.kind) >= limit:
        waiting = "; ".join(f"{n} for {', '.join(r)}" for n, r in state.blockers().items())
        why = f"{limit} {update.kind} checkpoints are outstanding, waiting: {waiting}"
        raise refusal(TooManyCheckpointsError, state, update, why)
