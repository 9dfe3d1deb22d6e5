"""A fair queue of writers; SQLite's own busy handler sleeps and retries, so some would starve."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from headrace.catalog import forks


class Gate:
    """The lock file on which the writers of all processes queue."""

    def __init__(self, path: Path) -> None:
        with forks.section:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            forks.watch(self)
        self._inside = False

    def __enter__(self) -> None:
        if not self._inside:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            forks.section.__enter__()
            self._inside = True

    def try_enter(self) -> bool:
        """Enter if nobody is inside; to enter again after that is a no-op."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        forks.section.__enter__()
        self._inside = True
        return True

    def __exit__(self, *_: object) -> None:
        self._inside = False
        forks.section.__exit__()
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        forks.unwatch(self)
        os.close(self._file)

    def forked(self) -> None:
        """In a forked child: close the file without releasing the parent's lock."""
        os.close(self._file)
