"""Rules for the group as a whole: beginning again, its streams, and its config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.errors import (
    InvalidReaderUpdateError,
    StreamOfGroupExistsError,
    UnknownCheckpointError,
    UnknownStreamOfGroupError,
)
from headrace.groups.readers.core.changes import (
    CheckpointForgotten,
    Configured,
    SegmentDropped,
    StateChange,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.checkpoints import CheckpointStatus
from headrace.groups.readers.core.refusals import refusal
from headrace.groups.readers.core.segments import Cut, Successor, as_cut, positions
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.core.updates import (
    AddStreams,
    Configure,
    DropStreams,
    Reset,
    ResetToCheckpoint,
)


def reset(state: ReaderGroupState, update: Reset) -> Iterator[StateChange]:
    """Begin at a cut; it knows nothing of checkpoints."""
    cut = as_cut(update.cut, "cut")
    _check_waits(cut, update.waits)
    kept = positions(state.end_cut)
    if update.end_cut is not None:
        as_cut(update.end_cut, "end cut")
        kept = update.end_cut
    yield from _forgotten(state, ())
    yield WasReset(update.cut, update.waits, kept)


def _check_waits(cut: Cut, waits: Iterable[Successor]) -> None:
    for wait in waits:
        if wait.segment in cut or not wait.predecessors:
            raise InvalidReaderUpdateError(
                f"cut: {wait.segment} cannot both be read and wait, nor wait for nothing"
            )
        if any(before.stream != wait.segment.stream for before in wait.predecessors):
            raise InvalidReaderUpdateError(
                f"cut: {wait.segment} cannot wait for a segment of another stream"
            )


def restore(state: ReaderGroupState, update: ResetToCheckpoint) -> Iterator[StateChange]:
    """Begin at a checkpoint, which stays with those before it; newer ones never happened."""
    checkpoint = state.checkpoints.get(update.name)
    last = state.checkpoints.last
    if checkpoint is None and last is not None and last.name == update.name:
        checkpoint = last
    if checkpoint is None or checkpoint.status is not CheckpointStatus.COMPLETE:
        waits_for = ", ".join(checkpoint.pending) if checkpoint else ""
        why = f"it waits for {waits_for}" if waits_for else "there is no checkpoint of that name"
        raise refusal(UnknownCheckpointError, state, update, why)
    older = [
        c.name
        for c in state.checkpoints.all()
        if c.created <= checkpoint.created and c.status is CheckpointStatus.COMPLETE
    ]
    waits = tuple(Successor(s, tuple(sorted(p))) for s, p in checkpoint.waits.items())
    yield from _forgotten(state, older)
    yield WasReset(positions(checkpoint.positions), waits, positions(state.end_cut))


def _forgotten(state: ReaderGroupState, kept: Iterable[str]) -> Iterator[CheckpointForgotten]:
    staying = frozenset(kept)
    for checkpoint in state.checkpoints.all():
        if checkpoint.name not in staying:
            yield CheckpointForgotten(checkpoint.name, checkpoint.created)


def add_streams(state: ReaderGroupState, update: AddStreams) -> Iterator[StateChange]:
    """Read more streams."""
    cut, end = as_cut(update.cut, "cut"), as_cut(update.end_cut, "end cut")
    _check_waits(cut, update.waits)
    if not cut:
        raise InvalidReaderUpdateError("AddStreams: name at least one stream, by its cut")
    added = {segment.stream for segment in cut}
    for stream in sorted(added):
        if stream in state.streams:
            why = f"the group reads stream {stream!r} already"
            raise refusal(StreamOfGroupExistsError, state, update, why)
    for segment in (*end, *(wait.segment for wait in update.waits)):
        if segment.stream not in added:
            raise InvalidReaderUpdateError(f"AddStreams: the cut says nothing of {segment}")
    yield StreamsAdded(update.cut, update.waits, update.end_cut)


def drop_streams(state: ReaderGroupState, update: DropStreams) -> Iterator[StateChange]:
    """Have done with streams."""
    if not update.streams:
        raise InvalidReaderUpdateError("DropStreams: name at least one stream")
    dropped = dict.fromkeys(update.streams)
    for stream in dropped:
        if stream not in state.streams:
            why = f"the group does not read stream {stream!r}; it reads {', '.join(state.streams)}"
            raise refusal(UnknownStreamOfGroupError, state, update, why)
    for member in state.members.values():
        for segment in member.owned:
            if segment.stream in dropped:
                yield SegmentDropped(member.name, segment)
    for stream in dropped:
        yield StreamDropped(stream)


def configure(state: ReaderGroupState, update: Configure) -> Iterator[StateChange]:
    """Give the group another config; checkpoints beyond a lower limit are forgotten."""
    if update.config == state.config:
        return
    yield Configured(update.config)
    for checkpoint in state.checkpoints.too_many(update.config.checkpoints_kept_max):
        yield CheckpointForgotten(checkpoint.name, checkpoint.created)
