"""How a whole state is stored: a snapshot in pieces.

The log holds what was decided since (:mod:`.entries`).  A snapshot is written now and then, so that
the log stays short; it is cut into chunks of bounded size, since ten thousand segments with a few
checkpoints would not fit into one entry.  Chunks are lists of parts (readers, segments,
checkpoints) in columns, with streams named once.

Whatever these functions did not write is refused; what a newer version wrote, by that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from headrace.errors import ReaderFormatError, ReaderStateDecodeError
from headrace.groups.readers.core.checkpoints import Checkpoint, CheckpointKind
from headrace.groups.readers.core.columns import SegmentColumns, from_columns, to_columns
from headrace.groups.readers.core.entries import MALFORMED
from headrace.groups.readers.core.segments import SegmentId, Successor
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.state import Holding, OnlineReader, ReaderGroupState

CHUNK_SEGMENTS_MAX = 4096
"""Segments (or positions of a checkpoint) in one chunk; well below 100 KiB."""

FORMAT = 1
"""The format of snapshots."""

T = TypeVar("T")


class _Head(msgspec.Struct, frozen=True, tag="head"):
    format: int
    revision: int
    config: GroupConfig
    streams: list[str]
    chunks: int


class _Stamp(msgspec.Struct, frozen=True, tag="head"):
    format: int


class _Reader(msgspec.Struct, frozen=True, tag="reader"):
    name: str
    token: int
    lease_token: int
    lag_ms: int | None
    far_behind: bool
    streak: int
    owned: list[SegmentColumns]


class _Unassigned(msgspec.Struct, frozen=True, tag="unassigned"):
    """In the order of waiting, so a stream may come more than once."""

    segments: list[SegmentColumns]


class _Future(msgspec.Struct, frozen=True, tag="future"):
    waits: list[Successor]


class _EndCut(msgspec.Struct, frozen=True, tag="end"):
    segments: list[SegmentColumns]


class _Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    """Positions may come in several parts; `named`: it can still be asked for by name."""

    name: str
    kind: CheckpointKind
    created: int
    named: bool
    last: bool
    pending: list[str]
    positions: list[SegmentColumns]
    waits: list[Successor]


_Part = _Head | _Reader | _Unassigned | _Future | _EndCut | _Checkpoint

_encoder = msgspec.msgpack.Encoder()
_stamp_decoder = msgspec.msgpack.Decoder(list[_Stamp])
_chunk_decoder = msgspec.msgpack.Decoder(list[_Part])


def encode_state(state: ReaderGroupState) -> list[bytes]:
    """The whole state in chunks; the first one says how many there are."""
    chunks: list[list[_Part]] = []
    room = 0
    for part, size in _parts(state):
        if size > room:
            chunks.append([])
            room = CHUNK_SEGMENTS_MAX
        chunks[-1].append(part)
        room -= size
    streams = list(state.streams)
    head = _Head(FORMAT, state.revision, state.config, streams, 1 + len(chunks))
    return [_encoder.encode([head]), *map(_encoder.encode, chunks)]


def _parts(state: ReaderGroupState) -> Iterator[tuple[_Part, int]]:
    for piece in _pieces(state.end_cut.items()):
        yield _EndCut(to_columns(piece)), len(piece)
    for piece in _pieces(state.unassigned.items()):
        yield _Unassigned(to_columns(piece)), len(piece)
    for waits in _pieces(state.future.items()):
        yield _Future(_waits(waits)), len(waits)
    for member in state.members.values():
        lag = (member.lag_ms, member.far_behind, member.streak)
        head = (member.name, member.token, member.lease_token, *lag)
        for held in _pieces(member.owned.items()) or [[]]:
            yield _Reader(*head, _held(held)), 1 + len(held)
    last = state.checkpoints.last
    for checkpoint in state.checkpoints.all():
        yield from _checkpoint(checkpoint, named=True, last=checkpoint is last)
    if last is not None and state.checkpoints.get(last.name) is not last:
        yield from _checkpoint(last, named=False, last=True)


def _checkpoint(c: Checkpoint, *, named: bool, last: bool) -> Iterator[tuple[_Part, int]]:
    pending = list(c.pending)
    head = (c.name, c.kind, c.created, named, last)
    for waits in _pieces(c.waits.items()) or [[]]:
        yield _Checkpoint(*head, pending, [], _waits(waits)), 1 + len(pending) + len(waits)
    for piece in _pieces(c.positions.items()):
        yield _Checkpoint(*head, [], to_columns(piece), []), len(piece)


def _pieces(items: Iterable[T]) -> list[list[T]]:
    listed = list(items)
    size = CHUNK_SEGMENTS_MAX
    return [listed[at : at + size] for at in range(0, len(listed), size)]


def _held(items: Sequence[tuple[SegmentId, Holding]]) -> list[SegmentColumns]:
    columns = to_columns((segment, holding.offset) for segment, holding in items)
    tokens = (holding.token for _, holding in items)
    return [
        SegmentColumns(c.stream, c.numbers, c.offsets, [next(tokens) for _ in c.numbers])
        for c in columns
    ]


def _waits(items: Iterable[tuple[SegmentId, frozenset[SegmentId]]]) -> list[Successor]:
    return [Successor(segment, tuple(sorted(pending))) for segment, pending in items]


def decode_state(chunks: Sequence[bytes]) -> ReaderGroupState:
    """The inverse of :func:`encode_state`."""
    try:
        _check_format(chunks)
        parts = [part for chunk in chunks for part in _chunk_decoder.decode(chunk)]
    except ReaderFormatError:
        raise
    except MALFORMED as error:
        raise ReaderStateDecodeError(f"the state of a reader group: {error}") from error
    head = parts[0] if parts else None
    if not isinstance(head, _Head) or head.format != FORMAT or head.chunks != len(chunks):
        raise ReaderStateDecodeError(
            f"the state of a reader group: {len(chunks)} chunks do not make a whole"
        )
    state = ReaderGroupState(head.config, {}, revision=head.revision)
    state.streams = dict.fromkeys(head.streams)
    readers: dict[str, OnlineReader] = {}
    checkpoints: dict[tuple[str, bool], tuple[Checkpoint, bool]] = {}
    for part in parts[1:]:
        match part:
            case _EndCut(segments=columns):
                _fill(state.end_cut, columns)
            case _Unassigned(segments=columns):
                _fill(state.unassigned, columns)
            case _Future(waits=waits):
                _await(state.future, waits)
            case _Reader():
                member = readers.setdefault(
                    part.name, OnlineReader(part.name, part.token, part.lease_token)
                )
                member.lag_ms = part.lag_ms
                member.far_behind, member.streak = part.far_behind, part.streak
                _hold(member.owned, part.owned)
            case _Checkpoint():
                made = Checkpoint(part.name, part.kind, part.created, part.pending, {}, {})
                checkpoint, _ = checkpoints.setdefault((part.name, part.named), (made, part.last))
                _fill(checkpoint.positions, part.positions)
                _await(checkpoint.waits, part.waits)
            case _Head():
                raise ReaderStateDecodeError("the state of a reader group has two beginnings")
    for member in readers.values():
        state.restore_member(member)
    _restore_checkpoints(state, checkpoints)
    _check(state)
    return state


def _check_format(chunks: Sequence[bytes]) -> None:
    """Look at the first chunk alone: what follows may be of a kind that is unknown here."""
    found = _stamp_decoder.decode(chunks[0]) if chunks else []
    if found and found[0].format > FORMAT:
        raise ReaderFormatError("the state of a reader group", found[0].format, FORMAT)


def _restore_checkpoints(
    state: ReaderGroupState,
    found: Mapping[tuple[str, bool], tuple[Checkpoint, bool]],
) -> None:
    last: Checkpoint | None = None
    for (_, named), (checkpoint, is_last) in found.items():
        if any(reader not in state.members for reader in checkpoint.pending):
            raise ReaderStateDecodeError(
                f"checkpoint {checkpoint.name!r} waits for a reader that is not online"
            )
        if named:
            state.checkpoints.add(checkpoint)
        if is_last:
            last = checkpoint
    state.checkpoints.last = last


def _fill(into: dict[SegmentId, int], columns: Iterable[SegmentColumns]) -> None:
    for segment, offset, _ in from_columns(columns):
        into[segment] = offset


def _hold(into: dict[SegmentId, Holding], columns: Iterable[SegmentColumns]) -> None:
    for segment, offset, token in from_columns(columns):
        into[segment] = Holding(offset, token)


def _await(into: dict[SegmentId, frozenset[SegmentId]], waits: Iterable[Successor]) -> None:
    for wait in waits:
        into[wait.segment] = frozenset(wait.predecessors)


def _check(state: ReaderGroupState) -> None:
    """A segment stands in one place."""
    owned = sum(len(member.owned) for member in state.members.values())
    twice = [s for s in state.unassigned if state.owner(s) or s in state.future]
    if twice or owned != state.assigned_count:
        raise ReaderStateDecodeError("the state of a reader group holds a segment twice")
