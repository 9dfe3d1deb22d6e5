"""The embedded catalog: one SQLite file in a folder, shared by the processes of one machine.

WAL with ``synchronous=FULL``.  Writers of several processes queue on a lock file around each
transaction, since SQLite's own busy handler sleeps and retries and lets some starve.  The write
ahead log is copied back, and the disk waited for, by a thread beside the committer, so that no
append waits for it; the committer itself only copies the little that came meanwhile, which lets
SQLite start the log from its beginning again instead of growing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.catalog import schema
from headrace.catalog.base import Catalog
from headrace.catalog.committer import Committer, WriteDriver
from headrace.catalog.pool import Pool
from headrace.catalog.transaction import CatalogClock, Row, Tx
from headrace.catalog.wake import WakeSockets, wake_folder
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    DiskFullError,
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
"""Pages that a reader keeps at hand: the upper levels of every index, and little of a blob that is
not read again.  What fits into a processor's cache beside a load is quicker than what does not."""
CHECKPOINT_FRAMES = 2000
CHECKPOINT_REST = 150
"""So few frames are left to the committer, unless it writes faster than they are copied."""
CHECKPOINT_ROUNDS = 3
WAL_BYTES_MAX = 64 * 1024 * 1024

_opened: Counter[str] = Counter()
"""How often this process has each file open."""
_synced: dict[str, int] = {}
"""A descriptor of each file that is open, to wait for the disk with.

To close one takes away all locks that the process holds on the file, SQLite's among them.  So
there is one for all, and it is closed with the last of those who have the file open.
"""
_opening = threading.Lock()


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


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S
    )
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
    # A write that the system refuses is a quota or a limit on file sizes, most of all.
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
        self._connection = connect(folder / FILE)
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX // 2}")
        self._tx = SqliteTx(self._connection, clock)
        self._gate = _Gate(folder / LOCK_FILE)
        self._sync: bool | None = None
        self._checkpointer = _Checkpointer(folder / FILE)

    def gate(self) -> _Gate:
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
        self._checkpointer.after_commit(self)

    def finish_checkpoint(self) -> None:
        """Copy back what came while the thread copied, so that the log starts afresh."""
        with self.gate(), contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def translate(self, error: BaseException) -> BaseException:
        return translate(error, self._where)

    def close(self) -> None:
        self._checkpointer.close()
        with contextlib.suppress(sqlite3.Error), self.gate():
            self._connection.close()
        self._gate.close()


class _Gate:
    """The lock file on which the writers of all processes queue."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._inside = False

    def __enter__(self) -> None:
        if not self._inside:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._inside = True

    def try_enter(self) -> bool:
        """Enter if nobody is inside; to enter once more then takes no time."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._inside = True
        return True

    def __exit__(self, *_: object) -> None:
        self._inside = False
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)


class _Checkpointer:
    """Copies the write-ahead log back into the database on a thread of its own.

    Runs once about ``CHECKPOINT_FRAMES`` have gathered.  SQLite tells how many there are only
    when it copies, so the number of commits to wait for is learned from the last time; a log
    file that has grown large is copied without waiting.

    SQLite waits for the disk only when it has copied all there is, which is left to the committer.
    So the thread waits for what it has copied, and copies again what came meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal = f"{path}-wal"
        self._file = _descriptor(path)
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

    def after_commit(self, writer: _Writer) -> None:
        if self._copied.is_set():
            self._copied.clear()
            writer.finish_checkpoint()
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
        connection = connect(self._path)
        try:
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._closing:
                    return
                commits, self._commits = self._commits, 0
                frames = self._copy(connection)
                if frames > 0:
                    wanted = commits * CHECKPOINT_FRAMES // frames
                    self._commits_wanted = max(1, min(wanted, CHECKPOINT_FRAMES))
                self._copied.set()
        finally:
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
        self._prepare(create)
        self._sockets = WakeSockets(wake_folder(folder), self.notifier, self._change_detector)
        self._committer = Committer(
            lambda: _Writer(folder, self.where, self._tell, self._clock),
            "headrace-commit",
            self._frequent,
        )

    # -- opening ------------------------------------------------------------------------

    def _prepare(self, create: bool) -> None:
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

        Never while this process has the file open: to close a file takes away all locks that the
        process holds on it, SQLite's among them.
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
        lock_file = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            with contextlib.closing(connect(self._path)) as connection:
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
        finally:
            os.close(lock_file)

    # -- reading ------------------------------------------------------------------------

    def read(self, fn: Callable[[Tx], T], *, snapshot: bool = False) -> T:
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
        with contextlib.closing(connect(self._path)) as connection:
            last: Row | None = None

            def changed() -> bool:
                nonlocal last
                before = last
                with contextlib.suppress(sqlite3.Error):
                    last = connection.execute("PRAGMA data_version").fetchone()
                return last != before

            changed()
            yield changed

    def close(self) -> None:
        if self._closed:
            return
        self._committer.close()
        self._frequent.close()
        self._closed = True
        self._sockets.close()
        self._readers.close()
        self._forget()

    def _forget(self) -> None:
        with _opening:
            _opened[self._key] -= 1
            if not _opened[self._key] and self._key in _synced:
                os.close(_synced.pop(self._key))
        # Those who wait look again, and learn that the catalog is closed.
        self.notifier.everybody()
