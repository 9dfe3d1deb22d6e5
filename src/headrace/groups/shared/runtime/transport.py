"""Messages between peers, over WebSocket.

The peer of a borrower dials the peer of its leader; answers come back on the connection on which
the borrower last spoke.  Nothing here repeats or repairs anything: a message that cannot be sent
is dropped, a connection that ends is dialled again with the next message (after looking the
address up anew), and the timers of the protocol do the rest.  So a half-open connection is found
by unanswered pings of borrowers, and a slow peer costs no more than the room in its queue.

A connection shows the catalog's secret in its first request, or is refused.  A frame that is too
large or makes no sense ends the connection it came on, and nothing else.

A leader may have hundreds of connections with a few frames a second on each, so what counts is the
cost of a frame: it is taken in and sent by plain calls, without a task for each connection.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus

import msgspec
from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_connect,
    ws_create_server,
)

from headrace.errors import FrameError, HeadraceError, ListenError
from headrace.groups.shared.core.messages import FromBorrower, FromLeader, Message
from headrace.groups.shared.runtime import frames, intake
from headrace.groups.shared.runtime.directory import Address
from headrace.groups.shared.runtime.intake import Intake

QUEUE_MESSAGES_MAX = 20_000
BATCH_MESSAGES_MAX = 500
GATHER_S = 0.01
"""How long messages to a leader wait for others while it has not answered the last ones."""
DIAL_TIMEOUT_S = 3.0
REDIAL_S = 0.2
CLOSE_TIMEOUT_S = 0.5
CONNECTIONS_MAX = 4096
BUFFER_BYTES = 4096
"""What a connection reads into at first; it grows with the frames."""

_BINARY = WSMsgType.BINARY

_log = logging.getLogger(__name__)

# Below warnings this library writes down whole requests, and so the secret.
_quiet = logging.getLogger("headrace.groups.shared.picows")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False
_quiet.setLevel(logging.CRITICAL)


class Statistics(msgspec.Struct):
    """Counts since the peer was opened."""

    sent: int = 0
    received: int = 0
    dropped: int = 0
    """Messages for which there was no connection or no room."""
    refused: int = 0
    """Connections without the secret, and frames that made no sense."""


class Post:
    """Sends what is in many outboxes in one go, at the end of the moment in which it was put in."""

    def __init__(self) -> None:
        self._due: list[Outbox] = []
        self._held = False
        self._loop = asyncio.get_running_loop()

    def soon(self, outbox: Outbox) -> None:
        """This one has something to send."""
        if not self._due and not self._held:
            self._loop.call_soon(self._send)
        self._due.append(outbox)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Send at the end of it what is put in meanwhile: the event loop need not turn for that."""
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


class Outbox:
    """Messages to one peer; bounded, sent many at a time."""

    def __init__(self, statistics: Statistics, post: Post, gather_s: float = 0.0) -> None:
        """With `gather_s`, what follows on something unanswered waits that long for company."""
        self._messages: list[Message] = []
        self._transport: WSTransport | None = None
        self._armed = False
        """Whether there will be a look at what is to be sent."""
        self._paused = False
        self._statistics = statistics
        self._gather_s = gather_s
        self._unanswered = False
        self._post = post
        self.closed = False
        """Whether the connection has ended: what is put in is lost."""
        self._loop = asyncio.get_running_loop()

    def answered(self) -> None:
        """The peer has said something."""
        self._unanswered = False

    @property
    def sent(self) -> bool:
        """Whether everything has been handed to the network."""
        return not self._messages

    def put(self, message: Message) -> None:
        """Queue a message, or drop it when the peer is gone or too slow."""
        if self.closed or len(self._messages) >= QUEUE_MESSAGES_MAX:
            self._statistics.dropped += 1
            return
        self._messages.append(message)
        if not self._armed:
            self._arm()

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
        """See to it that what is there is sent, with what else comes within this moment."""
        if self._transport is None or self._paused or self._armed or not self._messages:
            return
        self._armed = True
        if self._unanswered and self._gather_s:
            # A frame costs its receiver more than the messages in it.
            self._loop.call_later(self._gather_s, self.send)
        else:
            self._post.soon(self)

    def send(self) -> None:
        """Send what there is."""
        self._armed = False
        while self._messages and self._transport is not None and not self._paused:
            part = self._messages[:BATCH_MESSAGES_MAX]
            del self._messages[:BATCH_MESSAGES_MAX]
            for data in _encoded(part):
                self._transport.send(_BINARY, data)
            self._unanswered = True
            self._statistics.sent += len(part)

    def close(self) -> None:
        """Forget what was not sent; it is old by now."""
        self.closed = True
        self._transport = None
        self._statistics.dropped += len(self._messages)
        self._messages.clear()


