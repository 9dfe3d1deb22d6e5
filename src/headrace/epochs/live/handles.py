"""What an application holds of a live publisher or subscription that runs by itself.

What keeps those running refers to them, and not to their handles.  So a handle that is dropped
without being closed is noticed: it warns, and what it stood for is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from headrace.epochs.core.antichains import Frontier
from headrace.epochs.core.times import Time, TimeShape
from headrace.epochs.live.items import LiveItem, LiveStatistics
from headrace.epochs.live.publisher import LivePublishing
from headrace.epochs.live.subscription import LiveHearing
from headrace.epochs.runtime.starting import FrontierLike
from headrace.groups.consumer.participant import Kept
from headrace.log.events import Event, Events, Headers

if TYPE_CHECKING:
    from headrace.epochs.live.runtime import LiveRuntime


class LivePublisher(AbstractAsyncContextManager["LivePublisher"]):
    """Publishes epochs to whoever listens now; made by ``hr.live_publisher``.

    The end of its block is an abort for its subscribers unless :meth:`close` was called: only the
    publisher can say that an epoch is complete.
    """

    _opened = False

    def __init__(
        self, runtime: LiveRuntime, stream: str, name: str, start: FrontierLike | None
    ) -> None:
        self.running = LivePublishing(runtime, stream, name, start)
        self.stream, self.name = stream, name
        self.client: object = None
        """The open log that it was made by, which is in use as long as this is."""

    def __repr__(self) -> str:
        return f"<LivePublisher {self.name!r} of {self.stream!r}>"

    def __del__(self) -> None:
        if self._opened and self.running.is_open:
            self.running.host.dropped(self, self.running.leave)

    async def __aenter__(self) -> Self:
        await self.running.open()
        self._opened = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Stop serving; with times still held subscribers are told that the rest never comes."""
        await self.running.leave()

    @property
    def shape(self) -> TimeShape:
        """The shape of this stream's times."""
        return self.running.shape

    @property
    def frontier(self) -> Frontier:
        """What this publisher may still publish at or after; empty when it has closed."""
        return self.running.frontier

    @property
    def subscribers(self) -> int:
        """How many subscriptions are connected now."""
        return self.running.subscribers

    async def wait_for_subscribers(self, least: int) -> None:
        """Wait until ``least`` subscriptions are connected; others miss what is sent before."""
        await self.running.wait_for_subscribers(least)

    async def append(
        self, time: Time, data: Events, *, advance_to: FrontierLike | None = None
    ) -> int:
        """Publish data of one epoch to whoever listens; returns the number of rows.

        It waits while a subscriber that must not miss anything has no room.
        """
        return await self.running.append(time, data, advance_to=advance_to)

    async def publish(
        self,
        time: Time,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
    ) -> None:
        """Publish one event of an epoch."""
        event = Event(subject=subject, value=value, key=key, headers=headers, timestamp=timestamp)
        await self.running.append(time, event)

    async def advance_to(self, frontier: FrontierLike) -> None:
        """All before this frontier is complete; what lies at or after it is still to come."""
        await self.running.advance_to(frontier)

    async def close(self) -> None:
        """All is complete: who has heard all publishers close has come to the end."""
        await self.running.close()

    async def abort(self, reason: str) -> None:
        """Give up: what is not complete never will be, and subscribers are told why."""
        await self.running.abort(reason)


class LiveSubscription(AbstractAsyncContextManager["LiveSubscription"]):
    """Epochs as they are published; made by ``hr.live_epochs``."""

    _opened = False

    def __init__(self, runtime: LiveRuntime, stream: str, **options: Any) -> None:
        self.running = LiveHearing(runtime, stream, **options)
        self.stream, self.mode = stream, self.running.mode
        self.client: object = None
        """The open log that it was made by, which is in use as long as this is."""

    def __repr__(self) -> str:
        return f"<LiveSubscription to {self.stream!r}>"

    def __del__(self) -> None:
        if self._opened and self.running.is_open:
            self.running.host.dropped(self, self.running.close)

    async def __aenter__(self) -> Self:
        await self.running.open()
        self._opened = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hear no more."""
        await self.running.close()

    @property
    def statistics(self) -> LiveStatistics:
        """What was received, dropped and given up so far."""
        return self.running.statistics

    @property
    def frontier(self) -> Frontier:
        """What is still to come; empty when everything is complete."""
        return self.running.frontier

    @property
    def end(self) -> str | None:
        """How it ended: ``closed``, ``reached``, ``aborted``, ``full``; None while it has not."""
        return self.running.end

    @property
    def publishers(self) -> tuple[str, ...]:
        """Who is heard now."""
        return self.running.publishers

    async def wait_for(self, frontier: FrontierLike) -> None:
        """Wait until everything before a frontier is complete, or the stream has ended.

        Nothing is known before all publishers have sent their snapshots, so that is awaited too.
        """
        await self.running.wait_for(frontier)

    def __aiter__(self) -> AsyncIterator[LiveItem]:
        """Whole epochs, or whatever comes; the end is the end of the stream, or raises."""
        return Kept(self, self.running.items())
