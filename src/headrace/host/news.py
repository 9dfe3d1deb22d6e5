"""News of the catalog, as calls on the event loop.

The catalog notifies on the thread that made a commit or heard of one.  A notified subscription
enters one queue, at most once, and the event loop is woken to empty it.  So notifications are
coalesced: even if thousands of subscriptions are notified together, as when it is not known what
has changed, the loop wakes up once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.catalog import Catalog


class News:
    """The queue of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[_Subscription] = deque()
        self._telling = False

    def subscribe(
        self, catalog: Catalog, channel: str, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call ``call`` on the loop after commits that notified a channel, until the returned
        function is called; may be called on any thread."""
        subscription = _Subscription(self, call)
        subscription.stop_listening = catalog.subscribe(channel, subscription.heard)
        return subscription.stop

    def put(self, subscription: _Subscription) -> None:
        """Queue a notified subscription, on any thread."""
        self._waiting.append(subscription)
        if self._telling or self._loop.is_closed():
            return
        self._telling = True
        try:
            on_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            self._loop.call_soon(self._tell)
        else:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        # Flag first: news from here on wakes the loop again, earlier news is in the queue already.
        self._telling = False
        for _ in range(len(self._waiting)):
            try:
                self._waiting.popleft().tell()
            except Exception as error:  # must not reach the subscriptions behind it
                context = {"message": "a callback failed on news", "exception": error}
                self._loop.call_exception_handler(context)


class _Subscription:
    """Whom to call; in the queue at most once."""

    __slots__ = ("_call", "_news", "_queued", "stop_listening")

    def __init__(self, news: News, call: Callable[[], None]) -> None:
        self._news = news
        self._call: Callable[[], None] | None = call
        self._queued = False
        self.stop_listening: Callable[[], None] | None = None

    def heard(self) -> None:
        """There is news; called on whatever thread it comes."""
        if not self._queued:
            self._queued = True
            self._news.put(self)

    def tell(self) -> None:
        """Called by the loop."""
        self._queued = False
        if self._call is not None:
            self._call()

    def stop(self) -> None:
        """Tell no more."""
        self._call = None
        if self.stop_listening is not None:
            self.stop_listening()
