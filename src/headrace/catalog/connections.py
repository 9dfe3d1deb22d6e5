"""Connections to SQLite, and what a process has to remember of the files it has open.

Closing any descriptor of a file drops all POSIX locks that the process holds on it, SQLite's among
them; and a forked child has none of its parent's locks, whatever SQLite believes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.catalog import forks
from headrace.catalog.keys import DamagedText
from headrace.catalog.transaction import CatalogClock, Row, Tx
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    DiskFullError,
    ForkedError,
    InvalidInputError,
)

BUSY_TIMEOUT_S = 60.0
UNDECODED = "Could not decode to UTF-8"
"""How Python's error begins where a text of SQLite is not UTF-8."""

Identity = tuple[int, int]
"""Device and inode of a file."""

_opened: Counter[Identity] = Counter()
"""How often this process has each file open."""
_synced: dict[Identity, int] = {}
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
    """A connection that a forked child can find; used only within ``section.lock``."""


def _forked() -> None:
    """In a forked child: close all connections, so that SQLite forgets the parent's locks."""
    global _opening
    _opening = threading.Lock()
    if forks.fork.clean:
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


def identity(path: Path | str) -> Identity | None:
    """Which file is at a path, whatever way leads there; None if there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def opened(path: Path, judge: Callable[[], None]) -> Identity:
    """Count a catalog of this process; `judge` looks at the file first, and makes it.

    Never while this process has the file open: closing a descriptor would drop all POSIX locks
    that the process holds on the file, SQLite's among them.
    """
    with _opening:
        key = identity(path)
        if key is None or not _opened[key]:
            judge()
            key = identity(path)
        assert key is not None
        _opened[key] += 1
        return key


def closed(key: Identity) -> None:
    """Undo ``opened``."""
    with _opening:
        _opened[key] -= 1
        if not _opened[key] and key in _synced:
            os.close(_synced.pop(key))


def descriptor(path: Path, key: Identity) -> int:
    with _opening:
        if key not in _synced:
            _synced[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return _synced[key]


def refuse_if_forked() -> None:
    if _unclosed:
        raise ForkedError(
            "this process was forked off in the middle of a transaction and cannot use SQLite; "
            "start it in another way, or fork at another time"
        )


class SqliteTx(Tx):
    """A transaction, or a single read, on one SQLite connection.

    A bit that was lost in a text must not cost the rows beside it.  Python's own decoding raises
    there; the query is made again with one that does not, and so are all after it.
    """

    lazy = True

    def __init__(self, connection: sqlite3.Connection, clock: CatalogClock | None = None) -> None:
        super().__init__(clock)
        self._execute = connection.execute
        self._connection = connection

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        return self._execute(sql, params).rowcount

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._execute(sql, params).fetchall()
        except sqlite3.OperationalError as error:
            self._decode_all(error, sql)
            return self._execute(sql, params).fetchall()

    def row(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        cursor = self._execute(sql, params)
        try:
            row: Row | None = cursor.fetchone()
        except sqlite3.OperationalError as error:
            self._decode_all(error, sql)
            cursor = self._execute(sql, params)
            row = cursor.fetchone()
        cursor.close()
        return row

    def iterate(self, sql: str, params: Sequence[Any] = ()) -> Iterator[Row]:
        with contextlib.closing(self._execute(sql, params)) as cursor:
            while True:
                try:
                    yield from cursor
                except sqlite3.OperationalError as error:
                    self._decode_all(error, sql)  # and the cursor still stands at that row
                else:
                    return

    def _decode_all(self, error: sqlite3.OperationalError, sql: str) -> None:
        """Read damaged text from now on; another error, or a change, is raised as it is."""
        if not str(error).startswith(UNDECODED) or not sql.startswith("SELECT"):
            raise error
        self._connection.text_factory = DamagedText.read

    def executemany(self, sql: str, params: Sequence[Sequence[Any]]) -> int:
        return self._connection.executemany(sql, params).rowcount

    def _database_us(self) -> int:
        return time.time_ns() // 1000

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        self._connection.close()


def connect(path: Path) -> Connection:
    """Open a connection; call this, and use the connection, within ``section.lock``."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
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
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error).startswith(UNDECODED):
        return CatalogError(f"{where} is damaged ({error}); restore it from a copy")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        return CatalogUnavailableError(f"{where} cannot be read or written: {error}")
    return error
