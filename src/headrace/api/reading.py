"""A read under way, for programs with an event loop.

Where that is swift, blobs are read by the event loop itself, one load at a turn; another thread
only joins what it fetched.  Files, catalogs elsewhere, and a disk that turns out to be slow are for
a thread that fetches ahead.

Of a read that ends, the thread goes from one load to the next without being asked for each, until
``AHEAD`` of them are there.  It bothers the event loop only when somebody waits for one, and then
with several at a time: both run Python, so whoever wakes the other up has to wait for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from headrace.catalog.wake import calling_on
from headrace.log.cursor import FileAhead, OnDamaged
from headrace.log.pipeline import Pipeline
from headrace.log.read import Query, Reader
from headrace.log.swift import Swift

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.api.client import Headrace


AHEAD = 8
"""How many loads may be there before they are wanted."""

TOLD_AT_ONCE = 4
HELD_S = 0.02
"""The event loop hears of so many loads at a time, or of fewer after a while."""

Load = tuple[pa.RecordBatch | None, dict[int, int]]
"""Events, and where a read goes on after them."""


class _Ahead:
    """Loads that are there before they are wanted, in their order.

    The thread ends its run at an error or at the end of the read too, and goes on from there once
    that was taken: whoever was told of an error may try again.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        # A long read stays on one thread, and so on one processor with what it has at hand.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-read")
        self._lock = threading.Lock()
        self._loads: deque[Load | BaseException] = deque()
        self._running: Future[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._told_s = 0.0
        self._closed = False

    async def next(self) -> Load:
        """The next load; a caller that stops waiting (a timeout) finds it at its next try."""
        while True:
            with self._lock:
                load = self._loads.popleft() if self._loads else None
                wanted = load is None or _is_more(load)
                if wanted and not self._closed and self._running is None and self._may_go_on():
                    self._running = self._thread.submit(self._run)
                if load is None:
                    waiting = self._loop.create_future()
                    self._waiting.append(waiting)
            if isinstance(load, BaseException):
                raise load
            if load is not None:
                return load
            await waiting

    def _may_go_on(self) -> bool:
        return not self._loads or (len(self._loads) < AHEAD and _is_more(self._loads[-1]))

    def _run(self) -> None:
        going = True
        while going:
            load: Load | BaseException
            try:
                load = load_of(self._reader)
            except BaseException as error:
                load = error
            with self._lock:
                self._loads.append(load)
                going = not self._closed and self._may_go_on()
                if not going:
                    self._running = None
                waiting: list[asyncio.Future[None]] = []
                if not going or self._is_time_to_tell():
                    waiting, self._waiting = self._waiting, waiting
            if waiting and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_wake, waiting)

    def _is_time_to_tell(self) -> bool:
        now_s = time.monotonic()
        if len(self._loads) < TOLD_AT_ONCE and now_s - self._told_s < HELD_S:
            return False
        self._told_s = now_s
        return True

    async def close(self) -> None:
        """Wait for the load that is being fetched, if any; there are none after it."""
        with self._lock:
            self._closed = True
            running = self._running
        if running is not None:
            await asyncio.wait([asyncio.wrap_future(running)])
        self._thread.shutdown(wait=False)


def load_of(reader: Reader, *, brief: bool = False) -> Load:
    return reader.next(brief=brief), reader.positions


def _is_more(load: Load | BaseException) -> bool:
    """Whether there may be another after it."""
    return not isinstance(load, BaseException) and load[0] is not None


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


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
        self._pipeline: Pipeline | None = None
        self._ahead: _Ahead | None = None
        self._next_load: asyncio.Future[Load] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self._given: dict[int, int] = {}
        self._caught_up = False
        self._swift = Swift(client.log.catalog)

    @property
    def positions(self) -> dict[int, int]:
        """{segment: offset} from which another read goes on after what was returned so far."""
        return dict(self._given)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._reader is None:
            await self._opened()
        assert self._reader is not None
        while True:
            batch = await self._next()
            if batch is None:
                if self._reader.done:
                    await self.close()
                    raise StopAsyncIteration
                await self._news.wait()
            elif batch.num_rows:
                return batch

    async def _opened(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except Exception:
            self._opening = None
            raise

    async def _open(self) -> None:
        log = self._client.log
        reader = await self._client.in_thread(
            log.reader, self._stream, self._query, self._on_damaged
        )
        self._given = reader.positions
        if self._query.follow:
            heard = calling_on(asyncio.get_running_loop(), self._news.set)
            self._unsubscribe = await self._client.in_thread(
                log.catalog.subscribe, reader.channel, heard
            )
        self._reader = reader

    async def _next(self) -> pa.RecordBatch | None:
        """The load that was fetched ahead, or the next one."""
        assert self._reader is not None
        if self._query.follow:
            return self._returned(await self._follow())
        if self._swift.on:
            # Between two loads it is everybody else's turn.
            await asyncio.sleep(0)
            load = self._load_here()
            if load is not None:
                return self._returned(load)
        if self._ahead is None:
            self._end_pipeline()
            self._ahead = _Ahead(self._reader)
        self._news.clear()
        return self._returned(await self._ahead.next())

    def _load_here(self) -> Load | None:
        """The next load, read on the event loop; None if a thread has to."""
        reader = self._reader
        assert reader is not None
        if self._pipeline is None and self._query.limit is None:
            self._pipeline = Pipeline(reader)
        read = partial(reader.next, brief=True) if self._pipeline is None else self._pipeline.next
        try:
            return self._swift.load(read), reader.positions
        except FileAhead:
            self._swift.on = False
            return None

    def _end_pipeline(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    async def _follow(self) -> Load:
        assert self._reader is not None
        if self._next_load is None:
            self._news.clear()
            if self._caught_up and self._client.log.catalog.quick:
                # News of a few events: to read them takes no longer than to ask a thread to.
                with suppress(FileAhead):
                    return load_of(self._reader, brief=True)
            self._next_load = asyncio.ensure_future(self._client.in_thread(load_of, self._reader))
            # An error that nobody is left to hear of is not worth a warning.
            self._next_load.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: a caller that stops waiting (a timeout) finds the batch at its next try.
        try:
            load = await asyncio.shield(self._next_load)
        except Exception:
            self._next_load = None
            raise
        self._next_load = None
        return load

    def _returned(self, load: Load) -> pa.RecordBatch | None:
        batch, self._given = load
        self._caught_up = batch is None and self._query.follow
        return batch

    def wake(self) -> None:
        """Look again; the client does this when it closes, so that nobody waits for ever."""
        self._end_pipeline()
        self._news.set()

    async def close(self) -> None:
        """Stop reading; also done at the end."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._next_load is not None:
            loading, self._next_load = self._next_load, None
            await asyncio.wait([loading])
        self._end_pipeline()
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            await ahead.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
