"""Frames between peers: a MessagePack array of messages, checked in full before any is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from headrace.errors import FrameError, ProgressDecodeError
from headrace.groups.shared.core.messages import FromBorrower, FromLeader, Grant, Message

FRAME_BYTES_MAX = 8 * 1024 * 1024
FRAME_MESSAGES_MAX = 10_000

M = TypeVar("M", bound=Message)

_encoder = msgspec.msgpack.Encoder()
_to_leader: msgspec.msgpack.Decoder[list[FromBorrower]] = msgspec.msgpack.Decoder(
    list[FromBorrower]
)
_to_borrower: msgspec.msgpack.Decoder[list[FromLeader]] = msgspec.msgpack.Decoder(list[FromLeader])


def encode(messages: Sequence[Message]) -> bytes:
    """One frame."""
    return _encoder.encode(messages)


def decode_from_borrowers(data: bytes | str) -> list[FromBorrower]:
    """What borrowers say to a leader."""
    return _decode(data, _to_leader)


def decode_from_leaders(data: bytes | str) -> list[FromLeader]:
    """What leaders say to borrowers."""
    messages = _decode(data, _to_borrower)
    for message in messages:
        if isinstance(message, Grant):
            try:
                message.progress.check()
            except ProgressDecodeError as error:
                raise FrameError(f"a grant of {message.unit} is malformed: {error}") from error
    return messages


def _decode(data: bytes | str, decoder: msgspec.msgpack.Decoder[list[M]]) -> list[M]:
    if isinstance(data, str):
        raise FrameError("a frame of text; frames are binary")
    if len(data) > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(data)} bytes; at most {FRAME_BYTES_MAX} are allowed")
    try:
        messages = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a malformed frame: {error}") from error
    if len(messages) > FRAME_MESSAGES_MAX:
        raise FrameError(f"a frame of {len(messages)} messages; {FRAME_MESSAGES_MAX} is the most")
    return messages
