"""Connections for reads: one for each read under way, and a few kept for the next.

They are not bound to threads, so short-lived threads leak none, and closing the catalog never
closes a connection that a read still uses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.errors import CatalogClosedError, ForkedError

IDLE_MAX = 8

C = TypeVar("C")


class Pool(Generic[C]):
    """A pool of connections: take one, give it back; a broken one is not kept."""

    def __init__(self, connect: Callable[[], C], close: Callable[[C], None]) -> None:
        self._connect = connect
        self._close = close
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._closed = False
        self._forked = False

    def take(self) -> C:
        with self._lock:
            if self._forked:
                raise ForkedError
            if self._closed:
                raise CatalogClosedError("the catalog was closed; open it again")
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def give(self, connection: C, *, broken: bool = False) -> None:
        with self._lock:
            if not broken and not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        self._close(connection)

    def close(self) -> None:
        """Close the idle ones now, and those in use when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def forked(self) -> None:
        """In a forked child: hand out none, and forget the parent's."""
        self._lock = threading.Lock()
        self._closed = self._forked = True
        self._idle.clear()
