"""Messages as frames: a head with kind and time, and for data a second frame with the payload.

A subscriber reads the head, decides, and drops the second frame unread if the epoch is filtered.
Nothing in a head depends on the size or the content of the data.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.epochs.core.messages import (
    Aborted,
    Data,
    FrontierUpdate,
    Heartbeat,
    Message,
    Skip,
    Snapshot,
    TakeBack,
)
from headrace.epochs.core.times import Time, TimeShape
from headrace.errors import EpochMessageError

HEAD_BYTES_MAX = 1 << 20


class DataHead(msgspec.Struct, frozen=True, tag="data"):
    """The head of a batch; its payload is the frame that follows."""

    time: Time
    rows: int
    source: str = ""


_Head = Snapshot | FrontierUpdate | DataHead | TakeBack | Skip | Heartbeat | Aborted

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Head] = msgspec.msgpack.Decoder(_Head)


def encode(message: Message) -> tuple[bytes, Any]:
    """The head, and the payload for data (else None)."""
    if isinstance(message, Data):
        return _encoder.encode(
            DataHead(message.time, message.rows, message.source)
        ), message.payload
    return _encoder.encode(message), None


def decode_head(frame: bytes, shape: TimeShape) -> _Head:
    """Read a head; a :class:`DataHead` is followed by a frame with its payload."""
    try:
        if len(frame) > HEAD_BYTES_MAX:
            raise ValueError(f"a head of {len(frame)} bytes is too long")
        head = _decoder.decode(frame)
        for time in _times(head):
            shape.check(time)
        for number in _numbers(head):
            if number < 0:
                raise ValueError("a number of rows is below 0")
    except ValueError as error:
        raise EpochMessageError(str(error), update="frame", state=f"times: {shape}") from error
    return head


def with_payload(head: DataHead, payload: object) -> Data:
    """The batch that a head and the frame after it make."""
    return Data(head.time, payload, head.rows, head.source)


def _times(head: _Head) -> list[Time]:
    match head:
        case DataHead(time=time):
            return [time]
        case Snapshot(lower=lower, upper=upper):
            return [*lower, *upper]
        case FrontierUpdate(changes=changes, counts=counts):
            return [time for time, _ in (*changes, *counts)]
        case Skip(lower=lower, upper=upper, counts=counts):
            return [*lower, *upper, *(time for time, _ in counts)]
        case Heartbeat(lower=lower) | TakeBack(held=lower):
            return list(lower)
        case Aborted():
            return []


def _numbers(head: _Head) -> list[int]:
    match head:
        case DataHead(rows=rows):
            return [rows]
        case FrontierUpdate(counts=counts) | Skip(counts=counts):
            return [rows for _, rows in counts]
        case _:
            return []
