"""Several statements to PostgreSQL in one round trip.

Everything is put into the driver's buffer, with the Sync at the end, before any of it is sent: a
server that has heard a part of a transaction and waits for the rest holds its locks meanwhile, and
its limits on idle transactions do not count until the Sync.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import psycopg
from psycopg.abc import Transformer as Given
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, PipelineStatus
from psycopg.pq.abc import PGresult

from headrace.catalog.postgres_connections import LOST_STATEMENT, PgConnection
from headrace.catalog.transaction import Row

Statement = tuple[str, Sequence[Any]]
"""SQL with ``?`` for parameters, and the parameters."""

_BINARY = 1


class Answer(msgspec.Struct, frozen=True):
    """What came of one statement."""

    rows: list[Row]
    changed: int


@lru_cache(maxsize=512)
def numbered(text: str) -> bytes:
    """SQL with ``$1``, ``$2``, … in place of ``?``."""
    parts = text.split("?")
    marked = [f"{part}${number}" for number, part in enumerate(parts[:-1], 1)]
    return "".join([*marked, parts[-1]]).encode()


class Pipeline:
    """An exchange in libpq's pipeline mode, with a limit on how long it may take."""

    def __init__(self, connection: PgConnection, limit_s: float) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._poller = select.poll()
        self._poller.register(self._pg.socket, select.POLLIN)
        self._limit_s = limit_s
        self._deadline_s = time.monotonic() + limit_s
        self._unheard = connection.unheard
        """Whether a group was sent before whose results are nobody's business."""
        self.syncs = int(self._unheard)
        """Groups of statements whose end has not been heard of."""
        self.heard: list[PGresult] = []
        """The results of the last group, also those of one that failed."""
        connection.unheard = False
        if not self._unheard:
            self._pg.enter_pipeline_mode()

    def sync(self) -> None:
        """End a group of statements: what fails in it takes along what is behind it in it."""
        self._pg.pipeline_sync()
        self.syncs += 1

    def flush(self) -> None:
        """Send everything."""
        while self._pg.flush():
            if self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN:
                self._pg.consume_input()

    def results(self) -> list[PGresult]:
        """The results of one group, once all are there; raises the first error among them."""
        self._hear()
        return self._group()

    def _hear(self) -> None:
        """Read the results that are nobody's business."""
        if self._unheard:
            self._unheard = False
            try:
                self._group()
            except psycopg.Error:
                self._connection.close()  # it is in a state that nobody knows
                raise

    def _group(self) -> list[PGresult]:
        self.heard = found = []
        failed: psycopg.Error | None = None
        while True:
            while self._pg.is_busy():
                self._wait(select.POLLIN)
                self._pg.consume_input()
            result = self._pg.get_result()
            if result is None:
                if self._connection.closed:
                    raise failed or psycopg.OperationalError("the connection is lost")
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                self.syncs -= 1
                break
            if result.status == ExecStatus.FATAL_ERROR and failed is None:
                failed = error_from_result(result)
            found.append(result)
        if failed is not None:
            raise failed
        return found

    def end(self) -> None:
        """Leave the mode, so that the connection can be used again; or close it."""
        while self.syncs and not self._connection.closed:
            with contextlib.suppress(psycopg.Error):
                if self._unheard:
                    self._hear()
                else:
                    self._group()
        if not self._connection.closed:
            try:
                self._pg.exit_pipeline_mode()
            except psycopg.Error:
                self._connection.close()

    def _wait(self, what: int) -> int:
        left_s = self._deadline_s - time.monotonic()
        self._poller.modify(self._pg.socket, what)
        found = self._poller.poll(left_s * 1000) if left_s > 0 else []
        if not found:
            self._connection.close()
            raise psycopg.OperationalError(f"no answer within {self._limit_s:.0f} s")
        return found[0][1]


def send_only(connection: PgConnection, text: bytes) -> None:
    """Send a statement whose answer is read with that of the next one: nobody waits for it."""
    pg = connection.pgconn
    if pg.pipeline_status != PipelineStatus.OFF:
        return  # it was left in the middle of something, and is of no more use
    pg.enter_pipeline_mode()
    pg.send_query_params(text, None)
    pg.pipeline_sync()
    pg.flush()
    connection.unheard = True


def hear(connection: PgConnection) -> None:
    """Read the answer of what was only sent, for who uses the connection without a pipeline."""
    if connection.unheard and not connection.closed:
        pipeline = Pipeline(connection, connection.limit_s)
        try:
            pipeline.end()
        except psycopg.Error:
            connection.close()


def run(connection: PgConnection, statements: Sequence[Statement]) -> list[Answer]:
    """Run statements one after the other, up to the first that fails, in one round trip."""
    pg = connection.pgconn
    sent = []
    for sql, params in statements:
        given = Transformer(connection)
        values = given.dump_sequence(params, [PyFormat.AUTO] * len(params))
        sent.append((given, numbered(sql), values))
    pipeline = Pipeline(connection, connection.limit_s)
    try:
        for given, query, values in sent:
            pg.send_query_params(query, values, given.types, given.formats, _BINARY)
        pipeline.sync()
        pipeline.flush()
        results = pipeline.results()
    finally:
        pipeline.end()
    return [_answer(given, result) for (given, _, _), result in zip(sent, results, strict=True)]


def is_late(error: BaseException) -> bool:
    """Whether one of several statements was refused, and which of them is not known."""
    lost = psycopg.OperationalError, psycopg.InterfaceError, LOST_STATEMENT
    return isinstance(error, psycopg.Error) and not isinstance(error, lost)


def _answer(given: Given, result: PGresult) -> Answer:
    rows: list[Row] = []
    if result.status == ExecStatus.TUPLES_OK:
        given.set_pgresult(result)
        rows = given.load_rows(0, result.ntuples, tuple)
    return Answer(rows, result.command_tuples or 0)
