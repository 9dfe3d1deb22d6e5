"""The protocol of a connection: its path, how messages become frames, and its bounds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

Frame: TypeAlias = bytes | memoryview
Out = TypeVar("Out")
In = TypeVar("In")

LARGE_FRAME_BYTES_MAX = 24 * 1024 * 1024
"""Of wires that carry events: the largest one with its headers, and room to spare."""
FRAME_ROOM = 16
"""Where a frame begins that is not to be copied: its header is put in front (14 bytes at most)."""
COMPLAINT_S = 60.0
COMPLAINTS_MAX = 100

# Below WARNING this library logs whole requests, the secret included.
quiet = logging.getLogger("headrace.net.picows")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False
quiet.setLevel(logging.CRITICAL)


class Codec(Protocol[Out, In]):
    """How the messages of one connection become frames, and back."""

    def encode(self, messages: list[Out], /) -> Sequence[bytes | bytearray]:
        """Frames of these messages, in their order, none larger than the wire allows.

        A bytearray is sent as it is, without a copy, after ``FRAME_ROOM`` bytes for its header.
        """
        ...

    def decode(self, frame: Frame, /) -> list[In]:
        """The messages of a frame, checked in full; :class:`~headrace.errors.FrameError` if it
        makes no sense.  A view is good only during the call."""
        ...


@dataclass(frozen=True)
class Wire(Generic[Out, In]):
    """What one side of a connection says and hears."""

    path: str
    """The path of the HTTP request, by which a listener knows the protocol."""
    codec: Callable[[], Codec[Out, In]]
    """Makes a codec per connection, since a frame may depend on the one before (stateful)."""
    size: Callable[[Out], int] | None = None
    """The approximate size of a message, where outboxes are to be bounded by bytes."""
    frame_bytes_max: int = 8 * 1024 * 1024
    queue_messages_max: int = 20_000
    queue_bytes_max: int = 64 * 1024 * 1024
    batch_messages_max: int = 500
    """Messages that are encoded together."""
    gather_s: float = 0.0
    """How long messages wait for others while the last ones are not answered."""
    silence_s: float = 0.0
    """A connection that was dialled ends when nothing is answered for this long; 0: it does not."""


class Traffic(msgspec.Struct):
    """Counts of all connections of a listener, or of all that were dialled."""

    sent: int = 0
    received: int = 0
    dropped: int = 0
    """Messages for which there was no connection or no room."""
    refused: int = 0
    """Connections that were not admitted, and frames that made no sense."""

    def snapshot(self) -> dict[str, Any]:
        """The counts as they are now."""
        return msgspec.structs.asdict(self)


class Complaints:
    """Rate-limited warnings, each at most once a minute: a peer may try five times a second."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last_s: dict[str, float] = {}

    def say(self, text: str, now_s: float) -> None:
        """Log it, unless it was logged within the last minute."""
        if now_s - self._last_s.get(text, -COMPLAINT_S) >= COMPLAINT_S:
            if len(self._last_s) >= COMPLAINTS_MAX:
                self._last_s.clear()
            self._last_s[text] = now_s
            self._log.warning("%s", text)
