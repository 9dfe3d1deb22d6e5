"""Streaming queries that end by themselves, on machines that may have far too much to do."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

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
            if "connect back" not in str(error) or not left:
                raise
        else:
            return query
    raise AssertionError("not reached")
