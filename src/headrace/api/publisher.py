"""Publishing one event at a time, many at once.

Events that are published while a commit is under way wait together and share the next one: one
batch per segment, one ``fsync``.  A lone event waits for nobody.  One commit is under way at a
time, so a program's events of one key are stored in the order in which it published them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from headrace.errors import CatalogUnavailableError, HeadraceError
from headrace.log.append import Outcome, Stale, Write
from headrace.log.events import Event, batch_of, now_us
from headrace.log.one_event import single

if TYPE_CHECKING:
    from headrace.api.client import Headrace

GROUP_EVENTS_MAX = 4096
GROUP_BYTES_MAX = 1024 * 1024
FEW = 64
"""So many events at most are committed on the event loop."""

UNKNOWN = ""
"""The stream of an event for which the catalog has to be asked."""

Spot = tuple[str, int, int]


class _Waiting:
    """An event and whoever awaits it."""

    __slots__ = ("event", "future", "stream")

    def __init__(self, stream: str, event: Event, future: asyncio.Future[Spot]) -> None:
        self.stream = stream
        self.event = event
        self.future = future


class Publisher:
    """The events of one client that are on their way.

    The usual commit, small and undisturbed, goes by callbacks alone; whatever needs to wait or
    to try again is a task.
    """

    def __init__(self, client: Headrace) -> None:
        self._client = client
        self._waiting: list[_Waiting] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def publish(self, event: Event) -> asyncio.Future[Spot]:
        """Queue a checked event; the future gives its (stream, segment, offset)."""
        future: asyncio.Future[Spot] = asyncio.get_running_loop().create_future()
        stream = self._client.log.routes.find(event.subject)
        self._waiting.append(_Waiting(stream or UNKNOWN, event, future))
        if self._idle.is_set():
            self._idle.clear()
            self._start_soon()
        return future

    async def drain(self) -> None:
        """Wait until nothing is on its way."""
        await self._idle.wait()

    def _start_soon(self) -> None:
        """Start once all that are ready to publish have done so: they share the commit."""
        asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        """Commit what waits, or come to rest."""
        if not self._waiting:
            self._idle.set()
            return
        group = self._take()
        if any(waiting.stream == UNKNOWN for waiting in group):
            self._take_time(group, None)
            return
        try:
            write = self._write(group)
            if not write.is_small(GROUP_BYTES_MAX):
                self._take_time(group, None)
                return
            write.prepare()
            answered = partial(self._answered, group, write)
            self._client.submit(write.run, write.locks, answered, small=len(group) <= FEW)
        except Exception as error:
            self._take_time(group, error)

    def _answered(
        self, group: list[_Waiting], write: Write, outcome: Outcome, error: BaseException | None
    ) -> None:
        if error is not None:
            self._take_time(group, error)
            return
        _tell(group, write, outcome)
        self._start_soon()

    def _take_time(self, group: list[_Waiting], error: BaseException | None) -> None:
        self._task = asyncio.create_task(self._run(group, error))

    async def _run(self, group: list[_Waiting], error: BaseException | None) -> None:
        try:
            if error is None or isinstance(error, Stale):
                await self._commit(await self._captured(group))
            else:
                await self._failed(group, error)
        finally:
            self._task = None
            self._start_soon()

    def _take(self) -> list[_Waiting]:
        size = count = 0
        for waiting in self._waiting:
            size += len(waiting.event.value)
            if count and (count == GROUP_EVENTS_MAX or size > GROUP_BYTES_MAX):
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _captured(self, group: list[_Waiting]) -> list[_Waiting]:
        """Those of the group that some stream captures; the others are told."""
        for waiting in group:
            if waiting.stream == UNKNOWN:
                routes = self._client.log.routes
                try:
                    waiting.stream = await self._client.in_thread(
                        routes.stream_for, waiting.event.subject
                    )
                except Exception as error:
                    _fail(waiting, error)
        return [waiting for waiting in group if waiting.stream != UNKNOWN]

    def _write(self, group: list[_Waiting]) -> Write:
        """One write for the group, which is put in the order of its streams."""
        if len(group) > 1:
            group.sort(key=lambda waiting: waiting.stream)
        write = self._client.log.write_of()
        now = now_us()
        lone = single(group[0].event, now) if len(group) == 1 else None
        if lone is not None:
            write.add_single(group[0].stream, lone)
            return write
        for stream, members in groupby(group, key=lambda waiting: waiting.stream):
            batch = batch_of([waiting.event for waiting in members], now)
            write.add(stream, batch, captured=True)
        return write

    async def _commit(self, group: list[_Waiting]) -> None:
        if not group:
            return
        try:
            write = self._write(group)
            outcome = await self._client.commit(write)
        except Exception as error:
            await self._failed(group, error)
        except BaseException as error:
            for waiting in group:
                _fail(waiting, error)
            raise
        else:
            _tell(group, write, outcome)

    async def _failed(self, group: list[_Waiting], error: BaseException) -> None:
        """One stream's trouble is not another's: try them apart, if there are several.

        Not when the outcome is unknown, since what did commit would be written twice.
        """
        apart = list(dict.fromkeys(waiting.stream for waiting in group))
        known = isinstance(error, HeadraceError) and not isinstance(error, CatalogUnavailableError)
        if len(apart) == 1 or not known:
            for waiting in group:
                _fail(waiting, error)
            return
        for stream in apart:
            await self._commit([waiting for waiting in group if waiting.stream == stream])


def _tell(group: list[_Waiting], write: Write, outcome: Outcome) -> None:
    for waiting, spot in zip(group, write.positions(outcome.placed), strict=True):
        if not waiting.future.done():
            waiting.future.set_result(spot)


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
