"""History: lag and rates of every group and stream, in rings, and in an internal stream.

Rings are fed by the observer.  The node that holds the lease ``node-history`` appends what the
last minute was like to the internal stream ``node.history``, one event for each thing, as one
batch; a node that starts reads them back.  The stream has a retention of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

import msgspec

from headrace.catalog.streams import Limits
from headrace.errors import StreamExistsError
from headrace.groups.findings import moment
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.node.core.rings import Point, Series
from headrace.node.shapes import Look

STREAM = "node.history"
LEASE = "node-history"
LEASE_TTL_MS = 180_000
WRITE_EVERY_S = 60
SERIES_MAX = 10_000
TREND_POINTS = 30
TREND_S = 600

GROUP = "group"
STREAM_FIGURES = "stream"
WIDTH = 3
"""Of a group: lag in events, lag in seconds, acked a second.  Of a stream: appended a second, bytes
a second, events that are retained."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[float, ...]).decode

Key = tuple[str, str]


class History:
    """The figures of everything that the observer sees."""

    def __init__(self) -> None:
        self._series: dict[Key, Series] = {}
        self._totals: dict[Key, tuple[float, float, float]] = {}
        """(when, events so far, bytes so far) of the last look: rates are differences."""
        self.rates: dict[Key, float] = {}
        self._trends: dict[Key, tuple[int, tuple[float, ...]]] = {}
        self._seen: dict[Key, tuple[float, ...]] = {}
        """The figures of the last look."""

    def add(self, look: Look) -> None:
        """What a look saw."""
        at_s = look.seen_us / 1e6
        seen: set[Key] = set()
        for name, group in look.groups.items():
            key = GROUP, name
            seen.add(key)
            done = sum(unit.head - unit.events for unit in group.units)
            rate, _ = self._rate(key, at_s, done, 0)
            self._put(key, at_s, (group.lag.events, group.lag.seconds, rate))
        for name, stream in look.streams.items():
            key = STREAM_FIGURES, name
            seen.add(key)
            appended = sum(segment.head for segment in stream.segments)
            size = sum(segment.bytes for segment in stream.segments)
            rate, bytes_rate = self._rate(key, at_s, appended, size)
            kept = sum(segment.events for segment in stream.segments)
            self._put(key, at_s, (rate, bytes_rate, kept))
        for key in self._totals.keys() - seen:
            for own in (self._totals, self.rates, self._series, self._trends, self._seen):
                own.pop(key, None)

    def still(self, at_s: float, later_s: float) -> None:
        """Nothing has changed since the last look, which was so long ago."""
        for key, seen in self._seen.items():
            if key[0] == GROUP:
                events, seconds, _ = seen
                figures = events, seconds + later_s if seconds else 0.0, 0.0
            else:
                figures = 0.0, 0.0, seen[2]
            self.rates[key] = 0.0
            _, total, size = self._totals[key]
            self._totals[key] = at_s, total, size
            self._series_put(key, at_s, figures)

    def _rate(self, key: Key, at_s: float, total: float, size: float) -> tuple[float, float]:
        before = self._totals.get(key)
        if before is None or at_s <= before[0]:
            self._totals[key] = at_s, total, size
            return 0.0, 0.0
        span_s = at_s - before[0]
        if span_s < 0.5:
            return self.rates.get(key, 0.0), 0.0
        self._totals[key] = at_s, total, size
        rate = max(0.0, (total - before[1]) / span_s)
        smooth = self.rates.get(key, rate)
        self.rates[key] = rate if span_s > 5 else (rate + 2 * smooth) / 3
        return self.rates[key], max(0.0, (size - before[2]) / span_s)

    def _put(self, key: Key, at_s: float, figures: tuple[float, ...]) -> None:
        """What was seen of a thing just now."""
        self._seen[key] = figures
        self._series_put(key, at_s, figures)

    def _series_put(self, key: Key, at_s: float, figures: tuple[float, ...]) -> None:
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= SERIES_MAX:
                return
            series = self._series[key] = Series(WIDTH)
        series.put(at_s, figures)

    def points(self, what: str, name: str, since_s: float, now_s: float) -> list[Point]:
        """What is known since a moment, oldest first."""
        series = self._series.get((what, name))
        return [] if series is None else series.points(since_s, now_s)

    def trend(self, what: str, name: str, now_s: float) -> tuple[float, ...]:
        """The first figure in the last ten minutes, for a sparkline."""
        key, slot = (what, name), int(now_s) // 10
        known = self._trends.get(key)
        if known is not None and known[0] == slot:
            return known[1]
        series = self._series.get(key)
        found = [] if series is None else series.fine.points(now_s - TREND_S)
        step = max(1, -(-len(found) // TREND_POINTS))
        trend = tuple(round(figures[0], 2) for _, figures in found[::step])
        self._trends[key] = slot, trend
        return trend

    # -- across restarts ----------------------------------------------------------------

    def rows(self, at_s: float) -> list[Event]:
        """The last minute of everything, as events."""
        found = []
        for (what, name), series in self._series.items():
            recent = series.fine.points(at_s - WRITE_EVERY_S)
            if recent:
                worst = tuple(max(column) for column in zip(*(f for _, f in recent), strict=True))
                value = _encode([at_s, *worst])
                found.append(Event(subject="history", key=f"{what} {name}", value=value))
        return found

    def take(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Rows that were stored by some node."""
        for row in rows:
            what, _, name = str(row["key"]).partition(" ")
            try:
                at_s, *figures = _decode(bytes(row["value"]))  # type: ignore[call-overload]
            except (msgspec.MsgspecError, ValueError):
                continue
            if len(figures) == WIDTH:
                self._series_put((what, name), at_s, tuple(figures))


def load(log: Log, history: History, span_s: int) -> None:
    """Read back what nodes have stored."""
    names = {stream.name for stream in log.streams(internal=True)}
    if STREAM not in names:
        return
    now_us = log.catalog.read(lambda tx: tx.now_us())
    since = moment(now_us) - timedelta(seconds=span_s)
    for batch in log.read(STREAM, Query(start=since)):
        history.take(batch.select(["key", "value"]).to_pylist())


def store(log: Log, history: History, owner: str, span_s: int) -> bool:
    """Append the last minute, if this node holds the lease; whether it does."""
    with log.catalog.aside():
        return _store(log, history, owner, span_s)


def _store(log: Log, history: History, owner: str, span_s: int) -> bool:
    lease = log.catalog.leases.acquire(LEASE, owner, LEASE_TTL_MS)
    if lease is None:
        held = log.catalog.leases.get(LEASE)
        if held is None or held.owner != owner:
            return False
    rows = history.rows(log.catalog.read(lambda tx: tx.now_us()) / 1e6)
    if rows:
        with suppress(StreamExistsError):  # with another retention, which stays
            log.create_internal_stream(STREAM, 1, Limits(age_s=span_s))
        write = log.write_of()
        write.add(STREAM, to_batch(rows), segment=0, captured=True)
        log.commit(write)
    return True
