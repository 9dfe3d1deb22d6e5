"""Advances the publisher of a query by what Spark knows and a sink is not told.

*By watermark.*  No watermark reaches a Python sink.  A window comes out one batch after the one
that moved the watermark over its end; so what may be told after a batch is the watermark *used in*
it, and that is what Spark reports with its progress.  All windows that end at or before it came
out in that batch or an earlier one.  Rows to come have a window that ends after it, so if an epoch
is a window's start, the length of the window has to be taken off.

*By source.*  The end frontier of the source, for pipelines without state: all rows of the epochs
before it have been through, also if none of them came out.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.catalog import Tx, epochs, leases
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Frontier, join
from headrace.epochs.core.commits import Publish, Step
from headrace.epochs.runtime.commit import Ledgered, Tenure, commit
from headrace.epochs.runtime.opening import Busy, find, try_open
from headrace.epochs.runtime.progress_log import load_state
from headrace.epochs.runtime.recorded import locks as record_locks
from headrace.errors import ForeignCheckpointError, HeadraceError, InvalidOptionError
from headrace.log.events import to_us
from headrace.spark.connection import connection_to
from headrace.spark.epochs.offsets import parse_epochs, shape_of
from headrace.spark.epochs.publishing import FOREVER_US, LEASE_MS, close
from headrace.spark.epochs.sink_options import PUBLISHER, UNITS_US
from headrace.spark.epochs.texts import parse_frontier
from headrace.spark.task import query_producer
from headrace.subjects import check_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

WATERMARK, SOURCE = "watermark", "source"
_log = logging.getLogger(__name__)


class EpochListener(StreamingQueryListener):
    """Tells an epoch stream what is complete; add it with ``spark.streams.addListener``.

    Only the query that writes as ``publisher`` moves it: the one that owns it, or the one named
    ``query`` (a name or an id), whose first batches may have nothing to write.
    """

    def __init__(
        self,
        stream: str,
        publisher: str = PUBLISHER,
        *,
        catalog: str | Path,
        by: str = WATERMARK,
        unit: str | None = None,
        window: timedelta = timedelta(0),
        query: str | None = None,
        store: str | None = None,
    ) -> None:
        super().__init__()
        if by not in (WATERMARK, SOURCE):
            raise InvalidOptionError(f"by={by!r}: give {WATERMARK!r} or {SOURCE!r}")
        if (by == WATERMARK) != (unit is not None) or (unit is not None and unit not in UNITS_US):
            raise InvalidOptionError(
                f"unit={unit!r}: with by='watermark' say how long an epoch is, one of "
                f"{', '.join(UNITS_US)}"
            )
        if window < timedelta(0):
            raise InvalidOptionError("window is the length of the query's windows, 0 or more")
        log = connection_to(str(catalog), store).log()
        self._log = log
        self._where: Ledgered = find(log, stream)
        if by == WATERMARK and self._where.shape.length:
            raise InvalidOptionError(
                f"a watermark is an integer, and the times of {stream!r} are {self._where.shape}"
            )
        self._publisher = check_name(publisher, "publisher")
        self._by = by
        self._unit_us = UNITS_US.get(unit or "", 1)
        self._window_us = int(window / timedelta(microseconds=1))
        self._query = query
        self.failed: Exception | None = None
        """Why the last advance failed; the query goes on, and the next one tries again."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        named = self._query is not None and self._query in (str(progress.id), progress.name)
        if self._query is not None and not named:
            return
        try:
            if self._by == WATERMARK:
                wanted = self.of_watermark((progress.eventTime or {}).get("watermark"))
            else:
                wanted = self.of_sources([source.endOffset for source in progress.sources])
            if wanted is not None:
                self.advance(str(progress.id), wanted, binds=named)
            self.failed = None
        except HeadraceError as error:
            # An error here would be lost in Spark's listener bus.
            self.failed = error
            _log.warning("%s does not advance: %s", self._publisher, error)

    def of_watermark(self, text: str | None) -> Frontier | None:
        """The frontier after a batch in which Spark used this watermark."""
        if text is None:
            return None
        moment_us = to_us(datetime.fromisoformat(text)) - self._window_us
        return None if moment_us <= 0 else (moment_us // self._unit_us,)

    def of_sources(self, ends: list[Any]) -> Frontier | None:
        """The frontier that all sources of whole epochs have reached."""
        shape, found = self._where.shape, None
        for end in ends:
            try:
                place = parse_epochs(json.loads(end))
            except (TypeError, ValueError, ForeignCheckpointError):
                continue
            if shape_of(place) != shape:
                continue
            told = parse_frontier(shape, place.epochs.frontier, "source")
            # What one of them has still to read may come: the earlier one counts.
            found = told if found is None else ledger.minimal(shape, (*found, *told))
        return found

    def advance(self, query: str, wanted: Frontier, *, binds: bool = False) -> bool:
        """Advance the publisher of a query; false if it is not that query's, or is there already.

        With ``binds`` a free publisher becomes the query's.
        """
        where, name = self._where, self._publisher
        lease = epochs.lease_name(where.stream.id, name)
        owner = query_producer(query)

        def run(tx: Tx) -> bool:
            last, token, _ = leases.last(tx, lease)
            if last is None and binds:
                if not wanted or load_state(tx, where.stream).status != ledger.OPEN:
                    return False  # it was closed, or has nothing to say
                opened = try_open(
                    tx, where, name, owner, LEASE_MS, start=None, recover="keep", over=None
                )
                assert not isinstance(opened, Busy)
                token = opened.lease.token
                leases.set_expiry(tx, [(tx.now_us() + FOREVER_US, lease)])
            elif last != owner:
                return False
            stored = epochs.standing(tx, where.stream.id, name).publisher
            if stored is None:
                return False
            before = ledger.decode_publisher(stored, name, where.stream.name).frontier
            after = join(where.shape, before, wanted)
            if after == before:
                return False
            held = Tenure(name, token, LEASE_MS)
            if after:
                step = Step(advance_to=after)
                commit(tx, where, Publish(name, token, (step,)), held)
            else:
                close(tx, where, held)
            return True

        locks = [*where.locks, leases.lock(lease), *record_locks([where.stream.name])]
        moved: bool = self._log.catalog.write(run, locks=locks)
        return moved
