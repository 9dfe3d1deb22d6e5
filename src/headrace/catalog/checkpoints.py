"""Copying SQLite's write-ahead log back beside the committer, so that no append waits for it.

The committer itself only copies the little that came meanwhile, which lets SQLite start the log
from its beginning again instead of growing it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.catalog import forks

CHECKPOINT_FRAMES = 2000
CHECKPOINT_REST = 150
"""So few frames are left to the committer, unless it writes faster than they are copied."""
CHECKPOINT_ROUNDS = 3
WAL_BYTES_MAX = 64 * 1024 * 1024


class Checkpointer:
    """Copies the write-ahead log back into the database on a thread of its own.

    Runs once about ``CHECKPOINT_FRAMES`` have gathered.  SQLite tells how many there are only
    when it copies, so the number of commits to wait for is learned from the last time; a log
    file that has grown large is copied without waiting.

    SQLite waits for the disk only when it has copied all there is, which is left to the committer.
    So the thread waits for what it has copied, and copies again what came meanwhile.
    """

    def __init__(
        self, path: Path, descriptor: int, connect: Callable[[Path], sqlite3.Connection]
    ) -> None:
        """`descriptor` is of the database's file, to wait for the disk with; it stays open."""
        self._path = path
        self._connect = connect
        self._wal = f"{path}-wal"
        self._file = descriptor
        self._wanted = threading.Event()
        self._copied = threading.Event()
        self._idle = True
        self._closing = False
        self._commits = 0
        self._commits_wanted = 64
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoint", daemon=True)
        self._thread.start()

    @property
    def at_rest(self) -> bool:
        """Whether nothing has to be done after the next commit but to count it."""
        return not self._copied.is_set()

    def after_commit(self, finish: Callable[[], None]) -> None:
        """Count a commit; `finish` copies the rest of what the thread has copied."""
        if self._copied.is_set():
            self._copied.clear()
            finish()
            self._idle = True
            return
        self._commits += 1
        if self._idle and (self._commits >= self._commits_wanted or self._log_is_large()):
            self._idle = False
            self._wanted.set()

    def _log_is_large(self) -> bool:
        if self._commits % 16:
            return False
        try:
            return os.stat(self._wal).st_size > WAL_BYTES_MAX
        except OSError:
            return False

    def _run(self) -> None:
        with forks.section:
            connection = self._connect(self._path)
        try:
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._closing:
                    return
                commits, self._commits = self._commits, 0
                with forks.section:
                    frames = self._copy(connection)
                if frames > 0:
                    wanted = commits * CHECKPOINT_FRAMES // frames
                    self._commits_wanted = max(1, min(wanted, CHECKPOINT_FRAMES))
                self._copied.set()
        finally:
            with forks.section:
                connection.close()

    def _copy(self, connection: sqlite3.Connection) -> int:
        """Copy until little is left; returns how many frames there were at first."""
        first = before = 0
        with contextlib.suppress(sqlite3.Error, OSError):
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
        self._wanted.set()
        self._thread.join()
