"""An event that one thread waits for, and that a signal cannot break.

``threading.Event``, ``Condition`` and ``Future`` take their lock in Python code.  An exception that
a signal's handler raises there leaves it taken, and whoever rings or waits next hangs for ever.
This is a single lock of the interpreter: both calls are one step.
"""

from __future__ import annotations

import threading


class Bell:
    """Rung from any thread; ``wait`` takes the ring, of however many."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # rung already

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it was rung, since the last time that this was true."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
