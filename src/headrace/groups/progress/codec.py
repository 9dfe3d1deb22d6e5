"""Acked ranges as bytes: floor, then gap and length of each range, as MessagePack integers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import ProgressDecodeError
from headrace.groups.progress.bounds import OFFSET_MAX
from headrace.groups.progress.unions import array_of

if TYPE_CHECKING:
    from headrace.groups.progress.arrays import Int64s

_VERSION = 1
_FEW = 64


def encode(floor: int, bounds: Int64s | tuple[()]) -> bytes:
    """A floor, and the boundaries of the ranges above it."""
    if isinstance(bounds, tuple):
        return encode_floor(floor)
    if len(bounds) <= _FEW:
        flat = [floor, *bounds.tolist()]
        return _encoder.encode((_VERSION, floor, list(map(sub, flat[1:], flat))))
    deltas = [int(bounds[0]) - floor, *(bounds[1:] - bounds[:-1]).tolist()]
    return _encoder.encode((_VERSION, floor, deltas))


def encode_floor(floor: int) -> bytes:
    """What :func:`encode` gives for a floor without ranges above it."""
    return _encoder.encode((_VERSION, floor, ()))


def decode(data: bytes) -> tuple[int, Sequence[int]]:
    """The inverse of :func:`encode`; anything that it cannot have written is refused."""
    try:
        version, floor, deltas = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ProgressDecodeError(f"acked ranges cannot be decoded: {error}") from error
    if version != _VERSION:
        raise ProgressDecodeError(f"acked ranges have the unknown version {version}")
    if not deltas:
        return floor, ()  # the usual case
    if min(deltas) < 1 or floor + sum(deltas) > OFFSET_MAX:
        raise ProgressDecodeError("acked ranges are not ascending within the offsets")
    found: list[int] = array_of([floor, *deltas]).cumsum()[1:].tolist()
    return floor, found


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, int, list[int]])
