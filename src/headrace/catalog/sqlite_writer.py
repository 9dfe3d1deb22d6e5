"""The committer's connection to SQLite: begin, savepoints, commit, and what follows a commit."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.catalog import schema
from headrace.catalog.checkpoints import WAL_BYTES_MAX, Checkpointer
from headrace.catalog.committer import WriteDriver
from headrace.catalog.connections import Identity, SqliteTx, connect, descriptor, translate
from headrace.catalog.forks import section
from headrace.catalog.gate import Gate
from headrace.catalog.transaction import CatalogClock, Row, Tx

LOCK_FILE = "write.lock"


class SqliteWriter(WriteDriver):
    """The committer's connection."""

    direct = True

    def __init__(
        self,
        path: Path,
        key: Identity,
        where: str,
        check_place: Callable[[], os.stat_result | None],
        announce: Callable[[set[str], os.stat_result | None], None],
        clock: CatalogClock,
    ) -> None:
        self._where = where
        self._announce = announce
        with section.lock:
            self._connection = connect(path)
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX // 2}")
        self._tx = SqliteTx(self._connection, clock)
        self._gate = Gate(path.with_name(LOCK_FILE))
        self.leave = self._gate.leave
        self._sync: bool | None = None
        self._version: Row | None = None
        self._judged: Row | None = None
        """The ``data_version`` that was last seen, and the last whose schema was judged."""
        self._check_place = check_place
        self._about: os.stat_result | None = None
        self._checkpointer = Checkpointer(path, descriptor(path, key), connect)

    def enter(self, *, wait: bool) -> bool:
        if wait:
            self._gate.enter()
            return True
        return self._checkpointer.at_rest and self._gate.try_enter()

    def section(self) -> AbstractContextManager[object]:
        return section.lock

    def begin(self, locks: Iterable[str], sync: bool) -> Tx:
        del locks
        if sync is not self._sync:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
            self._sync = sync
        self._connection.execute("BEGIN IMMEDIATE")
        self.look()
        if self._judged != self._version:
            found = self._connection.execute(schema.QUERY).fetchone()
            if found != schema.CURRENT:
                schema.judge(found, self._where)
            self._judged = self._version
        return self._tx

    def look(self) -> None:
        # It changes with the commits of other connections, not with those of this one.
        version = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self.others += 1

    def savepoint(self) -> None:
        self._connection.execute("SAVEPOINT operation")

    def rollback_to_savepoint(self) -> bool:
        # A full disk can end the whole transaction; there is no savepoint to go back to then.
        if not self._connection.in_transaction:
            return False
        self._connection.execute("ROLLBACK TO operation")
        return True

    def commit(self, channels: set[str]) -> None:
        del channels
        self._connection.execute("COMMIT")
        self._about = self._check_place()

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def committed(self, channels: set[str]) -> None:
        if channels:
            self._announce(channels, self._about)

    def chores(self) -> None:
        self._checkpointer.after_commit(self.finish_checkpoint)

    def finish_checkpoint(self) -> None:
        """Complete the thread's checkpoint with the last frames, so that the WAL restarts."""
        try:
            self._gate.enter()
            with section.lock, contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            self._gate.leave()

    def translate(self, error: BaseException) -> BaseException:
        return translate(error, self._where)

    def close(self) -> None:
        self._checkpointer.close()
        try:
            # The last to close copies the WAL back.  Beside somebody who writes this is not it.
            self._gate.try_enter()
            with section.lock, contextlib.suppress(sqlite3.Error):
                self._connection.close()
        finally:
            self._gate.leave()
            self._gate.close()
