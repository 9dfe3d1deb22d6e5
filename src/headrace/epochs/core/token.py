"""Resume tokens: a frontier that a subscriber has fully received, as a short text.

A token says which stream it is of and carries a checksum, so that a mistyped or mixed-up one is
refused instead of resuming somewhere else.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from headrace.epochs.core.antichains import Frontier, check_frontier
from headrace.epochs.core.times import TimeShape
from headrace.errors import InvalidTokenError, TimeShapeError

_VERSION = 1
TOKEN_CHARS_MAX = 1 << 16


class ResumeToken(msgspec.Struct, frozen=True, array_like=True):
    """Everything before `frontier` was received; go on with what is at or after it."""

    stream: str
    shape: TimeShape
    frontier: Frontier
    version: int = _VERSION

    def encode(self) -> str:
        """The token as text that fits in a URL."""
        body = _encode(self)
        return (
            base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body)
            .decode()
            .rstrip("=")
        )

    @classmethod
    def decode(cls, text: str, stream: str, shape: TimeShape) -> ResumeToken:
        """Read a token of `stream`; raises if it is none."""
        try:
            if len(text) > TOKEN_CHARS_MAX:
                raise ValueError("it is too long")
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
                raise ValueError("it is damaged")
            token = _decode(raw[4:])
            if token.version != _VERSION:
                raise ValueError(f"it is of version {token.version}, not {_VERSION}")
            if token.stream != stream or token.shape != shape:
                raise ValueError(f"it is of stream {token.stream!r} with times of {token.shape}")
            if check_frontier(shape, token.frontier) != token.frontier:
                raise ValueError("its frontier is not one")
        except (ValueError, binascii.Error, TimeShapeError) as error:
            raise InvalidTokenError(f"not a resume token of stream {stream!r}: {error}") from error
        return token


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ResumeToken).decode
