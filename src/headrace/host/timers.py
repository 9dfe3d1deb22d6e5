"""Timers: one heap, and one timer of the event loop, for all parts of a program.

A part makes a :class:`Timer` once and sets it as often as it likes.  Deletion is lazy: setting a
timer anew leaves its old entry in the heap, to be skipped when it comes up, which is cheaper than
``loop.call_later``, which makes an object each time and compares them in Python.  So the loop may
wake up for a timer that was cleared meanwhile and find nothing to do.  Where time is driven it
does not, since the clock would jump there for nothing (``exact``).

Timers that are due at the same moment are called in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

NEVER = math.inf
STALE_MIN = 256
"""The size of the heap from which on stale entries are swept out."""
LATE_S = 0.001
"""A timer is called this much after its millisecond: one that came early would find a lease still
running, and have to be repeated."""

EARLY_S = 1e-9
"""Tolerance: the loop itself may call a timer this much too early."""


class Timer:
    """Calls a function at the moment that was set, once."""

    __slots__ = ("_call", "_timers", "at_s")

    def __init__(self, timers: Timers, call: Callable[[], None]) -> None:
        self._timers = timers
        self._call = call
        self.at_s = NEVER
        """When it will be called, by the clock of the loop."""

    def set(self, at_s: float) -> None:
        """Call it then; whatever was set before no longer counts."""
        if at_s != self.at_s:
            self.at_s = at_s
            self._timers.add(at_s, self)

    def set_ms(self, at_ms: int) -> None:
        """Call it when this millisecond is over."""
        self.set(at_ms / 1000 + LATE_S)

    def after(self, delay_s: float) -> None:
        """Call it ``delay_s`` from now."""
        self.set(self._timers.now_s() + delay_s)

    def bring_forward(self, at_s: float) -> None:
        """Call it then, if it would be called later or not at all."""
        if at_s < self.at_s:
            self.set(at_s)

    def bring_forward_ms(self, at_ms: int) -> None:
        """Call it when this millisecond is over, if it would be called later or not at all."""
        self.bring_forward(at_ms / 1000 + LATE_S)

    def clear(self) -> None:
        """Do not call it."""
        if self.at_s != NEVER:
            self.at_s = NEVER
            self._timers.cleared()

    def fire(self) -> None:
        """Its time has come."""
        self.at_s = NEVER
        self._call()


class Timers:
    """The heap; see the module's text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, exact: bool = False) -> None:
        self._loop = loop
        self._exact = exact
        self.now_s = loop.time
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_s = NEVER
        """When the loop looks next; -inf while it is looking."""
        self._clean_at = STALE_MIN

    def __len__(self) -> int:
        """Entries in the heap, stale ones included."""
        return len(self._heap)

    def timer(self, call: Callable[[], None]) -> Timer:
        """A timer that is not set yet."""
        return Timer(self, call)

    def add(self, at_s: float, timer: Timer) -> None:
        """A timer was set."""
        heappush(self._heap, (at_s, next(self._count), timer))
        if at_s < self._armed_s:
            self._arm(at_s)
        if len(self._heap) > self._clean_at:
            self._clean()

    def cleared(self) -> None:
        """A timer was cleared."""
        if self._exact and self._armed_s > -NEVER:
            self._arm_next()

    def close(self) -> None:
        """Call nobody any more."""
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_s = -NEVER

    def _clean(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].at_s == entry[0]]
        heapify(self._heap)
        self._clean_at = max(STALE_MIN, 2 * len(self._heap))

    def _arm(self, at_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_s = at_s
        self._handle = self._loop.call_at(at_s, self._tick)

    def _arm_next(self) -> None:
        heap = self._heap
        while heap and heap[0][2].at_s != heap[0][0]:
            heappop(heap)
        if heap:
            if heap[0][0] != self._armed_s:
                self._arm(heap[0][0])
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._armed_s = NEVER

    def _tick(self) -> None:
        self._handle = None
        self._armed_s = -NEVER
        now_s = self.now_s() + EARLY_S
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heappop(self._heap))
        for at_s, _, timer in due:
            # Not if one that was called before it has cleared it or set it anew.
            if timer.at_s == at_s:
                try:
                    timer.fire()
                except Exception as error:  # must not reach the timers due after it
                    context = {"message": "a timer failed", "exception": error}
                    self._loop.call_exception_handler(context)
        self._armed_s = NEVER
        self._arm_next()
