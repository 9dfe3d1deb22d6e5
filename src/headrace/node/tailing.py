"""Events as they come, for somebody who listens: at most so many a second, and never a queue.

What a listener may not be sent is left out and counted, the oldest first: whoever watches wants the
newest.  A tail holds at most ``TAIL_PER_S`` events and ``HELD_BYTES_MAX`` of their values until its
listener takes them.  The first thing that it tells, with no event, is where it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
import pyarrow as pa

from headrace.api.client import Headrace
from headrace.errors import HeadraceError
from headrace.node.problems import problem_of
from headrace.node.scan import EventConditions, EventView, Filter, place_text, views

TAIL_PER_S = 200
HELD_BYTES_MAX = 1024 * 1024


class TailedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events that came, and how many were left out."""

    stream: str
    events: tuple[EventView, ...]
    left_out: int
    next: str
    """Where a tail goes on after them: give it as ``start``."""


class Ration:
    """How many events somebody may still be sent in this second."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._second = -1
        self._sent = 0

    def take(self, wanted: int) -> int:
        """How many of these go out now."""
        second = int(self._now_s())
        if second != self._second:
            self._second, self._sent = second, 0
        given = min(wanted, max(0, TAIL_PER_S - self._sent))
        self._sent += given
        return given


class Tail:
    """The newest events of a stream that a listener was not sent yet."""

    def __init__(
        self, hr: Headrace, stream: str, scope: tuple[str, ...], wake: Callable[[], None]
    ) -> None:
        self._hr = hr
        self.stream = stream
        self._chosen = Filter(EventConditions(), scope)
        self._wake = wake
        self._held: deque[EventView] = deque()
        self._held_bytes = 0
        self._left = 0
        self._next = ""
        self._began = False
        self.problem = ""
        """Why it ended, if it did."""

    async def run(self) -> None:
        """Follow the stream from now on."""
        try:
            await self._follow()
        except HeadraceError as error:
            self.problem = problem_of(error).detail
            self._wake()

    async def _follow(self) -> None:
        found = await self._hr.stream(self.stream)
        start = {segment.number: segment.head for segment in found.open_segments}
        self._next, self._began = place_text(start), True
        self._wake()
        reading = self._hr.read(self.stream, start=start or "latest", follow=True)
        try:
            async for batch in reading:
                rows = await self._hr.host.in_thread(self._chosen.rows, batch)
                self._take(rows)
                self._next = place_text(reading.positions)
                self._wake()
        finally:
            await reading.close()

    def _take(self, rows: pa.RecordBatch) -> None:
        newest = rows.slice(max(0, rows.num_rows - TAIL_PER_S))
        self._left += rows.num_rows - newest.num_rows
        for each in views(newest, payload=True):
            self._held.append(each)
            self._held_bytes += len(each.value)
        while len(self._held) > TAIL_PER_S or self._held_bytes > HELD_BYTES_MAX:
            self._held_bytes -= len(self._held.popleft().value)
            self._left += 1

    def due(self, ration: Ration) -> TailedEvents | None:
        """What goes out now; what does not is left out."""
        if not self._held and not self._left and not self._began:
            return None
        self._began = False
        sent = ration.take(len(self._held))
        events = tuple(self._held)[len(self._held) - sent :]
        left = self._left + len(self._held) - sent
        self._held.clear()
        self._held_bytes = self._left = 0
        return TailedEvents(stream=self.stream, events=events, left_out=left, next=self._next)
