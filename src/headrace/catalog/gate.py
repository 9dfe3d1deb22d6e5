"""A fair queue of writers; SQLite's own busy handler sleeps and retries, so some would starve.

Who has waited for long says for whom: a program that is paused within a commit keeps the others
waiting.  A thread watches that, which sleeps while nobody waits; a commit pays nothing for it.

Use it like this, so that no exception of a signal leaves the lock taken (``leave`` is a single call
into C, and does no harm to who is not inside)::

    try:
        gate.enter()
        ...
    finally:
        gate.leave()
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from functools import partial
from pathlib import Path

from headrace.catalog import forks, private
from headrace.catalog.bell import Bell

PATIENCE_S = 5.0
"""How long somebody waits without a word, and then until the next."""

_log = logging.getLogger(__name__)


class Gate:
    """The lock file on which the writers of all processes queue."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with forks.section.lock:
            self._file = private.make_file(path, os.O_RDWR)
            forks.watch(self)
        self.leave = partial(fcntl.flock, self._file, fcntl.LOCK_UN)

    def enter(self) -> None:
        if self.try_enter():
            return
        waiting = _Waiting(self)
        try:
            _watch(waiting)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        finally:
            _waiting.discard(waiting)

    def try_enter(self) -> bool:
        """Enter if nobody is inside."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        forks.unwatch(self)
        os.close(self._file)

    def forked(self) -> None:
        """In a forked child: close the file without releasing the parent's lock."""
        os.close(self._file)

    def holder(self) -> str:
        """Who is inside, as far as this system tells."""
        inode = f":{os.fstat(self._file).st_ino}"
        try:
            for line in Path("/proc/locks").read_text().splitlines():
                # 3: FLOCK  ADVISORY  WRITE 29514 fe:00:2490421 0 EOF
                words = line.split()
                if words[1] == "FLOCK" and words[5].endswith(inode):
                    command = Path(f"/proc/{words[4]}/cmdline").read_bytes().split(b"\0")
                    shown = b" ".join(command).decode(errors="replace").strip()
                    return f"process {words[4]} ({shown[:80]})"
        except (OSError, IndexError):
            pass
        return "another process"


class _Waiting:
    """Somebody at a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.since_s = time.monotonic()
        self.due_s = self.since_s + PATIENCE_S

    def tell(self, now_s: float) -> None:
        if now_s >= self.due_s:
            self.due_s = now_s + PATIENCE_S
            _log.warning(
                "%s: waiting for %.0f s to write; %s holds the lock. Is it paused?",
                self.gate._path,
                now_s - self.since_s,
                self.gate.holder(),
            )


_waiting: set[_Waiting] = set()
_bell = Bell()
_watcher: threading.Thread | None = None


def _watch(waiting: _Waiting) -> None:
    global _watcher
    _waiting.add(waiting)
    if _watcher is None:
        thread = threading.Thread(target=_look, name="headrace-gate", daemon=True)
        thread.start()
        _watcher = thread
    _bell.ring()


def _look() -> None:
    while _bell.wait():
        while _waiting:
            time.sleep(PATIENCE_S / 10)
            for waiting in list(_waiting):
                waiting.tell(time.monotonic())


def _forked() -> None:
    """In a forked child: there is no such thread, and nobody waits."""
    global _watcher
    _watcher = None
    _waiting.clear()


forks.first(_forked)
