"""Messages between nodes, over WebSocket.

The node of a borrower dials the node of its leader; answers come back on the connection on which
the borrower last spoke.  Nothing here repeats or repairs anything: a message that cannot be sent
is dropped, a connection that ends is dialled again with the next message (after looking the
address up anew), and the timers of the protocol do the rest.  So a half-open connection is found
by unanswered pings of borrowers, and a slow peer costs no more than the room in its queue.

A connection shows the catalog's secret in its first request, or is refused.  A frame that is too
large or makes no sense ends the connection it came on, and nothing else.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

import msgspec
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.http11 import Request, Response

from headrace.errors import FrameError, HeadraceError, ListenError
from headrace.groups.shared import frames
from headrace.groups.shared.directory import Address
from headrace.groups.shared.messages import FromBorrower, FromLeader, Message

QUEUE_MESSAGES_MAX = 20_000
BATCH_MESSAGES_MAX = 500
GATHER_S = 0.01
"""How long messages to a leader wait for others while it has not answered the last ones."""
DIAL_TIMEOUT_S = 3.0
REDIAL_S = 0.2
CLOSE_TIMEOUT_S = 0.5
CONNECTIONS_MAX = 4096

_log = logging.getLogger(__name__)

# Below warnings this library writes down whole requests, and so the secret.
_quiet = logging.getLogger("headrace.groups.shared.websockets")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False
_quiet.setLevel(logging.CRITICAL)


class Statistics(msgspec.Struct):
    """Counts since the node was opened."""

    sent: int = 0
    received: int = 0
    dropped: int = 0
    """Messages for which there was no connection or no room."""
    refused: int = 0
    """Connections without the secret, and frames that made no sense."""


class Outbox:
    """Messages to one peer; bounded, sent many at a time."""

    def __init__(self, statistics: Statistics, gather_s: float = 0.0) -> None:
        """With `gather_s`, what follows on something unanswered waits that long for company."""
        self._messages: deque[Message] = deque()
        self._news = asyncio.Event()
        self._sending = False
        self._statistics = statistics
        self._gather_s = gather_s
        self._unanswered = False

    def answered(self) -> None:
        """The peer has said something."""
        self._unanswered = False

    @property
    def sent(self) -> bool:
        """Whether everything has been handed to the network."""
        return not self._messages and not self._sending

    def put(self, message: Message) -> None:
        """Queue a message, or drop it when the peer is too slow."""
        if len(self._messages) >= QUEUE_MESSAGES_MAX:
            self._statistics.dropped += 1
            return
        self._messages.append(message)
        self._news.set()

    async def send(self, connection: Connection) -> None:
        """Send what comes, until the connection ends."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._unanswered and self._gather_s:
                # A frame costs its receiver more than the messages in it.
                await asyncio.sleep(self._gather_s)
            while self._messages:
                count = min(len(self._messages), BATCH_MESSAGES_MAX)
                part = [self._messages.popleft() for _ in range(count)]
                self._sending = True
                try:
                    for data in _encoded(part):
                        await connection.send(data)
                finally:
                    self._sending = False
                self._unanswered = True
                self._statistics.sent += count

    def clear(self) -> None:
        """Forget what was not sent; it is old by now."""
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


class Listener:
    """Takes connections of other nodes, whose borrowers speak to leaders here."""

    def __init__(
        self, received: Callable[[list[FromBorrower], Outbox], None], statistics: Statistics
    ) -> None:
        self._received = received
        self._statistics = statistics
        self._server: Server | None = None
        self._secret = b""
        self.connections: set[ServerConnection] = set()

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns where.  Nobody is let in before there is a secret."""
        try:
            self._server = await serve(
                self._serve,
                host,
                port,
                process_request=self._check,
                compression=None,
                max_size=frames.FRAME_BYTES_MAX,
                max_queue=16,
                ping_interval=None,
                close_timeout=CLOSE_TIMEOUT_S,
                open_timeout=DIAL_TIMEOUT_S,
                logger=_quiet,
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

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if not self._secret or not hmac.compare_digest(given, self._secret):
            self._statistics.refused += 1
            return connection.respond(HTTPStatus.UNAUTHORIZED, "the secret is wrong\n")
        if len(self.connections) >= CONNECTIONS_MAX:
            self._statistics.refused += 1
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        outbox = Outbox(self._statistics)
        try:
            await _both(
                outbox.send(connection),
                _receive(
                    connection,
                    lambda data: self._take(data, outbox),
                    self._statistics,
                ),
            )
        finally:
            self.connections.discard(connection)

    def _take(self, data: bytes | str, outbox: Outbox) -> None:
        messages = frames.decode_from_borrowers(data)
        self._statistics.received += len(messages)
        self._received(messages, outbox)

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


class Peers:
    """Connections to the nodes of leaders, dialled when there is something to say."""

    def __init__(
        self,
        look_up: Callable[[str], Awaitable[tuple[Address | None, str]]],
        received: Callable[[FromLeader], None],
        statistics: Statistics,
    ) -> None:
        self._look_up = look_up
        self._received = received
        self._statistics = statistics
        self._outboxes: dict[str, Outbox] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.connections: dict[str, Connection] = {}

    def send(self, node: str, message: FromBorrower) -> None:
        """Send a message to a node; lost if the node cannot be reached."""
        outbox = self._outboxes.get(node)
        if outbox is None:
            outbox = self._outboxes[node] = Outbox(self._statistics, GATHER_S)
            self._tasks[node] = asyncio.create_task(self._talk(node, outbox))
        outbox.put(message)

    @property
    def unsent(self) -> bool:
        """Whether something waits that may still arrive."""
        return any(not outbox.sent for outbox in self._outboxes.values())

    async def _talk(self, node: str, outbox: Outbox) -> None:
        """One connection, from dialling to its end."""
        try:
            await self._dial(node, outbox)
        except (OSError, TimeoutError, WebSocketException, HeadraceError) as error:
            _log.debug("node %s: %s", node, error)
            outbox.clear()
            # So that a node that is gone is not dialled for every single message.
            await asyncio.sleep(REDIAL_S)
        finally:
            self.connections.pop(node, None)
            if self._outboxes.get(node) is outbox:
                del self._outboxes[node]
                del self._tasks[node]
            outbox.clear()

    async def _dial(self, node: str, outbox: Outbox) -> None:
        address, secret = await self._look_up(node)
        if address is None:
            raise FrameError(f"node {node} is not registered")
        async with connect(
            address.url,
            additional_headers={"Authorization": f"Bearer {secret}"},
            compression=None,
            max_size=frames.FRAME_BYTES_MAX,
            max_queue=16,
            ping_interval=None,
            open_timeout=DIAL_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            proxy=None,
            logger=_quiet,
        ) as connection:
            self.connections[node] = connection
            await _both(
                outbox.send(connection),
                _receive(connection, lambda data: self._take(data, outbox), self._statistics),
            )

    def _take(self, data: bytes | str, outbox: Outbox) -> None:
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


async def _receive(
    connection: Connection, take: Callable[[bytes | str], None], statistics: Statistics
) -> None:
    """Take frames until the connection ends; one that makes no sense ends it."""
    with suppress(ConnectionClosed):
        async for data in connection:
            try:
                take(data)
            except FrameError as error:
                statistics.refused += 1
                _log.warning("a connection is dropped: %s", error)
                await connection.close(1008, "malformed frame")
                return


async def _both(sending: Awaitable[None], receiving: Awaitable[None]) -> None:
    """Run both until one of them ends."""
    tasks = [asyncio.ensure_future(sending), asyncio.ensure_future(receiving)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
