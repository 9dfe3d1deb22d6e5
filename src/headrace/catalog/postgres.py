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
import hashlib
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, LiteralString, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import errors as pg_errors

from headrace.catalog import forks, schema
from headrace.catalog.base import Catalog
from headrace.catalog.committer import Committer, WriteDriver
from headrace.catalog.pool import Pool
from headrace.catalog.transaction import FREQUENT, CatalogClock, Row, Tx
from headrace.catalog.wake import Notifier
from headrace.errors import (
    CatalogUnavailableError,
    DiskFullError,
    ForkedError,
    InvalidInputError,
    NotACatalogError,
)

T = TypeVar("T")
Connection = psycopg.Connection[Row]

_SERIAL = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
TYPES = {"identity": _SERIAL, "serial": _SERIAL, "blob": "BYTEA"}
CONNECT_TIMEOUT_S = 10
RECONNECT_S = 15.0
LISTEN_S = 0.5
WRITERS_KEPT_S = 7 * 24 * 3600
CHANNEL = "headrace"
CHANNEL_FREQUENT = "headrace_frequent"
"""Carries frequent channels, apart from the others, so that only those who want them wake up."""
PAYLOAD_BYTES_MAX = 7000
EVERYBODY = "*"
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
SIGN: LiteralString = (
    "INSERT INTO writers (name, number, seen_us) "
    "VALUES (%s, %s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) "
    "ON CONFLICT (name) DO UPDATE SET number = excluded.number, seen_us = excluded.seen_us"
)
"""Every transaction's first statement: its number, which proves later that it has committed."""


@lru_cache(maxsize=512)
def _sql(text: str) -> LiteralString:
    return text.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=4096)
