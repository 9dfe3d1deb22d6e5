"""The send queue of one connection: bounded, and flushed many messages at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic

import msgspec
from picows import WSMsgType, WSTransport

from headrace.net.wire import FRAME_ROOM, Codec, Out, Traffic, Wire

_BINARY = WSMsgType.BINARY


class OutboxStatistics(msgspec.Struct, frozen=True):
    """One connection's outbox, as it is now."""

    messages: int
    """How many messages wait."""
    bytes: int
    """How many bytes wait, where the wire knows the size of a message."""
    paused: bool
    """Whether the network takes no more for now: back-pressure."""
    closed: bool


class Post:
    """Flushes many outboxes together, at the end of the event loop's current turn."""

    def __init__(self) -> None:
        self._due: list[Outbox[Any]] = []
        self._held = False
        self._loop = asyncio.get_running_loop()

    def soon(self, outbox: Outbox[Any]) -> None:
        """This one has something to send."""
        if not self._due and not self._held:
            self._loop.call_soon(self._send)
        self._due.append(outbox)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context that flushes at its end, without waiting for the turn's end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._send()

    def _send(self) -> None:
        due, self._due = self._due, []
        for outbox in due:
            outbox.send()


class Outbox(Generic[Out]):
    """Messages to one peer."""

    def __init__(
        self,
        wire: Wire[Out, Any],
        codec: Codec[Out, Any],
        traffic: Traffic,
        post: Post,
        peer: str = "",
    ) -> None:
        """`peer` is who was dialled; empty on the listening side, where peers have no name."""
        self.peer = peer
        self.closed = False
        """Whether the connection has ended: what is put in is lost."""
        self._wire = wire
        self._encode = codec.encode
        self._traffic = traffic
        self._post = post
        self._messages: list[Out] = []
        self._bytes = 0
        self._transport: WSTransport | None = None
        self._armed = False
        """Whether a flush is scheduled."""
        self._paused = False
        self._unanswered = False
        self._since_s = 0.0
        """Since when nothing was answered."""
        self._watched = False
        self.silent: Callable[[], None] | None = None
        """Called when nothing was answered for as long as the wire allows."""
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def answered(self) -> None:
        """The peer has said something."""
        self._unanswered = False

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    def _watch_for(self, seconds: float) -> None:
        self._watched = True
        self._later(seconds, self._watch)

    def _watch(self) -> None:
        """See whether the peer has answered in time; its packets may go nowhere."""
        self._watched = False
        if self.silent is None or self.closed or not self._unanswered:
            return
        left_s = self._since_s + self._wire.silence_s - self._loop.time()
        if left_s <= 0:
            self.silent()
        else:
            self._watch_for(left_s)

    @property
    def empty(self) -> bool:
        """Whether everything has been handed to the network."""
        return not self._messages

    @property
    def paused(self) -> bool:
        """Whether the network takes no more for now."""
        return self._paused

    @property
    def full(self) -> bool:
        """Whether the next message would be dropped."""
        return (
            len(self._messages) >= self._wire.queue_messages_max
            or self._bytes >= self._wire.queue_bytes_max
        )

    def statistics(self) -> OutboxStatistics:
        """How much waits, and why."""
        return OutboxStatistics(len(self._messages), self._bytes, self._paused, self.closed)

    def put(self, message: Out) -> bool:
        """Queue a message; dropped, and False, when the peer is gone or too slow."""
        if self.closed or self.full:
            self._traffic.dropped += 1
            return False
        self._messages.append(message)
        if self._wire.size is not None:
            self._bytes += self._wire.size(message)
        if not self._armed:
            self._arm()
        return True

    async def room(self) -> None:
        """Wait until there is room for a message, or nobody left to send it to."""
        while self.full and not self.closed:
            self._room.clear()
            await self._room.wait()

    def connect(self, transport: WSTransport) -> None:
        """Send what there is, and what comes, over this connection."""
        self._transport = transport
        self._arm()

    def pause(self) -> None:
        """The network takes no more for now."""
        self._paused = True

    def resume(self) -> None:
        """The network takes more again."""
        self._paused = False
        self._arm()

    def _arm(self) -> None:
        """Schedule a flush, which takes along what else comes within this turn."""
        if self._transport is None or self._paused or self._armed or not self._messages:
            return
        self._armed = True
        if self._unanswered and self._wire.gather_s:
            # A frame costs its receiver more than the messages in it.
            self._later(self._wire.gather_s, self.send)
        else:
            self._post.soon(self)

    def send(self) -> None:
        """Flush: send what is queued."""
        self._armed = False
        size, most = self._wire.size, self._wire.batch_messages_max
        while self._messages and self._transport is not None and not self._paused:
            part = self._messages[:most]
            del self._messages[:most]
            if size is not None:
                self._bytes -= sum(map(size, part))
            for data in self._encode(part):
                if type(data) is bytearray:
                    self._transport.send_reuse_external_bytearray(_BINARY, data, FRAME_ROOM)
                else:
                    self._transport.send(_BINARY, data)
            if not self._unanswered:
                self._unanswered = True
                if self._wire.silence_s:
                    self._since_s = self._loop.time()
                    if not self._watched:
                        self._watch_for(self._wire.silence_s)
            self._traffic.sent += len(part)
        self._room.set()

    def close(self) -> None:
        """Drop what was not sent; it is out of date by now."""
        self.closed = True
        self._transport = None
        self._traffic.dropped += len(self._messages)
        self._messages.clear()
        self._bytes = 0
        self._room.set()
