"""How an outcome is stored in the log of a group, and read by those who follow.

An entry is [format, revision, time, changes, update].  Followers need the changes; those of many
segments are kept in columns.  The update is there for people who ask why: one that is unknown
here, since a newer version made it, is left out and harms nobody.  An entry of a newer *format* is
refused: this version cannot know what it would change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from headrace.errors import HeadraceError, ReaderFormatError, ReaderStateDecodeError
from headrace.groups.readers.core.changes import (
    Awaited,
    CheckpointAcked,
    CheckpointCreated,
    CheckpointForgotten,
    Completed,
    Configured,
    Freed,
    LagReported,
    Opened,
    PositionRecorded,
    ReaderAdded,
    ReaderRemoved,
    SegmentClaimed,
    SegmentDropped,
    StateChange,
    StreamDropped,
    StreamsAdded,
    WasReset,
)
from headrace.groups.readers.core.columns import SegmentColumns, from_columns, to_columns
from headrace.groups.readers.core.rules import Outcome
from headrace.groups.readers.core.segments import Position, SegmentId, Successor, as_cut
from headrace.groups.readers.core.updates import Update, brief

FORMAT = 1
"""The format of entries: another change, or another meaning of one, makes a new one."""

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, HeadraceError)


class _Columned(msgspec.Struct, frozen=True, array_like=True):
    reader: str
    columns: list[SegmentColumns]


class _Claimed(_Columned, frozen=True, tag="c"):
    pass


class _Freed(_Columned, frozen=True, tag="f"):
    pass


class _Recorded(_Columned, frozen=True, tag="p"):
    pass


class _Completed(_Columned, frozen=True, tag="d"):
    pass


class _Dropped(_Columned, frozen=True, tag="x"):
    pass


class _Opened(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    columns: list[SegmentColumns]


class _Awaited(msgspec.Struct, frozen=True, array_like=True, tag="w"):
    waits: list[Successor]


class _Acked(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    name: str
    reader: str
    complete: bool
    columns: list[SegmentColumns]


_Plain = (
    ReaderAdded
    | ReaderRemoved
    | LagReported
    | CheckpointCreated
    | CheckpointForgotten
    | StreamsAdded
    | StreamDropped
    | Configured
    | WasReset
)
_Stored = (
    _Claimed | _Freed | _Recorded | _Completed | _Dropped | _Opened | _Awaited | _Acked | _Plain
)


class _Stamp(msgspec.Struct, frozen=True, array_like=True):
    format: int


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    format: int
    revision: int
    at_ms: int
    changes: list[_Stored]
    update: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_stamp_decoder = msgspec.msgpack.Decoder(_Stamp)
_entry_decoder = msgspec.msgpack.Decoder(_Entry)
_update_decoder = msgspec.msgpack.Decoder(Update)


def encode_outcome(outcome: Outcome) -> bytes:
    """One entry of the log."""
    update = None if outcome.update is None else brief(outcome.update)
    entry = (FORMAT, outcome.revision, outcome.at_ms, list(_stored(outcome.changes)), update)
    return _encoder.encode(entry)


def decode_outcome(data: bytes) -> Outcome:
    """The inverse of :func:`encode_outcome`, but for the positions in the update."""
    try:
        found = _stamp_decoder.decode(data).format
        if found > FORMAT:
            raise ReaderFormatError("an entry in the log of a reader group", found, FORMAT)
        entry = _entry_decoder.decode(data)
        changes = tuple(_changes(entry))
    except ReaderFormatError:
        raise
    except MALFORMED as error:
        raise ReaderStateDecodeError(f"an entry in the log of a reader group: {error}") from error
    return Outcome(entry.revision, changes, _update(entry.update), entry.at_ms)


def _update(raw: msgspec.Raw) -> Update | None:
    try:
        found: Update = _update_decoder.decode(raw)
    except MALFORMED:
        return None
    return found


_COLUMNED: dict[type, type[_Columned]] = {
    SegmentClaimed: _Claimed,
    Freed: _Freed,
    PositionRecorded: _Recorded,
    Completed: _Completed,
    SegmentDropped: _Dropped,
}


def _stored(changes: Iterable[StateChange]) -> Iterator[_Stored]:
    """Changes as they are stored: neighbours of one kind and reader together."""
    for (kind, reader), grouped in groupby(
        changes, key=lambda each: (type(each), getattr(each, "reader", None))
    ):
        if kind in _COLUMNED and reader is not None:
            places = ((c.segment, getattr(c, "offset", 0)) for c in grouped)  # type: ignore[union-attr]
            yield _COLUMNED[kind](reader, to_columns(places))  # type: ignore[misc]
        elif kind is Opened:
            yield _Opened(to_columns((c.segment, 0) for c in grouped))  # type: ignore[union-attr]
        else:
            yield from map(_alone, grouped)


def _alone(change: StateChange) -> _Stored:
    match change:
        case Awaited(segment=segment, predecessors=predecessors):
            return _Awaited([Successor(segment, tuple(sorted(predecessors)))])
        case CheckpointAcked(name=name, reader=reader, positions=stood, complete=complete):
            columns = to_columns((position.segment, position.offset) for position in stood)
            return _Acked(name, reader, complete, columns)
    return change  # type: ignore[return-value]


def _changes(entry: _Entry) -> Iterator[StateChange]:
    for each in entry.changes:
        match each:
            case _Claimed(reader=reader):
                for segment, offset in _places(each.columns):
                    yield SegmentClaimed(reader, segment, offset, entry.revision)
            case _Freed(reader=reader):
                for segment, offset in _places(each.columns):
                    yield Freed(reader, segment, offset)
            case _Recorded(reader=reader):
                for segment, offset in _places(each.columns):
                    yield PositionRecorded(reader, segment, offset)
            case _Completed(reader=reader):
                for segment, _ in _places(each.columns):
                    yield Completed(reader, segment)
            case _Dropped(reader=reader):
                for segment, _ in _places(each.columns):
                    yield SegmentDropped(reader, segment)
            case _Opened(columns=columns):
                for segment, _ in _places(columns):
                    yield Opened(segment)
            case _Awaited(waits=waits):
                for wait in waits:
                    yield Awaited(wait.segment, frozenset(wait.predecessors))
            case _Acked(columns=columns):
                stood = tuple(Position(*place) for place in _places(columns))
                yield CheckpointAcked(each.name, each.reader, stood, each.complete)
            case WasReset() | StreamsAdded():
                as_cut(each.cut, "cut")
                as_cut(each.end_cut, "end cut")
                yield each
            case _:
                yield each


def _places(columns: Iterable[SegmentColumns]) -> Iterator[tuple[SegmentId, int]]:
    return ((segment, offset) for segment, offset, _ in from_columns(columns))