def _encoded(messages: list[Message]) -> list[bytes]:
    """Frames that are small enough."""
    data = frames.encode(messages)
    if len(data) <= frames.FRAME_BYTES_MAX:
        return [data]
    if len(messages) == 1:
        _log.error("a message of %d bytes is too large to be sent", len(data))
        return []
    half = len(messages) // 2
    return _encoded(messages[:half]) + _encoded(messages[half:])


class Link(WSListener):
    """One connection, from either end: hands over what comes, until a frame makes no sense."""

    def __init__(
        self,
        take: Callable[[bytes, Outbox], None],
        outbox: Outbox,
        statistics: Statistics,
        listener: Listener | None = None,
    ) -> None:
        """`listener` is whose connection it is, if it is not one that was dialled here."""
        self._take = take
        self._outbox = outbox
        self._statistics = statistics
        self._listener = listener
        self.transport: WSTransport | None = None
        self._hanging_up = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        if self._listener is not None:
            self._listener.connected(self, transport)
        self._outbox.connect(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if self._hanging_up and kind != WSMsgType.CLOSE:
            return
        try:
            if kind == _BINARY and frame.fin:
                self._take(frame.get_payload_as_bytes(), self._outbox)
            elif kind == WSMsgType.CLOSE:
                transport.send_close(WSCloseCode.OK)
                transport.disconnect()
            elif kind != WSMsgType.PONG:
                raise FrameError("a frame of text or a part of one; frames are binary and whole")
        except FrameError as error:
            self._statistics.refused += 1
            _log.warning("a connection is dropped: %s", error)
            self._hang_up(transport, WSCloseCode.POLICY_VIOLATION, b"malformed frame")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._listener is not None:
            self._listener.disconnected(self, transport)
        self._outbox.close()

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def _hang_up(self, transport: WSTransport, code: WSCloseCode, why: bytes) -> None:
        """Say why, and give the other side a moment to hear it."""
        self._hanging_up = True
        transport.send_close(code, why)
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, transport.disconnect)

    async def close(self) -> None:
        """Send what is there, hang up, and wait until that is done, but not for long."""
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
        """End at once, without a word."""
        if self.transport is not None:
            self.transport.disconnect(graceful=False)


