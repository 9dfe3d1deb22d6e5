"""A subscription to the epochs of one stream or several, over their progress logs.

Theory of operation
-------------------
The lines of every stream are tailed, woken by news, and become messages of the pure subscriber
(:mod:`headrace.epochs.core.feed`), of which each stream is one partition.  What it answers becomes
items in a queue.  More lines are read only when the queue is empty and somebody waits, so a slow
consumer costs nothing; and an item holds references, so an epoch of any size costs a few numbers
per commit.

Rows are read when the consumer asks for them (:mod:`headrace.epochs.runtime.read_ahead`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import Any, Self

import pyarrow as pa

from headrace.epochs.core.antichains import Frontier, not_before
from headrace.epochs.core.effects import (
    Advanced,
    Deliver,
    Effect,
    End,
    Ended,
    Epoch,
    Mode,
    Ready,
    TakenBack,
)
from headrace.epochs.core.feed import LineFeed, Reference
from headrace.epochs.core.subscriber import Subscriber
from headrace.epochs.core.times import Time
from headrace.epochs.core.token import ResumeToken
from headrace.epochs.runtime import starting
from headrace.epochs.runtime.acks import EpochTransaction, NamedHold
from headrace.epochs.runtime.epoch_rows import EpochRows
from headrace.epochs.runtime.given import (
    EpochFrontier,
    EpochItem,
    EpochPart,
    EpochStep,
    EpochTakenBack,
    WholeEpoch,
    step_of,
    whole,
)
from headrace.epochs.runtime.line_tail import LineTail, any_news
from headrace.epochs.runtime.read_ahead import ReadAhead
from headrace.epochs.runtime.starting import EpochBegin, EpochStart, FrontierLike
from headrace.errors import (
    CatalogWentBackError,
    EpochAckError,
    EpochsAbortedError,
    InvalidConfigError,
    InvalidPositionError,
)
from headrace.host.host import Host
from headrace.subjects.arguments import check_value

EXPIRY_MS_MAX = 10 * 366 * 86_400_000
STEP_EPOCHS = 1000
STEP_BYTES = 64 * 1024 * 1024
ROW_BYTES = 256
"""What a row counts for where steps are bounded by bytes; lines tell numbers of rows only."""


class EpochSubscription:
    """Epochs as they come; made by :meth:`headrace.Headrace.epochs`."""

    _begun: EpochBegin | None = None
    _closed = False

    def __init__(
        self,
        host: Host,
        streams: str | Sequence[str],
        *,
        mode: str = "whole",
        start: EpochStart | None = None,
        until: FrontierLike | None = None,
        name: str | None = None,
        segments: Collection[int] | None = None,
        at_least: bool = False,
        standby: bool = True,
        lease_ms: int = 10_000,
        expiry_ms: int | None = None,
    ) -> None:
        check_value("streams", streams, str | Sequence[str])
        check_value("name", name, str | None)
        check_value("segments", segments, Collection[int] | None)
        check_value("at_least", at_least, bool)
        check_value("standby", standby, bool)
        check_value("lease_ms", lease_ms, int)
        check_value("expiry_ms", expiry_ms, int | None)
        if expiry_ms is not None and (name is None or not 1 <= expiry_ms <= EXPIRY_MS_MAX):
            raise InvalidConfigError(
                f"expiry_ms={expiry_ms}: a subscription with a name is forgotten after 1 to "
                f"{EXPIRY_MS_MAX} ms without a holder"
            )
        if mode not in list(Mode):
            raise InvalidConfigError(f"mode={mode!r}: choose {', '.join(Mode)}")
        self._host = host
        self.streams = (streams,) if isinstance(streams, str) else tuple(streams)
        self.mode = Mode(mode)
        self._start, self._until, self._at_least = start, until, at_least
        self._segments = None if segments is None else frozenset(segments)
        self._feeds: dict[str, tuple[LineTail, LineFeed]] = {}
        self._named: NamedHold | None = None
        if name is not None:
            self._named = NamedHold(
                host, name, standby=standby, lease_ms=lease_ms, expiry_ms=expiry_ms
            )
            # Whoever renews the lease must not keep what was dropped alive.
            self._named.on_loss = partial(_wake, self._feeds)
        self._subscriber: Subscriber | None = None
        self._items: deque[EpochItem] = deque()
        self._ended: Ended | None = None
        self._pumping = asyncio.Lock()
        self._turns = host.turns
        self._rows: ReadAhead | None = None
        self.client: object = None
        """The open log that it was made by."""

    def __del__(self) -> None:
        if self._begun is not None and not self._closed:
            self._host.dropped(self, self.close)

    def __repr__(self) -> str:
        return f"<EpochSubscription to {', '.join(self.streams)}: {self._subscriber!r}>"

    # -- opening and closing ------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._begun is None:
            try:
                await self._open()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it; the frontier of a named subscription stays where it was acked."""
        self._closed = True
        if self._host.is_forked:
            return
        for tail, _ in self._feeds.values():
            tail.close()
        if self._named is not None:
            await self._named.leave()

    async def _open(self) -> None:
        log, wanted = self._host.log, self._start
        if self._segments is not None:
            chosen = self._segments
            await self._host.in_thread(starting.check_segments, log, self.streams, chosen)
        if self._named is not None:
            wanted = await self._named.take(self.streams, self.mode, wanted, self._segments)
        begun = await self._resolved("open" if wanted is None else wanted)
        until: Frontier = ()
        if self._until is not None:
            until = starting.frontier_of(begun.shape, self._until, "until")
            first = begun.start or (begun.shape.bottom,)
            if not until or not not_before(begun.shape, until, first):
                raise InvalidPositionError(f"until={list(until)} is before the start {list(first)}")
        self._subscriber = Subscriber(
            self.streams,
            begun.shape,
            mode=self.mode,
            start=begun.start,
            until=until,
            stored=True,
            counts=False,
        )
        ids = {name: int(number) for name, number in begun.ids}
        rows = EpochRows(log, begun.shape, ids)
        self._rows = ReadAhead(self._host, rows, self._items, whole=self.mode is Mode.WHOLE)
        self._begun = begun
        if self._named is not None:
            await self._named.hold(begun)
        for place in begun.streams:
            name = place.progress.stream.name
            tail = LineTail(self._host, place.progress, place.line)
            feed = LineFeed(name, place.lower, self._segments)
            self._feeds[name] = (tail, feed)
            await tail.open()
        if self._turns != self._host.turns:
            raise CatalogWentBackError(
                f"epochs of {', '.join(self.streams)}: the catalog went back or changed its server "
                "while the subscription was opened; open it again"
            )
        for place in begun.streams:
            name = place.progress.stream.name
            self._take(self._subscriber.receive(name, self._feeds[name][1].snapshot(place.upper)))

    async def _resolved(self, wanted: EpochStart) -> EpochBegin:
        """Where to begin, all of it looked up in one history of the catalog."""
        while True:
            self._turns = self._host.turns
            begun = await self._host.in_thread(
                starting.resolve, self._host.log, self.streams, wanted, at_least=self._at_least
            )
            if self._turns == self._host.turns:
                return begun

    # -- reading ------------------------------------------------------------------------

    @property
    def frontier(self) -> Frontier:
        """What is still to come; empty when everything is complete."""
        return self._live.frontier

    @property
    def token(self) -> str:
        """What to keep in order to go on from the frontier."""
        return self.token_at(self.frontier)

    @property
    def lease_token(self) -> int:
        """The fencing token under which a named subscription acks; 0 for one without a name."""
        return 0 if self._named is None else self._named.token

    @property
    def end(self) -> str | None:
        """How it ended: ``closed``, ``reached``, ``aborted``; None while it has not."""
        return None if self._live.end is End.OPEN else str(self._live.end)

    def token_at(self, frontier: Frontier) -> str:
        """The token of a frontier of these streams."""
        begun = self._begun
        assert begun is not None
        return ResumeToken(begun.catalog, begun.ids, begun.shape, frontier).encode()

    @property
    def _live(self) -> Subscriber:
        if self._subscriber is None:
            raise InvalidConfigError("open it first: async with hr.epochs(…) as epochs")
        return self._subscriber

    async def wait_for(self, frontier: FrontierLike) -> None:
        """Wait until everything before a frontier is complete, or the streams have ended."""
        shape = self._live.shape
        wanted = starting.frontier_of(shape, frontier, "frontier")
        while not not_before(shape, self.frontier, wanted) and self._ended is None:
            await self._pump()

    # -- iterating ----------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[EpochItem]:
        while (item := await self._next()) is not None:
            yield item

    async def steps(
        self, max_epochs: int = STEP_EPOCHS, max_bytes: int = STEP_BYTES
    ) -> AsyncIterator[EpochStep]:
        """Whole epochs, many small ones as one: what is complete now, up to the limits.

        A step has one epoch at least, however large; bytes are estimated from rows.
        """
        if self.mode is not Mode.WHOLE or max_epochs < 1 or max_bytes < 1:
            raise InvalidConfigError(
                "steps are of whole epochs, at least one and of a byte or more"
            )
        while (first := await self._next()) is not None:
            assert isinstance(first, WholeEpoch)
            yield step_of(self, first, self._items, max_epochs, max_bytes // ROW_BYTES)

    async def _next(self) -> EpochItem | None:
        await self._check_history()
        while True:
            if self._named is not None and not self._closed:
                await self._named.check_held()
            if self._items:
                return self._items.popleft()
            if self._closed:
                return None
            if self._ended is not None:
                self._finish(self._ended)
                return None
            await self._pump()

    async def _check_history(self) -> None:
        """Raise if what was read is not in the log: the catalog went back."""
        turns = self._host.turns
        if self._turns == turns:
            return
        for tail, _ in self._feeds.values():
            if not await self._host.in_thread(tail.is_as_known):
                raise CatalogWentBackError(
                    f"epochs of {', '.join(self.streams)}: the catalog went back, and what was "
                    "read here is not in it; open the subscription again: with a name it goes on "
                    "from what the catalog knows to be acked, else choose a start"
                )
        self._turns = turns

    def _finish(self, ended: Ended) -> None:
        if ended.end is End.ABORTED:
            raise EpochsAbortedError(", ".join(self.streams), ended.reason, list(self.frontier))

    async def _pump(self) -> None:
        """Take in the next lines, of whichever stream has some; wait if none has."""
        async with self._pumping:
            self._host.check()
            if self._closed or self._ended is not None:
                return
            found = await self._take_in()
            while len(self._items) < STEP_EPOCHS and any(
                t.has_more for t, _ in self._feeds.values()
            ):
                await self._take_in()
            lost = self._named is not None and self._named.lost
            if not found and not lost and not self._closed and self._ended is None:
                await any_news(self._host, [tail for tail, _ in self._feeds.values()])

    async def _take_in(self) -> bool:
        """A few lines of every stream; False if none has any."""
        found = False
        for name, (tail, feed) in self._feeds.items():
            lines = await tail.load()
            await self._check_history()
            tail.take()
            for number, line in lines:
                found = True
                effects: list[Effect] = []
                try:
                    self._live.receive_all(name, feed.messages(number, line), effects)
                finally:
                    self._take(effects)
        return found

    def _take(self, effects: list[Effect]) -> None:
        """Turn what the subscriber says into items."""
        streaming = self.mode is not Mode.WHOLE
        for effect in effects:
            match effect:
                case Epoch(time=time, batches=batches, resume=resume):
                    self._items.append(whole(self, time, batches, resume))
                case Deliver(partition=stream, data=data):
                    part = EpochPart(self, data.time, data.payload, stream, data.source)
                    self._items.append(part)
                case TakenBack(partition=stream, source=source, held=held) if streaming:
                    self._items.append(EpochTakenBack(stream, source, held))
                case Advanced() | Ready() if streaming:
                    now = self._live.frontier
                    self._items.append(EpochFrontier(now, self.token_at(now)))
                case Ended():
                    self._ended = effect
                case _:
                    pass

    # -- rows ---------------------------------------------------------------------------

    def read_rows(
        self, times: Sequence[Time], references: Sequence[Reference]
    ) -> AsyncIterator[pa.RecordBatch]:
        """The rows of epochs; see :mod:`headrace.epochs.runtime.read_ahead`."""
        assert self._rows is not None
        return self._rows.read(times, references)

    # -- answers ------------------------------------------------------------------------

    @property
    def _hold(self) -> NamedHold:
        if self._named is None:
            raise EpochAckError(
                "only a named subscription is acked; give name=…, or keep the token yourself"
            )
        return self._named

    async def ack(self, step: EpochStep) -> None:
        """See :meth:`EpochStep.ack`."""
        await self._hold.ack(step.resume)

    def transaction(self, step: EpochStep) -> EpochTransaction:
        """See :meth:`EpochStep.transaction`."""
        return EpochTransaction(self._host, self._hold, step.resume)


def _wake(feeds: dict[str, tuple[LineTail, LineFeed]]) -> None:
    for tail, _ in feeds.values():
        tail.news.set()
