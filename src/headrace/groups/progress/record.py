"""Progress of a group in one unit, as it is stored and handed over.

A record holds what the next owner must know and nothing else: the floor, the acked ranges
above it, and how often each event that was refused has been delivered.  What is in flight is
not in it, since an owner that goes away without an answer leaves the event undelivered.

Progress only grows.  :meth:`Progress.merge` joins two records of the same unit so that neither
loses anything, whatever order they arrive in.
"""

from __future__ import annotations

import msgspec

from headrace.errors import InvalidRangeError, ProgressDecodeError
from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.groups.progress.ranges import AckedRanges

_ENCODING_VERSION = 1
_ATTEMPTS_MAX = 2**31 - 1


class Progress(msgspec.Struct, frozen=True):
    """Floor, acked ranges above it, and attempts of what was refused (offset, attempts)."""

    floor: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    attempts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, acked: AckedRanges, attempts: dict[int, int]) -> Progress:
        """The record of a running owner; attempts of what is acked meanwhile are dropped."""
        if not attempts and not acked.acked_above_floor:
            return cls(acked.floor)  # the usual case
        kept = sorted((offset, n) for offset, n in attempts.items() if offset not in acked)
        return cls(floor=acked.floor, ranges=acked.to_tuples(), attempts=tuple(kept))

    def acked(self) -> AckedRanges:
        """The acked offsets as a set that can be changed."""
        if not self.ranges:
            return AckedRanges(self.floor)
        return AckedRanges.from_tuples(self.floor, self.ranges)

    def merge(self, other: Progress) -> Progress:
        """What either of the two knows; of two counts of attempts the higher."""
        if not (self.ranges or other.ranges or self.attempts or other.attempts):
            return other if other.floor >= self.floor else self  # the usual case
        acked = self.acked()
        acked.merge(other.acked())
        attempts = dict(self.attempts)
        for offset, n in other.attempts:
            attempts[offset] = max(n, attempts.get(offset, 0))
        return Progress.of(acked, attempts)

    def encode(self) -> bytes:
        """A compact binary record."""
        if not self.ranges and not self.attempts:
            # The usual case: a floor alone.  A leader writes a thousand of them a second.
            return _encoder.encode((_ENCODING_VERSION, AckedRanges.encode_floor(self.floor), ()))
        flat = [number for pair in self.attempts for number in pair]
        return _encoder.encode((_ENCODING_VERSION, self.acked().encode(), flat))

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        """The inverse of :meth:`encode`; anything that it cannot have written is refused."""
        try:
            version, ranges, flat = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ProgressDecodeError(f"progress cannot be decoded: {error}") from error
        if version != _ENCODING_VERSION:
            raise ProgressDecodeError(f"progress has the unknown version {version}")
        if len(flat) % 2:
            raise ProgressDecodeError("progress ends in the middle of its attempts")
        return cls.checked(
            AckedRanges.decode(ranges), list(zip(flat[::2], flat[1::2], strict=True))
        )

    @classmethod
    def checked(cls, acked: AckedRanges, attempts: list[tuple[int, int]]) -> Progress:
        """A record whose attempts are known to ascend, to be positive and to be unacked."""
        last = -1
        for offset, n in attempts:
            if not (last < offset < OFFSET_MAX and 1 <= n <= _ATTEMPTS_MAX) or offset in acked:
                raise ProgressDecodeError(
                    f"progress counts {n} attempts at offset {offset}, which cannot be"
                )
            last = offset
        return cls(floor=acked.floor, ranges=acked.to_tuples(), attempts=tuple(attempts))

    def check(self) -> None:
        """Refuse a record that breaks its own rules (one that came from outside)."""
        try:
            self.checked(self.acked(), list(self.attempts))
        except InvalidRangeError as error:
            raise ProgressDecodeError(f"progress cannot be restored: {error}") from error


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, bytes, list[int]])
