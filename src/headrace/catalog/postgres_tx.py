"""Transactions and reads on PostgreSQL, where every answer that is waited for is a round trip.

So statements go together where they can.  What nobody needs the answer of (``later``) waits until
something is asked, or until the commit, and goes with it.  What is going to be asked is told ahead
(``foresee``): it is asked at once, and each query finds its answer there, until a statement changes
one of the tables that it reads.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, LiteralString, Protocol

import psycopg

from headrace.catalog import postgres_pipeline
from headrace.catalog.postgres_connections import CLOCK, PgConnection
from headrace.catalog.postgres_pipeline import Answer, Statement
from headrace.catalog.transaction import CatalogClock, Row, Tx

ASK_CLOCK = f"SELECT {CLOCK}"
MANY_LATER = 32
"""Up to this many rows, a statement for many of them waits for the next round trip."""

_READS = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)")
_CHANGES = re.compile(r"\b(?:INTO|UPDATE|FROM)\s+(\w+)")


@lru_cache(maxsize=512)
def _sql(text: str) -> LiteralString:
    return text.replace("%", "%%").replace("?", "%s")


@lru_cache(maxsize=512)
def tables_read(sql: str) -> frozenset[str]:
    """The tables that a query reads."""
    return frozenset(_READS.findall(sql))


@lru_cache(maxsize=512)
def tables_changed(sql: str) -> frozenset[str]:
    """The tables that a statement may change; none if it is a query."""
    return frozenset() if sql.startswith("SELECT") else frozenset(_CHANGES.findall(sql))


class Opening(Protocol):
    """How a transaction begins: with its first statement, in the same round trip."""

    @property
    def statements(self) -> Sequence[Statement]: ...

    def begun(self, answer: Answer) -> int:
        """Judge the answer of the last of the statements; returns the server's clock."""

    def another(self, error: psycopg.Error) -> PgConnection:
        """It could not begin, and nothing was done: the connection to try again on, or raises."""


