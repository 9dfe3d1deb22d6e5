"""Takes connections of other programs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any

import msgspec
from picows import (
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

from headrace.errors import ListenError
from headrace.net.admission import Admission
from headrace.net.link import CLOSE_TIMEOUT_S, Link, Received
from headrace.net.outbox import Outbox, Post
from headrace.net.sockets import sockets_of
from headrace.net.tls import Secured
from headrace.net.wire import Complaints, In, Out, Traffic, Wire, quiet

CONNECTIONS_MAX = 4096
HANDSHAKE_TIMEOUT_S = 3.0
BUFFER_BYTES = 4096
"""What a connection reads into at first; it grows with the frames."""

_log = logging.getLogger(__name__)


class ListenerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Connections that are open, and counts since the listener was made."""

    connections: int
    waiting: int
    """Messages in all outboxes."""
    sent: int
    received: int
    dropped: int
    refused: int


class AdmittedLink(Link[Any, Any]):
    """A connection that was let in; its listener hears of its end."""

    listener: Listener
    ended: Callable[[Outbox[Any]], None] | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Somebody was let in."""
        self.listener.connected(self, transport)
        super().on_ws_connected(transport)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Somebody has hung up."""
        self.listener.disconnected(self, transport)
        super().on_ws_disconnected(transport)
        if self.ended is not None:
            self.ended(self.outbox)


class Listener:
    """One address, on which this program serves all its wires."""

    def __init__(
        self,
        busy: Callable[[], bool] = lambda: False,
        secured: Secured | None = None,
        frame_bytes_max: int = 0,
    ) -> None:
        """While `busy()` is true, reading may be delayed; see :mod:`headrace.net.intake`.

        `frame_bytes_max` makes room for wires that are served only after the listener is open.
        """
        self.connections: set[AdmittedLink] = set()
        self.connections_max = CONNECTIONS_MAX
        self._links: dict[bytes, Callable[[], AdmittedLink]] = {}
        self._frame_bytes_max = frame_bytes_max
        self._admission = Admission()
        self._secured = secured
        self._traffic = Traffic()
        self._complaints = Complaints(_log)
        self._post = Post()
        self._sockets = sockets_of(asyncio.get_running_loop())
        # With TLS the raw sockets cannot be read directly: the loop has to decrypt.
        self._intake = self._sockets.intake(busy) if secured is None else None
        self._server: asyncio.Server | None = None

    def serve(
        self,
        wire: Wire[Out, In],
        received: Received[In, Out],
        ended: Callable[[Outbox[Out]], None] | None = None,
    ) -> None:
        """Serve a wire at its path, from now on."""
        if self._server is None:
            self._frame_bytes_max = max(self._frame_bytes_max, wire.frame_bytes_max)
        assert wire.frame_bytes_max <= self._frame_bytes_max, "known before the listener is open"

        def link() -> AdmittedLink:
            made = AdmittedLink(wire, received, self._traffic, self._post, self._complaints)
            made.listener, made.ended = self, ended
            return made

        self._links[wire.path.encode()] = link

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns where.  Nobody is let in before there is a secret."""
        secure: dict[str, Any] = {}
        if self._secured is not None:
            secure = {
                "ssl": self._secured.listening(self._untrusted),
                "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S,
                "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
            }
        try:
            self._server = await self._sockets.serve(
                self._admit,
                host,
                port,
                websocket_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                max_frame_size=self._frame_bytes_max,  # each link has its wire's own
                read_buffer_init_size=BUFFER_BYTES,
                logger_name=quiet,
                use_aiofastnet=False,  # no quicker here than what Python brings
                **secure,
            )
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; "
                "choose another address in SharedOptions"
            ) from error
        self._sockets.keep_alive(self._server)
        bound = next(iter(self._server.sockets)).getsockname()
        return str(bound[0]), int(bound[1])

    def admit(self, secret: str) -> None:
        """From now on, who shows this secret is let in."""
        self._admission.admit(secret)

    def _admit(self, request: WSUpgradeRequest) -> Link[Any, Any] | WSUpgradeResponseWithListener:
        if not self._admission.admits(request.headers):
            return self._refused(HTTPStatus.UNAUTHORIZED, b"the secret is wrong\n")
        link = self._links.get(request.path)
        if link is None:
            return self._refused(HTTPStatus.NOT_FOUND, b"nothing is served here\n")
        if len(self.connections) >= self.connections_max:
            return self._refused(HTTPStatus.SERVICE_UNAVAILABLE, b"too many connections\n")
        return link()

    def _refused(self, status: HTTPStatus, why: bytes) -> WSUpgradeResponseWithListener:
        self._traffic.refused += 1
        return WSUpgradeResponseWithListener(
            WSUpgradeResponse.create_error_response(status, why), None
        )

    def _untrusted(self, why: str) -> None:
        """TLS has refused a connection."""
        self._traffic.refused += 1
        now_s = asyncio.get_running_loop().time()
        self._complaints.say(f"a connection is refused: {why}", now_s)

    def statistics(self) -> ListenerStatistics:
        """Connections, what waits in them, and counts."""
        waiting = sum(link.outbox.statistics().messages for link in self.connections)
        return ListenerStatistics(
            connections=len(self.connections), waiting=waiting, **self._traffic.snapshot()
        )

    @property
    def unsent(self) -> bool:
        """Whether something waits that may still arrive."""
        return any(not link.outbox.empty for link in self.connections)

    def sending(self) -> AbstractContextManager[None]:
        """A context at whose end all messages put into outboxes meanwhile are sent together."""
        return self._post.held()

    def look(self) -> None:
        """Read what has come, without waiting for the event loop to do so."""
        if self._intake is not None:
            self._intake.look()

    def connected(self, link: AdmittedLink, transport: WSTransport) -> None:
        """Called by a link that was let in."""
        self.connections.add(link)
        if self._intake is not None:
            self._intake.add(transport.underlying_transport)

    def disconnected(self, link: AdmittedLink, transport: WSTransport) -> None:
        """Called by a link that has ended."""
        self.connections.discard(link)
        if self._intake is not None:
            self._intake.remove(transport.underlying_transport)

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
            await asyncio.gather(*(link.close() for link in list(self.connections)))
            await self._server.wait_closed()
        if self._intake is not None:
            self._intake.close()
