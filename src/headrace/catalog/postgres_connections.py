"""Connections to PostgreSQL: statements, errors in Headrace's words, and what a fork does."""

from __future__ import annotations

import contextlib
import hashlib
import os
import weakref
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import errors as pg_errors
from psycopg.pq import TransactionStatus

from headrace.catalog import forks
from headrace.catalog.transaction import FREQUENT, CatalogClock, Row, Tx
from headrace.errors import CatalogUnavailableError, DiskFullError, InvalidInputError

PgConnection = psycopg.Connection[Row]

CONNECT_TIMEOUT_S = 10
CHANNEL = "headrace"
CHANNEL_FREQUENT = "headrace_frequent"
"""Carries frequent channels, apart from the others, so that only those who want them wake up."""
PAYLOAD_BYTES_MAX = 7000
EVERYBODY = "*"
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


@lru_cache(maxsize=512)
def _sql(text: str) -> LiteralString:
    return text.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=4096)
def lock_number(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class PostgresTx(Tx):
    """A transaction, or a single read, on one PostgreSQL connection."""

    for_update = " FOR UPDATE"

    def __init__(self, connection: PgConnection, clock: CatalogClock | None = None) -> None:
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


class ReadTx(PostgresTx):
    """A connection for reads; ``fresh`` until its first one."""

    fresh = True

    @property
    def broken(self) -> bool:
        """Closed, or interrupted in the middle of something."""
        return self._connection.info.transaction_status != TransactionStatus.IDLE

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


_connections: weakref.WeakSet[PgConnection] = weakref.WeakSet()
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


def connect(url: str) -> PgConnection:
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
            f"{where_of(url)}: the address is malformed; write postgresql://user@host:port/database"
        ) from None
    except psycopg.Error as error:
        raise CatalogUnavailableError(
            f"{where_of(url)} cannot be reached: {first_line(error)}"
        ) from error


LOST_STATEMENT = pg_errors.InvalidSqlStatementName
"""Raised when psycopg believes a statement prepared that an aborted pipeline never prepared."""


def where_of(url: str) -> str:
    """The address without user and password."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or "localhost"
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "catalog postgresql://…"
    return f"catalog postgresql://{host}{port}{parts.path}"


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def translate(error: BaseException, where: str) -> BaseException:
    """PostgreSQL's errors in Headrace's words."""
    if isinstance(error, pg_errors.DiskFull):
        return DiskFullError(f"{where}: no room left to write; free some space and try again")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | LOST_STATEMENT):
        return CatalogUnavailableError(f"{where} did not answer: {first_line(error)}")
    if isinstance(error, psycopg.DataError | UnicodeEncodeError):
        return InvalidInputError(f"{where} cannot hold this value: {first_line(error)}")
    return error


def notices(channels: set[str]) -> Iterator[tuple[str, str]]:
    """(name, payload) of what is to be sent."""
    often = {channel for channel in channels if channel.startswith(FREQUENT)}
    for where, what in ((CHANNEL, channels - often), (CHANNEL_FREQUENT, often)):
        if what:
            payload = "\n".join(what)
            too_long = len(payload.encode()) > PAYLOAD_BYTES_MAX
            yield where, EVERYBODY if too_long else payload


@contextlib.contextmanager
def pipeline(connection: PgConnection) -> Iterator[None]:
    """Statements that are sent together; raises the first error, and the driver logs no second."""
    failed: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except psycopg.Error as error:
                failed = error
    except psycopg.Error as error:
        raise failed or error from None
    if failed is not None:
        raise failed
