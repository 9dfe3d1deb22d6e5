"""Output: appends to any streams, gathered for one commit.

The transactions of the public API build on it; they decide when it commits, and with which acks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from headrace.catalog.producers import Placed
from headrace.log.append import Write
from headrace.log.events import Event, Events, Headers, check_event, now_us
from headrace.log.given import to_batch
from headrace.log.log import Log


class Output:
    """Appends that commit together, or not at all."""

    def __init__(self, log: Log, write: Write) -> None:
        self._log = log
        self._write = write
        self._write.transaction = True
        self.placed: tuple[Placed, ...] = ()
        """Where the events are, once the block has ended."""
        self._then: list[Callable[[], None]] = []

    async def _begin(self, in_thread: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Load the streams' filters on a thread, so that ``publish`` never queries the catalog."""
        if not self._log.routes.learned:
            await in_thread(self._log.routes.learn)

    def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | None = None,
        epoch: tuple[int, ...] | None = None,
    ) -> None:
        """Add one event, for the stream that captures its subject."""
        event = Event(
            subject=subject,
            value=value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            epoch=epoch,
        )
        check_event(event)
        self._write.add_events(self._log.routes.stream_for(subject), [event], now_us())

    def append(
        self, stream: str, data: Events, *, expected_heads: Mapping[int, int] | None = None
    ) -> None:
        """Add events for a stream."""
        self._write.add(stream, to_batch(data), expected=expected_heads)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Have ``call`` called once it is committed."""
        self._then.append(call)

    def _told(self, placed: tuple[Placed, ...]) -> None:
        self.placed = placed
        for call in self._then:
            call()
