"""Records of the catalog: checked by type and range before they are stored.

What is stored was read back first, so that no program ever finds what it cannot read.  A record
that cannot be read all the same (damage, another program) costs an error that names it, and
nothing else: a list goes on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from headrace.catalog.entries import Entry
from headrace.catalog.keys import is_damaged, unreadable
from headrace.errors import InvalidInputError, ProgressDecodeError, UnreadableRecordError

R = TypeVar("R")
T = TypeVar("T")

ANEW = "it will be written anew by whoever looks after it"
"""What is to be done about a record that is renewed all the time: nothing."""

_log = logging.getLogger(__name__)


class LeftOut:
    """See :func:`left_out`; no generator, since a list enters it once for each record."""

    __slots__ = ("_whose",)

    def __init__(self, whose: str) -> None:
        self._whose = whose

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, (UnreadableRecordError, ProgressDecodeError)):
            return False
        _log.warning("left out: %s%s", f"{self._whose}: " if self._whose else "", error)
        return True


def left_out(whose: str = "") -> LeftOut:
    """Do without a record that cannot be read, with a warning: for lists of many."""
    return LeftOut(whose)


class Records(Generic[R]):
    """How records of one kind are written and read; ``what`` is how errors name them.

    Where a record tells the ``key`` that it has in its ``bucket``, another one is an error.
    """

    def __init__(
        self,
        kind: type[R],
        what: str,
        remedy: str = ANEW,
        *,
        json: bool = True,
        bucket: str = "",
        key: Callable[[R], str] | None = None,
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._what = what
        self._remedy = remedy
        # Made here, since the first use of a type by msgspec is not safe in several threads.
        codec = msgspec.json if json else msgspec.msgpack
        self._encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder = codec.Encoder()
        self._decoder: msgspec.json.Decoder[R] | msgspec.msgpack.Decoder[R] = codec.Decoder(kind)

    def encode(self, name: str, record: R) -> bytes:
        """The record as it is stored; an error that names the field if it could not be read."""
        try:
            data = self._encoder.encode(record)
            self._decoder.decode(data)
        except (msgspec.MsgspecError, TypeError, UnicodeError, OverflowError) as error:
            raise InvalidInputError(f"{self._what} {name!r}: {error}") from error
        return data

    def decode(self, name: str, data: bytes) -> R:
        """A stored record, or an error that names it."""
        try:
            found = self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeError) as error:
            if self._key is not None and is_damaged(name):
                raise unreadable(self._bucket, name, "it is damaged, and its record") from error
            remedy = self._remedy.format(name=name)
            raise UnreadableRecordError(
                f"{self._what} {name!r} cannot be read ({error}); {remedy}", name
            ) from error
        if self._key is not None and self._key(found) != name:
            raise unreadable(self._bucket, name, f"what it holds is of {self._key(found)!r}")
        return found

    def decode_or(self, name: str, data: bytes | None, otherwise: T) -> R | T:
        """A stored record; ``otherwise`` if there is none, or, with a warning, none to be read.

        For what is written anew again and again: it need not stop anybody.
        """
        if data is None:
            return otherwise
        with left_out():
            return self.decode(name, data)
        return otherwise

    def readable(self, found: Iterable[Entry]) -> list[R]:
        """The records of these entries; one that cannot be read is left out, with a warning."""
        records = (self.decode_or(entry.key, entry.value, None) for entry in found)
        return [record for record in records if record is not None]
