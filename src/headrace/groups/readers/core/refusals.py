"""Refusing an update: errors that name the update and the state, and the checks that many share."""

from __future__ import annotations

from headrace.errors import (
    CheckpointPendingError,
    InvalidReaderUpdateError,
    NotMemberError,
    NotOwnerError,
    ReaderGroupError,
)
from headrace.groups.readers.core.segments import SegmentId
from headrace.groups.readers.core.state import OnlineReader, ReaderGroupState
from headrace.groups.readers.core.updates import Update


def name_of(update: Update) -> str:
    """An update as errors call it, with whom and what it names."""
    named = (getattr(update, field, None) for field in ("reader", "segment", "name"))
    return " ".join([type(update).__name__, *(str(each) for each in named if each is not None)])


def refusal(
    error: type[ReaderGroupError], state: ReaderGroupState, update: Update, why: str
) -> ReaderGroupError:
    """An error that names the update and the state."""
    return error(name_of(update), state.describe(), why)


def member_of(state: ReaderGroupState, update: Update, reader: str, token: int) -> OnlineReader:
    """The reader, if it is online in the life that asks."""
    member = state.member(reader, token)
    if member is None:
        why = f"reader {reader!r} is not online under token {token}; it must start again"
        raise refusal(NotMemberError, state, update, why)
    return member


def check_nothing_owed(state: ReaderGroupState, update: Update, reader: str) -> None:
    """Who owes a checkpoint answers it before anything else."""
    owed = state.checkpoints.next_for(reader)
    if owed is not None:
        why = f"reader {reader!r} must acknowledge checkpoint {owed!r} first"
        raise refusal(CheckpointPendingError, state, update, why)


def check_owned(
    state: ReaderGroupState, update: Update, member: OnlineReader, segment: SegmentId
) -> None:
    """A reader speaks of its own segments only."""
    if segment not in member.owned:
        owner = state.owner(segment)
        whose = f"{owner.name!r} does" if owner else f"it is {state.status(segment)}"
        why = f"reader {member.name!r} does not own {segment}, {whose}"
        raise refusal(NotOwnerError, state, update, why)


def check_number(update: Update, field: str, low: int, high: int) -> int:
    """A field of an update that must be a whole number within bounds."""
    value = getattr(update, field)
    if type(value) is not int or not low <= value <= high:
        raise InvalidReaderUpdateError(
            f"{name_of(update)}: {field} is {value!r}; it must be a whole number, {low} to {high}"
        )
    return value


def check_segments_once(update: Update, segments: tuple[SegmentId, ...]) -> None:
    """A list of segments names each once, and at least one."""
    if not segments or len(set(segments)) < len(segments):
        raise InvalidReaderUpdateError(f"{name_of(update)}: name at least one segment, each once")
