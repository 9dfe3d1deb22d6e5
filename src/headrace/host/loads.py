"""What an event loop does by itself, and what is for a thread: one policy, one set of thresholds.

A commit or a read of a catalog on this machine's own disk takes less time than to hand it to
another thread and to hear back: a lone publish takes 0.37 ms in place of 0.54, a batch of 1,000
events 1.09 ms in place of 1.14, and reads gain a sixth.  But while an event loop does it, nothing
else runs on that loop.  So it may only while the 99th percentile is low: of the last ``WINDOW``
commits (or reads) all but one in a hundred took at most ``HELD_UP_S``.  A moving average does not
show this: a disk that is quick nine times and takes 50 ms the tenth has a good average.  Time in
which other programs had the CPU does not count: a thread would have waited for it, too.

Of a read only the waiting counts, not the CPU time: decoding holds the GIL on any thread.  The
committer's thread goes on measuring, so a disk that was slow for a while is trusted again.  A
reading thread waits for the GIL more than for the disk and can tell nothing; it counts as quick, so
that the event loop tries again once in ``WINDOW`` reads.  Files, PostgreSQL and what is large are
always for threads.  ``headrace.open(…, loop_io=False)``, or
``HEADRACE_LOOP_IO=0`` in the environment, leaves everything to threads.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from headrace.catalog import Catalog
from headrace.catalog.committer import Operation
from headrace.log import limits
from headrace.log.cursor import FileAhead

HELD_UP_S = 0.005
"""How long a commit or a read may block the event loop, as a 99th percentile."""
WINDOW = 128
SLOW_MAX = max(1, WINDOW // 100)
"""So many in a window may take longer; a single one is the machine, not the disk."""
SEEN_MIN = 4
"""Threads make the first commits, until this many were measured; reads are trusted at once."""

SMALL_BYTES = 256 * 1024
"""Data of one call up to this size is checked and encoded on the event loop, else on a thread."""
LOOP_BYTES = limits.INLINE_BYTES
"""The most that the event loop commits itself, gathered from several calls."""
GROUP_BYTES = 4 * limits.INLINE_BYTES
"""The most that is encoded as one group; beyond ``LOOP_BYTES`` a thread commits it."""
LOOP_ROWS = 8192
"""The most rows of epochs that the event loop reads at once: sorting them by time takes CPU."""
FEW = 64
"""Up to this many events to read, acks or units of progress count as small for the event loop."""

T = TypeVar("T")

_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
"""Where usage by thread is not known, that of the process is: it never excuses more."""


class Stopwatch:
    """What became of a thread's time, to be asked on that thread.

    One that made no voluntary context switch never waited: what it did not compute, other programs
    had the CPU.
    """

    __slots__ = ("_began_s", "_usage")

    def __init__(self) -> None:
        self._usage = resource.getrusage(_WHOSE)
        self._began_s = time.perf_counter()

    def held_up_s(self) -> float:
        """Seconds in which it computed or waited."""
        took_s = time.perf_counter() - self._began_s
        return took_s if took_s <= HELD_UP_S else sum(self._split_s(took_s))

    def waited_s(self) -> float:
        """Seconds in which it waited; what is short is not split up."""
        took_s = time.perf_counter() - self._began_s
        return took_s if took_s <= HELD_UP_S else self._split_s(took_s)[1]

    def _split_s(self, took_s: float) -> tuple[float, float]:
        """(computed, waited)"""
        before, now = self._usage, resource.getrusage(_WHOSE)
        computed_s = now.ru_utime - before.ru_utime + now.ru_stime - before.ru_stime
        return computed_s, 0.0 if now.ru_nvcsw == before.ru_nvcsw else took_s - computed_s


class Quick:
    """Whether the 99th percentile of the last ``WINDOW`` durations is at most ``HELD_UP_S``."""

    def __init__(self, *, seen_min: int) -> None:
        self._seen_min = seen_min
        self._seen = 0
        self._slow = deque([-WINDOW] * (SLOW_MAX + 1), SLOW_MAX + 1)
        """The numbers of the last durations that were longer, one more than may be."""
        self.on = seen_min == 0

    def add(self, took_s: float) -> None:
        """Take in one duration; on any thread."""
        seen = self._seen = self._seen + 1
        if took_s > HELD_UP_S:
            self._slow.append(seen)
        self.on = seen >= self._seen_min and self._slow[0] <= seen - WINDOW


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
        """Read from the catalog on the event loop, and measure how long that waits."""
        watch = Stopwatch()
        found = load()
        self._reads.add(watch.waited_s())
        return found

    def read_all(self, load: Callable[..., T]) -> T:
        """On a thread: try ``load(brief=True)``, which opens no files; else read the file."""
        try:
            found = load(brief=True)
        except FileAhead:
            return load(brief=False)
        self._reads.add(0.0)
        return found

    # -- commits ------------------------------------------------------------------------

    def commit(self, operations: list[Operation], *, sync: bool) -> bool:
        """Commit small operations on this thread; false: nothing was done, leave it to a thread.

        ``sync`` says whether one of them is synced.
        """
        if not self._on:
            return False
        judge = self._judge(sync)
        if not (judge.on or self._driven):
            return False
        watch = Stopwatch()
        done = self._catalog.attempt(operations)
        if done:
            judge.add(watch.held_up_s())
        return done

    def committed(self, took_s: float, *, sync: bool) -> None:
        """Take in how long a small commit took that a thread made."""
        self._judge(sync).add(took_s)

    def _judge(self, sync: bool) -> Quick:
        return self._synced if sync else self._unsynced
