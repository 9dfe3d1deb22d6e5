"""The server's beginning and end.

uvicorn serves; signals are ours: on SIGTERM or Ctrl-C the live streams are ended first, since an
endless response would keep the server from ending, and what is still under way a second later is
cut.  A connection that sends its request byte by byte is cut after ``SLOW_S``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from headrace.api.client import Headrace
from headrace.errors import InvalidInputError, TLSError
from headrace.node.accepting import CONNECTIONS_MAX, BoundedSocket, listen
from headrace.node.app import NodeApp
from headrace.node.node import Node, NodeSettings, gate_of, is_loopback

GRACE_S = 1
SLOW_S = 10.0
SWEEP_S = 1.0
TICK_S = 1.0

_log = logging.getLogger(__name__)


class Served:
    """A node that serves, from ``start`` to ``stop``."""

    def __init__(
        self,
        hr: Headrace,
        settings: NodeSettings,
        *,
        folder: Path | None,
        listening: BoundedSocket | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
    ) -> None:
        self.listening = listening or listen(settings.host, settings.port, tls=settings.tls)
        port = self.listening.getsockname()[1]
        self.settings = NodeSettings(
            **{**{f: getattr(settings, f) for f in settings.__struct_fields__}, "port": port}
        )
        gate, self.token = gate_of(self.settings, folder)
        self.node = Node(hr, self.settings, gate)
        config = uvicorn.Config(
            NodeApp(self.node),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http="h11",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=64 * 1024,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
        try:
            check_pair(tls_cert, tls_key)
            config.load()
        except BaseException:
            self.listening.close()
            raise
        # Addresses are not logged, whatever a program has set up: people paste secrets into them.
        logging.getLogger("uvicorn.access").disabled = True
        self._server = uvicorn.Server(config)
        self._stopping = asyncio.Event()
        self._tasks = hr.host.tasks("node")

    @property
    def address(self) -> str:
        """Where people find it."""
        scheme = "https" if self.settings.tls else "http"
        host = self.settings.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        return f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{self.settings.port}"

    def link(self) -> str:
        """A link that lets a browser in, once and within a minute."""
        if self.settings.no_auth:
            return self.address
        from headrace.node.access.roles import ADMIN, Who
        from headrace.node.access.tokens import OWN

        return f"{self.address}/#code={self.node.codes.give(Who(name=OWN, roles=(ADMIN,)))}"

    async def start(self) -> None:
        """Begin to look and to serve."""
        await self.node.start()
        self._serving = self._tasks.spawn(self._serve(), awaited=True)
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # uvicorn tells nobody
        if self._serving.done():
            await self._serving
        self._tasks.spawn(self._cut_slow())

    async def _serve(self) -> None:
        # uvicorn's own handlers would raise the signal again after the end.
        self._server.capture_signals = _no_signals  # type: ignore[method-assign,assignment]
        self._server.main_loop = self._ticks  # type: ignore[method-assign]
        await self._server.serve(sockets=[self.listening])

    async def _ticks(self) -> None:
        """In the place of uvicorn's own, which looks ten times a second whether it is to end."""
        first_of_ten = 0  # in which uvicorn says what time it is
        while not await self._server.on_tick(first_of_ten):
            await self.node.host.wait(self._stopping, TICK_S)

    async def wait(self) -> None:
        """Until it is stopped."""
        with suppress(asyncio.CancelledError):
            await self._serving

    async def stop(self) -> None:
        """End live streams, finish what is short, cut the rest."""
        await self.node.close()
        self._server.should_exit = True
        self._stopping.set()
        with suppress(asyncio.CancelledError):
            await self._serving
        await self._tasks.close()

    async def _cut_slow(self) -> None:
        """Cut connections whose request does not come to an end."""
        since: dict[object, float] = {}
        host = self.node.host
        while True:
            await host.sleep(SWEEP_S)
            now_s = host.now_s()
            pending: dict[object, float] = {}
            for each in list(self._server.server_state.connections):
                cycle = getattr(each, "cycle", None)
                reading = cycle is None or (cycle.response_complete and _half_read(each))
                reading = reading or (cycle is not None and cycle.more_body)
                if reading:
                    pending[each] = since.get(each, now_s)
                    if now_s - pending[each] > SLOW_S:
                        transport = getattr(each, "transport", None)
                        if transport is not None:
                            transport.close()
            since = pending


def _half_read(connection: object) -> bool:
    conn = getattr(connection, "conn", None)
    return bool(conn is not None and conn.trailing_data[0])


class _no_signals:  # noqa: N801
    """In the place of uvicorn's handling of signals."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def check(settings: NodeSettings, *, insecure: bool) -> None:
    """Settings that would let strangers in are refused."""
    if not 0 <= settings.port <= 65_535:
        raise InvalidInputError(f"--port {settings.port}: give 0 to 65535")
    if is_loopback(settings.host):
        return
    if settings.no_auth:
        raise InvalidInputError("--no-auth is for this machine alone: --host 127.0.0.1")
    if not settings.tls and not insecure:
        raise InvalidInputError(
            f"{settings.host} is reached from other machines, and without TLS tokens and events "
            "can be read on the way: give --tls-cert and --tls-key, or say --insecure"
        )


def check_pair(tls_cert: str | None, tls_key: str | None) -> None:
    """A certificate that is none, or does not fit its key, is refused."""
    if tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls_cert, tls_key)
    except (ssl.SSLError, OSError) as error:
        raise TLSError(
            f"the certificate {tls_cert} and the key {tls_key} do not work: {error}"
        ) from error


async def until_signal(stop: Callable[[], None] | None = None) -> int:
    """Wait for Ctrl-C or SIGTERM; returns which."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[int] = loop.create_future()

    def hear(number: int) -> None:
        if not heard.done():
            heard.set_result(number)
        if stop is not None:
            stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hear, number)
    try:
        return await heard
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
