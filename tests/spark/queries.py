"""Streaming queries that end by themselves, on machines that may have far too much to do."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tests.support import wait_until

PATIENCE_S = 180
TRIES_MAX = 5


def run_through(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Wait for the end of a query that has a checkpoint; what fails it is raised.

    Spark gives the process that plans a streaming read ten seconds to start, whatever the machine
    is busy with, and no setting changes that.  Such a query goes on when it is started again.
    """
    for left in reversed(range(TRIES_MAX)):
        query = start()
        try:
            assert query.awaitTermination(PATIENCE_S), "the query does not end"
        except StreamingQueryException as error:
            if not _met_a_busy_machine(error) or not left:
                raise
        else:
            return query
    raise AssertionError("not reached")


def begun(start: Callable[[int], StreamingQuery]) -> StreamingQuery:
    """A query that goes on until it is stopped, once it has looked for its first batch.

    ``start`` is told how often it was called before.
    """
    for tried in range(TRIES_MAX):
        query = start(tried)
        wait_until(lambda q=query: _plans(q) or not q.isActive, "a plan", PATIENCE_S)  # type: ignore[misc]
        if query.isActive:
            return query
        error = query.exception()
        if error is None or not _met_a_busy_machine(error):
            raise AssertionError(f"the query ended: {error}")
    raise AssertionError("the query never began")


def _plans(query: StreamingQuery) -> bool:
    return bool(query.recentProgress) or query.status["message"].startswith(("Wait", "Process"))


def _met_a_busy_machine(error: Exception) -> bool:
    return "connect back" in str(error)
