"""Writing to PostgreSQL: transactions that hold their locks for as short as possible.

What a write says (:mod:`headrace.catalog.calls`) goes to the server as one statement.  Everything
else is a transaction of several: it begins with its first statement (begin, locks, signature and
clock go with it), and ends with one message (commit, and the news as a second transaction).
Between two messages the server waits for this program for ``idle_timeout_s``, then it undoes the
transaction.

Every transaction *signs*: it writes its number, which grows, into the row of its writer.  When a
connection breaks and a commit was not answered, another connection declares that number void.
Either the number is there, and the transaction has committed; or it is void now, and a statement
that is still on its way to the server cannot sign any more, and undoes itself.
(``pg_xact_status`` is no proof: ids that a crash forgot are given out again.)
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg import errors as pg_errors

from headrace.catalog import postgres_calls, postgres_pipeline, schema
from headrace.catalog.calls import AppendCall, Call
from headrace.catalog.notifier import Notifier
from headrace.catalog.postgres_calls import SCHEMA_LOCK, Exchange
from headrace.catalog.postgres_connections import (
    CLOCK,
    LOST_STATEMENT,
    PgConnection,
    first_line,
    lock_number,
    notices,
    translate,
)
from headrace.catalog.postgres_options import PostgresOptions
from headrace.catalog.postgres_pipeline import Answer, Statement
from headrace.catalog.postgres_pool import PostgresPool
from headrace.catalog.postgres_tx import PostgresTx
from headrace.catalog.transaction import CatalogClock, Tx
from headrace.catalog.write_driver import LONG_WAY, WriteDriver
from headrace.errors import CatalogUnavailableError

_SAVEPOINT = "SAVEPOINT operation"
UNSYNCED = "set_config('synchronous_commit', 'off', true)"
_SIGN = (
    f"INSERT INTO writers (name, number, seen_us) VALUES (?, ?, {CLOCK}) "
    "ON CONFLICT (name) DO UPDATE SET number = excluded.number, seen_us = excluded.seen_us "
    "WHERE writers.number < excluded.number"
)


class PostgresWriter(WriteDriver):
    """What the committer writes with; it has a connection only while it uses one."""

    direct = False
    leave = object
    is_late = staticmethod(postgres_pipeline.is_late)

    def __init__(
        self,
        where: str,
        options: PostgresOptions,
        pool: PostgresPool,
        notifier: Notifier,
        clock: CatalogClock,
    ) -> None:
        self._where = where
        self._options = options
        self._pool = pool
        self._notifier = notifier
        self._clock = clock
        self._name = uuid.uuid4().hex
        self._number = 0
        self._signed = False
        """Whether this writer has a row."""
        self._connection: PgConnection | None = None
        self._exchange: Exchange | None = None
        """A call whose news are still to be confirmed."""
        self._waits_for: list[str] = []
        self._tx: PostgresTx | None = None
        self.calls = True

    def enter(self, *, wait: bool) -> bool:
        return wait  # the server is waited for, which an event loop must not do

    def section(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    # -- connections --------------------------------------------------------------------

    def _take(self, *, another_history: bool = False) -> PgConnection:
        """A connection; a server that is away is waited for.

        Raises if it leads to another history, in which what is to be written may make no sense.
        """
        self.chores()
        turns = self._pool.turns
        deadline = time.monotonic() + self._options.reconnect_s
        while True:
            try:
                connection, _ = self._pool.take(heard=False)
                break
            except CatalogUnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self._connection = connection
        if turns != self._pool.turns and not another_history:
            # What is about to be written was made from what was known before.
            self._signed = False
            self._give()
            raise CatalogUnavailableError(
                f"{self._where} went back or changed its server; nothing was written, try again"
            )
        if not self._signed:
            try:
                self._make_row(connection)
            except BaseException:
                self._give()
                raise
        return connection

    def _make_row(self, connection: PgConnection) -> None:
        postgres_pipeline.hear(connection)
        connection.execute(
            f"INSERT INTO writers (name, number, seen_us) VALUES (%s, %s, {CLOCK}) "
            "ON CONFLICT (name) DO NOTHING",
            (self._name, self._number),
        )
        self._signed = True

    def _give(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(connection)

    def _lose(self) -> None:
        """Give a connection back that is of no more use."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
        self._give()

    # -- calls --------------------------------------------------------------------------

    def call(
        self, calls: Sequence[Call], locks: Iterable[str], sync: bool, channels: set[str]
    ) -> list[Any] | None:
        """Make calls in one statement; their results, or ``LONG_WAY`` for those left undone."""
        if self._clock.driven_us is not None:
            return None  # the server would write its own time
        names = sorted(locks)
        numbers = sorted(lock_number(name) for name in names)
        told = list(notices(self._options.schema, channels))
        for attempt in (1, 2):
            self._number += 1
            request = postgres_calls.request(self._name, self._number, numbers, sync, calls)
            connection = self._take()
            exchange = Exchange(connection, self._options.call_timeout_s)
            try:
                exchange.send(request, told)
                answer = exchange.answer()
            except psycopg.Error as error:
                found = self._after_failed_call(exchange, error, names, attempt)
                if found is None:
                    continue  # nothing was done, and it is worth another try
                if not found:
                    return None
                return _results(calls, found)
            self._exchange = exchange
            return _results(calls, answer)
        raise AssertionError("unreachable")

    def _after_failed_call(
        self, exchange: Exchange, error: psycopg.Error, names: list[str], attempt: int
    ) -> list[int] | None:
        """The answer that was lost, [] for the long way, None to try again; or raises."""
        connection = self._connection
        assert connection is not None
        if connection.closed:
            self._lose()
            committed, answer = self._has_committed()
            if committed:
                return answer
            if attempt == 1:
                return None
            raise error
        exchange.finish()
        if isinstance(error, pg_errors.LockNotAvailable):
            held = self._who_holds(names)
            self._give()
            raise held from error
        if isinstance(error, LOST_STATEMENT):
            self._lose()  # which statements it knows is not known
        self._give()
        state = error.sqlstate
        if state == postgres_calls.UNSIGNED and attempt == 1:
            self._signed = False
            return None
        missing = isinstance(error, pg_errors.UndefinedFunction)
        if missing or isinstance(error, LOST_STATEMENT) or state == postgres_calls.LONG:
            self.calls = not missing
            return []
        raise error

    def chores(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish()
            self._give()

    # -- transactions -------------------------------------------------------------------

    def begin(self, locks: Iterable[str], sync: bool) -> Tx:
        self._waits_for = sorted(locks)
        connection = self._take()
        self._number += 1
        self._tx = PostgresTx(connection, self._clock, _Begin(self, sync))
        return self._tx

    def begin_statements(self, sync: bool) -> list[Statement]:
        """What a transaction begins with."""
        # An array is unnested in its order, so all writers lock in the same order.
        locks = sorted(lock_number(name) for name in self._waits_for)
        return [
            ("BEGIN", ()),
            *([] if sync else [("SET LOCAL synchronous_commit TO off", ())]),
            (f"SELECT pg_advisory_xact_lock_shared({SCHEMA_LOCK})", ()),
            ("SELECT pg_advisory_xact_lock(name) FROM unnest(?::bigint[]) AS name", (locks,)),
            (_SIGN, (self._name, self._number)),
            (f"SELECT {CLOCK}, ({schema.QUERY})", ()),
        ]

    def begun(self, answer: Answer) -> int:
        """A transaction has begun: its time, unless the catalog was migrated."""
        (row,) = answer.rows
        schema.judge(row[1:], self._where)
        return int(row[0])

    def begin_again(self, error: psycopg.Error) -> PgConnection:
        """A transaction could not begin: another connection, if that may help; or raises."""
        if isinstance(error, pg_errors.LockNotAvailable):
            held = self._who_holds(self._waits_for)
            self._lose()
            raise held from error
        # Nothing has been written yet, so a connection that broke while idle is replaced.
        lost = self._connection is None or self._connection.closed
        lost = lost or isinstance(error, LOST_STATEMENT)
        self._lose()
        if not lost:
            raise error
        return self._take()

    def savepoint(self) -> None:
        assert self._tx is not None
        self._tx.later(_SAVEPOINT, ())

    def rollback_to_savepoint(self) -> bool:
        connection, tx = self._connection, self._tx
        assert tx is not None
        if connection is None or connection.closed:
            return False
        if not tx.undo_due(_SAVEPOINT):
            connection.execute("ROLLBACK TO SAVEPOINT operation")
        return True

    def commit(self, channels: set[str]) -> None:
        """Commit, and tell: one message, two transactions."""
        assert self._tx is not None
        self._tx.begin()
        assert self._connection is not None
        due = [*self._tx.take_due(), ("COMMIT", ())]
        for notice in notices(self._options.schema, channels):
            due.append((f"SELECT {UNSYNCED}, pg_notify(?, ?)", notice))
        try:
            postgres_pipeline.run(self._connection, due)
        except psycopg.Error as error:
            self._lose()
            if not self._has_committed()[0]:
                raise error
        self._give()

    def _has_committed(self) -> tuple[bool, list[int]]:
        """Whether the last transaction has; if not, it cannot any more."""
        deadline = time.monotonic() + self._options.reconnect_s
        while True:
            connection = self._take(another_history=True)
            try:
                postgres_pipeline.hear(connection)
                void = connection.execute(
                    f"INSERT INTO writers (name, number, seen_us) VALUES (%s, %s, {CLOCK}) "
                    "ON CONFLICT (name) DO UPDATE SET number = excluded.number, answer = NULL "
                    "WHERE writers.number < excluded.number RETURNING 1",
                    (self._name, self._number),
                ).fetchone()
                self._signed = True
                asked = "SELECT answer FROM writers WHERE name = %s"
                row = connection.execute(asked, (self._name,)).fetchone()
                self._give()
                return void is None, list(row[0] or ()) if row else []
            except psycopg.OperationalError as error:
                self._lose()
                if time.monotonic() > deadline:
                    raise CatalogUnavailableError(
                        f"{self._where}: the outcome of a commit is unknown ({first_line(error)}); "
                        "look before you repeat it"
                    ) from error

    def rollback(self) -> None:
        if self._connection is None:
            return
        try:
            postgres_pipeline.hear(self._connection)
            if not self._connection.closed:
                self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._lose()
        self._give()

    def committed(self, channels: set[str]) -> None:
        self._notifier.news(channels)

    def _who_holds(self, names: list[str]) -> CatalogUnavailableError:
        """Somebody else kept us waiting for too long: who, and for what."""
        waited = f"waited {self._options.lock_timeout_s:.0f} s for {', '.join(names) or 'a row'}"
        numbers = {lock_number(name): name for name in names}
        shown = "nobody who can be named holds it now"
        try:
            connection, _ = self._pool.take()
            try:
                rows = connection.execute(
                    "SELECT (classid::bigint << 32) | objid::bigint, application_name, "
                    "coalesce(client_addr::text, 'this machine'), a.pid, a.state, "
                    "round(extract(epoch FROM clock_timestamp() - xact_start)) FROM pg_locks AS l "
                    "JOIN pg_stat_activity AS a ON a.pid = l.pid "
                    "WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'"
                ).fetchall()
            finally:
                self._pool.give(connection)
            for number, program, address, pid, state, age_s in rows:
                signed = number - (1 << 64) if number >= 1 << 63 else number
                if signed in numbers:
                    shown = (
                        f"{numbers[signed]} is held by {program!r} at {address} (server process "
                        f"{pid}, {state}, for {age_s} s)"
                    )
        except (psycopg.Error, CatalogUnavailableError):
            pass
        return CatalogUnavailableError(f"{self._where}: {waited}; {shown}; try again")

    def translate(self, error: BaseException) -> BaseException:
        if isinstance(error, LOST_STATEMENT) and self._connection is not None:
            self._connection.close()  # the next write begins with another one
        return translate(error, self._where)

    def close(self) -> None:
        self.chores()
        if not self._signed:
            return
        with contextlib.suppress(psycopg.Error, CatalogUnavailableError):
            connection, _ = self._pool.take()
            self._connection = connection
            connection.execute("DELETE FROM writers WHERE name = %s", (self._name,))
        self._give()


class _Begin:
    """How a transaction of a writer begins."""

    def __init__(self, writer: PostgresWriter, sync: bool) -> None:
        self.statements = writer.begin_statements(sync)
        self.begun = writer.begun
        self.another = writer.begin_again


def _results(calls: Sequence[Call], answer: list[int]) -> list[Any]:
    """What each call comes to."""
    found: list[Any] = [LONG_WAY] * len(calls)
    at = 0
    for place, call in enumerate(calls):
        if isinstance(call, AppendCall):
            at += 1
            if answer[0]:
                at += len(call.batches)
                found[place] = call.done(answer[1:at])
    for place, call in enumerate(calls):
        if not isinstance(call, AppendCall):
            stored = answer[at : at + len(call.rows)]
            at += len(call.rows)
            if all(stored):
                found[place] = call.done()
            else:
                call.partly(stored)
    return found
