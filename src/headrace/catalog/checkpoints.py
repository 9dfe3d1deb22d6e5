"""Checkpoints of SQLite's write-ahead log (WAL) on a thread, so that no append waits for one.

The committer itself only copies the few frames that came meanwhile.  That completes the checkpoint,
so that SQLite restarts the WAL from its beginning instead of growing it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.catalog.bell import Bell
from headrace.catalog.forks import section

CHECKPOINT_FRAMES = 2000
CHECKPOINT_REST = 150
"""At most this many frames are left to the committer, unless it writes faster than the thread."""
CHECKPOINT_ROUNDS = 3
WAL_BYTES_MAX = 64 * 1024 * 1024


class Checkpointer:
    """Copies the write-ahead log back into the database on a thread of its own.

    Runs once about ``CHECKPOINT_FRAMES`` have gathered.  SQLite reports their number only with a
    checkpoint, so the number of commits to wait for is estimated from the last one; a WAL file
    that has grown large is copied without waiting.

    SQLite calls ``fsync`` only when a checkpoint completes, which happens in the committer.  So
    the thread syncs the database file itself, then copies again what came meanwhile: little is
    left for the committer to sync.
    """

    def __init__(
        self, path: Path, descriptor: int, connect: Callable[[Path], sqlite3.Connection]
    ) -> None:
        """`descriptor` is the database file's, for ``fsync``; it stays open."""
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._wal = f"{path}-wal"
        self._file = descriptor
        self._wanted = Bell()
        self._copied = False
        self._idle = True
        self._closing = False
        self._commits = 0
        self._commits_wanted = 64
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoint", daemon=True)
        self._thread.start()

    @property
    def at_rest(self) -> bool:
        """Whether the next commit has no checkpoint to complete."""
        return not self._copied

    def after_commit(self, finish: Callable[[], None]) -> None:
        """Count a commit; calls `finish` to complete a checkpoint that the thread has made."""
        if self._copied:
            # Before it is finished: an exception in there must not end all checkpoints.
            self._copied, self._idle = False, True
            finish()
            return
        self._commits += 1
        if self._idle and (self._commits >= self._commits_wanted or self._log_is_large()):
            self._idle = False
            self._wanted.ring()

    def _log_is_large(self) -> bool:
        if self._commits % 16:
            return False
        try:
            return os.stat(self._wal).st_size > WAL_BYTES_MAX
        except OSError:
            return False

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._closing:
                break
            commits, self._commits = self._commits, 0
            with section.lock:
                frames = self._copy()
            if frames > 0:
                wanted = commits * CHECKPOINT_FRAMES // frames
                self._commits_wanted = max(1, min(wanted, CHECKPOINT_FRAMES))
            self._copied = True
        if self._connection is not None:
            with section.lock:
                self._connection.close()

    def _copy(self) -> int:
        """Copy until little is left; returns how many frames there were at first."""
        first = before = 0
        with contextlib.suppress(sqlite3.Error, OSError):  # the next one tries again
            connection = self._connection = self._connection or self._connect(self._path)
            for _ in range(CHECKPOINT_ROUNDS):
                _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                os.fdatasync(self._file)
                first = first or frames
                if frames - before <= CHECKPOINT_REST:
                    break
                before = frames
        return first

    def close(self) -> None:
        self._closing = True
        self._wanted.ring()
        self._thread.join()
