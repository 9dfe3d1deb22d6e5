"""Places in all streams of a group: cuts and checkpoints, as values with a text form.

A text is kept anywhere and as long as one likes, so it says what it is, holds everything that a
reset needs, and has a checksum.  It names catalog, group and the ids of streams: offsets mean
something there and nowhere else.
"""

from __future__ import annotations

import base64
import zlib
from typing import TypeVar

import msgspec

from headrace.errors import InvalidCutTextError
from headrace.groups.progress import Progress
from headrace.groups.readers.core.segments import Cut, SegmentId, Successor
from headrace.groups.readers.names import GroupStream

TEXT_CHARS_MAX = 64 * 1024 * 1024
_FORMAT = 1


class _Placed(msgspec.Struct, frozen=True, kw_only=True):
    catalog: str
    """The id of the catalog."""
    group: str
    streams: tuple[GroupStream, ...]
    offsets: tuple[tuple[str, int, int], ...]
    """Stream, segment, and the offset of the next event (-1: its end)."""

    @property
    def positions(self) -> dict[str, int]:
        """``{"orders/3": 1200, …}``"""
        return {f"{stream}/{number}": offset for stream, number, offset in self.offsets}

    @property
    def cut(self) -> dict[SegmentId, int]:
        """The offsets as the core knows them."""
        return {SegmentId(stream, number): offset for stream, number, offset in self.offsets}


class StreamCut(_Placed, frozen=True, kw_only=True):
    """One offset per segment, covering all keys once: where a group stood, moved by nothing.

    >>> cut = StreamCut(catalog="c", group="g", streams=(), offsets=(("orders", 3, 1200),))
    >>> StreamCut.parse(str(cut)).positions
    {'orders/3': 1200}
    """

    def __str__(self) -> str:
        return _text("cut", self)

    @staticmethod
    def parse(text: str) -> StreamCut:
        """The inverse of ``str``."""
        return _parsed(_cut_decoder, "cut", text)


class GroupCheckpoint(_Placed, frozen=True, kw_only=True):
    """A named cut at which all readers stood, with exactly what was acked by then."""

    name: str
    created: int = 0
    """The revision of the group that created it."""
    exact: tuple[tuple[str, int, bytes], ...] = ()
    """Stream, segment, and what was acked above the offset."""
    waits: tuple[Successor, ...] = ()

    def __str__(self) -> str:
        return _text("checkpoint", self)

    @staticmethod
    def parse(text: str) -> GroupCheckpoint:
        """The inverse of ``str``."""
        return _parsed(_checkpoint_decoder, "checkpoint", text)

    @property
    def progress(self) -> dict[SegmentId, Progress]:
        """What was acked above the offsets."""
        return {SegmentId(s, number): Progress.decode(data) for s, number, data in self.exact}


P = TypeVar("P", StreamCut, GroupCheckpoint)

# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_cut_decoder = msgspec.msgpack.Decoder(tuple[int, StreamCut])
_checkpoint_decoder = msgspec.msgpack.Decoder(tuple[int, GroupCheckpoint])


def offsets_of(cut: Cut) -> tuple[tuple[str, int, int], ...]:
    """A cut of the core as these values hold it."""
    return tuple((s.stream, s.number, offset) for s, offset in sorted(cut.items()))


def _text(what: str, value: _Placed) -> str:
    data = zlib.compress(msgspec.msgpack.encode((_FORMAT, value)))
    checked = zlib.crc32(data).to_bytes(4, "big") + data
    return f"headrace-{what}:{base64.urlsafe_b64encode(checked).decode()}"


def _parsed(decoder: msgspec.msgpack.Decoder[tuple[int, P]], what: str, text: str) -> P:
    head, _, body = text.strip().partition(":")
    if head != f"headrace-{what}":
        raise InvalidCutTextError(what, f"it begins with {head[:30]!r}, not 'headrace-{what}:'")
    if len(body) > TEXT_CHARS_MAX:
        raise InvalidCutTextError(what, f"it has {len(body)} characters")
    try:
        checked = base64.urlsafe_b64decode(body.encode("ascii"))
        if zlib.crc32(checked[4:]).to_bytes(4, "big") != checked[:4]:
            raise InvalidCutTextError(what, "its checksum does not match")
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(checked[4:], TEXT_CHARS_MAX)
        if unpacking.unconsumed_tail:
            raise InvalidCutTextError(what, "it is too large")
        number, value = decoder.decode(data)
    except InvalidCutTextError:
        raise
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise InvalidCutTextError(what, str(error)) from error
    if number != _FORMAT:
        raise InvalidCutTextError(what, f"it has format {number}, and {_FORMAT} is known here")
    return value
