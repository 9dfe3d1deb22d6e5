"""Folders in the system's temporary folder that go when the program that uses them ends.

A program holds a ``flock`` on its folder, which the system drops when the process dies.  Whoever
gets that lock may remove the folder: the next program that starts, for those that were killed
(:func:`sweep`).  Names are random, so nobody can be there first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

TRIES_MAX = 10
SWEEP_MAX = 1000
"""Folders that one sweep looks at, so that opening never takes long."""


class Scratch:
    """A folder in use; see the module's text."""

    def __init__(self, prefix: str, within: Path | None = None) -> None:
        self.path, self._descriptor = _made(prefix, within)
        # A finalizer, so that it also runs at exit; a forked child detaches it.
        self.close = weakref.finalize(self, _let_go, self.path, self._descriptor, os.getpid())

    def forked(self) -> None:
        """In a forked child: close the descriptor without releasing the parent's lock."""
        self.close.detach()
        os.close(self._descriptor)


def sweep(prefix: str, within: Path | None = None) -> None:
    """Remove this user's folders with the name ``prefix`` that no program uses."""
    place = Path(tempfile.gettempdir()) if within is None else within
    try:
        with os.scandir(place) as found:
            names = [entry.name for entry in found if entry.name.startswith(prefix)]
    except OSError:
        return
    for name in names[:SWEEP_MAX]:
        try:
            descriptor = _open(place / name)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place / name, ignore_errors=True)
        except OSError:
            pass  # it is in use
        finally:
            os.close(descriptor)


def _made(prefix: str, within: Path | None) -> tuple[Path, int]:
    """A new folder, locked.  A sweep may come between the two, and then another one is made."""
    for left in reversed(range(TRIES_MAX)):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            if not left:
                raise
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for a sweep that is at it
        if path.exists():
            return path, descriptor
        os.close(descriptor)
    raise FileNotFoundError(f"{path} is removed by others whenever it is made")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _let_go(path: Path, descriptor: int, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)
