"""One connection, from either end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeAlias

from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport

from headrace.errors import FrameError
from headrace.net.outbox import Outbox, Post
from headrace.net.wire import Complaints, In, Out, Traffic, Wire

CLOSE_TIMEOUT_S = 0.5

_BINARY = WSMsgType.BINARY

Received: TypeAlias = Callable[[list[In], Outbox[Out]], None]
"""Called with the messages of a frame, and where answers go."""


class Link(WSListener, Generic[Out, In]):
    """Decodes frames and hands their messages over; a malformed frame ends the connection."""

    def __init__(
        self,
        wire: Wire[Out, In],
        received: Received[In, Out],
        traffic: Traffic,
        post: Post,
        complaints: Complaints,
        *,
        peer: str = "",
    ) -> None:
        """`complaints` logs warnings; `peer` is who was dialled, if this side dialled."""
        codec = wire.codec()
        self.outbox = Outbox(wire, codec, traffic, post, peer)
        self.fault = ""
        """What made no sense, if this side has hung up for that."""
        self.transport: WSTransport | None = None
        self._decode = codec.decode
        self._frame_bytes_max = wire.frame_bytes_max
        self._received = received
        self._traffic = traffic
        self._complaints = complaints
        self._hanging_up = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The connection is open, whichever side dialled."""
        self.transport = transport
        self.outbox.connect(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame has arrived."""
        kind = frame.msg_type
        if (self._hanging_up or transport.is_close_frame_sent) and kind != WSMsgType.CLOSE:
            return  # also one too large for the listener, which is passed on all the same
        try:
            if frame.payload_size > self._frame_bytes_max:
                raise FrameError(
                    f"a frame of {frame.payload_size} bytes; {self._frame_bytes_max} is the most"
                )
            if kind == _BINARY and frame.fin:
                messages = self._decode(frame.get_payload_as_memoryview())
                self._traffic.received += len(messages)
                self.outbox.answered()
                self._received(messages, self.outbox)
            elif kind == WSMsgType.CLOSE:
                transport.send_close(WSCloseCode.OK)
                transport.disconnect()
            elif kind != WSMsgType.PONG:
                raise FrameError("a frame of text or a part of one; frames are binary and whole")
        except FrameError as error:
            self._traffic.refused += 1
            self.fault = str(error)
            loop = asyncio.get_running_loop()
            self._complaints.say(f"a connection is dropped: {error}", loop.time())
            self._hanging_up = True
            transport.send_close(WSCloseCode.POLICY_VIOLATION, b"malformed frame")
            # Time for the close frame to reach the other side.
            loop.call_later(CLOSE_TIMEOUT_S, transport.disconnect)

    def on_ws_disconnected(self, transport: WSTransport) -> None:  # noqa: ARG002
        """The connection has ended, whoever ended it."""
        self.outbox.close()

    def pause_writing(self) -> None:
        """The network is slower than what is sent."""
        self.outbox.pause()

    def resume_writing(self) -> None:
        """The network has caught up."""
        self.outbox.resume()

    def pause_reading(self) -> None:
        """Leave what comes in the socket."""
        if self.transport is not None and not self.transport.is_disconnected:
            self.transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_disconnected:
            self.transport.underlying_transport.resume_reading()

    async def close(self) -> None:
        """Send what is queued, close, and wait for that, but not for long."""
        if (transport := self.transport) is None or transport.is_disconnected:
            return
        self._hanging_up = True
        transport.send_close(WSCloseCode.OK)
        transport.disconnect()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await transport.wait_disconnected()
        except (TimeoutError, WSError, OSError):
            self.abort()

    def abort(self) -> None:
        """End at once, without a close frame."""
        if self.transport is not None:
            self.transport.disconnect(graceful=False)
