"""Records of epochs in the catalog; one that cannot be read is an error that names it."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from headrace.errors import UnreadableRecordError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

encode = msgspec.msgpack.Encoder().encode


class Decode(Protocol, Generic[R_co]):
    """Reads a record by its name; ``stream`` is the one that it belongs to, if it needs one."""

    def __call__(self, data: bytes, name: str, stream: str = "", /) -> R_co:
        """The record, or an error that says how to be rid of it."""
        ...


def decoder(kind: type[R], what: str, remedy: str) -> Decode[R]:
    """Reads records of one kind; one that carries another name than its own is not read."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(data: bytes, name: str, stream: str = "", /) -> R:
        try:
            found = decode(data)
        except msgspec.MsgspecError as error:
            raise unreadable(what, name, str(error), remedy, stream) from error
        own = getattr(found, "name", name)
        if own != name:
            raise unreadable(what, name, f"it is that of {own!r}", remedy, stream)
        return found

    return read


def unreadable(
    what: str, name: str, why: str, remedy: str, stream: str = ""
) -> UnreadableRecordError:
    """A record cannot be read, and what is to be done about it."""
    mend = remedy.format(name=name, stream=stream)
    return UnreadableRecordError(f"{what} {name!r} cannot be read ({why}); {mend}", name)
