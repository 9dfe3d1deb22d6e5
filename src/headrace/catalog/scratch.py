"""Folders in the system's temporary folder that go when the last program that uses them ends.

A program holds a shared ``flock`` on a folder that it uses; the system drops it when the process
dies.  Whoever gets the exclusive lock is the only user and may remove the folder: a program that
closes it, or the next one that starts, for those that were killed (:func:`sweep`).  A program that
locks a folder just as it is removed notices that the path is gone, and makes it again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

SWEEP_MAX = 1000
"""Folders that one sweep looks at, so that opening never takes long."""


class Scratch:
    """A folder in use; see the module's text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = _hold(path)
        while descriptor is None:
            descriptor = _hold(path)
        # A finalizer, so that it also runs at exit; a forked child detaches it.
        self._descriptor = descriptor
        self.close = weakref.finalize(self, _let_go, path, descriptor, os.getpid())

    def forked(self) -> None:
        """In a forked child: close the descriptor without releasing the parent's lock."""
        self.close.detach()
        os.close(self._descriptor)


def fresh(prefix: str) -> Scratch:
    """A folder of one's own."""
    return Scratch(Path(tempfile.mkdtemp(prefix=prefix)))


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
            descriptor = os.open(place / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        if os.fstat(descriptor).st_uid == os.getuid():
            _remove_if_alone(place / name, descriptor)
        os.close(descriptor)


def _hold(path: Path) -> int | None:
    """The descriptor of a folder that is locked; None if it was removed meanwhile."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # where there are no locks, nothing is removed either
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def _let_go(path: Path, descriptor: int, pid: int) -> None:
    if os.getpid() == pid:
        _remove_if_alone(path, descriptor)
        os.close(descriptor)


def _remove_if_alone(path: Path, descriptor: int) -> None:
    try:
        # Upgrading drops the shared lock first, so of several that close at once the last gets it.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    shutil.rmtree(path, ignore_errors=True)
