"""News from PostgreSQL: one connection that listens, and proves once a second that it hears.

A network that drops the packets of an idle connection tells neither side.  So the listener asks
the server something over that very connection every ``PROBE_S``; the server sends all news before
its answer, and an answer that does not come within ``ANSWER_S`` means that nothing would be heard.
Then everybody looks for himself, at once and every ``PROBE_S``, until there is another connection.

The answer is the sum of all heads.  If it grew and no news of a stream was heard, the program that
published has died between its commit and its news; everybody looks for himself then, too.
"""

from __future__ import annotations

import logging
import os
import threading
import time

import psycopg

from headrace.catalog.bell import Bell
from headrace.catalog.lineage import Lineage
from headrace.catalog.notifier import Notifier
from headrace.catalog.postgres_connections import (
    CONNECT_TIMEOUT_S,
    EVERYBODY,
    FREQUENT_SUFFIX,
    PgConnection,
    readable,
)
from headrace.catalog.postgres_pool import PostgresPool
from headrace.errors import CatalogError, HeadraceError

PROBE_S = 1.0
ANSWER_S = 1.0
_PROBE = (
    "SELECT coalesce(sum(head), 0) + count(*), CASE WHEN pg_is_in_recovery() THEN 0 "
    "ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END FROM segments"
)

_log = logging.getLogger(__name__)


class Listener:
    """The listening connection and its thread; begins with :meth:`want`."""

    def __init__(
        self, schema: str, pool: PostgresPool, notifier: Notifier, lineage: Lineage
    ) -> None:
        self._schema = schema
        self._pool = pool
        self._notifier = notifier
        self._lineage = lineage
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted: dict[str, Bell] = {}
        """Channels, each with a bell that rings once somebody listens to it."""
        self._listening: set[str] = set()
        self._closing = False
        self._wake, self._waker = os.pipe()
        self.reconnects = 0
        self.heard_s = time.monotonic()
        """When it was last known to hear."""

    def want(self, *, frequent: bool) -> None:
        """Begin to listen; everybody looks for himself once it does, so nobody waits for it."""
        due = []
        with self._lock:
            for where in (self._schema, self._schema + FREQUENT_SUFFIX)[: 1 + frequent]:
                if where not in self._wanted and not self._closing:
                    self._wanted[where] = Bell()
                    due.append(self._wanted[where])
            if due and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="headrace-listen", daemon=True
                )
                self._thread.start()
            elif due:
                os.write(self._waker, b"!")

    def wait(self) -> None:
        """Wait until it listens, or until the server has had its time."""
        for ready in list(self._wanted.values()):
            ready.wait(CONNECT_TIMEOUT_S)

    def close(self) -> None:
        with self._lock:
            self._closing = True
            os.write(self._waker, b"!")
        if self._thread is not None:
            self._thread.join()
        for descriptor in (self._wake, self._waker):
            os.close(descriptor)

    def forked(self) -> None:
        """In a forked child: there is no such thread."""
        self._lock = threading.Lock()
        self._closing = True

    # -- the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            try:
                connection = self._pool.connect()
            except HeadraceError:
                self._deaf()
                continue
            before_s = self.heard_s
            try:
                self._serve(connection)
            except (psycopg.Error, CatalogError) as error:
                if not self._closing:
                    self.reconnects += 1
                    _log.info("the connection that hears news is replaced: %s", error)
            finally:
                self._pool.close_one(connection)
            self._listening.clear()
            if self.heard_s == before_s:
                self._deaf()
            else:  # whatever came while nobody listened is found by looking
                self._notifier.everybody()

    def _deaf(self) -> None:
        """There is no server, or none with this catalog: everybody looks for himself at times."""
        for ready in list(self._wanted.values()):
            ready.ring()
        self._notifier.everybody()
        self._rest(PROBE_S)

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._closing and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))

    def _serve(self, connection: PgConnection) -> None:
        connection.limit_s = ANSWER_S
        connection.add_notify_handler(self._heard)
        heads, told = None, self._notifier.heard
        next_probe_s = 0.0
        while not self._closing:
            self._listen(connection)
            now_s = time.monotonic()
            if now_s >= next_probe_s:
                next_probe_s = now_s + PROBE_S
                row = connection.execute(_PROBE).fetchone()
                assert row is not None
                self.heard_s = now_s
                self._lineage.seen(connection, int(row[1]))
                if heads is not None and row[0] != heads and told == self._notifier.heard:
                    self._notifier.everybody()
                heads, told = row[0], self._notifier.heard
            found = readable(connection, self._wake, next_probe_s - time.monotonic())
            if self._wake in found:
                os.read(self._wake, 64)
            if len(found) > (self._wake in found):
                self._receive(connection)

    def _listen(self, connection: PgConnection) -> None:
        with self._lock:
            due = [where for where in self._wanted if where not in self._listening]
        for where in due:
            connection.execute(f'LISTEN "{where}"'.encode())
            self._listening.add(where)
            self._wanted[where].ring()
            # Whatever came while nobody listened is found by looking.
            self._notifier.everybody()

    def _receive(self, connection: PgConnection) -> None:
        connection.pgconn.consume_input()
        while (notice := connection.pgconn.notifies()) is not None:
            self._take(notice.be_pid, notice.extra.decode())

    def _heard(self, notice: psycopg.Notify) -> None:
        self._take(notice.pid, notice.payload)

    def _take(self, pid: int, payload: str) -> None:
        # The committer has notified this process already, without the server.
        if pid in self._pool.pids:
            return
        if payload == EVERYBODY:
            self._notifier.everybody()
        else:
            self._notifier.news(payload.split("\n"))
