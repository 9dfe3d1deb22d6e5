"""Throttled notifications, for channels that change many times a second.

Every ack moves the progress of its group, and there may be thousands a second; a follower only
wants to know that it moved, and reads for itself how far.  So a commit notifies such channels only
if this process has notified none of them within the last ``EVERY_S``.  Otherwise they are
collected, and a thread notifies all of them together when that time is over: the last change is
always told, unless the process dies first.

It costs a commit a look at the clock and at a set (1.2 µs), and a process that commits all the time
twenty turns of that thread a second.  Processes that wait for no such channel are not woken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.catalog.bell import Bell
from headrace.catalog.transaction import FREQUENT

EVERY_S = 0.05


class Frequent:
    """Decides which channels are notified with a commit, and notifies the rest later."""

    def __init__(self, tell: Callable[[set[str]], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._late: set[str] = set()
        self._next_s = 0.0
        self._wanted = Bell()
        self._hurry = Bell()
        self._closing = False
        self._thread: threading.Thread | None = None

    def due(self, channels: set[str]) -> tuple[set[str], set[str]]:
        """Before a commit: the channels to notify with it, and those for :meth:`later`."""
        often: set[str] = set()
        for channel in channels:
            if channel.startswith(FREQUENT):
                often.add(channel)
        if not often:
            return channels, often
        now_s = time.monotonic()
        # If some are pending, it is the thread's turn: else both would tell at every interval.
        if now_s < self._next_s or self._late:
            return channels - often, often
        self._next_s = now_s + EVERY_S
        return channels, set()

    def later(self, channels: set[str]) -> None:
        """After the commit: notify these within ``EVERY_S``."""
        if channels <= self._late:
            return  # pending already: the thread takes them out before it notifies
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="headrace-frequent", daemon=True)
                thread.start()
                self._thread = thread
            # In this order: an interrupt must not leave channels that nobody was rung for.
            self._wanted.ring()
            self._late |= channels

    def close(self) -> None:
        """Notify what is left, and stop; there are no more commits."""
        self._closing = True
        self._wanted.ring()
        self._hurry.ring()
        if self._thread is not None:
            self._thread.join()
        if self._late:
            self._tell(self._late)

    def _run(self) -> None:
        while not self._closing:
            self._wanted.wait()
            self._hurry.wait(self._next_s - time.monotonic())
            with self._lock:
                late = self._late
                if late:
                    # In this order: who finds none pending finds that it is not time yet.
                    self._next_s = time.monotonic() + EVERY_S
                    self._late = set()
            if late:
                self._tell(late)