class PostgresTx(Tx):
    """A transaction, or a single read, on one PostgreSQL connection."""

    lateral = True
    for_update = " FOR UPDATE"
    by_bytes = ' COLLATE "C"'

    def __init__(
        self,
        connection: PgConnection,
        clock: CatalogClock | None = None,
        opening: Opening | None = None,
    ) -> None:
        super().__init__(clock)
        self._connection = connection
        self._opening = opening
        self._due: list[Statement] = []
        """Statements that are to be made before anything else."""
        self._foreseen: dict[tuple[str, tuple[Any, ...]], list[Row]] = {}
        self.clock_us: int | None = None

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        self._forget(sql)
        if self._is_awaited:
            return self._ask(sql, params).changed
        return self._connection.execute(_sql(sql), params, binary=True).rowcount

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        if self._foreseen:
            known = self._foreseen.get((sql, tuple(params)))
            if known is not None:
                return known
            self._forget(sql)
        if self._is_awaited:
            return self._ask(sql, params).rows
        return self._connection.execute(_sql(sql), params, binary=True).fetchall()

    def row(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        if self._foreseen or self._is_awaited:
            return next(iter(self.rows(sql, params)), None)
        return self._connection.execute(_sql(sql), params, binary=True).fetchone()

    def iterate(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        if self._is_awaited:
            yield from self._ask(sql, params).rows
        else:
            yield from self._connection.execute(_sql(sql), params, binary=True)

    def executemany(self, sql: str, params: Sequence[Sequence[Any]]) -> int:
        self._forget(sql)
        self.settle()
        postgres_pipeline.hear(self._connection)
        with self._connection.cursor() as cursor:
            cursor.executemany(_sql(sql), params)
            return cursor.rowcount

    def later(self, sql: str, *params: Sequence[Any]) -> None:
        if len(params) > MANY_LATER:
            self.executemany(sql, params)
            return
        self._forget(sql)
        self._due += [(sql, row) for row in params]

    def together(self, *queries: Statement) -> list[list[Row]]:
        wanted = [(sql, tuple(params)) for sql, params in queries]
        new = [query for query in wanted if query not in self._foreseen]
        answers = iter(self._run(new) if new else ())
        return [
            self._foreseen[query] if query in self._foreseen else next(answers).rows
            for query in wanted
        ]

    def foresee(self, *queries: Statement) -> None:
        new = [(sql, tuple(params)) for sql, params in queries]
        new = [query for query in dict.fromkeys(new) if query not in self._foreseen]
        if len(new) > 1:
            for query, answer in zip(new, self._run(new), strict=True):
                self._foreseen[query] = answer.rows

    @contextlib.contextmanager
    def joining_many(self) -> Iterator[None]:
        """No nested loops: until a table is analysed, for a minute or more, PostgreSQL takes it for
        small, and would compare each row with each (a thousand of them: 250 ms instead of 2)."""
        self.later("SET LOCAL enable_nestloop TO off", ())
        yield
        self.later("SET LOCAL enable_nestloop TO DEFAULT", ())

    def settle(self) -> None:
        if self._due or self._opening:
            self._run(())

    def begin(self) -> None:
        """Begin, if nothing was asked yet; what waits for its time goes along."""
        if self._opening is not None:
            self._run(())

    def take_due(self) -> list[Statement]:
        """What is to be made before anything else, for whoever does."""
        due, self._due = self._due, []
        return due

    def undo_due(self, savepoint: str) -> bool:
        """Drop what waits since a savepoint; whether that was all there was since then."""
        due = self.take_due()
        self._foreseen.clear()  # some of it may have been asked after what is undone
        while due:
            if due.pop() == (savepoint, ()):
                self._due = due
                return True
        return False

    @property
    def _is_awaited(self) -> bool:
        """Whether there is something to go with the next statement, or to be heard before it."""
        return bool(self._due or self._opening or self._connection.unheard)

    def _ask(self, sql: str, params: Sequence[Any]) -> Answer:
        (answer,) = self._run([(sql, params)])
        return answer

    def _run(self, statements: Sequence[Statement]) -> list[Answer]:
        due = self.take_due()
        if self._opening is not None:
            opening, self._opening = self._opening, None
            return self._open(opening, [*due, *statements])[len(due) :]
        return postgres_pipeline.run(self._connection, [*due, *statements])[len(due) :]

    def _open(self, opening: Opening, statements: Sequence[Statement]) -> list[Answer]:
        whole = [*opening.statements, *statements]
        try:
            answers = postgres_pipeline.run(self._connection, whole)
        except psycopg.Error as error:
            self._connection = opening.another(error)
            answers = postgres_pipeline.run(self._connection, whole)
        begun = len(opening.statements)
        self.clock_us = opening.begun(answers[begun - 1])
        return answers[begun:]

    def _forget(self, sql: str) -> None:
        """What was foreseen of the tables that a statement changes."""
        if not self._foreseen or not (changed := tables_changed(sql)):
            return
        for query in [query for query in self._foreseen if tables_read(query[0]) & changed]:
            del self._foreseen[query]

    def _database_us(self) -> int:
        if self._opening is not None:
            self.settle()
        if self.clock_us is not None:
            return self.clock_us
        row = self.row(ASK_CLOCK)
        assert row is not None
        return int(row[0])


class ReadTx(PostgresTx):
    """A connection for reads."""

    def foresee(self, *queries: Statement) -> None:
        super().foresee(*queries, (ASK_CLOCK, ()))

    @contextlib.contextmanager
    def snapshot(self, patience_s: float) -> Iterator[None]:
        """One snapshot for all queries; it locks nobody out, so it may rest for longer.

        It begins with the first query, and nobody waits for its end.
        """
        limit = f"SET LOCAL idle_in_transaction_session_timeout TO '{patience_s:.0f}s'"
        self._due += [("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ()), (limit, ())]
        try:
            yield
        finally:
            begun = not self.take_due()
            if begun and not self._connection.closed:
                postgres_pipeline.send_only(self._connection, b"ROLLBACK")
