"""One timer for many: each has a moment at which it is called, and one of the loop's serves all."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def now_ms() -> int:
    """The clock of the instances; it never runs backwards."""
    return time.monotonic_ns() // 1_000_000


class Timers(Generic[T]):
    """Calls ``due(who)`` at the moment that was set for it, once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[T], None]) -> None:
        self._loop = loop
        self._call = due
        self._at_ms: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []  # also moments that were changed since
        self._count = itertools.count()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, who: T, at_ms: int | None) -> None:
        """Call it then, or never; whatever was set before no longer counts."""
        if at_ms is None:
            self._at_ms.pop(who, None)
            return
        if self._at_ms.get(who) == at_ms:
            return
        self._at_ms[who] = at_ms
        heapq.heappush(self._heap, (at_ms, next(self._count), who))
        if self._heap[0][0] == at_ms:
            self._start()

    def close(self) -> None:
        """Call nobody any more."""
        self._at_ms.clear()
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _start(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        delay_ms = self._heap[0][0] - now_ms()
        # A little late rather than early: an early look finds a lease still running.
        self._handle = self._loop.call_later(max(0, delay_ms + 1) / 1000, self._tick)

    def _tick(self) -> None:
        self._handle = None
        now = now_ms()
        while self._heap and self._heap[0][0] <= now:
            at_ms, _, who = heapq.heappop(self._heap)
            if self._at_ms.get(who) == at_ms:
                del self._at_ms[who]
                self._call(who)
        if self._heap and self._handle is None:
            self._start()
