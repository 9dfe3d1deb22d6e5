"""Frames between processes: MessagePack arrays of messages, validated whole before any is used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from headrace.errors import FrameError, ProgressDecodeError
from headrace.groups.shared.core.messages import FromBorrower, FromLeader, Grant, Message
from headrace.net import Frame, Wire

PATH = "/shared"
FRAME_BYTES_MAX = 8 * 1024 * 1024
FRAME_MESSAGES_MAX = 10_000
GATHER_S = 0.01
"""How long messages to a leader are gathered while it has not answered the last ones."""
SILENCE_S = 3.0
"""Every ping and report is answered, so a leader that answers nothing for so long is dialled again,
before its borrowers take it for lost (``ping_timeout_ms``)."""

M = TypeVar("M", bound=Message)

_encoder = msgspec.msgpack.Encoder()
_to_leader: msgspec.msgpack.Decoder[list[FromBorrower]] = msgspec.msgpack.Decoder(
    list[FromBorrower]
)
_to_borrower: msgspec.msgpack.Decoder[list[FromLeader]] = msgspec.msgpack.Decoder(list[FromLeader])

_log = logging.getLogger(__name__)


def encode(messages: Sequence[Message]) -> bytes:
    """One frame."""
    return _encoder.encode(messages)


def encode_parts(messages: Sequence[Message]) -> list[bytes]:
    """As many frames as it takes, each within the limits."""
    data = _encoder.encode(messages)
    if len(data) <= FRAME_BYTES_MAX:
        return [data]
    if len(messages) == 1:
        _log.error("a message of %d bytes is too large to be sent", len(data))
        return []
    half = len(messages) // 2
    return encode_parts(messages[:half]) + encode_parts(messages[half:])


def decode_from_borrowers(data: Frame) -> list[FromBorrower]:
    """What borrowers say to a leader."""
    return _decode(data, _to_leader)


def decode_from_leaders(data: Frame) -> list[FromLeader]:
    """What leaders say to borrowers."""
    messages = _decode(data, _to_borrower)
    for message in messages:
        if isinstance(message, Grant):
            try:
                message.progress.check()
            except ProgressDecodeError as error:
                raise FrameError(f"a grant of {message.unit} is malformed: {error}") from error
    return messages


def _decode(data: Frame, decoder: msgspec.msgpack.Decoder[list[M]]) -> list[M]:
    try:
        messages = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a malformed frame: {error}") from error
    if len(messages) > FRAME_MESSAGES_MAX:
        raise FrameError(f"a frame of {len(messages)} messages; {FRAME_MESSAGES_MAX} is the most")
    return messages


class MessageCodec(Generic[M]):
    """Messages of borrowers and leaders; every frame stands by itself."""

    def __init__(self, decode: Callable[[Frame], list[M]]) -> None:
        self.encode = encode_parts
        self.decode = decode


def to_borrowers() -> Wire[FromLeader, FromBorrower]:
    """The protocol on the side that accepts connections: its leaders answer borrowers."""
    codec = MessageCodec(decode_from_borrowers)
    return Wire(PATH, lambda: codec, frame_bytes_max=FRAME_BYTES_MAX)


def to_leaders() -> Wire[FromBorrower, FromLeader]:
    """The protocol on the side that dials: its borrowers report to leaders."""
    codec = MessageCodec(decode_from_leaders)
    return Wire(
        PATH,
        lambda: codec,
        frame_bytes_max=FRAME_BYTES_MAX,
        gather_s=GATHER_S,
        silence_s=SILENCE_S,
    )
