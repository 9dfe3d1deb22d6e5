"""What an event loop does by itself, and what is for a thread: one policy, one set of thresholds.

A commit or a read of a catalog on this machine's own disk takes less time than to hand it to
another thread and to hear back: a lone publish takes 0.37 ms in place of 0.54, a batch of 1,000
events 1.09 ms in place of 1.14, and reads gain a sixth.  But while an event loop does it, nothing
else runs on that loop.  So it may only while the 99th percentile is low: of the last ``WINDOW``
commits (or reads) all but one in a hundred took at most ``HELD_UP_S``.  A moving average does not
show this: a disk that is quick nine times and takes 50 ms the tenth has a good average.

Threads go on measuring, so a disk that was slow for a while is trusted again.  Files, PostgreSQL
and what is large are always for threads.  ``headrace.open(…, loop_io=False)``, or
``HEADRACE_LOOP_IO=0`` in the environment, leaves everything to threads.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headrace.catalog import Catalog
from headrace.catalog.committer import Operation
from headrace.log import limits
from headrace.log.cursor import FileAhead

HELD_UP_S = 0.005
"""How long a commit or a read may block the event loop, as a 99th percentile."""
SLOW_SHARE = 0.01
WINDOW = 128
SEEN_MIN = 4
"""Threads make the first commits, until this many were measured; reads are trusted at once."""

SMALL_BYTES = 256 * 1024
"""Data of one call up to this size is checked and encoded on the event loop, else on a thread."""
LOOP_BYTES = limits.INLINE_BYTES
"""The most that the event loop commits itself, gathered from several calls."""
GROUP_BYTES = 4 * limits.INLINE_BYTES
"""The most that is encoded as one group; beyond ``LOOP_BYTES`` a thread commits it."""
FEW = 64
"""Up to this many events to read, acks or units of progress count as small for the event loop."""

T = TypeVar("T")


class Quick:
    """Whether the 99th percentile of the last ``WINDOW`` durations is at most ``HELD_UP_S``."""

    def __init__(self, *, seen_min: int) -> None:
        self._seen_min = seen_min
        self._slow: deque[bool] = deque(maxlen=WINDOW)
        self._slow_count = 0
        self.on = seen_min == 0

    def add(self, took_s: float) -> None:
        """Take in one duration."""
        seen = self._slow
        if len(seen) == WINDOW:
            self._slow_count -= seen[0]
        slow = took_s > HELD_UP_S
        seen.append(slow)
        self._slow_count += slow
        self.on = len(seen) >= self._seen_min and self._slow_count <= SLOW_SHARE * len(seen)


class Loads:
    """The policy of one program; see the module's text."""

    def __init__(self, catalog: Catalog, *, loop_io: bool = True, driven: bool = False) -> None:
        self._catalog = catalog
        self._driven = driven
        """Whether a test drives the clock: without threads, the event loop does everything."""
        allowed = loop_io and os.environ.get("HEADRACE_LOOP_IO") != "0"
        self._on = allowed and catalog.quick
        self._reads = Quick(seen_min=0)
        self._synced = Quick(seen_min=SEEN_MIN)
        self._unsynced = Quick(seen_min=SEEN_MIN)

    # -- reads --------------------------------------------------------------------------

    @property
    def may_read(self) -> bool:
        """Whether the event loop may read from the catalog now."""
        return self._on and (self._driven or self._reads.on)

    def read(self, load: Callable[[], T]) -> T:
        """Read from the catalog, on any thread, and measure how long that takes."""
        began_s = time.perf_counter()
        found = load()
        self._reads.add(time.perf_counter() - began_s)
        return found

    def read_all(self, load: Callable[..., T]) -> T:
        """On a thread: try ``load(brief=True)``, which opens no files; else read the file."""
        try:
            return self.read(partial(load, brief=True))
        except FileAhead:
            return load(brief=False)

    # -- commits ------------------------------------------------------------------------

    def commit(self, operations: list[Operation]) -> bool:
        """Commit small operations on this thread; false: nothing was done, leave it to a thread."""
        if not self._on:
            return False
        judge = self._judge(any(operation.sync for operation in operations))
        if not (judge.on or self._driven):
            return False
        began_s = time.perf_counter()
        done = self._catalog.attempt(operations)
        if done:
            judge.add(time.perf_counter() - began_s)
        return done

    def committed(self, took_s: float, *, sync: bool) -> None:
        """Take in how long a small commit took that a thread made."""
        self._judge(sync).add(took_s)

    def _judge(self, sync: bool) -> Quick:
        return self._synced if sync else self._unsynced
