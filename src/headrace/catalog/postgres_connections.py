"""Connections to PostgreSQL: statements, time limits, errors in Headrace's words, and forks.

Every connection has keepalives and time limits on both sides, so that neither waits for long for
the other when it is frozen or cut off.  One query after connecting sets them, and tells what the
server is (:class:`Server`).

Behind a pooler the server's process is not the one that the client was told of.  Then nothing is
set until it is known that the pooler keeps one connection of the server for each of ours: others
would get our settings, and we nobody's news.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import time
import weakref
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg_errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus

from headrace.catalog import forks
from headrace.catalog.postgres_options import PostgresOptions, where_of
from headrace.catalog.transaction import FREQUENT, Row
from headrace.errors import (
    CatalogError,
    CatalogForbiddenError,
    CatalogReadOnlyError,
    CatalogUnavailableError,
    DiskFullError,
    InvalidInputError,
    UnsafeServerError,
)

RV = TypeVar("RV")

CONNECT_TIMEOUT_S = 10
FREQUENT_SUFFIX = "_frequent"
"""Of the channel for frequent news, which only those who want it listen to."""
PAYLOAD_BYTES_MAX = 7000
EVERYBODY = "*"
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
VERSION_MIN = 140000
FULL = (
    "too many clients",
    "remaining connection slots",
    "too many connections",
    "no more connections allowed",  # PgBouncer
)


@lru_cache(maxsize=4096)
def lock_number(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


MARK = "SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
"""The next number of a transaction that writes; those that only read take none."""
SIZE = (
    "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = current_schema() AND c.relkind = 'r'"
)


class Server(msgspec.Struct, frozen=True):
    """What a server tells of itself, and of the catalog on it, when somebody connects."""

    pid: int
    version: int
    fsync: bool
    synchronous_commit: str
    """As it was set before this connection chose its own."""
    standby: bool
    system: str
    timeline: str
    flushed: int
    """How far its log is on disk."""
    has_catalog: bool

    @property
    def lineage(self) -> str:
        """Which history this is: another server or a promoted standby has another one."""
        return f"{self.system}/{self.timeline}"


class PgConnection(psycopg.Connection[Row]):
    """A connection on which nothing waits for ever."""

    limit_s = 60.0
    server: Server
    turn = 0
    """How often another history had been found when it was made."""
    prepared: set[bytes]
    """The statements of :mod:`headrace.catalog.postgres_calls` that it knows."""
    unheard = False
    """Whether a statement was sent whose answer nobody has read
    (:func:`headrace.catalog.postgres_pipeline.send_only`)."""

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.limit_s)
        except pg_errors._WaitTimeout:
            self.close()
            raise pg_errors.OperationalError(f"no answer within {self.limit_s:.0f} s") from None


def is_broken(connection: PgConnection) -> bool:
    """Closed, or interrupted in the middle of something."""
    if connection.unheard and not connection.closed:
        return False
    piping = connection.pgconn.pipeline_status != PipelineStatus.OFF
    return piping or connection.info.transaction_status != TransactionStatus.IDLE


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


# --- connecting ------------------------------------------------------------------------------


def connect(url: str, options: PostgresOptions) -> PgConnection:
    """A connection with its limits set, whose ``server`` says where it leads."""
    connection: PgConnection | None = None
    try:
        connection = PgConnection.connect(url, autocommit=True, **_network(url, options))
    except psycopg.ProgrammingError:
        pass  # the driver's own message would quote the whole address, with the password
    except psycopg.Error as error:
        raise CatalogUnavailableError(
            f"{where_of(url)} cannot be reached: {first_line(error)}"
        ) from error
    if connection is None:
        raise CatalogUnavailableError(
            f"{where_of(url)}: the address is malformed; write postgresql://user@host:port/database"
        )
    _connections.add(connection)
    connection.prepared = set()
    connection.limit_s = options.call_timeout_s
    try:
        connection.server = _set_up(connection, options)
        if is_behind_pooler(connection):
            _judge_pooler(connection, url, options)
            _set_up(connection, options, behind_pooler=True)
    except psycopg.Error as error:
        connection.close()
        raise translate(error, where_of(url)) from error
    return connection


def connect_patiently(url: str, options: PostgresOptions) -> PgConnection:
    """Connect; a server that has no connection to spare is waited for."""
    deadline = time.monotonic() + options.reconnect_s
    while True:
        try:
            return connect(url, options)
        except CatalogUnavailableError as error:
            full = any(text in str(error) for text in FULL)
            if not full or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _network(url: str, options: PostgresOptions) -> dict[str, Any]:
    """Keepalives and limits of the socket; what the address says itself stays."""
    dead_s = max(1, round(options.dead_after_s))
    wanted = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": f"headrace {socket.gethostname()}:{os.getpid()}"[:63],
        "keepalives": 1,
        "keepalives_idle": max(1, dead_s - 2),
        "keepalives_interval": 1,
        "keepalives_count": 2,
        "tcp_user_timeout": dead_s * 1000,
    }
    given = conninfo_to_dict(url)
    return {key: value for key, value in wanted.items() if key not in given}


def _set_up(
    connection: PgConnection, options: PostgresOptions, *, behind_pooler: bool = False
) -> Server:
    """One query: limits on the server's side, and what it is; behind a pooler only the latter."""
    dead_s = max(1, round(options.dead_after_s))
    settings = {
        "search_path": options.schema,
        "lock_timeout": f"{options.lock_timeout_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{options.idle_timeout_s * 1000:.0f}",
        "statement_timeout": f"{options.call_timeout_s * 1000:.0f}",
        "client_connection_check_interval": "2000",
        "tcp_keepalives_idle": str(max(1, dead_s - 2)),
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "2",
        "tcp_user_timeout": str(dead_s * 1000),
    }
    known = settings if connection.info.server_version >= VERSION_MIN else {}
    sure = "true" if behind_pooler else f"pg_backend_pid() = {connection.info.backend_pid}"
    chosen = ", ".join(
        f"CASE WHEN {sure} THEN set_config('{key}', '{value}', false) END"
        for key, value in known.items()
    )
    row = connection.execute(
        # First, since it is about to be changed: this alone of all settings may be the database's.
        "SELECT current_setting('synchronous_commit'), current_setting('fsync') = 'on', "
        "current_setting('server_version_num')::bigint, pg_backend_pid(), pg_is_in_recovery(), "
        "(SELECT system_identifier FROM pg_control_system())::text, "
        "CASE WHEN pg_is_in_recovery() THEN '' "
        "ELSE left(pg_walfile_name(pg_current_wal_flush_lsn()), 8) END, "
        "CASE WHEN pg_is_in_recovery() THEN 0 "
        "ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END, "
        f"to_regclass('{options.schema}.meta') IS NOT NULL, "
        f"CASE WHEN {sure} AND current_setting('synchronous_commit') = 'off' "
        "THEN set_config('synchronous_commit', 'on', false) END, "
        f"{chosen or 'NULL'}".encode(),
        prepare=False,
    ).fetchone()
    assert row is not None
    setting, fsync, version, pid, standby, system, timeline, flushed, has_catalog = row[:9]
    return Server(
        pid, version, fsync, setting, standby, system, timeline, int(flushed), has_catalog
    )


