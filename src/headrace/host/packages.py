"""Entries of the write queue, and how neighbours in it are joined into one operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headrace.catalog import Tx
from headrace.catalog.calls import AppendCall
from headrace.errors import CatalogUnavailableError, HeadraceError
from headrace.log import limits
from headrace.log.append import Outcome, Write
from headrace.log.events import Event
from headrace.log.joined import Given, Joined
from headrace.log.log import Log
from headrace.log.placing import Stale

Told = Callable[[Any, BaseException | None], None]
"""Called with a result, or with an error."""


def settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Tell whoever waits for a future, if anybody still does."""
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class Lane(Protocol):
    """A sequence of writes that stops at its first failure, such as an appender's."""

    failure: BaseException | None


class Waiting:
    """An event or a write in the queue, and the future or callback that gets its ``Outcome``."""

    __slots__ = (
        "answer",
        "event",
        "joins",
        "lane",
        "size_bytes",
        "source",
        "stream",
        "times",
        "told",
        "write",
    )

    def __init__(
        self,
        *,
        answer: asyncio.Future[Outcome] | None = None,
        told: Told | None = None,
        event: Event | None = None,
        stream: str | None = None,
        write: Write | None = None,
        lane: Lane | None = None,
    ) -> None:
        self.told = told
        self.answer = answer
        self.event = event
        self.stream = stream
        """An event's stream; None if only the catalog knows it."""
        self.write = write
        self.lane = lane
        if write is None:
            assert event is not None
            self.joins = True
            self.source: object = None
            self.times = 0
            self.size_bytes = len(event.value)
        else:
            self.joins = write.is_plain
            self.source = write.source
            self.times = write.times
            """Of how many different epochs its rows are, where they are of epochs."""
            self.size_bytes = write.size_bytes

    def tell(self, result: Outcome | None, error: BaseException | None) -> None:
        """It was written, or was not."""
        if self.answer is not None:
            settle(self.answer, result, error)
        elif self.told is not None:
            self.told(result, error)

    @property
    def given_up(self) -> bool:
        """Whether its caller was cancelled: then it is not written."""
        return self.answer is not None and self.answer.cancelled()

    @property
    def given(self) -> Given:
        if self.write is not None:
            return self.write.plain
        assert self.stream is not None
        assert self.event is not None
        return self.stream, self.event


class GivenUp(HeadraceError):
    """Internal: a caller was cancelled; the others' events are to be written without its own."""


class Package:
    """One operation of the committer: joined neighbours of the queue, or a write by itself.

    The packages of a group share ``stale``: all streams of packages that met a sealed segment in
    one of them.  Later packages for such a stream must wait, or they would overtake it, and so do
    those behind them.
    """

    def __init__(self, log: Log, items: Sequence[Waiting], stale: set[str]) -> None:
        self.items = items
        self.size_bytes = 0
        self._log = log
        self._stale = stale
        self._lanes: set[Lane] = set()
        for item in items:
            self.size_bytes += item.size_bytes
            if item.lane is not None:
                self._lanes.add(item.lane)
        self._joined: Joined | None = None
        self.write: Write
        if len(items) == 1 and items[0].write is not None:
            self.write = items[0].write

    @property
    def is_ready(self) -> bool:
        """Whether its routes are known without asking the catalog."""
        streams = set()
        for item in self.items:
            if item.write is None:
                streams.add(item.stream)
            elif not item.write.is_routed:
                return False
        known = self._log.routes.is_known
        return all(stream is not None and known(stream) for stream in streams)

    @property
    def given_up(self) -> bool:
        """Whether a caller of one of its items was cancelled."""
        return any(item.answer is not None and item.answer.cancelled() for item in self.items)

    def prepare(self) -> None:
        """Join, route and encode."""
        if self._joined is None and (len(self.items) > 1 or self.items[0].write is None):
            given = [item.given for item in self.items]
            self._joined = Joined(self._log.write_of(), given)
            self.write = self._joined.write
        self.write.prepare()

    @property
    def locks(self) -> list[str]:
        return self.write.locks

    def run(self, tx: Tx) -> Outcome:
        """The transaction."""
        for lane in self._lanes:
            if lane.failure is not None:
                raise lane.failure
        try:
            if self.given_up:
                raise GivenUp
            if self._stale and not self._stale.isdisjoint(self.write.stream_names):
                raise Stale(min(self._stale & self.write.stream_names))
            return self.write.run(tx)
        except BaseException as error:
            self.failed(error)
            raise

    def saying(self) -> AppendCall | None:
        """What the transaction does, if that can be said; and nothing hinders it."""
        stale = self._stale and not self._stale.isdisjoint(self.write.stream_names)
        if self.given_up or stale or any(lane.failure is not None for lane in self._lanes):
            return None  # the transaction says why
        return self.write.saying()

    def failed(self, error: BaseException) -> None:
        """Note that nothing of it was written; on any thread, before the next package runs."""
        if isinstance(error, Stale | GivenUp):
            self._stale |= self.write.stream_names
            return
        for lane in self._lanes:
            lane.failure = lane.failure or error

    def again(self, stale: Stale) -> None:
        self._stale -= self.write.stream_names
        self.write.again(stale)

    def discard(self) -> None:
        self.write.discard()

    def outcomes(self, outcome: Outcome) -> Iterator[tuple[Waiting, Outcome]]:
        """The outcome of each item."""
        found = [outcome] if self._joined is None else self._joined.outcomes(outcome)
        return zip(self.items, found, strict=True)


def packages(log: Log, items: list[Waiting]) -> list[Package]:
    """A group in as few packages as possible; what is joined still fits an inline blob."""
    stale: set[str] = set()
    if len(items) == 1:
        return [Package(log, items, stale)]
    found: list[Package] = []
    run: list[Waiting] = []
    size = times = 0
    for item in items:
        size += item.size_bytes
        times += item.times
        if run and not (
            item.joins
            and run[0].joins
            and item.source is run[0].source
            and size <= limits.INLINE_BYTES
            and times <= limits.EPOCHS_JOINED
        ):
            found.append(Package(log, run, stale))
            run, size, times = [], item.size_bytes, item.times
        run.append(item)
    return [*found, Package(log, run, stale)]


def apart(items: list[Waiting], error: BaseException) -> list[list[Waiting]]:
    """Split failed items, so that the innocent can be tried without the culprit: by stream, then
    one by one.

    Not when the outcome is unknown: what did commit would be written twice.
    """
    if not isinstance(error, HeadraceError) or isinstance(error, CatalogUnavailableError):
        return [items]
    streams: dict[str, list[Waiting]] = {}
    for item in items:
        stream = item.stream if item.write is None else min(item.write.stream_names, default="")
        streams.setdefault(stream or "", []).append(item)
    if len(streams) > 1:
        return list(streams.values())
    # Checked events, whose stream is known, are not at fault one by one.
    if all(item.write is None or item.lane is not None for item in items):
        return [items]
    return [[item] for item in items]
