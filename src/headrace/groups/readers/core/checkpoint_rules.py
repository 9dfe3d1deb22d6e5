"""Rules for checkpoints: beginning, answering, cancelling, and how many are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.errors import (
    CheckpointCompleteError,
    InvalidReaderUpdateError,
    UnknownCheckpointError,
)
from headrace.groups.readers.core.changes import (
    CheckpointAcked,
    CheckpointCreated,
    CheckpointForgotten,
    StateChange,
)
from headrace.groups.readers.core.checkpoints import Checkpoint, CheckpointKind
from headrace.groups.readers.core.refusals import member_of, name_of, refusal
from headrace.groups.readers.core.segment_rules import recorded
from headrace.groups.readers.core.segments import Position, as_cut
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AckCheckpoint,
    CancelCheckpoints,
    CreateCheckpoint,
)

CHECKPOINT_NAME_CHARS_MAX = 128


def check_checkpoint_name(name: str) -> None:
    """Refuse a name that could not be shown."""
    if not 1 <= len(name) <= CHECKPOINT_NAME_CHARS_MAX or not name.isprintable():
        raise InvalidReaderUpdateError(
            f"a checkpoint's name has 1 to {CHECKPOINT_NAME_CHARS_MAX} printable characters, "
            f"unlike {name[:CHECKPOINT_NAME_CHARS_MAX]!a}"
        )


def create(state: ReaderGroupState, update: CreateCheckpoint) -> Iterator[StateChange]:
    """Begin a checkpoint; with nobody online it is complete at once."""
    check_checkpoint_name(update.name)
    if state.checkpoints.get(update.name) is not None:
        return
    readers = tuple(state.members)
    yield CheckpointCreated(update.name, update.kind, readers)
    if not readers:
        kept = state.config.checkpoints_kept_max
        complete = [c for c in state.checkpoints.all() if c.kind is update.kind and not c.pending]
        yield from _forgotten(complete[: max(0, len(complete) + 1 - kept)])


def ack(state: ReaderGroupState, update: AckCheckpoint) -> Iterator[StateChange]:
    """A reader says where it stood."""
    member = member_of(state, update, update.reader, update.token)
    given = as_cut(update.positions, name_of(update))
    if update.name not in state.checkpoints.owed_by(member.name):
        return  # answered before, or gone meanwhile
    checkpoint = state.checkpoints.get(update.name)
    assert checkpoint is not None
    stood = tuple(
        Position(segment, given.get(segment, holding.offset))
        for segment, holding in member.owned.items()
    )
    if checkpoint.kind is CheckpointKind.NORMAL:
        yield from recorded(member, given)
    yield from answered(state, (update.name,), member.name, stood)


def answered(
    state: ReaderGroupState, names: Iterable[str], reader: str, stood: tuple[Position, ...]
) -> Iterator[StateChange]:
    """A reader's answer to checkpoints that it owes, and what is one too many by then."""
    completing = []
    for name in names:
        checkpoint = state.checkpoints.get(name)
        assert checkpoint is not None
        complete = len(checkpoint.pending) == 1
        if complete:
            completing.append(name)
        yield CheckpointAcked(name, reader, stood, complete)
    if completing:
        kept = state.config.checkpoints_kept_max
        yield from _forgotten(state.checkpoints.too_many(kept, completing))


def cancel(state: ReaderGroupState, update: CancelCheckpoints) -> Iterator[StateChange]:
    """Give up checkpoints that wait for readers."""
    outstanding = [c for c in state.checkpoints.all() if c.pending]
    if not update.names:
        normal = (c for c in outstanding if c.kind is CheckpointKind.NORMAL)
        yield from _forgotten(normal)
    for name in dict.fromkeys(update.names):
        checkpoint = state.checkpoints.get(name)
        if checkpoint is None:
            why = f"there is no checkpoint {name!r}"
            raise refusal(UnknownCheckpointError, state, update, why)
        if not checkpoint.pending:
            why = f"checkpoint {name!r} is complete; only one that waits can be cancelled"
            raise refusal(CheckpointCompleteError, state, update, why)
        yield from _forgotten((checkpoint,))


def _forgotten(checkpoints: Iterable[Checkpoint]) -> Iterator[CheckpointForgotten]:
    return (CheckpointForgotten(c.name, c.created) for c in checkpoints)
