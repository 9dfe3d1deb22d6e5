"""Progress of a group in one unit, as it is stored and handed over.

A record holds what the next owner must know and nothing else: the floor, the acked ranges
above it, and how often each event that was refused has been delivered.  What is in flight is
not in it, since an owner that goes away without an answer leaves the event undelivered.

A record of very many ranges stands on a *base* (:mod:`headrace.groups.progress.base`), which is
stored beside it: :meth:`Progress.stored` only names it, :meth:`Progress.encode` writes it all.

Progress only grows.  :meth:`Progress.merge` joins two records of the same unit so that neither
loses anything, whatever order they arrive in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.catalog.progress import LAYERED
from headrace.errors import InvalidRangeError, ProgressDecodeError
from headrace.groups.progress import codec
from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.groups.progress.ranges import AckedRanges

if TYPE_CHECKING:
    from headrace.groups.progress.base import Base

_ENCODING_VERSION = 1
_LAYERED_VERSION = 2
_ATTEMPTS_MAX = 2**31 - 1


class Progress(msgspec.Struct, frozen=True, gc=False):
    """Floor, acked ranges above it, and attempts of what was refused (offset, attempts)."""

    floor: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    attempts: tuple[tuple[int, int], ...] = ()
    base: Any = None
    """A :class:`~headrace.groups.progress.base.Base`: ranges that are acked as well, if not None.

    It is not for messages: whoever sends a record makes it :meth:`whole`."""

    @classmethod
    def of(cls, acked: AckedRanges, attempts: dict[int, int]) -> Progress:
        """The record of a running owner; attempts of what is acked meanwhile are dropped."""
        if not attempts and not acked.acked_above_floor:
            return cls(acked.floor)  # the usual case
        kept = sorted((offset, n) for offset, n in attempts.items() if offset not in acked)
        base, ranges = acked.layers()
        return cls(acked.floor, ranges, tuple(kept), base)

    def whole(self) -> Progress:
        """The same without a base."""
        return self if self.base is None else Progress(self.floor, self.above, self.attempts)

    @property
    def above(self) -> tuple[tuple[int, int], ...]:
        """All that is acked above the floor."""
        return self.ranges if self.base is None else self.acked().to_tuples()

    def acked(self) -> AckedRanges:
        """The acked offsets as a set that can be changed."""
        if self.base is not None:
            return AckedRanges.over(self.floor, self.base, self.ranges)
        if not self.ranges:
            return AckedRanges(self.floor)
        return AckedRanges.from_tuples(self.floor, self.ranges)

    def merge(self, other: Progress) -> Progress:
        """What either of the two knows; of two counts of attempts the higher."""
        plain = self.base is None and other.base is None
        if plain and not (self.ranges or other.ranges or self.attempts or other.attempts):
            return other if other.floor >= self.floor else self  # the usual case
        attempts = dict(self.attempts)
        for offset, n in other.attempts:
            attempts[offset] = max(n, attempts.get(offset, 0))
        if self.base is not None and self.base == other.base:
            return self._merge_beside(other, attempts)
        acked = self.acked()
        acked.merge(other.acked())
        return Progress.of(acked, attempts)

    def _merge_beside(self, other: Progress, attempts: dict[int, int]) -> Progress:
        """Both stand on the same base: only what is beside it differs."""
        base: Base = self.base
        near = AckedRanges.from_tuples(self.floor, self.ranges)
        near.merge(AckedRanges.from_tuples(other.floor, other.ranges))
        while (floor := base.end_of(near.floor)) > near.floor:
            near.ack_range(0, floor)
        left = sorted(
            (offset, n)
            for offset, n in attempts.items()
            if offset not in near and base.end_of(offset) == offset
        )
        on = base if near.floor < base.end else None
        return Progress(near.floor, near.to_tuples(), tuple(left), on)

    def encode(self) -> bytes:
        """A compact binary record."""
        if self.base is not None:
            return self.whole().encode()
        if not self.ranges and not self.attempts:
            # The usual case: a floor alone.  A leader writes a thousand of them a second.
            return _encoder.encode((_ENCODING_VERSION, codec.encode_floor(self.floor), ()))
        flat = [number for pair in self.attempts for number in pair]
        return _encoder.encode((_ENCODING_VERSION, self.acked().encode(), flat))

    @staticmethod
    def encode_acked(acked: AckedRanges) -> bytes:
        """The record of what is acked alone, at once."""
        return _encoder.encode((_ENCODING_VERSION, acked.encode(), ()))

    def stored(self) -> bytes:
        """A record that only names its base."""
        base: Base | None = self.base
        if base is None:
            return self.encode()
        ranges = AckedRanges.from_tuples(self.floor, self.ranges).encode()
        flat = [number for pair in self.attempts for number in pair]
        return _encoder.encode((_LAYERED_VERSION, base.name, ranges, flat))

    @classmethod
    def decode(cls, data: bytes, base: bytes = b"") -> Progress:
        """The inverse of :meth:`encode`, or, with what the base holds, of :meth:`stored`.

        Anything that they cannot have written is refused.
        """
        if data[:2] == LAYERED:
            return cls._decode_layered(data, base)
        try:
            version, ranges, flat = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ProgressDecodeError(f"progress cannot be decoded: {error}") from error
        if version != _ENCODING_VERSION:
            raise ProgressDecodeError(f"progress has the unknown version {version}")
        if len(flat) % 2:
            raise ProgressDecodeError("progress ends in the middle of its attempts")
        acked = AckedRanges.decode(ranges)
        if not flat and not acked.acked_above_floor:
            return cls(acked.floor)  # the usual case
        return cls.checked(acked, list(zip(flat[::2], flat[1::2], strict=True)))

    @classmethod
    def _decode_layered(cls, data: bytes, held: bytes) -> Progress:
        from headrace.groups.progress.base import Base

        try:
            _, name, ranges, flat = _layered_decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ProgressDecodeError(f"progress cannot be decoded: {error}") from error
        if len(flat) % 2:
            raise ProgressDecodeError("progress ends in the middle of its attempts")
        near, base = AckedRanges.decode(ranges), Base.named(name, held)
        attempts = tuple(zip(flat[::2], flat[1::2], strict=True))
        found = cls(near.floor, near.to_tuples(), attempts, base)
        if attempts:
            found.check()
        return found

    @classmethod
    def checked(cls, acked: AckedRanges, attempts: list[tuple[int, int]]) -> Progress:
        """A record whose attempts are known to ascend, to be positive and to be unacked."""
        _check_attempts(acked, attempts)
        return cls(floor=acked.floor, ranges=acked.to_tuples(), attempts=tuple(attempts))

    def check(self) -> AckedRanges:
        """What is acked; a record that breaks its own rules (one from outside) is refused."""
        try:
            acked = self.acked()
        except InvalidRangeError as error:
            raise ProgressDecodeError(f"progress cannot be restored: {error}") from error
        _check_attempts(acked, self.attempts)
        return acked


def _check_attempts(acked: AckedRanges, attempts: Iterable[tuple[int, int]]) -> None:
    last = -1
    for offset, n in attempts:
        if not (last < offset < OFFSET_MAX and 1 <= n <= _ATTEMPTS_MAX) or offset in acked:
            raise ProgressDecodeError(
                f"progress counts {n} attempts at offset {offset}, which cannot be"
            )
        last = offset


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, bytes, list[int]])
_layered_decoder = msgspec.msgpack.Decoder(tuple[int, bytes, bytes, list[int]])
