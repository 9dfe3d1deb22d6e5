"""The embedded catalog: one SQLite file in a folder, shared by the processes of one machine.

A write-ahead log with ``synchronous=FULL``.  Writers of several processes queue on a lock file
around each transaction (``gate``).  Checkpoints are made by a thread beside the committer
(``checkpoints``).  Mapping the database file for large reads (``mmap_size``) was tried and taken
out: consumers were slower with it, and reads no quicker.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.catalog import forks, private, schema
from headrace.catalog.base import Catalog
from headrace.catalog.committer import Committer
from headrace.catalog.connections import (
    Identity,
    SqliteTx,
    closed,
    connect,
    identity,
    opened,
    refuse_if_forked,
    translate,
)
from headrace.catalog.forks import section
from headrace.catalog.gate import Gate
from headrace.catalog.pool import Pool
from headrace.catalog.sqlite_writer import LOCK_FILE, SqliteWriter
from headrace.catalog.transaction import Tx
from headrace.catalog.wake import WakeSockets, wake_folder
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    NotACatalogError,
)

if TYPE_CHECKING:
    import asyncio  # slow to load, and nothing for whoever only looks

T = TypeVar("T")

FILE = "headrace.db"
APPLICATION_ID = 0x48445243
SQLITE_MIN = (3, 35, 0)
TYPES = {
    # Streams and segments are known by their numbers in other processes, so none is used twice.
    "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "serial": "INTEGER PRIMARY KEY",
    "blob": "BLOB",
}
PLACE_S = 0.05
"""A file that was replaced in a folder that stayed is noticed after this time."""
SHRINK_FREE_MIN = 32 << 20
SHRINK_USED_MAX = 64 << 20
"""Bytes of a file that are free, and those that are copied to give them back (below a second)."""
READER_CACHE_KIB = 400
"""A reader's page cache: room for the upper levels of every index, and little for blobs, which are
not read again.  Small, so that it fits into the processor's cache together with a load."""


