"""A read under way, for programs with an event loop: batches are fetched ahead on a thread.

Of a read that ends, ``AHEAD`` loads are asked for before they are wanted, so that the thread goes
from one to the next without waiting for the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from headrace.catalog.wake import calling_on
from headrace.log.cursor import OnDamaged
from headrace.log.read import Query, Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client import Headrace


AHEAD = 2

Load = tuple[pa.RecordBatch | None, dict[int, int]]
"""Events, and where a read goes on after them."""


class Reading:
    """An asynchronous iterator of Arrow record batches; see :meth:`Headrace.read`."""

    def __init__(
        self, client: Headrace, stream: str, query: Query, on_damaged: OnDamaged | None
    ) -> None:
        self._client = client
        self._stream = stream
        self._query = query
        self._on_damaged = on_damaged
        self._reader: Reader | None = None
        self._ahead: deque[asyncio.Future[Load]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self._given: dict[int, int] = {}
        self._caught_up = False
        self._thread: ThreadPoolExecutor | None = None

    @property
    def positions(self) -> dict[int, int]:
        """{segment: offset} from which another read goes on after what was returned so far."""
        return dict(self._given)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except Exception:
            self._opening = None
            raise
        assert self._reader is not None
        while True:
            batch = await self._next()
            if batch is not None:
                return batch
            if self._reader.done:
                await self.close()
                raise StopAsyncIteration
            await self._news.wait()

    async def _open(self) -> None:
        log = self._client.log
        self._reader = await self._client.in_thread(
            log.reader, self._stream, self._query, self._on_damaged
        )
        self._given = self._reader.positions
        if self._query.follow:
            heard = calling_on(asyncio.get_running_loop(), self._news.set)
            channel = self._reader.channel
            self._unsubscribe = await self._client.in_thread(log.catalog.subscribe, channel, heard)

    async def _next(self) -> pa.RecordBatch | None:
        """The load that was fetched ahead, or the next one; sees to those after it."""
        assert self._reader is not None
        follow = self._query.follow
        if not self._ahead:
            self._news.clear()
            if self._caught_up and self._client.log.catalog.quick:
                # News of a few events: to read them takes no longer than to ask a thread to.
                return self._returned(self._load())
        while len(self._ahead) < (1 if follow else AHEAD):
            self._ahead.append(self._fetch())
        # Shielded: a caller that stops waiting (a timeout) finds the batch at its next try.
        first = self._ahead[0]
        try:
            load = await asyncio.shield(first)
        except Exception:
            self._ahead.remove(first)
            raise
        self._ahead.remove(first)
        return self._returned(load)

    def _load(self) -> Load:
        assert self._reader is not None
        return self._reader.next(), self._reader.positions

    def _returned(self, load: Load) -> pa.RecordBatch | None:
        batch, self._given = load
        self._caught_up = batch is None and self._query.follow
        return batch

    def _fetch(self) -> asyncio.Future[Load]:
        if self._query.follow:
            future: asyncio.Future[Load] = asyncio.ensure_future(self._client.in_thread(self._load))
        else:
            # A long read stays on one thread, and so on one processor with what it has at hand.
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-read")
            future = asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        # An error that nobody is left to hear of is not worth a warning.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def wake(self) -> None:
        """Look again; the client does this when it closes, so that nobody waits for ever."""
        self._news.set()

    async def close(self) -> None:
        """Stop reading; also done at the end."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._ahead:
            ahead, self._ahead = self._ahead, deque()
            await asyncio.wait(ahead)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
