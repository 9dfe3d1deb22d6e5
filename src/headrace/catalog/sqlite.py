"""The embedded catalog: one SQLite file in a folder, shared by the processes of one machine.

A write-ahead log with ``synchronous=FULL``.  Writers of several processes queue on a lock file
around each transaction (``gate``).  Checkpoints are made by a thread beside the committer
(``checkpoints``).  Mapping the database file for large reads (``mmap_size``) was tried and taken
out: consumers were slower with it, and reads no quicker.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.catalog import forks, schema
from headrace.catalog.base import Catalog
from headrace.catalog.checkpoints import WAL_BYTES_MAX, Checkpointer
from headrace.catalog.committer import Committer, WriteDriver
from headrace.catalog.gate import Gate
from headrace.catalog.pool import Pool
from headrace.catalog.transaction import CatalogClock, Row, Tx
from headrace.catalog.wake import WakeSockets, wake_folder
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    DiskFullError,
    ForkedError,
    InvalidInputError,
    NotACatalogError,
)

T = TypeVar("T")

FILE = "headrace.db"
LOCK_FILE = "write.lock"
APPLICATION_ID = 0x48445243
SQLITE_MIN = (3, 35, 0)
TYPES = {
    # Streams and segments are known by their numbers in other processes, so none is used twice.
    "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "serial": "INTEGER PRIMARY KEY",
    "blob": "BLOB",
}
BUSY_TIMEOUT_S = 60.0
READER_CACHE_KIB = 400
"""A reader's page cache: room for the upper levels of every index, and little for blobs, which are
not read again.  Small, so that it fits into the processor's cache together with a load."""

_opened: Counter[str] = Counter()
"""How often this process has each file open."""
_synced: dict[str, int] = {}
"""A descriptor of each open database file, for ``fsync``.

Closing any descriptor of a file drops all POSIX locks that the process holds on it, SQLite's among
them.  So all catalogs share one, and it is closed with the last of them.
"""
_opening = threading.Lock()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
"""All that this process has open."""
_unclosed: list[Connection] = []
"""Those of the parent that were in use at the moment of a fork: they cannot be closed here."""


class Connection(sqlite3.Connection):
    """A connection that a forked child can find; used only within ``forks.section``."""


def _forked() -> None:
    """In a forked child: close all connections, so that SQLite forgets the parent's locks."""
    global _opening
    _opening = threading.Lock()
    if forks.section.clean:
        for connection in list(_connections):
            connection.close()
    else:
        _unclosed.extend(_connections)
        for connection in _unclosed:  # nor may they be closed when the interpreter ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _connections.clear()
    for descriptor in _synced.values():
        os.close(descriptor)
    _synced.clear()
    _opened.clear()


forks.first(_forked)


