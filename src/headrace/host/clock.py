"""The clock of a running program: what parts are told of time, and where randomness comes from.

An event loop may bring a clock of its own (``headrace_clock``), as the loop of
``headrace.testing`` does; its time is then driven by whoever tests.  Other loops run by the
monotonic clock of the system.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from concurrent.futures import Executor, ThreadPoolExecutor


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_us() -> int:
    return time.time_ns() // 1000


class Clock:
    """The system's clocks."""

    driven = False
    """Whether time stands still until somebody moves it: then nothing runs on threads either."""

    def __init__(self) -> None:
        self.random: random.Random = random.SystemRandom()
        # Plain functions: on hot paths a method between would be half of the cost.
        self.now_ms = _monotonic_ms
        """Milliseconds that never run backwards; the same clock as the event loop's."""
        self.now_s = time.monotonic
        """The same clock in seconds."""
        self.wall_us = _wall_us
        """The calendar, in microseconds since 1970."""
        self.spent_s = time.perf_counter
        """Seconds for measuring what something costs."""

    def executor(self, threads: int, name: str) -> Executor:
        """Threads for what blocks; where time is driven, the event loop stands in for them."""
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    @property
    def process(self) -> str:
        """The number of this process."""
        return str(os.getpid())

    def local_name(self) -> str:
        """A name that nothing else on this machine has: process, and a random number."""
        return f"{self.process}-{self.random.getrandbits(48):012x}"

    def name(self) -> str:
        """A name that nothing else on any machine has."""
        return f"{socket.gethostname()[:40]}-{self.local_name()}"


def clock_of(loop: asyncio.AbstractEventLoop) -> Clock:
    """The clock that a loop brings along, or the system's."""
    found = getattr(loop, "headrace_clock", None)
    return found if isinstance(found, Clock) else Clock()