# --- poolers ---------------------------------------------------------------------------------

POOLER_LOOKS = 10
POOLER_WAIT_S = 1.0
"""A pooler in session mode may have no second connection to spare while the first is held."""
_keeps_sessions: set[str] = set()
"""Addresses of poolers that were found to give each client a connection of its own."""


def is_behind_pooler(connection: PgConnection) -> bool:
    """Whether somebody between the server and us answered for its process."""
    return connection.server.pid != connection.info.backend_pid


def _judge_pooler(connection: PgConnection, url: str, options: PostgresOptions) -> None:
    """Refuse a pooler that gives every transaction another connection; once for an address."""
    if url in _keeps_sessions:
        return
    if _shares_servers(connection, url, options):
        connection.close()
        raise UnsafeServerError(
            f"{where_of(url)} is a pooler that gives every transaction another connection, where "
            "no news arrives and sessions of others get our settings; set it to session mode "
            "(PgBouncer: pool_mode = session), or use the server's own port"
        )
    _keeps_sessions.add(url)


def _shares_servers(connection: PgConnection, url: str, options: PostgresOptions) -> bool:
    """Whether a client's process of the server changes, or is that of another client as well."""
    mine, others = {connection.server.pid}, set()
    another = PgConnection.connect(url, autocommit=True, **_network(url, options))
    with contextlib.closing(another) as other:
        other.limit_s = POOLER_WAIT_S
        for _ in range(POOLER_LOOKS):
            mine.add(_process_of(connection))
            try:
                others.add(_process_of(other))
            except pg_errors.OperationalError:
                return len(mine) > 1
            if len(mine) > 1 or len(others) > 1 or mine & others:
                return True
    return False


