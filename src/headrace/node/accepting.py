"""The listening socket: it takes only so many connections, whatever comes.

A process that has run out of descriptors can open no file of its catalog either, and asyncio logs
each connection that it could not take.  So whoever comes when there are too many is told so and cut
at once; a place becomes free when somebody goes, or is cut for being slow (``serving``).
"""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress
from typing import Any

import msgspec

from headrace.errors import ListenError
from headrace.node.problems import ProblemJson

CONNECTIONS_MAX = 1_000
RESERVED = 128
"""So many descriptors are left to everything else."""


def connections_max() -> int:
    """How many connections this process can have at once."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, most - RESERVED))


_body = msgspec.json.encode(
    ProblemJson(
        title="TooManyConnections",
        status=503,
        detail="this node has too many connections already; close some, or try later",
    )
)
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n"
    b"cache-control: no-store\r\nretry-after: 10\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_body), _body)
)


class BoundedSocket(socket.socket):
    """A listening socket that refuses connections beyond a number."""

    most = CONNECTIONS_MAX
    tls = False
    """With TLS there is no telling before the handshake, so they are only cut."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._taken: set[socket.socket] = set()

    def accept(self) -> tuple[socket.socket, Any]:
        """As every socket's; ``BlockingIOError`` after a refusal, as if nobody were there."""
        taken = self._taken
        found, address = super().accept()
        if len(taken) >= self.most:
            taken -= {each for each in taken if each.fileno() < 0}
        if len(taken) >= self.most:
            with suppress(OSError), found:
                found.setblocking(False)
                if not self.tls:
                    found.send(_REFUSAL)
            raise BlockingIOError
        taken.add(found)
        return found, address


def listen(host: str, port: int, *, tls: bool = False) -> BoundedSocket:
    """A listening socket, or an error that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = BoundedSocket(family, socket.SOCK_STREAM)
    made.most, made.tls = connections_max(), tls
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(256)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(
                f"port {port} of {host} is in use; give another one: --port {port + 1}"
            ) from error
        raise ListenError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    made.setblocking(False)
    return made
