"""The connections of one program to PostgreSQL: few, shared by reads and writes, and one history.

A read or a write takes a connection, and gives it back.  There are at most ``connections`` of
them, with the one that hears news; who finds none waits for one.  A thread that has one already
(a read within a read) may go beyond that, or it would wait for itself.  Those that nobody has used
for ``IDLE_S`` are closed, but for one.  Where it takes long to make one, who has to wait has one
made meanwhile: the next ones do not stand in line then.

Every new connection shows whether the server still has the history that this program knows: see
:mod:`headrace.catalog.lineage`.
"""

from __future__ import annotations

import threading
import time

import psycopg

from headrace.catalog.lineage import Lineage
from headrace.catalog.postgres_connections import (
    PgConnection,
    connect_patiently,
    is_broken,
    translate,
)
from headrace.catalog.postgres_options import PostgresOptions, where_of
from headrace.catalog.postgres_pipeline import hear
from headrace.errors import (
    CatalogClosedError,
    CatalogUnavailableError,
    ForkedError,
    HeadraceError,
)

IDLE_S = 30.0
FAR_S = 0.02
"""From this on it takes long to make a connection."""
LATE = 3
"""A connection may take so many times as long as the last one before nobody waits for it."""


class PostgresPool:
    """Connections, each in one pair of hands at a time."""

    def __init__(self, url: str, options: PostgresOptions, lineage: Lineage) -> None:
        self._url = url
        self._options = options
        self._lineage = lineage
        self._free = threading.Condition()
        self._idle: list[tuple[PgConnection, float]] = []
        self._taken = 0
        self._closed = self.is_forked = False
        self._mine = threading.local()
        self.pids: set[int] = set()
        """Server processes of this program's connections: their news are its own."""
        self.opened = 0
        self._connect_s = 0.0
        """How long the last connection took to make."""
        self._making = False
        """Whether one is being made for whoever waits."""

    @property
    def turns(self) -> int:
        """How often another history was found."""
        return self._lineage.turns

    def connect(self) -> PgConnection:
        """A connection outside the count; close it with :meth:`close_one`."""
        begun_s, mark = time.monotonic(), self._lineage.mark()
        connection = connect_patiently(self._url, self._options)
        self._connect_s = time.monotonic() - begun_s
        try:
            self._lineage.check(connection, mark)
        except psycopg.Error as error:
            connection.close()
            raise translate(error, where_of(self._url)) from error
        except BaseException:
            connection.close()
            raise
        self.opened += 1
        self.pids.add(connection.server.pid)
        return connection

    def close_one(self, connection: PgConnection) -> None:
        self.pids.discard(connection.server.pid)
        connection.close()

    def take(self, *, heard: bool = True) -> tuple[PgConnection, bool]:
        """A connection, and whether it was made just now.

        Without ``heard`` the answer of what was only sent on it may still be to come.
        """
        held = getattr(self._mine, "held", 0)
        connection: PgConnection | None = None
        with self._free:
            deadline = time.monotonic() + self._options.lock_timeout_s
            patient = self._taken > 0
            while True:
                self._check_open()
                if self._idle:
                    connection, _ = self._idle.pop()
                    break
                if held:
                    break
                if self._taken < self._options.connections - 1:
                    # One that comes back soon is there sooner than a new one.
                    if patient:
                        self._make_one()
                    if not patient or not self._free.wait(self._patience_s()):
                        break
                    patient = False
                    continue
                if not self._free.wait(deadline - time.monotonic()):
                    raise CatalogUnavailableError(
                        f"{where_of(self._url)}: all {self._taken} connections of this program "
                        f"were in use for {self._options.lock_timeout_s:.0f} s; allow more with "
                        "headrace_connections in the address"
                    )
            self._taken += 1
        if connection is not None and not self._lineage.is_current(connection):
            self.close_one(connection)
            connection = None
        fresh = connection is None
        try:
            if connection is None:
                connection = self.connect()
            if heard:
                hear(connection)
        except BaseException:
            with self._free:
                self._taken -= 1
                self._free.notify()
            raise
        self._mine.held = held + 1
        return connection, fresh

    def _check_open(self) -> None:
        if self.is_forked:
            raise ForkedError
        if self._closed:
            raise CatalogClosedError("the catalog was closed; open it again")

    def _make_one(self) -> None:
        """Where that takes long, begin to make one for whoever waits; called with the lock held."""
        if self._connect_s >= FAR_S and not self._making:
            self._making = True
            self._taken += 1
            threading.Thread(target=self._make, name="headrace-connect", daemon=True).start()

    def _patience_s(self) -> float:
        """For how long to wait before making one oneself: one that is being made may be late."""
        return self._connect_s * (LATE if self._making else 1)

    def _make(self) -> None:
        made: PgConnection | None = None
        try:
            made = self.connect()
        except (HeadraceError, psycopg.Error):
            pass  # who needs one makes it, and is told
        finally:
            with self._free:
                self._making = False
                self._taken = max(0, self._taken - 1)
                if made is not None and not self._closed:
                    self._idle.append((made, time.monotonic()))
                    made = None
                self._free.notify()
        if made is not None:
            self.close_one(made)

    def give(self, connection: PgConnection) -> None:
        """Back to the pool; one that is broken, or of another history, is closed."""
        self._mine.held = max(0, getattr(self._mine, "held", 0) - 1)
        keep = not is_broken(connection) and self._lineage.is_current(connection)
        surplus: list[PgConnection] = []
        now_s = time.monotonic()
        with self._free:
            self._taken = max(0, self._taken - 1)
            if keep and not self._closed:
                self._idle.append((connection, now_s))
            else:
                surplus.append(connection)
            while len(self._idle) > 1 and now_s - self._idle[0][1] > IDLE_S:
                surplus.append(self._idle.pop(0)[0])
            self._free.notify()
        for each in surplus:
            self.close_one(each)

    def adopt(self, connection: PgConnection, connect_s: float) -> None:
        """Keep a connection that was made outside the count, since making it took long."""
        self._connect_s = connect_s
        with self._free:
            self._idle.append((connection, time.monotonic()))

    def close(self) -> None:
        """Close the idle ones now, and those in use when they come back."""
        with self._free:
            self._closed = True
            idle, self._idle = self._idle, []
            self._free.notify_all()
        for connection, _ in idle:
            self.close_one(connection)

    def forked(self) -> None:
        """In a forked child: hand out none, and forget the parent's."""
        self._free = threading.Condition()
        self._closed = self.is_forked = True
        self._idle.clear()
