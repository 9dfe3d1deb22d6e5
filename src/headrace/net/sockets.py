"""Where connections come from: the system's sockets, or what the event loop brings along.

An event loop may bring a network of its own (``headrace_sockets``), as it may bring a clock: then
nothing of a program reaches a socket, and whoever drives the loop decides what arrives when.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

from picows import ws_connect, ws_create_server

from headrace.net import intake

ALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,
}
"""Seconds, seconds, a number, and milliseconds; where the system has them."""


class Reading(Protocol):
    """Reads from many connections at a time; see :mod:`headrace.net.intake`."""

    def add(self, transport: Any, /) -> None: ...

    def remove(self, transport: Any, /) -> None: ...

    def look(self) -> None: ...

    def close(self) -> None: ...


class Sockets:
    """The system's."""

    connect: Callable[..., Any] = staticmethod(ws_connect)
    serve: Callable[..., Any] = staticmethod(ws_create_server)

    def keep_alive(self, server: asyncio.Server) -> None:
        """Have the system end connections to machines that are gone without a word."""
        for listening in server.sockets:  # what it takes in inherits these
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in ALIVE.items():
                if (option := getattr(socket, name, None)) is not None:
                    listening.setsockopt(socket.IPPROTO_TCP, option, value)

    def intake(self, busy: Callable[[], bool]) -> Reading | None:
        """A batched reader of connections, where the system has epoll; else None."""
        return intake.Intake(busy) if intake.AVAILABLE else None


def sockets_of(loop: asyncio.AbstractEventLoop) -> Sockets:
    """What a loop brings along, or the system's."""
    found = getattr(loop, "headrace_sockets", None)
    return found if isinstance(found, Sockets) else Sockets()
