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


steady_s = time.monotonic
"""A clock that never goes back, in seconds, for threads that no event loop drives."""
calendar_s = time.time
"""Seconds since 1970, for threads that no event loop drives."""
rest_s = time.sleep
"""Sleep for a number of seconds, for threads that no event loop drives."""


class Clock:
    """The system's clocks."""

    driven = False
    """Whether a test drives the time; then nothing runs on threads either."""

    def __init__(self) -> None:
        self.random: random.Random = random.SystemRandom()
        # Plain functions: on hot paths a method in between would be half of the cost.
        self.now_ms = _monotonic_ms
        """The event loop's monotonic clock, in milliseconds."""
        self.now_s = time.monotonic
        """The event loop's clock, in seconds."""
        self.wall_us = _wall_us
        """The calendar, in microseconds since 1970."""
        self.spent_s = time.perf_counter
        """A performance counter in seconds, for measuring durations."""

    def executor(self, threads: int, name: str) -> Executor:
        """A thread pool for blocking calls; where time is driven, the event loop runs them."""
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