class Listener:
    """Takes connections of other peers, whose borrowers speak to leaders here."""

    def __init__(
        self,
        received: Callable[[list[FromBorrower], Outbox], None],
        statistics: Statistics,
        busy: Callable[[], bool],
    ) -> None:
        """While it is `busy`, there is no hurry to hear what comes."""
        self._received = received
        self._statistics = statistics
        self._post = Post()
        self._intake = Intake(busy) if intake.AVAILABLE else None
        self._server: asyncio.Server | None = None
        self._secret = b""
        self.connections: set[Link] = set()

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns where.  Nobody is let in before there is a secret."""
        try:
            self._server = await ws_create_server(
                self._admit,
                host,
                port,
                websocket_handshake_timeout=DIAL_TIMEOUT_S,
                max_frame_size=frames.FRAME_BYTES_MAX,
                read_buffer_init_size=BUFFER_BYTES,
                logger_name=_quiet,
                use_aiofastnet=False,  # no quicker here than what Python brings
            )
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port} for shared groups: {error.strerror or error}; "
                "choose another address in SharedOptions"
            ) from error
        bound = next(iter(self._server.sockets)).getsockname()
        return str(bound[0]), int(bound[1])

    def admit(self, secret: str) -> None:
        """From now on, who shows this secret is let in."""
        self._secret = secret.encode()

    def _admit(self, request: WSUpgradeRequest) -> Link | WSUpgradeResponseWithListener:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if not self._secret or not hmac.compare_digest(given, self._secret):
            return self._refused(HTTPStatus.UNAUTHORIZED, b"the secret is wrong\n")
        if len(self.connections) >= CONNECTIONS_MAX:
            return self._refused(HTTPStatus.SERVICE_UNAVAILABLE, b"too many connections\n")
        outbox = Outbox(self._statistics, self._post)
        return Link(self._take, outbox, self._statistics, self)

    def sending(self) -> AbstractContextManager[None]:
        """What is said to others meanwhile is sent at the end of it, many messages at a time."""
        return self._post.held()

    def look(self) -> None:
        """Take in what has come, if the loop has not yet done so."""
        if self._intake is not None:
            self._intake.look()

    def connected(self, link: Link, transport: WSTransport) -> None:
        """Somebody was let in."""
        self.connections.add(link)
        if self._intake is not None:
            self._intake.add(transport.underlying_transport)

    def disconnected(self, link: Link, transport: WSTransport) -> None:
        """Somebody has hung up."""
        self.connections.discard(link)
        if self._intake is not None:
            self._intake.remove(transport.underlying_transport)

    def _refused(self, status: HTTPStatus, why: bytes) -> WSUpgradeResponseWithListener:
        self._statistics.refused += 1
        return WSUpgradeResponseWithListener(
            WSUpgradeResponse.create_error_response(status, why), None
        )

    def _take(self, data: bytes, outbox: Outbox) -> None:
        messages = frames.decode_from_borrowers(data)
        self._statistics.received += len(messages)
        self._received(messages, outbox)

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
            await asyncio.gather(*(link.close() for link in list(self.connections)))
            await self._server.wait_closed()
        if self._intake is not None:
            self._intake.close()


class Peers:
    """Connections to the peers of leaders, dialled when there is something to say."""

    def __init__(
        self,
        look_up: Callable[[str], Awaitable[tuple[Address | None, str]]],
        received: Callable[[FromLeader], None],
        cut: Callable[[str], None],
        statistics: Statistics,
    ) -> None:
        """`cut` is told of a peer whose connection has ended after it had been there a while."""
        self._look_up = look_up
        self._received = received
        self._cut = cut
        self._statistics = statistics
        self._post = Post()
        self._outboxes: dict[str, Outbox] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.connections: dict[str, Link] = {}

    def send(self, peer: str, message: FromBorrower) -> None:
        """Send a message to a peer; lost if the peer cannot be reached."""
        outbox = self._outboxes.get(peer)
        if outbox is None:
            outbox = self._outboxes[peer] = Outbox(self._statistics, self._post, GATHER_S)
            self._tasks[peer] = asyncio.create_task(self._talk(peer, outbox))
        outbox.put(message)

    @property
    def unsent(self) -> bool:
        """Whether something waits that may still arrive."""
        return any(not outbox.sent for outbox in self._outboxes.values())

    async def _talk(self, peer: str, outbox: Outbox) -> None:
        """One connection, from dialling to its end."""
        link = Link(self._take, outbox, self._statistics)
        began_s = time.monotonic()
        try:
            await self._dial(peer, link)
            lasted = time.monotonic() - began_s > REDIAL_S
        except (OSError, TimeoutError, WSError, HeadraceError) as error:
            _log.debug("peer %s: %s", peer, error)
            outbox.close()
            lasted = False
            # So that a peer that is gone is not dialled for every single message.
            await asyncio.sleep(REDIAL_S)
        finally:
            self.connections.pop(peer, None)
            if self._outboxes.get(peer) is outbox:
                del self._outboxes[peer]
                del self._tasks[peer]
            await link.close()
            outbox.close()
        if lasted:
            self._cut(peer)

    async def _dial(self, peer: str, link: Link) -> None:
        address, secret = await self._look_up(peer)
        if address is None:
            raise FrameError(f"peer {peer} is not registered")
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            transport, _ = await ws_connect(
                lambda: link,
                address.url,
                extra_headers={"Authorization": f"Bearer {secret}"},
                websocket_handshake_timeout=DIAL_TIMEOUT_S,
                max_frame_size=frames.FRAME_BYTES_MAX,
                read_buffer_init_size=BUFFER_BYTES,
                max_redirects=0,
                logger_name=_quiet,
                use_aiofastnet=False,
            )
        if link.transport is None:
            raise ConnectionResetError(f"peer {peer} hung up")
        self.connections[peer] = link
        await transport.wait_disconnected()

    def _take(self, data: bytes, outbox: Outbox) -> None:
        outbox.answered()
        for message in frames.decode_from_leaders(data):
            self._statistics.received += 1
            self._received(message)

    async def close(self) -> None:
        """Hang up."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
