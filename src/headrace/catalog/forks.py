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

import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

WAIT_S = 5.0
"""How long a fork waits for other threads, and a parent for its child."""


class Watched(Protocol):
    """Something open that a child inherits."""

    def forked(self) -> None:
        """In the child: refuse every call, and close handles without sending anything."""
        ...


class Section(threading.local):
    """A critical section during which no other thread forks this process.

    ``with section.lock:`` takes a lock of the calling thread's own, so threads do not wait for
    each other; a fork takes those of all.  It is re-entrant, as a signal's handler may fork, and
    both its ends are single calls into C, which no signal's exception comes between.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _making:
            _locks.add(self.lock)


_making = threading.RLock()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_first: list[Callable[[], None]] = []
_watched: weakref.WeakSet[Watched] = weakref.WeakSet()
section = Section()


class _Fork:
    """One fork of this process, seen from both sides."""

    def __init__(self) -> None:
        self.clean = True
        """Whether no thread was inside the section when this process was forked off."""
        self._taken: list[Any] = []
        self._pipe: tuple[int, int] | None = None

    def before(self) -> None:
        """Wait for those inside, and let nobody in."""
        self.clean = not section.lock._is_owned()  # type: ignore[attr-defined]
        _making.acquire()
        deadline = time.monotonic() + WAIT_S
        for lock in list(_locks):
            self._taken.append(lock)
            self.clean &= lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
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
            self._let_go()

    def _let_go(self) -> None:
        for lock in (*self._taken, _making):
            with contextlib.suppress(RuntimeError):  # not got in time
                lock.release()
        self._taken.clear()

    def after_in_child(self) -> None:
        """Close everything that was inherited, and tell the parent."""
        self._let_go()
        _locks.clear()  # those of threads that are not here
        _locks.add(section.lock)
        pipe, self._pipe = self._pipe, None
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


def watch(opened: Watched) -> None:
    """Call ``opened.forked()`` in every child that is forked from now on."""
    _watched.add(opened)


def unwatch(closed: Watched) -> None:
    """Undo ``watch``: it is closed, so a child inherits nothing of it."""
    _watched.discard(closed)


def first(tell: Callable[[], None]) -> None:
    """Call ``tell`` in every child, before any watched object."""
    _first.append(tell)


fork = _Fork()
os.register_at_fork(
    before=fork.before,
    after_in_parent=fork.after_in_parent,
    after_in_child=fork.after_in_child,
)
