"""A read under way, for programs with an event loop.

Where ``host/loads.py`` allows it, the event loop itself reads blobs from the catalog, one load per
turn, and another thread only joins them into batches.  Otherwise threads read, one load ahead:
while the caller looks at a load, the next one is fetched.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from headrace.log.cursor import FileAhead, OnDamaged
from headrace.log.pipeline import Pipeline
from headrace.log.read import Query, Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.api.client import Headrace

Load = tuple[pa.RecordBatch | None, dict[int, int]]
"""Events, and the positions from which a read continues after them."""


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
        self._next_load: asyncio.Future[Load] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self._given: dict[int, int] = {}
        self._caught_up = False
        self._loads = client.host.loads

    @property
    def positions(self) -> dict[int, int]:
        """{segment: offset} from which another read goes on after what was returned so far."""
        return dict(self._given)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        self._client.host.check_fork()
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
            self._opening = self._client.host.spawn(self._open(), awaited=True)
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
            self._unsubscribe = await self._client.in_thread(
                self._client.host.on_news, reader.channel, self._news.set
            )
        self._reader = reader

    async def _next(self) -> pa.RecordBatch | None:
        """The next load, or the one that was fetched ahead."""
        if self._next_load is None:
            load = await self._read_here()
            if load is not None:
                return self._returned(load)
            self._end_pipeline()
            self._fetch()
        assert self._next_load is not None
        # Shielded: a caller that stops waiting (a timeout) finds the load at its next try.
        try:
            load = await asyncio.shield(self._next_load)
        except Exception:
            self._next_load = None
            raise
        self._next_load = None
        if load[0] is not None and not self._query.follow:
            self._fetch()
        return self._returned(load)

    def _fetch(self) -> None:
        """Have a thread fetch the next load."""
        self._news.clear()
        loading = self._client.in_thread(self._load_all)
        self._next_load = self._client.host.spawn(loading, awaited=True)

    def _load_all(self) -> Load:
        assert self._reader is not None
        return self._loads.read_all(self._reader.next), self._reader.positions

    async def _read_here(self) -> Load | None:
        """The next load, read on the event loop; None if a thread has to."""
        if not self._loads.may_read:
            return None
        if not self._query.follow:
            # Yield between two loads, so that other tasks run.
            await asyncio.sleep(0)
        elif not self._caught_up:
            return None
        # A read that follows and has caught up: only a few new events can be there.
        self._news.clear()
        with suppress(FileAhead):
            return self._load_here()
        return None

    def _load_here(self) -> Load:
        reader = self._reader
        assert reader is not None
        query = self._query
        if self._pipeline is None and query.limit is None and not query.follow:
            self._pipeline = Pipeline(reader)
        read = partial(reader.next, brief=True) if self._pipeline is None else self._pipeline.next
        return self._loads.read(read), reader.positions

    def _end_pipeline(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

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
        if self._client.host.is_forked:
            return
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._next_load is not None:
            loading, self._next_load = self._next_load, None
            await asyncio.wait([loading])
        self._end_pipeline()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
