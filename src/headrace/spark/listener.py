"""The lag of queries in events; Spark's own metrics stay empty for Python sources."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.errors import ForeignCheckpointError
from headrace.spark.epochs.offsets import EpochBehind, parse_epochs
from headrace.spark.group_offsets import group_behind
from headrace.spark.offsets import lag_events, parse

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class QueryLag(msgspec.Struct, frozen=True, kw_only=True):
    """How many events a query had still to read after a batch, over all segments it reads.

    ``behind_min``, ``behind_avg`` and ``behind_max`` are of single segments.
    """

    query: str
    name: str | None
    batch: int
    events: int
    behind_min: int
    behind_avg: float
    behind_max: int
    epochs: int | None = None
    """Of a query of whole epochs: how many are complete and not read."""
    at_least: bool = False
    """There are more epochs than were looked at."""


class LagListener(StreamingQueryListener):
    """Keeps the lag of every query that reads a Headrace stream, and tells ``on_lag`` of it.

    ``spark.streams.addListener(LagListener(print))``
    """

    def __init__(self, on_lag: Callable[[QueryLag], None] | None = None) -> None:
        super().__init__()
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._lags: dict[str, QueryLag] = {}

    @property
    def lags(self) -> dict[str, QueryLag]:
        """The last lag of each running query, by the query's id."""
        with self._lock:
            return dict(self._lags)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        found = lag_of(
            str(progress.id),
            progress.name,
            progress.batchId,
            [(source.endOffset, source.latestOffset) for source in progress.sources],
        )
        if found is None:
            return
        with self._lock:
            self._lags[found.query] = found
        if self._on_lag is not None:
            self._on_lag(found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            self._lags.pop(str(event.id), None)


def lag_of(
    query: str, name: str | None, batch: int, sources: list[tuple[Any, Any]]
) -> QueryLag | None:
    """The lag from the (end, latest) of a query's sources; None when none of them is ours."""
    behind: list[int] = []
    epochs: list[EpochBehind] = []
    ours = False
    for end, latest in sources:
        try:
            place, newest = json.loads(end), json.loads(latest)
            if "epochs" in place:
                found = parse_epochs(newest).behind
                epochs += [] if found is None else [found]
                behind += [] if found is None else [found.rows]
            elif "group" in place:
                behind += group_behind(newest)
            else:
                behind += lag_events(parse(newest), parse(place)).values()
        except (TypeError, ValueError, ForeignCheckpointError):
            continue
        ours = True
    if not ours:
        return None
    return QueryLag(
        query=query,
        name=name,
        batch=batch,
        events=sum(behind),
        behind_min=min(behind, default=0),
        behind_avg=sum(behind) / max(1, len(behind)),
        behind_max=max(behind, default=0),
        epochs=sum(one.epochs for one in epochs) if epochs else None,
        at_least=any(one.at_least for one in epochs),
    )
