"""The shared catalog: PostgreSQL, for workers on several machines.

It runs the same operations and SQL as the SQLite catalog.  Before a group of writes runs, its
locks are taken in sorted order as transaction-level advisory locks: writes that share a name
run one after the other, in the order in which they commit, and none can deadlock.  News travels
by ``NOTIFY``, right behind the commit (:mod:`headrace.catalog.postgres_writer`).

Opening takes one connection and two queries where nothing has to be made.  The first looks at the
server: one that does not sync to disk, is too old, or stands behind a pooler that gives every
transaction another connection is refused, since promises would not hold on it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import psycopg

from headrace.catalog import forks, postgres_calls, schema
from headrace.catalog.base import Catalog
from headrace.catalog.committer import Committer
from headrace.catalog.lineage import SETTING, Lineage
from headrace.catalog.postgres_calls import SCHEMA_LOCK
from headrace.catalog.postgres_connections import (
    CLOCK,
    MARK,
    SIZE,
    VERSION_MIN,
    PgConnection,
    Server,
    connect_patiently,
    is_behind_pooler,
    is_broken,
    notices,
    translate,
)
from headrace.catalog.postgres_listener import Listener
from headrace.catalog.postgres_options import (
    FSYNC_VARIABLE,
    split,
    where_of,
    without_password,
)
from headrace.catalog.postgres_pool import PostgresPool
from headrace.catalog.postgres_tx import PostgresTx, ReadTx
from headrace.catalog.postgres_writer import UNSYNCED, PostgresWriter
from headrace.catalog.transaction import Tx
from headrace.errors import (
    ForkedError,
    HeadraceError,
    NotACatalogError,
    UnsafeServerError,
)

if TYPE_CHECKING:
    import asyncio  # slow to load, and nothing for whoever only looks

T = TypeVar("T")

_SERIAL = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
TYPES = {"identity": _SERIAL, "serial": _SERIAL, "blob": "BYTEA"}
WRITERS_KEPT_S = 7 * 24 * 3600
MIGRATION_LIMIT_S = 3600.0
SNAPSHOT_PATIENCE_S = 60.0


class PostgresCatalog(Catalog):
    """A catalog in a schema of a PostgreSQL database."""

    shared = True
    locking = True
    quick = False
    acks_need_sync = True
    _mark_query, _size_query = MARK, SIZE

    def __init__(
        self, url: str, *, create: bool = True, look: bool = False, migrate: bool = False
    ) -> None:
        """``look``: read it as it is, also one of another version, and change nothing in it.

        ``migrate``: make or change what has to be, even if nothing seems to be due.
        """
        super().__init__()
        self.looked = look
        self._url, self.options = split(url)
        self.where = where_of(url)
        self.address = without_password(url)
        self._lineage = Lineage(
            self.where, self._count_turns, self.notifier.everybody, fences=not look
        )
        self._pool = PostgresPool(self._url, self.options, self._lineage)
        self._open(create, migrate)
        self._listener = Listener(self.options.schema, self._pool, self.notifier, self._lineage)
        forks.watch(self)
        self._committer = Committer(
            lambda: PostgresWriter(
                self.where, self.options, self._pool, self.notifier, self._clock
            ),
            "headrace-commit",
            self._frequent,
        )

    # -- opening ------------------------------------------------------------------------

    def _open(self, create: bool, migrate: bool) -> None:
        begun_s, mark = time.monotonic(), self._lineage.mark()
        connection = connect_patiently(self._url, self.options)
        connect_s = time.monotonic() - begun_s
        recorded: str | None = None
        try:
            if self.looked:
                look = ReadTx(connection, self._clock)
                schema.judge_look(look.row(schema.QUERY), self.where)
            else:
                self._judge(connection)
                ready, recorded = self._is_ready(connection, create)
                if migrate or not ready:
                    self._migrate(connection)
                    connection.close()
                    connection = connect_patiently(self._url, self.options)
            self._lineage.check(connection, mark, recorded)
        except psycopg.Error as error:
            connection.close()
            raise translate(error, self.where) from error
        except BaseException:
            connection.close()
            raise
        self._pool.pids.add(connection.server.pid)
        self._pool.adopt(connection, connect_s)

    def _judge(self, connection: PgConnection) -> None:
        """Refuse a server on which promises would not hold."""
        server = connection.server
        if server.version < VERSION_MIN:
            raise UnsafeServerError(
                f"{self.where} is PostgreSQL {server.version // 10000}; "
                f"{VERSION_MIN // 10000} is the oldest that Headrace can use"
            )
        if not server.fsync and not self.options.allows_fsync_off:
            raise UnsafeServerError(
                f"{self.where} runs with fsync = off, so a crash of its machine loses what was "
                "published, or all of it; switch it on, or say that this is meant with "
                f"headrace_fsync=off in the address or {FSYNC_VARIABLE}=off in the environment"
            )

    def _is_ready(self, connection: PgConnection, create: bool) -> tuple[bool, str | None]:
        """Whether nothing has to be made; raises where that would be a surprise.

        Also the history that the catalog was used under.
        """
        if not connection.server.has_catalog:
            if not create:
                raise NotACatalogError(
                    f"there is no Headrace catalog at {self.where}; "
                    "`headrace stream create` makes one"
                )
            return False, None
        row = connection.execute(
            f"SELECT ({schema.QUERY}), to_regproc(%s) IS NOT NULL, "
            "(SELECT value FROM meta WHERE key = %s)",
            (postgres_calls.functions().any_calls, SETTING),
        ).fetchone()
        assert row is not None
        version = schema.judge(row[:1], self.where)
        if connection.server.standby:
            return True, row[2]
        if version == schema.VERSION and not row[1]:
            # Calls are an optimisation: who may not make their function does without it.
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                self._migrate(connection)
            return True, row[2]
        return version == schema.VERSION, row[2]

    def _migrate(self, connection: PgConnection) -> None:
        name = self.options.schema
        connection.limit_s = MIGRATION_LIMIT_S
        with connection.transaction():
            connection.execute(b"SET LOCAL statement_timeout TO 0; SET LOCAL lock_timeout TO 0")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
            row = connection.execute(
                "SELECT count(*) FROM pg_namespace WHERE nspname = %s", (name,)
            ).fetchone()
            if row == (0,):
                connection.execute(f"CREATE SCHEMA {name}".encode())
            schema.migrate(PostgresTx(connection), TYPES, self.where)
            self._store_blobs_plain(connection)
            self._prepare_writers(connection)
            connection.execute(postgres_calls.functions().text.encode(), prepare=False)
        connection.limit_s = self.options.call_timeout_s

    @staticmethod
    def _prepare_writers(connection: PgConnection) -> None:
        """A row for each process that writes; those of the dead go after a week."""
        connection.execute(
            "CREATE TABLE IF NOT EXISTS writers "
            "(name TEXT PRIMARY KEY, number BIGINT NOT NULL, seen_us BIGINT NOT NULL)"
        )
        connection.execute("ALTER TABLE writers ADD COLUMN IF NOT EXISTS answer BIGINT[]")
        connection.execute(
            f"DELETE FROM writers WHERE seen_us < {CLOCK} - {WRITERS_KEPT_S * 1_000_000}"
        )

    def _store_blobs_plain(self, connection: PgConnection) -> None:
        """No compression of blobs; looks first, since the change locks out every reader."""
        row = connection.execute(
            "SELECT attstorage::text FROM pg_attribute "
            "WHERE attrelid = to_regclass('batches') AND attname = 'data'"
        ).fetchone()
        if row != ("e",):
            connection.execute("ALTER TABLE batches ALTER COLUMN data SET STORAGE EXTERNAL")

    def _count_turns(self, turns: int) -> None:
        self.turns = turns

    # -- reading ------------------------------------------------------------------------

    def read(self, fn: Callable[[Tx], T], *, snapshot: bool = False) -> T:
        while True:
            connection, fresh = self._pool.take(heard=False)
            tx = ReadTx(connection, self._clock)
            try:
                if not snapshot:
                    return fn(tx)
                with tx.snapshot(SNAPSHOT_PATIENCE_S):
                    return fn(tx)
            except (psycopg.Error, UnicodeEncodeError) as error:
                # Connections that broke while idle are replaced; reading again harms nothing.
                if fresh or not is_broken(connection):
                    raise translate(error, self.where) from error
            finally:
                self._pool.give(connection)

    def server(self) -> tuple[Server, bool]:
        """What the server told when somebody connected last, and whether a pooler is between."""
        connection, _ = self._pool.take()
        try:
            return connection.server, is_behind_pooler(connection)
        finally:
            self._pool.give(connection)

    def wait_for_listener(self) -> None:
        """Wait until news of other programs are heard, if somebody here wants any."""
        self._listener.wait()

    def tell_as_another(self, channel: str) -> None:
        """Tell news as another program would: this one hears it by way of the server."""
        with contextlib.closing(connect_patiently(self._url, self.options)) as other:
            other.execute("SELECT pg_notify(%s, %s)", (self.options.schema, channel))

    def own_address(self) -> str | None:
        connection, _ = self._pool.take()
        try:
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    return None
                return str(copy.getsockname()[0])
        finally:
            self._pool.give(connection)

    # -- waiting ------------------------------------------------------------------------

    def serve_on(self, loop: asyncio.AbstractEventLoop) -> None:
        del loop  # notifications come over a connection that a thread waits on

    def leave_loop(self) -> None:
        return

    def _tell(self, channels: set[str]) -> None:
        # On a reader's connection, so that no commit waits for it.
        def notify(tx: Tx) -> None:
            for notice in notices(self.options.schema, channels):
                tx.rows(f"SELECT {UNSYNCED}, pg_notify(?, ?)", notice)

        self.notifier.news(channels)
        with contextlib.suppress(HeadraceError):
            self.read(notify)

    def _listen(self, *, frequent: bool) -> None:
        if self._pool.is_forked:
            raise ForkedError
        if not self._closed:
            self._listener.want(frequent=frequent)

    def _release(self) -> None:
        self._listener.close()
        self._pool.close()

    def forked(self) -> None:
        super().forked()
        self._pool.forked()
        self._listener.forked()

    def statistics(self) -> dict[str, int]:
        return super().statistics() | {
            "connections_opened": self._pool.opened,
            "listener_reconnects": self._listener.reconnects,
            "turns": self.turns,
        }
