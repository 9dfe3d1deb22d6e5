"""Records of epochs in the catalog; one that cannot be read is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from headrace.errors import UnreadableRecordError

R = TypeVar("R")

encode = msgspec.msgpack.Encoder().encode


def decoder(kind: type[R], what: str, remedy: str) -> Callable[[bytes, str], R]:
    """Reads records of one kind: ``decode(data, name)``."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(data: bytes, name: str) -> R:
        try:
            return decode(data)
        except msgspec.MsgspecError as error:
            raise UnreadableRecordError(
                f"{what} {name!r} cannot be read ({error}); {remedy.format(name=name)}", name
            ) from error

    return read
