"""Frames between live publishers and subscriptions.

One connection carries many links, each of one partition to one subscription.  A frame of a
publisher is the number of the link, the layout of a batch (else 0) and a head; a batch has a second
frame, its payload, right behind.  So a batch that is filtered is dropped without a look into its
payload, and the payload is Arrow's message as it is, made once for all subscribers.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import msgspec
import pyarrow as pa

from headrace.epochs.core import wire
from headrace.epochs.core.messages import Data, Message
from headrace.epochs.core.queues import QueuePolicy, QueueSettings, size_of
from headrace.epochs.core.times import TimeShape
from headrace.errors import EpochMessageError, FrameError
from headrace.log.events import decode_blob, encode_blob, layout_of
from headrace.net import FRAME_ROOM, LARGE_FRAME_BYTES_MAX, Frame, Wire

PATH = "/epochs"
PAYLOAD_BYTES = 8 * 1024 * 1024
"""Batches are cut by rows to about this size; one row may be larger."""
WAITED_BYTES = 8 * 1024 * 1024
"""How far a publisher runs ahead of one it waits for: farther, and all its memory is new memory."""
MESSAGES_MAX = 10_000
OUTBOX_MESSAGES_MAX = 64
OUTBOX_BYTES_MAX = 4 * 1024 * 1024
_PREFIX = struct.Struct("<IH")
_ROOM = bytes(FRAME_ROOM)


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A subscription wants to hear a publisher, from now on, as `link`."""

    link: int
    stream: int
    publisher: str
    settings: QueueSettings


def queued(policy: QueuePolicy, batches_max: int, filtered: bool) -> QueueSettings:
    """What a subscription wants to have waiting for it."""
    settings = QueueSettings(policy, batches_max, filtered)
    waits = policy is QueuePolicy.BLOCK
    return msgspec.structs.replace(settings, bytes_max=WAITED_BYTES) if waits else settings


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """A subscription has heard enough of a link."""

    link: int


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """A subscription is there, and has nothing to say."""


Wish: TypeAlias = Hello | Bye | Alive


class Said(msgspec.Struct, frozen=True):
    """What a publisher says on a link."""

    link: int
    message: Message


_encoder = msgspec.msgpack.Encoder()
_wishes: msgspec.msgpack.Decoder[list[Wish]] = msgspec.msgpack.Decoder(list[Wish])


class Packed:
    """A payload to send: a frame with room for its header, and the layout of the batch in it.

    The frame is made when the first queue takes it in, which asks how large it is.  Where nobody
    listens, or nobody wants to have it sent, it is never made.
    """

    __slots__ = ("_batch", "_frame", "layout")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.layout = layout_of(batch.schema)
        self._batch: pa.RecordBatch | None = batch
        self._frame = bytearray()

    @property
    def frame(self) -> bytearray:
        """What is sent, once for all subscribers."""
        if self._batch is not None:
            self._frame = bytearray().join((_ROOM, encode_blob(self._batch)))
            self._batch = None
        return self._frame

    @property
    def nbytes(self) -> int:
        """How large the frame is."""
        return len(self.frame)


class Payload:
    """The payload of a batch that has arrived: part of its frame, until it is kept."""

    __slots__ = ("_data", "_layout", "nbytes")

    def __init__(self, view: memoryview, layout: int) -> None:
        self._data: memoryview | bytes | None = view
        self._layout = layout
        self.nbytes = view.nbytes

    def keep(self) -> None:
        """Copy it, since the frame goes."""
        self._data = bytes(self._data or b"")

    def drop(self) -> None:
        """Nobody wants it."""
        self._data = None

    def rows(self, rows: int) -> pa.RecordBatch:
        """The batch in it; :class:`FrameError` if it is none, or has another number of rows."""
        data = self._data if isinstance(self._data, bytes) else b""
        try:
            batch = decode_blob(data, self._layout)
            batch.validate()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FrameError(f"a payload that is no batch of events: {error}") from error
        if batch.num_rows != rows:
            raise FrameError(f"a payload of {batch.num_rows} rows where {rows} were told")
        return batch


class ServingCodec:
    """The side that publishes."""

    def encode(self, messages: list[Said]) -> list[bytes | bytearray]:
        """Heads, each followed by its payload if it has one."""
        frames: list[bytes | bytearray] = []
        for said in messages:
            head, payload = wire.encode(said.message)
            if payload is None:
                frames.append(_PREFIX.pack(said.link, 0) + head)
            else:
                frames += (_PREFIX.pack(said.link, payload.layout) + head, payload.frame)
        return frames

    def decode(self, frame: Frame) -> list[Wish]:
        """What a subscription wants."""
        try:
            wishes = _wishes.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"a malformed frame: {error}") from error
        if len(wishes) > MESSAGES_MAX:
            raise FrameError(f"a frame of {len(wishes)} messages; {MESSAGES_MAX} is the most")
        return wishes


class HearingCodec:
    """The side that subscribes; remembers a head until its payload has come."""

    def __init__(self, shape: TimeShape) -> None:
        self._shape = shape
        self._head: tuple[int, int, wire.DataHead] | None = None

    def encode(self, messages: list[Wish]) -> list[bytes]:
        """One frame."""
        return [_encoder.encode(messages)]

    def decode(self, frame: Frame) -> list[Said]:
        """One message, or none where a payload is still to come.

        A payload is a view of the frame: whoever wants it after the call keeps it.
        """
        if self._head is not None:
            (link, layout, head), self._head = self._head, None
            return [Said(link, wire.with_payload(head, Payload(memoryview(frame), layout)))]
        if len(frame) < _PREFIX.size:
            raise FrameError(f"a head of {len(frame)} bytes")
        link, layout = _PREFIX.unpack_from(frame)
        try:
            found = wire.decode_head(bytes(frame[_PREFIX.size :]), self._shape)
        except EpochMessageError as error:
            raise FrameError(f"a malformed head: {error}") from error
        if isinstance(found, wire.DataHead):
            self._head = (link, layout, found)
            return []
        return [Said(link, found)]


def _said_size(said: Said) -> int:
    return size_of(said.message.payload) if isinstance(said.message, Data) else 64


def to_subscribers() -> Wire[Said, Wish]:
    """The protocol on the side that publishes and listens."""
    return Wire(
        PATH,
        ServingCodec,
        size=_said_size,
        frame_bytes_max=LARGE_FRAME_BYTES_MAX,
        queue_messages_max=OUTBOX_MESSAGES_MAX,
        queue_bytes_max=OUTBOX_BYTES_MAX,
        batch_messages_max=1,
    )


def to_publishers(shape: TimeShape) -> Wire[Wish, Said]:
    """The protocol on the side that subscribes and dials."""
    return Wire(PATH, lambda: HearingCodec(shape), frame_bytes_max=LARGE_FRAME_BYTES_MAX)


def payloads(batch: pa.RecordBatch) -> list[tuple[int, Packed]]:
    """A batch as payloads that fit into frames: (rows, payload) of each."""
    # Whole buffers are summed up in no time; of a slice that is more than its own bytes.
    large = batch.get_total_buffer_size() > PAYLOAD_BYTES and batch.nbytes > PAYLOAD_BYTES
    if batch.num_rows > 1 and large:
        half = batch.num_rows // 2
        return payloads(batch.slice(0, half)) + payloads(batch.slice(half))
    return [(batch.num_rows, Packed(batch))]