def _lock_number(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class PostgresTx(Tx):
    """A transaction, or a single read, on one PostgreSQL connection."""

    def __init__(self, connection: Connection, clock: CatalogClock | None = None) -> None:
        super().__init__(clock)
        self._connection = connection
        self.clock_us: int | None = None

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        return self._connection.execute(_sql(sql), params, binary=True).rowcount

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(_sql(sql), params, binary=True).fetchall()

    def row(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        return self._connection.execute(_sql(sql), params, binary=True).fetchone()

    def iterate(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(_sql(sql), params)
            yield from cursor

    def executemany(self, sql: str, params: Sequence[Sequence[Any]]) -> int:
        with self._connection.cursor() as cursor:
            cursor.executemany(_sql(sql), params)
            return cursor.rowcount

    def _database_us(self) -> int:
        if self.clock_us is not None:
            return self.clock_us
        row = self.row(f"SELECT {CLOCK}")
        assert row is not None
        return int(row[0])


class _ReadTx(PostgresTx):
    """A connection for reads; ``fresh`` until its first one."""

    fresh = True

    @property
    def broken(self) -> bool:
        return bool(self._connection.closed)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not self._connection.closed:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
"""All that this process has open."""


def _forked() -> None:
    """In a forked child: close its copies of the sockets without sending anything.

    The driver does not send Terminate when it drops a connection that another process made.
    """
    for connection in list(_connections):
        if not connection.closed:
            os.close(connection.pgconn.socket)
    _connections.clear()


forks.first(_forked)


def connect(url: str) -> Connection:
    try:
        connection = psycopg.connect(
            url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, application_name="headrace"
        )
        _connections.add(connection)
        connection.execute("SET search_path TO headrace")
        return connection
    except psycopg.ProgrammingError:
        # The driver's own message would quote the whole address, with the password.
        raise CatalogUnavailableError(
            f"{_where(url)}: the address is malformed; write postgresql://user@host:port/database"
        ) from None
    except psycopg.Error as error:
        raise CatalogUnavailableError(
            f"{_where(url)} cannot be reached: {_first_line(error)}"
        ) from error


LOST_STATEMENT = pg_errors.InvalidSqlStatementName
"""Raised when psycopg believes a statement prepared that an aborted pipeline never prepared."""


def _where(url: str) -> str:
    """The address without user and password."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or "localhost"
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "catalog postgresql://…"
    return f"catalog postgresql://{host}{port}{parts.path}"


def _notices(channels: set[str]) -> Iterator[tuple[str, str]]:
    """(name, payload) of what is to be sent."""
    often = {channel for channel in channels if channel.startswith(FREQUENT)}
    for where, what in ((CHANNEL, channels - often), (CHANNEL_FREQUENT, often)):
        if what:
            payload = "\n".join(what)
            too_long = len(payload.encode()) > PAYLOAD_BYTES_MAX
            yield where, EVERYBODY if too_long else payload


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def translate(error: BaseException, where: str) -> BaseException:
    """PostgreSQL's errors in Headrace's words."""
    if isinstance(error, pg_errors.DiskFull):
        return DiskFullError(f"{where}: no room left to write; free some space and try again")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | LOST_STATEMENT):
        return CatalogUnavailableError(f"{where} did not answer: {_first_line(error)}")
    if isinstance(error, psycopg.DataError | UnicodeEncodeError):
        return InvalidInputError(f"{where} cannot hold this value: {_first_line(error)}")
    return error


class _Writer(WriteDriver):
    """The committer's connection."""

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

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._tx = PostgresTx(connection, self._clock)
        # The server may give the pid of a lost connection to another one.
        self._own_pids.clear()
        self._own_pids.add(connection.info.backend_pid)

    @contextlib.contextmanager
    def gate(self) -> Iterator[None]:
        yield

    def try_gate(self) -> bool:
        return False  # the server is waited for, which an event loop must not do

    def begin(self, locks: Iterable[str], sync: bool) -> Tx:
        for attempt in (1, 2):
            try:
                self._begin([_lock_number(name) for name in locks], sync)
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
        with connection.pipeline():
            connection.execute("BEGIN")
            if not sync:
                connection.execute("SET LOCAL synchronous_commit TO off")
            if locks:
                # An array is unnested in its order, so all writers lock in the same order.
                connection.execute(
                    "SELECT pg_advisory_xact_lock(name) FROM unnest(%s::bigint[]) AS name",
                    (sorted(locks),),
                )
            self._number += 1
            connection.execute(SIGN, (self._name, self._number))
            row = connection.execute(f"SELECT {CLOCK}").fetchone()
        assert row is not None
        self._tx.clock_us = int(row[0])

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
            with connection.pipeline():
                for where, payload in _notices(channels):
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
                reason = _first_line(error)
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

    def chores(self) -> None:
        pass

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
        self.where = _where(url)
        self._readers: Pool[_ReadTx] = Pool(
            lambda: _ReadTx(connect(url), self._clock), _ReadTx.close
        )
        self._lock = threading.Lock()
        self._closed = self._forked = False
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
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_number("schema"),))
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
    def _prepare_writers(connection: Connection) -> None:
        """A row for each process that writes; those of the dead go after a week."""
        connection.execute(
            "CREATE TABLE IF NOT EXISTS writers "
            "(name TEXT PRIMARY KEY, number BIGINT NOT NULL, seen_us BIGINT NOT NULL)"
        )
        connection.execute(
            f"DELETE FROM writers WHERE seen_us < {CLOCK} - {WRITERS_KEPT_S * 1_000_000}"
        )

    @staticmethod
    def _store_blobs_plain(connection: Connection) -> None:
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
            for notice in _notices(channels):
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
                ready = threading.Event()
                self._listeners[where] = threading.Thread(
                    target=self._receive, args=(where, ready), name="headrace-listen", daemon=True
                )
                self._listeners[where].start()
            ready.wait(CONNECT_TIMEOUT_S)

    def _receive(self, where: str, ready: threading.Event) -> None:
        while not self._closed:
            try:
                with connect(self._url) as connection:
                    connection.execute(f"LISTEN {where}")
                    ready.set()
                    # Whatever came while nobody listened is found by looking again.
                    self.notifier.everybody()
                    while not self._closed:
                        for notice in connection.notifies(timeout=LISTEN_S):
                            self._heard(notice)
                            if self._closed:
                                break
            except (psycopg.Error, CatalogUnavailableError):
                ready.set()
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

    def close(self) -> None:
        if self._closed:
            return
        self._committer.close()
        self._frequent.close()
        self._closed = True
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
        # Those who wait look again, and learn that the catalog is closed.
        self.notifier.everybody()
        forks.unwatch(self)

    def forked(self) -> None:
        super().forked()
        self._lock = threading.Lock()
        self._closed = self._forked = True
        self._readers.forked()
