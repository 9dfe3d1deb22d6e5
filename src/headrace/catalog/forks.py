"""Forks: what this process has open is closed in a child, and the child may open it again.

Locks of a file belong to a process, and SQLite keeps in memory which ones it has: a child would
believe in locks that only its parent holds, and a parent that closes would remove the write-ahead
log under its child.  Mutexes that another thread holds at the moment of a fork stay locked in the
child for ever.  So a fork waits until no thread is within SQLite, and no thread gets in before it
is over.  The child then closes what it has inherited, while its parent waits: as long as the
parent has the file open, SQLite removes nothing.

Every open object is told in the child (:func:`watch`) and refuses every call from then on.  Such
a handler must not wait for anything: the child has no other threads.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Protocol

WAIT_S = 5.0
"""How long a fork waits for other threads, and a parent for its child."""
LOOK_S = 0.0005


class Watched(Protocol):
    """Something open that a child inherits."""

    def forked(self) -> None:
        """In the child: refuse every call, and close handles without sending anything."""
        ...


class Section:
    """A critical section during which no other thread forks this process; ``with section:``."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may fork on the very thread that holds the lock.
        self._lock = threading.RLock()
        self._forking = threading.RLock()
        self._inside: list[int] = []
        self._over: threading.Event | None = None
        self._pipe: tuple[int, int] | None = None
        self.clean = True
        """Whether no thread was inside the section when this process was forked off."""

    def __enter__(self) -> None:
        ident = get_ident()
        while True:
            with self._lock:
                over = self._over
                if over is None or ident in self._inside:
                    self._inside.append(ident)
                    return
            over.wait()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside.remove(get_ident())

    def before(self) -> None:
        """Wait for those inside, and let nobody in."""
        self._forking.acquire()
        with self._lock:
            self._over = threading.Event()
        own = get_ident()
        deadline = time.monotonic() + WAIT_S
        while any(ident != own for ident in list(self._inside)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        self.clean = not self._inside
        self._pipe = os.pipe() if _watched else None

    def after_in_parent(self) -> None:
        """Wait for the child, and let everybody in."""
        try:
            if self._pipe is not None:
                reading, writing = self._pipe
                os.close(writing)
                poller = select.poll()
                poller.register(reading, select.POLLIN)
                poller.poll(WAIT_S * 1000)
                os.close(reading)
        finally:
            self._pipe = None
            self.clean = True
            with self._lock:
                over, self._over = self._over, None
            if over is not None:
                over.set()
            self._forking.release()

    def after_in_child(self) -> None:
        """Close everything that was inherited, and tell the parent."""
        pipe, self._pipe = self._pipe, None
        self._lock, self._forking = threading.RLock(), threading.RLock()
        self._inside.clear()
        self._over = None
        errors = []
        for tell in [*_first, *(each.forked for each in list(_watched))]:
            try:
                tell()
            except Exception as error:
                errors.append(error)
        _watched.clear()
        if pipe is not None:
            os.write(pipe[1], b"!")
            os.close(pipe[0])
            os.close(pipe[1])
        if errors:
            raise ExceptionGroup("what a fork left could not be closed", errors)


_first: list[Callable[[], None]] = []
_watched: weakref.WeakSet[Watched] = weakref.WeakSet()
section = Section()


def watch(opened: Watched) -> None:
    """Call ``opened.forked()`` in every child that is forked from now on."""
    _watched.add(opened)


def unwatch(closed: Watched) -> None:
    """Undo ``watch``: it is closed, so a child inherits nothing of it."""
    _watched.discard(closed)


def first(tell: Callable[[], None]) -> None:
    """Call ``tell`` in every child, before any watched object."""
    _first.append(tell)


os.register_at_fork(
    before=section.before,
    after_in_parent=section.after_in_parent,
    after_in_child=section.after_in_child,
)
