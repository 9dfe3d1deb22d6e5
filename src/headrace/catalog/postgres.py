"""The shared catalog: PostgreSQL, for workers on several machines.

It runs the same operations and SQL as the SQLite catalog.  Before a group of writes runs, its
locks are taken in sorted order as transaction-level advisory locks: writes that share a name
run one after the other, in the order in which they commit, and none can deadlock.  News travels
by ``NOTIFY`` inside the transaction.

When the connection breaks during a commit, a new connection looks up whether the transaction has
committed: every transaction writes its number into the row of its writer, so it has committed if
and only if its number is there.  (``pg_xact_status`` is no proof: ids that a crash forgot are given
out again.)  The row is read ``FOR UPDATE``, which waits for a commit that is still under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import LiteralString, TypeVar

import psycopg

from headrace.catalog import forks, schema
from headrace.catalog.base import Catalog
from headrace.catalog.bell import Bell
from headrace.catalog.committer import Committer, WriteDriver
from headrace.catalog.notifier import Notifier
from headrace.catalog.pool import Pool
from headrace.catalog.postgres_connections import (
    CHANNEL,
    CHANNEL_FREQUENT,
    CLOCK,
    CONNECT_TIMEOUT_S,
    EVERYBODY,
    LOST_STATEMENT,
    PgConnection,
    PostgresTx,
    ReadTx,
    connect,
    first_line,
    lock_number,
    notices,
    pipeline,
    translate,
    where_of,
)
from headrace.catalog.transaction import CatalogClock, Tx
from headrace.errors import (
    CatalogUnavailableError,
    ForkedError,
    NotACatalogError,
)

T = TypeVar("T")

_SERIAL = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
TYPES = {"identity": _SERIAL, "serial": _SERIAL, "blob": "BYTEA"}
RECONNECT_S = 15.0
LISTEN_S = 0.5
WRITERS_KEPT_S = 7 * 24 * 3600
SIGN: LiteralString = (
    "INSERT INTO writers (name, number, seen_us) "
    "VALUES (%s, %s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) "
    "ON CONFLICT (name) DO UPDATE SET number = excluded.number, seen_us = excluded.seen_us"
)
"""Every transaction's first statement: its number, which proves later that it has committed."""


SCHEMA_LOCK = lock_number("schema")
"""Shared by writers; whoever migrates waits for them, and they for him."""


