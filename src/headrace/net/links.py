"""Connections to other programs, dialled when there is something to say."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic

import msgspec
from picows import WSError

from headrace.errors import HeadraceError, PeerRefusedError
from headrace.net.admission import shown
from headrace.net.link import CLOSE_TIMEOUT_S, Link, Received
from headrace.net.outbox import Post
from headrace.net.sockets import sockets_of
from headrace.net.tls import Secured, why
from headrace.net.wire import Complaints, In, Out, Traffic, Wire, quiet

DIAL_TIMEOUT_S = 3.0
REDIAL_S = 0.2
BUFFER_BYTES = 4096
"""What a connection reads into at first; it grows with the frames."""

_log = logging.getLogger(__name__)


class Target(msgspec.Struct, frozen=True):
    """Where another program listens, and what it is shown."""

    host: str
    port: int
    secret: str
    tls: bool = False
    """Whether it takes connections with TLS only."""

    def url(self, path: str) -> str:
        """The WebSocket URL of a path there."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{path}"


class LinksStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Connections that were dialled, and counts since the first of them."""

    connections: int
    dialling: int
    waiting: int
    """Messages in all outboxes."""
    sent: int
    received: int
    dropped: int
    refused: int


class Links(Generic[Out, In]):
    """Connections by the name of who is at the other end."""

    def __init__(
        self,
        wire: Wire[Out, In],
        look_up: Callable[[str], Awaitable[Target | None]],
        received: Received[In, Out],
        cut: Callable[[str], None],
        secured: Secured | None = None,
        refused: Callable[[str], None] = lambda _: None,
        over: Callable[[str, str], None] = lambda _, __: None,
    ) -> None:
        """`cut` is called with a peer whose connection has ended after more than ``REDIAL_S``, and
        `refused` with one to which there is none because one side does not trust the other.  `over`
        is called after every connection and every attempt at one, with the peer and a reason."""
        self.connections: dict[str, Link[Out, In]] = {}
        self._links: dict[str, Link[Out, In]] = {}
        self._wire = wire
        self._look_up = look_up
        self._received = received
        self._cut = cut
        self._secured = secured
        self._refused = refused
        self._over = over
        self.unreached: Callable[[str, Target, str, float], None] = lambda *_: None
        """Called after an attempt that failed on the way: with whom, where and why, and the seconds
        that it took."""
        self._targets: dict[str, Target] = {}
        """Where peers are being dialled."""
        self._paused = False
        self._traffic = Traffic()
        self._complaints = Complaints(_log)
        self._post = Post()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def send(self, peer: str, message: Out) -> bool:
        """Send a message to a peer; lost if the peer cannot be reached, or is too slow."""
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = Link(
                self._wire, self._received, self._traffic, self._post, self._complaints, peer=peer
            )
            self._tasks[peer] = asyncio.create_task(self._talk(peer, link))
        return link.outbox.put(message)

    def pause(self, paused: bool) -> None:
        """Stop reading what comes, so that the other sides have to wait; or go on."""
        self._paused = paused
        for link in self.connections.values():
            if paused:
                link.pause_reading()
            else:
                link.resume_reading()

    @property
    def unsent(self) -> bool:
        """Whether something waits that may still arrive."""
        return any(not link.outbox.empty for link in self._links.values())

    def statistics(self) -> LinksStatistics:
        """Connections, what waits in them, and counts."""
        return LinksStatistics(
            connections=len(self.connections),
            dialling=len(self._links) - len(self.connections),
            waiting=sum(link.outbox.statistics().messages for link in self._links.values()),
            **self._traffic.snapshot(),
        )

    async def _talk(self, peer: str, link: Link[Out, In]) -> None:
        """One connection, from dialling to its end."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        reason = "hung up"
        try:
            await self._dial(peer, link)
            reason = link.fault or reason
            lasted = loop.time() - began_s > REDIAL_S
        except (OSError, TimeoutError, WSError, HeadraceError) as error:
            reason = str(error) or "no answer in time"
            if isinstance(error, PeerRefusedError):
                self._traffic.refused += 1
                self._complaints.say(str(error), loop.time())
                self._refused(peer)
            else:
                _log.debug("%s: %s", peer, error)
                if (target := self._targets.get(peer)) is not None:
                    self.unreached(peer, target, reason, loop.time() - began_s)
            link.outbox.close()
            lasted = False
            # A dead peer is not dialled for every single message.
            await asyncio.sleep(REDIAL_S)
        finally:
            self.connections.pop(peer, None)
            self._targets.pop(peer, None)
            if self._links.get(peer) is link:
                del self._links[peer]
                del self._tasks[peer]
            await link.close()
            link.outbox.close()
        if lasted:
            self._cut(peer)
        self._over(peer, reason)

    async def _dial(self, peer: str, link: Link[Out, In]) -> None:
        target = await self._look_up(peer)
        if target is None:
            raise ConnectionRefusedError("not registered")
        secure = self._security(peer, target)
        self._targets[peer] = target
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                transport, _ = await sockets_of(asyncio.get_running_loop()).connect(
                    lambda: link,
                    target.url(self._wire.path),
                    # With TLS this is sent when the other side is verified, not before.
                    extra_headers=shown(target.secret),
                    websocket_handshake_timeout=DIAL_TIMEOUT_S,
                    max_frame_size=self._wire.frame_bytes_max,
                    read_buffer_init_size=BUFFER_BYTES,
                    max_redirects=0,
                    logger_name=quiet,
                    use_aiofastnet=False,
                    **secure,
                )
        except OSError as error:
            if (reason := why(error)) is not None:
                raise PeerRefusedError(f"{peer} is not spoken to: {reason}") from error
            raise
        if link.transport is None:
            if self._secured is not None:
                raise PeerRefusedError(
                    f"{peer} hung up without an answer; if it does not trust the certificate of "
                    "this process, its log says so"
                )
            raise ConnectionResetError("hung up")
        del self._targets[peer]
        self.connections[peer] = link
        link.outbox.silent = functools.partial(self._hang_up, peer, link)
        if self._paused:
            link.pause_reading()
        await transport.wait_disconnected()

    def _hang_up(self, peer: str, link: Link[Out, In]) -> None:
        """Nothing is answered: packets go nowhere, or will not for long after they do again."""
        if not self._paused:
            silence_s = self._wire.silence_s
            _log.info("%s has answered nothing for %s s: it is dialled again", peer, silence_s)
            link.abort()

    def _security(self, peer: str, target: Target) -> dict[str, Any]:
        """How to dial; refused unless both sides use TLS, or none does."""
        if self._secured is None:
            if target.tls:
                raise PeerRefusedError(
                    f"{peer} takes connections with TLS only; open the log here with tls=…"
                )
            return {}
        if not target.tls:
            raise PeerRefusedError(
                f"{peer} listens without TLS and is not spoken to; open the log there with tls=…"
            )
        return {
            "ssl_context": self._secured.dialling,
            "ssl_handshake_timeout": DIAL_TIMEOUT_S,
            "ssl_shutdown_timeout": CLOSE_TIMEOUT_S,
        }

    async def close(self) -> None:
        """Hang up."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