class SqliteCatalog(Catalog):
    """A catalog in a folder on this machine."""

    shared = False
    locking = False
    quick = True

    def __init__(self, folder: Path, *, create: bool = True, look: bool = False) -> None:
        """``look``: read it as it is, also one of another version, and change nothing in it."""
        super().__init__()
        self.folder = folder
        self.where = f"catalog {folder}"
        self.address = str(folder.absolute())
        self._path = folder.absolute() / FILE
        self._name = str(self._path)
        self._readers: Pool[SqliteTx] = Pool(self._new_reader, SqliteTx.close)
        self._sockets = WakeSockets(wake_folder(folder), self.notifier, self._others)
        self._seen_of_others = 0
        self._sockets_key: Identity | None = None
        self._place_due_s = 0.0
        if look:
            self._look()
        else:
            self._prepare(create)
        forks.watch(self)
        self._committer = Committer(
            lambda: SqliteWriter(
                self._path, self._key, self.where, self._still_here, self._announce, self._clock
            ),
            "headrace-commit",
            self._frequent,
        )

    # -- opening ------------------------------------------------------------------------

    def _look(self) -> None:
        self.looked = True
        refuse_if_forked()
        if not self._path.exists():
            raise NotACatalogError(f"there is no catalog at {self.folder}")
        try:
            self._key = opened(self._path, self._refuse_foreign_file)
            with section.lock, contextlib.closing(connect(self._path)) as connection:
                schema.judge_look(connection.execute(schema.QUERY).fetchone(), self.where)
        except OSError as error:
            raise CatalogUnavailableError(f"{self.where} cannot be opened: {error}") from error
        except sqlite3.Error as error:
            raise translate(error, self.where) from error

    def _prepare(self, create: bool) -> None:
        refuse_if_forked()
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
            private.make_folder(self.folder)
            self._key = opened(self._path, self._refuse_foreign_file)
            try:
                private.mend(self.folder, (FILE, f"{FILE}-wal", f"{FILE}-shm", LOCK_FILE))
                self._migrate()
                with contextlib.suppress(FileExistsError):  # whoever listens says what is wrong
                    private.make_folder(wake_folder(self.folder), inside=True)
            except BaseException:
                closed(self._key)
                raise
        except OSError as error:
            raise CatalogUnavailableError(f"{self.where} cannot be opened: {error}") from error
        except sqlite3.Error as error:
            found = translate(error, self.where)
            if found is error:
                found = CatalogError(
                    f"{self.where} cannot be brought to version {schema.VERSION}: {error}; restore "
                    "it from a copy, or give a new folder"
                )
            raise found from error

    @staticmethod
    def _is_ours(folder: Path) -> bool:
        """Whether a folder is empty or holds only what another process just began to make."""
        return all(
            entry.name in (LOCK_FILE, "wake", "store") or entry.name.startswith(FILE)
            for entry in folder.iterdir()
        )

    def _refuse_foreign_file(self) -> None:
        """Judge a file by its first bytes, before anything is written; make it if there is none."""
        with open(private.make_file(self._path, os.O_RDONLY), "rb") as file:
            header = file.read(72)
        if header and not header.startswith(b"SQLite format 3\x00"):
            raise NotACatalogError(f"{self._path} is not a SQLite file")
        if header and int.from_bytes(header[68:72], "big") != APPLICATION_ID:
            raise NotACatalogError(f"{self._path} is a SQLite file of another program")

    def _migrate(self) -> None:
        def migrate(connection: sqlite3.Connection) -> None:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if not tables:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            schema.migrate(SqliteTx(connection), TYPES, self.where)
            connection.execute("COMMIT")

        if not self._is_current():
            self._alone(migrate)

    def _alone(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Use a connection while nobody else writes."""
        gate = Gate(self._path.with_name(LOCK_FILE))
        try:
            gate.enter()
            with section.lock, contextlib.closing(connect(self._path)) as connection:
                work(connection)
        finally:
            gate.leave()
            gate.close()

    def _is_current(self) -> bool:
        """Whether there is nothing to migrate; looks without waiting for whoever writes."""
        with (
            section.lock,
            contextlib.closing(connect(self._path)) as connection,
            contextlib.suppress(sqlite3.OperationalError),
        ):
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            found = connection.execute(schema.QUERY).fetchone()
            return bool(mode == "wal" and schema.judge(found, self.where) == schema.VERSION)
        return False

    # -- reading ------------------------------------------------------------------------

    def read(self, fn: Callable[[Tx], T], *, snapshot: bool = False) -> T:
        with section.lock:
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
                # Interrupted on its way out it may still have its snapshot: not for the next one.
                self._readers.give(tx, broken=tx.in_transaction)

    def _still_here(self) -> os.stat_result | None:
        """After a commit: raise unless the catalog is where it was; what went elsewhere is lost.

        Whoever notifies looks at the folder of sockets (which is returned), and that folder tells
        whether the catalog's was moved.  So the file is looked at only every ``PLACE_S``.
        """
        about, now_s = self._sockets.look(), time.monotonic()
        key = about and (about.st_dev, about.st_ino)
        if key is None or key != self._sockets_key or now_s >= self._place_due_s:
            self._check_place()
            self._sockets_key, self._place_due_s = key, now_s + PLACE_S
        return about

    def _check_place(self) -> None:
        """Raise unless the file that was opened is still the one at its path."""
        if identity(self._name) != self._key:
            raise CatalogUnavailableError(
                f"{self.where} was moved or removed while it was open, so nothing more is kept; "
                "close it, and open it where it is now"
            )

    def _new_reader(self) -> SqliteTx:
        self._check_place()
        try:
            connection = connect(self._path)
            connection.execute("PRAGMA query_only = ON")
            connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
        except sqlite3.Error as error:
            raise translate(error, self.where) from error
        return SqliteTx(connection, self._clock)

    def shrink(self) -> bool:
        """Give free pages back, if they are most of a large file and copying the rest is quick.

        SQLite can do so bit by bit (``auto_vacuum``), but then a commit of some KB writes a page
        more.  Readers go on meanwhile; writers wait.
        """
        names = ("page_size", "page_count", "freelist_count")
        page, pages, free = self.read(
            lambda tx: [tx.rows(f"PRAGMA {name}")[0][0] for name in names]
        )
        used = pages - free
        if free * page < SHRINK_FREE_MIN or used * page > SHRINK_USED_MAX or free < 3 * used:
            return False

        def vacuum(connection: sqlite3.Connection) -> None:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

        try:
            self._alone(vacuum)
        except sqlite3.Error as error:
            raise translate(error, self.where) from error
        return True

    def mark(self, *, aside: bool = True) -> tuple[int, ...]:
        made = self._committer.commits - (0 if aside else self._committer.asides)
        return (self._others(), made)

    def size_bytes(self) -> int:
        files = (self._path, self._path.with_name(FILE + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def begin_log_anew(self) -> None:
        """Copy the write-ahead log into the database and cut it off: for a disk that is full."""
        self.read(lambda tx: tx.rows("PRAGMA wal_checkpoint(TRUNCATE)"))

    # -- waiting ------------------------------------------------------------------------

    def _tell(self, channels: set[str]) -> None:
        self._announce(channels, self._sockets.look())

    def _announce(self, channels: set[str], about: os.stat_result | None) -> None:
        self._sockets.send(channels, about)
        self.notifier.news(channels)

    def _listen(self, *, frequent: bool) -> None:
        self._sockets.listen()
        if frequent:
            self._sockets.want_frequent()

    def serve_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sockets.serve_on(loop)

    def leave_loop(self) -> None:
        self._sockets.leave_loop()

    def _others(self) -> int:
        """A number that grows when others have committed."""
        with contextlib.suppress(sqlite3.Error):
            self._seen_of_others = self._committer.others()
        return self._seen_of_others

    def _release(self) -> None:
        self._sockets.close()
        with section.lock:
            self._readers.close()
        closed(self._key)

    def forked(self) -> None:
        super().forked()
        self._readers.forked()
        self._sockets.forked()