def _descriptor(path: Path) -> int:
    key = os.path.realpath(path)
    with _opening:
        if key not in _synced:
            _synced[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return _synced[key]


class SqliteTx(Tx):
    """A transaction, or a single read, on one SQLite connection."""

    lazy = True

    def __init__(self, connection: sqlite3.Connection, clock: CatalogClock | None = None) -> None:
        super().__init__(clock)
        self._execute = connection.execute
        self._connection = connection

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        return self._execute(sql, params).rowcount

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return self._execute(sql, params).fetchall()

    def row(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        cursor = self._execute(sql, params)
        row: Row | None = cursor.fetchone()
        cursor.close()
        return row

    def iterate(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        with contextlib.closing(self._execute(sql, params)) as cursor:
            yield from cursor

    def executemany(self, sql: str, params: Sequence[Sequence[Any]]) -> int:
        return self._connection.executemany(sql, params).rowcount

    def _database_us(self) -> int:
        return time.time_ns() // 1000

    def close(self) -> None:
        self._connection.close()


def connect(path: Path) -> Connection:
    """Open a connection; call this, and use the connection, within ``forks.section``."""
    connection = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_S,
        factory=Connection,
    )
    _connections.add(connection)
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def translate(error: BaseException, where: str) -> BaseException:
    """SQLite's errors in Headrace's words."""
    if isinstance(error, UnicodeEncodeError):
        return InvalidInputError(f"{error.object!r} is not valid text: {error.reason}")
    if not isinstance(error, sqlite3.Error):
        return error
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    # A refused write is mostly a quota or a limit on file sizes.
    if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_WRITE:
        return DiskFullError(f"{where}: no room left to write; free some space and try again")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CatalogUnavailableError(
            f"{where}: another program held the write lock for {BUSY_TIMEOUT_S:.0f} s; try again"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CatalogError(f"{where} is damaged ({error}); restore it from a copy")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        return CatalogUnavailableError(f"{where} cannot be read or written: {error}")
    return error


class _Writer(WriteDriver):
    """The committer's connection."""

    def __init__(
        self,
        folder: Path,
        where: str,
        announce: Callable[[set[str]], None],
        clock: CatalogClock,
    ) -> None:
        self._folder = folder
        self._where = where
        self._announce = announce
        with forks.section:
            self._connection = connect(folder / FILE)
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX // 2}")
        self._tx = SqliteTx(self._connection, clock)
        self._gate = Gate(folder / LOCK_FILE)
        self._sync: bool | None = None
        self._checkpointer = Checkpointer(folder / FILE, _descriptor(folder / FILE), connect)

    def gate(self) -> Gate:
        return self._gate

    def try_gate(self) -> bool:
        return self._checkpointer.at_rest and self._gate.try_enter()

    def begin(self, locks: Iterable[str], sync: bool) -> Tx:
        del locks
        if sync is not self._sync:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
            self._sync = sync
        self._connection.execute("BEGIN IMMEDIATE")
        return self._tx

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

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def committed(self, channels: set[str]) -> None:
        if channels:
            self._announce(channels)

    def chores(self) -> None:
        self._checkpointer.after_commit(self.finish_checkpoint)

    def finish_checkpoint(self) -> None:
        """Complete the thread's checkpoint with the last frames, so that the WAL restarts."""
        with self.gate(), contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def translate(self, error: BaseException) -> BaseException:
        return translate(error, self._where)

    def close(self) -> None:
        self._checkpointer.close()
        with contextlib.suppress(sqlite3.Error), self.gate():
            self._connection.close()
        self._gate.close()


class SqliteCatalog(Catalog):
    """A catalog in a folder on this machine."""

    shared = False
    locking = False
    quick = True

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        super().__init__()
        self.folder = folder
        self.where = f"catalog {folder}"
        self._path = folder / FILE
        self._key = os.path.realpath(self._path)
        self._readers: Pool[SqliteTx] = Pool(self._new_reader, SqliteTx.close)
        self._closed = False
        self._sockets = WakeSockets(wake_folder(folder), self.notifier, self._change_detector)
        self._prepare(create)
        forks.watch(self)
        self._committer = Committer(
            lambda: _Writer(folder, self.where, self._tell, self._clock),
            "headrace-commit",
            self._frequent,
        )

    # -- opening ------------------------------------------------------------------------

    def _prepare(self, create: bool) -> None:
        if _unclosed:
            raise ForkedError(
                "this process was forked off in the middle of a transaction and cannot use SQLite; "
                "start it in another way, or fork at another time"
            )
        if sqlite3.sqlite_version_info < SQLITE_MIN:
            raise CatalogError(
                f"SQLite {sqlite3.sqlite_version} is too old: "
                f"{'.'.join(map(str, SQLITE_MIN))} or newer is needed"
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise NotACatalogError(f"{self.folder} is a file; give a folder for the catalog")
        if not self._path.exists():
            if not create:
                raise NotACatalogError(
                    f"there is no catalog at {self.folder}; `headrace stream create` makes one, "
                    "or name another with --catalog"
                )
            if self.folder.is_dir() and not self._is_ours(self.folder):
                raise NotACatalogError(
                    f"{self.folder} holds other files and no Headrace catalog; "
                    "give an empty or new folder"
                )
        try:
            with _opening:
                if not _opened[self._key]:
                    self._refuse_foreign_file()
                _opened[self._key] += 1
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._migrate()
            except BaseException:
                self._forget()
                raise
        except OSError as error:
            raise CatalogUnavailableError(f"{self.where} cannot be opened: {error}") from error
        except sqlite3.Error as error:
            raise translate(error, self.where) from error

    @staticmethod
    def _is_ours(folder: Path) -> bool:
        """Whether a folder is empty or holds only what another process just began to make."""
        return all(
            entry.name in (LOCK_FILE, "wake", "store") or entry.name.startswith(FILE)
            for entry in folder.iterdir()
        )

    def _refuse_foreign_file(self) -> None:
        """Judge an existing file by its first bytes, before anything is opened for writing.

        Never while this process has the file open: closing a descriptor would drop all POSIX
        locks that the process holds on the file, SQLite's among them.
        """
        try:
            with open(self._path, "rb") as file:
                header = file.read(72)
        except FileNotFoundError:
            return
        if not header:
            return
        if not header.startswith(b"SQLite format 3\x00"):
            raise NotACatalogError(f"{self._path} is not a SQLite file")
        if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
            raise NotACatalogError(f"{self._path} is a SQLite file of another program")

    def _migrate(self) -> None:
        with (
            contextlib.closing(Gate(self.folder / LOCK_FILE)) as gate,
            gate,
            contextlib.closing(connect(self._path)) as connection,
        ):
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if not tables:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                schema.migrate(SqliteTx(connection), TYPES, self.where)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    # -- reading ------------------------------------------------------------------------

    def read(self, fn: Callable[[Tx], T], *, snapshot: bool = False) -> T:
        with forks.section:
            tx = self._readers.take()
            try:
                if not snapshot:
                    return fn(tx)
                tx.execute("BEGIN")
                try:
                    return fn(tx)
                finally:
                    tx.execute("ROLLBACK")
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise translate(error, self.where) from error
            finally:
                self._readers.give(tx)

    def _new_reader(self) -> SqliteTx:
        try:
            connection = connect(self._path)
            connection.execute("PRAGMA query_only = ON")
            connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
        except sqlite3.Error as error:
            raise translate(error, self.where) from error
        return SqliteTx(connection, self._clock)

    # -- waiting ------------------------------------------------------------------------

    def _tell(self, channels: set[str]) -> None:
        self._sockets.send(channels)
        self.notifier.news(channels)

    def _listen(self, *, frequent: bool) -> None:
        self._sockets.listen()
        if frequent:
            self._sockets.want_frequent()

    def serve_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sockets.serve_on(loop)

    def leave_loop(self) -> None:
        self._sockets.leave_loop()

    @contextlib.contextmanager
    def _change_detector(self) -> Iterator[Callable[[], bool]]:
        """Yields a function that tells whether anything was committed since its last call."""
        with forks.section:
            connection = connect(self._path)
        last: Row | None = None

        def changed() -> bool:
            nonlocal last
            before = last
            with forks.section, contextlib.suppress(sqlite3.Error):
                last = connection.execute("PRAGMA data_version").fetchone()
            return last != before

        try:
            changed()
            yield changed
        finally:
            with forks.section:
                connection.close()

    def close(self) -> None:
        if self._closed:
            return
        self._committer.close()
        self._frequent.close()
        self._closed = True
        self._sockets.close()
        with forks.section:
            self._readers.close()
        self._forget()
        forks.unwatch(self)

    def forked(self) -> None:
        super().forked()
        self._closed = True
        self._readers.forked()
        self._sockets.forked()

    def _forget(self) -> None:
        with _opening:
            _opened[self._key] -= 1
            if not _opened[self._key] and self._key in _synced:
                os.close(_synced.pop(self._key))
        # Those who wait look again, and learn that the catalog is closed.
        self.notifier.everybody()