class _Writer(WriteDriver):
    """The committer's connection."""

    direct = False
    leave = object

    def __init__(
        self,
        url: str,
        where: str,
        notifier: Notifier,
        own_pids: set[int],
        clock: CatalogClock,
    ) -> None:
        self._url = url
        self._clock = clock
        self._where = where
        self._notifier = notifier
        self._own_pids = own_pids
        self._name = uuid.uuid4().hex
        self._number = 0
        self._use(connect(url))
        self._connection.execute(SIGN, (self._name, 0))

    def _use(self, connection: PgConnection) -> None:
        self._connection = connection
        self._tx = PostgresTx(connection, self._clock)
        # The server may give the pid of a lost connection to another one.
        self._own_pids.clear()
        self._own_pids.add(connection.info.backend_pid)

    def enter(self, *, wait: bool) -> bool:
        return wait  # the server is waited for, which an event loop must not do

    def section(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def begin(self, locks: Iterable[str], sync: bool) -> Tx:
        for attempt in (1, 2):
            try:
                self._begin([lock_number(name) for name in locks], sync)
                return self._tx
            except psycopg.Error as error:
                # Nothing has been written yet, so a connection that broke while idle is replaced.
                lost = self._connection.closed or isinstance(error, LOST_STATEMENT)
                self._connection.close()
                if attempt == 2 or not lost:
                    raise
                self._reconnect()
        raise AssertionError("unreachable")

    def _begin(self, locks: list[int], sync: bool) -> None:
        connection = self._connection
        with pipeline(connection):
            connection.execute("BEGIN")
            if not sync:
                connection.execute("SET LOCAL synchronous_commit TO off")
            connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (SCHEMA_LOCK,))
            if locks:
                # An array is unnested in its order, so all writers lock in the same order.
                connection.execute(
                    "SELECT pg_advisory_xact_lock(name) FROM unnest(%s::bigint[]) AS name",
                    (sorted(locks),),
                )
            self._number += 1
            connection.execute(SIGN, (self._name, self._number))
            found = connection.execute(f"SELECT {CLOCK}, ({schema.QUERY})")
        row = found.fetchone()
        assert row is not None
        self._tx.clock_us = int(row[0])
        schema.judge(row[1:], self._where)

    def savepoint(self) -> None:
        self._connection.execute("SAVEPOINT operation")

    def rollback_to_savepoint(self) -> bool:
        if self._connection.closed:
            return False
        self._connection.execute("ROLLBACK TO SAVEPOINT operation")
        return True

    def commit(self, channels: set[str]) -> None:
        connection = self._connection
        try:
            with pipeline(connection):
                for where, payload in notices(channels):
                    connection.execute("SELECT pg_notify(%s, %s)", (where, payload))
                connection.execute("COMMIT")
        except psycopg.OperationalError as error:
            if not self._has_committed():
                raise error

    def _has_committed(self) -> bool:
        """Whether a transaction has committed whose COMMIT was not answered."""
        deadline = time.monotonic() + RECONNECT_S
        while True:
            self._reconnect()
            try:
                with self._connection.transaction():
                    self._connection.execute(f"SET LOCAL lock_timeout TO '{RECONNECT_S:.0f}s'")
                    row = self._connection.execute(
                        "SELECT number FROM writers WHERE name = %s FOR UPDATE", (self._name,)
                    ).fetchone()
                if row is not None:
                    return bool(row[0] == self._number)
            except psycopg.OperationalError as error:
                if time.monotonic() < deadline:
                    continue
                reason = first_line(error)
            else:
                reason = "its record is gone"
            raise CatalogUnavailableError(
                f"{self._where}: the outcome of a commit is unknown ({reason}); "
                "look before you repeat it"
            )

    def _reconnect(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.close()
        deadline = time.monotonic() + RECONNECT_S
        while True:
            try:
                self._use(connect(self._url))
                return
            except CatalogUnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def rollback(self) -> None:
        with contextlib.suppress(psycopg.Error):
            if not self._connection.closed:
                self._connection.execute("ROLLBACK")

    def committed(self, channels: set[str]) -> None:
        self._notifier.news(channels)

    def translate(self, error: BaseException) -> BaseException:
        if isinstance(error, LOST_STATEMENT):
            self._connection.close()  # the next write begins with another one
        return translate(error, self._where)

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.execute("DELETE FROM writers WHERE name = %s", (self._name,))
            self._connection.close()


class PostgresCatalog(Catalog):
    """A catalog in the schema ``headrace`` of a PostgreSQL database."""

    shared = True
    locking = True
    quick = False

    def __init__(self, url: str, *, create: bool = True) -> None:
        super().__init__()
        self._url = url
        self.where = where_of(url)
        self._readers: Pool[ReadTx] = Pool(lambda: ReadTx(connect(url), self._clock), ReadTx.close)
        self._lock = threading.Lock()
        self._forked = False
        self._listeners: dict[str, threading.Thread] = {}
        self._own_pids: set[int] = set()
        self._migrate(create)
        forks.watch(self)
        self._committer = Committer(
            lambda: _Writer(url, self.where, self.notifier, self._own_pids, self._clock),
            "headrace-commit",
            self._frequent,
        )

    def _migrate(self, create: bool) -> None:
        connection = connect(self._url)
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
                row = connection.execute(
                    "SELECT count(*) FROM pg_namespace WHERE nspname = 'headrace'"
                ).fetchone()
                if row == (0,) and not create:
                    raise NotACatalogError(
                        f"there is no Headrace catalog at {self.where}; "
                        "`headrace stream create` makes one"
                    )
                if row == (0,):
                    connection.execute("CREATE SCHEMA headrace")
                schema.migrate(PostgresTx(connection), TYPES, self.where)
                self._store_blobs_plain(connection)
                self._prepare_writers(connection)
        except psycopg.Error as error:
            raise translate(error, self.where) from error
        finally:
            connection.close()

    @staticmethod
    def _prepare_writers(connection: PgConnection) -> None:
        """A row for each process that writes; those of the dead go after a week."""
        connection.execute(
            "CREATE TABLE IF NOT EXISTS writers "
            "(name TEXT PRIMARY KEY, number BIGINT NOT NULL, seen_us BIGINT NOT NULL)"
        )
        connection.execute(
            f"DELETE FROM writers WHERE seen_us < {CLOCK} - {WRITERS_KEPT_S * 1_000_000}"
        )

    @staticmethod
    def _store_blobs_plain(connection: PgConnection) -> None:
        """No compression of blobs; looks first, since the change locks out every reader."""
        row = connection.execute(
            "SELECT attstorage::text FROM pg_attribute "
            "WHERE attrelid = 'headrace.batches'::regclass AND attname = 'data'"
        ).fetchone()
        if row != ("e",):
            connection.execute("ALTER TABLE batches ALTER COLUMN data SET STORAGE EXTERNAL")

    # -- reading ------------------------------------------------------------------------

    def read(self, fn: Callable[[Tx], T], *, snapshot: bool = False) -> T:
        while True:
            tx = self._readers.take()
            fresh = tx.fresh
            tx.fresh = False
            try:
                if not snapshot:
                    return fn(tx)
                with tx.snapshot():
                    return fn(tx)
            except (psycopg.Error, UnicodeEncodeError) as error:
                # Connections that broke while idle are replaced; reading again harms nothing.
                if fresh or not tx.broken:
                    raise translate(error, self.where) from error
            finally:
                self._readers.give(tx, broken=tx.broken)

    # -- waiting ------------------------------------------------------------------------

    def serve_on(self, loop: asyncio.AbstractEventLoop) -> None:
        del loop  # notifications come over a connection that a thread waits on

    def leave_loop(self) -> None:
        return

    def _tell(self, channels: set[str]) -> None:
        # On a reader's connection, so that no commit waits for it; this process hears it as well.
        def notify(tx: Tx) -> None:
            for notice in notices(channels):
                tx.rows("SELECT pg_notify(?, ?)", notice)

        with contextlib.suppress(CatalogUnavailableError):
            self.read(notify)

    def _listen(self, *, frequent: bool) -> None:
        for where in (CHANNEL, CHANNEL_FREQUENT) if frequent else (CHANNEL,):
            with self._lock:
                if self._forked:
                    raise ForkedError
                if where in self._listeners or self._closed:
                    continue
                ready = Bell()
                self._listeners[where] = threading.Thread(
                    target=self._receive, args=(where, ready), name="headrace-listen", daemon=True
                )
                self._listeners[where].start()
            ready.wait(CONNECT_TIMEOUT_S)

    def _receive(self, where: str, ready: Bell) -> None:
        while not self._closed:
            try:
                with connect(self._url) as connection:
                    connection.execute(f"LISTEN {where}")
                    ready.ring()
                    # Whatever came while nobody listened is found by looking again.
                    self.notifier.everybody()
                    while not self._closed:
                        for notice in connection.notifies(timeout=LISTEN_S):
                            self._heard(notice)
                            if self._closed:
                                break
            except (psycopg.Error, CatalogUnavailableError):
                ready.ring()
                if not self._closed:
                    time.sleep(LISTEN_S)

    def _heard(self, notice: psycopg.Notify) -> None:
        # The committer has notified this process already, without the server.
        if notice.pid in self._own_pids:
            return
        if notice.payload == EVERYBODY:
            self.notifier.everybody()
        else:
            self.notifier.news(notice.payload.split("\n"))

    def _release(self) -> None:
        if self._listeners:
            with (
                contextlib.suppress(psycopg.Error, CatalogUnavailableError),
                connect(self._url) as connection,
            ):
                for where in self._listeners:
                    connection.execute(f"NOTIFY {where}")
            for listener in self._listeners.values():
                listener.join()
        self._readers.close()

    def forked(self) -> None:
        super().forked()
        self._lock = threading.Lock()
        self._forked = True
        self._readers.forked()
