"""A read under way, for programs with an event loop.

Where ``host/loads.py`` allows it, the event loop itself reads blobs from the catalog, one load per
turn.  Otherwise threads read, one load ahead: while the caller looks at a load, the next one is
fetched.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from headrace.host.outage import AGAIN_S, AWAY, Outage
from headrace.log.cursor import FileAhead, OnDamaged
from headrace.log.query import Query
from headrace.log.read import Reader

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
        self._next_load: asyncio.Future[Load] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._dropped: weakref.finalize[..., Reading] | None = None
        """Ends what a read that follows costs, whether it is closed or only dropped."""
        self._closed = False
        self._given: dict[int, int] = {}
        self._caught_up = False
        self._loads = client.host.loads
        self._outage = Outage(client.host.now_ms)

    @property
    def positions(self) -> dict[int, int]:
        """{segment: offset} from which another read goes on after what was returned so far."""
        return dict(self._given)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        self._client.host.check()
        if self._reader is None:
            await self._opened()
        assert self._reader is not None
        while True:
            self._client.host.check()
            if self._closed:
                raise StopAsyncIteration
            try:
                batch = await self._next()
            except AWAY as error:
                if not self._query.follow or not self._outage.rides_out(error):
                    raise
                await self._client.host.sleep(AGAIN_S)
                continue
            self._outage.over()
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
            host = self._client.host
            unsubscribe = await host.listen(reader.channel, self._news.set)
            self._dropped = weakref.finalize(self, _left, host.loop, unsubscribe, self._stream)
            self._dropped.atexit = False
        self._reader = reader

    async def _next(self) -> pa.RecordBatch | None:
        """The next load, or the one that was fetched ahead."""
        if self._next_load is None:
            load = await self._read_here()
            if load is not None:
                return self._returned(load)
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
            assert self._reader is not None
            return self._loads.read(partial(self._reader.next, brief=True)), self._reader.positions
        return None

    def _returned(self, load: Load) -> pa.RecordBatch | None:
        batch, self._given = load
        self._caught_up = batch is None and self._query.follow
        return batch

    async def close(self) -> None:
        """Stop reading; also done at the end."""
        if self._client.host.is_forked:
            return
        self._closed = True
        self._news.set()  # nobody waits for more
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._dropped is not None and (found := self._dropped.detach()) is not None:
            found[2][1]()
        if self._next_load is not None:
            loading, self._next_load = self._next_load, None
            await asyncio.wait([loading])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _left(loop: asyncio.AbstractEventLoop, unsubscribe: Callable[[], None], stream: str) -> None:
    """A read that follows was dropped, on whatever thread; this one may hold any lock."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(unsubscribe)
    warnings.warn(f"a read that follows {stream!r} was never closed", ResourceWarning, stacklevel=1)
