"""Publishing one event at a time, many at once.

Events that are published while a commit is under way wait together and share the next one: one
batch per segment, one ``fsync``.  A lone event waits for nobody.  One commit is under way at a
time, so a program's events of one key are stored in the order in which it published them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import CatalogUnavailableError, HeadraceError
from headrace.log.events import Event, batch_of, now_us

if TYPE_CHECKING:
    from headrace.client import Headrace

GROUP_EVENTS_MAX = 4096
GROUP_BYTES_MAX = 1024 * 1024

Spot = tuple[str, int, int]


class _Waiting:
    """An event and whoever awaits it."""

    __slots__ = ("event", "future", "stream")

    def __init__(self, stream: str, event: Event, future: asyncio.Future[Spot]) -> None:
        self.stream = stream
        self.event = event
        self.future = future


class Publisher:
    """The events of one client that are on their way."""

    def __init__(self, client: Headrace) -> None:
        self._client = client
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    def publish(self, event: Event) -> asyncio.Future[Spot]:
        """Queue a checked event; the future gives its (stream, segment, offset)."""
        stream = self._client.log.routes.stream_for(event.subject)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Spot] = loop.create_future()
        self._waiting.append(_Waiting(stream, event, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return future

    async def drain(self) -> None:
        """Wait until nothing is on its way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._commit(self._take())
        finally:
            self._task = None

    def _take(self) -> list[_Waiting]:
        size = count = 0
        for waiting in self._waiting:
            size += len(waiting.event.value)
            if count and (count == GROUP_EVENTS_MAX or size > GROUP_BYTES_MAX):
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _commit(self, group: list[_Waiting]) -> None:
        by_stream: dict[str, list[_Waiting]] = {}
        for waiting in group:
            by_stream.setdefault(waiting.stream, []).append(waiting)
        try:
            write = self._client.log.write_of()
            now = now_us()
            for stream, members in by_stream.items():
                batch = batch_of([waiting.event for waiting in members], now)
                write.add(stream, batch, captured=True)
            outcome = await self._client.commit(write)
        except HeadraceError as error:
            await self._failed(group, error)
        except BaseException as error:
            for waiting in group:
                _fail(waiting, error)
            if not isinstance(error, Exception):
                raise
        else:
            ordered = (waiting for members in by_stream.values() for waiting in members)
            for waiting, spot in zip(ordered, write.positions(outcome.placed), strict=True):
                if not waiting.future.done():
                    waiting.future.set_result(spot)

    async def _failed(self, group: list[_Waiting], error: HeadraceError) -> None:
        """One stream's trouble is not another's: try them apart, if there are several.

        Not when the outcome is unknown, since what did commit would be written twice.
        """
        streams = {waiting.stream for waiting in group}
        if len(streams) == 1 or isinstance(error, CatalogUnavailableError):
            for waiting in group:
                _fail(waiting, error)
            return
        for stream in streams:
            await self._commit([waiting for waiting in group if waiting.stream == stream])


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