def _process_of(connection: PgConnection) -> int:
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])


# --- errors ----------------------------------------------------------------------------------

CUT_OFF = (pg_errors.IdleInTransactionSessionTimeout, pg_errors.TransactionTimeout)
"""The server ended a connection that was silent for too long, as that of a frozen program."""
LOST_STATEMENT = pg_errors.InvalidSqlStatementName
"""Raised when psycopg believes a statement prepared that an aborted pipeline never prepared."""


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def translate(error: BaseException, where: str) -> BaseException:
    """PostgreSQL's errors in Headrace's words; no error of the driver gets by."""
    if isinstance(error, UnicodeEncodeError | psycopg.DataError):
        return InvalidInputError(f"{where} cannot hold this value: {first_line(error)}")
    if not isinstance(error, psycopg.Error):
        return error
    said = first_line(error)
    if isinstance(error, pg_errors.DiskFull):
        return DiskFullError(f"{where}: no room left to write; free some space and try again")
    if isinstance(error, pg_errors.InsufficientPrivilege):
        return CatalogForbiddenError(
            f"{where}: this role has not the right to do that ({said}); grant it, or use another"
        )
    if isinstance(error, pg_errors.ReadOnlySqlTransaction):
        return CatalogReadOnlyError(
            f"{where} can only be read: it is a standby, or set to read-only; write to the primary"
        )
    if isinstance(error, pg_errors.UndefinedTable):
        return CatalogError(
            f"{where} has not the tables of a catalog ({said}); was it dropped, or is a pooler in "
            "transaction mode in between?"
        )
    if isinstance(
        error, (psycopg.OperationalError, psycopg.InterfaceError, LOST_STATEMENT, *CUT_OFF)
    ):
        return CatalogUnavailableError(f"{where} did not answer: {said}")
    return CatalogError(f"{where}: {said}")


def notices(schema: str, channels: set[str]) -> Iterator[tuple[str, str]]:
    """(name, payload) of what is to be sent."""
    often = {channel for channel in channels if channel.startswith(FREQUENT)}
    for where, what in ((schema, channels - often), (schema + FREQUENT_SUFFIX, often)):
        if what:
            payload = "\n".join(what)
            too_long = len(payload.encode()) > PAYLOAD_BYTES_MAX
            yield where, EVERYBODY if too_long else payload


def readable(connection: PgConnection, other: int, timeout_s: float) -> list[int]:
    """Wait for the connection's socket, or for another descriptor; which of them have something."""
    poller = select.poll()
    poller.register(connection.pgconn.socket, select.POLLIN)
    poller.register(other, select.POLLIN)
    return [found for found, _ in poller.poll(max(0.0, timeout_s) * 1000)]
