"""What a task of Spark knows of the query that it works for.

These are properties internal to Spark; nothing else tells a task which query it works for.
"""

from __future__ import annotations

import msgspec
from pyspark import TaskContext

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""A streaming query runs its jobs as a group named after its run; what it broadcasts is another."""


def query_producer(query: str) -> str:
    """The producer under which the batches of a query are recorded."""
    return f"spark-{query}"


class QueryTask(msgspec.Struct, frozen=True):
    """A task of a streaming query."""

    query: str
    batch: int
    run: str


def task_of() -> QueryTask | None:
    """The query, batch and run that this task works for, if Spark tells."""
    context = TaskContext.get()
    if context is None:
        return None
    query, batch, run = map(context.getLocalProperty, (QUERY_ID, BATCH_ID, RUN_ID))
    if query is None or batch is None or run is None:
        return None
    return QueryTask(query, int(batch), run)
