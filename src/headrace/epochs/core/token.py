"""Resume tokens: a frontier that a subscriber has fully received, as a short text.

A token says which catalog and streams it is of, by their ids, and carries a checksum, so that a
mistyped or mixed-up one is refused instead of resuming somewhere else.  A stream that was deleted
and made anew has another id, and nothing of the old one's history.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable

import msgspec

from headrace.epochs.core.antichains import Frontier, check_frontier
from headrace.epochs.core.times import TimeShape
from headrace.errors import InvalidTokenError, TimeShapeError

_VERSION = 2
TOKEN_CHARS_MAX = 1 << 20
_NO_OPTION = "."
"""Before a token that would begin with a dash."""


class ResumeToken(msgspec.Struct, frozen=True, array_like=True):
    """Everything before `frontier` was received; go on with what is at or after it."""

    catalog: str
    streams: tuple[tuple[str, str], ...]
    """The name and the id of every stream, sorted."""
    shape: TimeShape
    frontier: Frontier
    version: int = _VERSION

    def encode(self) -> str:
        """The token as text that fits in a URL, and that no command line takes for an option."""
        body = _encode(self)
        data = base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body)
        text = data.decode().rstrip("=")
        return f"{_NO_OPTION}{text}" if text.startswith("-") else text

    @classmethod
    def decode(
        cls, text: str, catalog: str, streams: Iterable[tuple[str, str]], shape: TimeShape
    ) -> ResumeToken:
        """Read a token of these streams; raises if it is none."""
        wanted = tuple(sorted(streams))
        names = ", ".join(name for name, _ in wanted)
        try:
            token = _read(text)
            if token.catalog != catalog:
                raise ValueError("it is of another catalog")
            if tuple(name for name, _ in token.streams) != tuple(name for name, _ in wanted):
                raise ValueError(f"it is of {', '.join(name for name, _ in token.streams)}")
            if token.streams != wanted:
                raise ValueError("it is of a stream of that name that was deleted")
            if token.shape != shape:
                raise ValueError(f"its times are each {token.shape}, not {shape}")
            if check_frontier(shape, token.frontier) != token.frontier:
                raise ValueError("its frontier is not one")
        except (ValueError, TimeShapeError) as error:
            raise InvalidTokenError(f"not a resume token of {names}: {error}") from error
        return token


def _read(text: str) -> ResumeToken:
    if len(text) > TOKEN_CHARS_MAX:
        raise ValueError("it is too long")
    text = text.removeprefix(_NO_OPTION)
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
        raise ValueError("it is damaged")
    token = _decode(raw[4:])
    if token.version != _VERSION:
        raise ValueError(f"it is of version {token.version}, not {_VERSION}")
    return token


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ResumeToken).decode
