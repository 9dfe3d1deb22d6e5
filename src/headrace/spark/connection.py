"""The address of a log in Spark's options, and one open log per process.

Python workers are reused by later batches, so a log that was opened stays open in its process.  A
worker on another machine than the driver must be able to reach catalog and store: what cannot be
shared is refused on the driver where the master is known, and otherwise by the first task, before
it reads or writes anything.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from weakref import WeakKeyDictionary

import msgspec

from headrace.catalog import schema
from headrace.catalog.sqlite import FILE, SqliteCatalog
from headrace.errors import CatalogUnavailableError, InvalidOptionError, NotSharedError
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.spark.no_tables import NO_TABLE
from headrace.spark.other_names import instead
from headrace.spark.python_workers import tend_workers
from headrace.spark.session import MASTER_VARIABLE, is_local

# All of our code that runs in Spark's workers imports this module.
tend_workers()

CATALOG_VARIABLE = "HEADRACE_CATALOG"
STORE_OPTION = "store."
"""Prefix of options for the storage client."""
TABLE_OPTION = "option."
"""Prefix of what Spark makes of the options of CREATE TABLE."""
CONNECTION_OPTIONS = ("catalog", "store")


def lower(
    options: Mapping[str, str], known: tuple[str, ...], *, hidden: tuple[str, ...] = ()
) -> dict[str, str]:
    """Options by their names in lower case; an error names one that is unknown."""
    given = {name.lower(): value for name, value in options.items()}
    names = {name.lower() for name in (*known, *hidden)}
    if any(name.startswith(TABLE_OPTION) for name in given):
        raise InvalidOptionError(NO_TABLE)
    for name in given:
        if name not in names and not name.startswith(STORE_OPTION):
            if (other := instead(name)) is not None:
                raise InvalidOptionError(f"option {name!r} is not one of Headrace: {other}")
            raise InvalidOptionError(
                f"unknown option {name!r}; there are {', '.join(known)} and {STORE_OPTION}…"
            )
    return given


class Connection(msgspec.Struct, frozen=True):
    """The address of a log; ``machine`` is the one on which the options were given."""

    catalog: str
    store: str | None = None
    store_options: tuple[tuple[str, str], ...] = ()
    machine: str = ""

    def log(self) -> Log:
        """The log, opened once per process; its catalog must exist."""
        with _opening:
            found = _opened.get(self)
            if found is None or found[0] != os.getpid() or not _is_current(found[1]):
                opened = open_log(
                    self.catalog, self.store, store_options=dict(self.store_options), create=False
                )
                found = _opened[self] = (os.getpid(), opened)
                _files[opened] = _file_of(opened)
        return found[1]

    @property
    def options(self) -> dict[str, str]:
        """The options that name it."""
        store = {} if self.store is None else {"store": self.store}
        more = {STORE_OPTION + name: value for name, value in self.store_options}
        return {"catalog": self.catalog} | store | more

    def check_reachable(self) -> None:
        """In a task: refuse a log that this machine cannot reach, though the driver's can."""
        if not self.machine or self.machine == machine():
            return
        if "://" not in self.catalog or self.catalog.startswith(("file:", "sqlite:")):
            self._refuse(f"catalog {self.catalog}")
        store = self.log().store
        if store is not None and not store.shared:
            self._refuse(f"store {store.url}")

    def _refuse(self, what: str) -> NoReturn:
        raise NotSharedError(
            f"the task runs on {socket.gethostname()}, and the {what} is on the driver's machine: "
            "use a postgresql:// catalog with a store such as s3://…, or a local master"
        )


_opened: dict[Connection, tuple[int, Log]] = {}
_files: WeakKeyDictionary[Log, tuple[int, int] | None] = WeakKeyDictionary()
_opening = threading.Lock()


def _is_current(log: Log) -> bool:
    """Whether the catalog is still the one that was opened.

    Workers live long, and another catalog, with another store, may have been made at the same
    address.  A removed folder stays open here, and whatever is written to it would be lost.
    """
    if _file_of(log) != _files.get(log):
        return False
    try:
        return log.catalog.read(lambda tx: schema.get_setting(tx, "catalog_id")) == log.prefix
    except CatalogUnavailableError:
        return True
    except Exception:
        return False


def _file_of(log: Log) -> tuple[int, int] | None:
    """Device and inode of a folder catalog's file, which tell it from a later one there."""
    if not isinstance(log.catalog, SqliteCatalog):
        return None
    try:
        found = os.stat(log.catalog.folder / FILE)
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def connection_of(options: Mapping[str, str]) -> Connection:
    """The connection that options name; their keys are in lower case."""
    catalog = options.get("catalog") or os.environ.get(CATALOG_VARIABLE)
    if not catalog:
        raise InvalidOptionError(
            "option 'catalog' is missing: give a folder or a postgresql:// address "
            f"(or set ${CATALOG_VARIABLE})"
        )
    more = {
        name.removeprefix(STORE_OPTION): value
        for name, value in options.items()
        if name.startswith(STORE_OPTION)
    }
    return connection_to(catalog, options.get("store"), more)


def connection_to(
    catalog: str, store: str | None = None, store_options: Mapping[str, str] | None = None
) -> Connection:
    """The connection to a log, for Python processes of Spark on any machine."""
    more = tuple(sorted((store_options or {}).items()))
    return Connection(
        _absolute(catalog), None if store is None else _absolute(store), more, machine()
    )


def _absolute(place: str) -> str:
    """A path made absolute: workers have another working directory than the driver."""
    return place if "://" in place or not place else str(Path(place).expanduser().absolute())


def check_shared(log: Log, master: str | None) -> None:
    """Refuse a log that executors of this master cannot reach."""
    if master is None or is_local(master):
        return
    there = f"is on this machine, and executors of {master} are not: use a"
    if not log.catalog.shared:
        raise NotSharedError(
            f"{log.catalog.where} {there} postgresql:// catalog, or a local master"
        )
    if log.store is not None and not log.store.shared:
        raise NotSharedError(
            f"the store {log.store.url} {there} store such as s3://bucket/prefix, or a local master"
        )


def machine() -> str:
    """An identifier of this machine."""
    try:
        return Path("/etc/machine-id").read_text().strip() + "/" + socket.gethostname()
    except OSError:
        return socket.gethostname()


def driver_master() -> str | None:
    """The master, as far as a Python process of the driver can tell.

    Spark does not tell it.  A session of ours leaves it in the environment; for others it stands
    on the command line of the Java process that we descend from.
    """
    return os.environ.get(MASTER_VARIABLE) or _master_of_ancestors()


def _master_of_ancestors() -> str | None:
    pid = os.getppid()
    while pid > 1:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            status = Path(f"/proc/{pid}/stat").read_text()
        except (OSError, ValueError):
            return None
        for at, word in enumerate(words):
            if word.startswith("spark.master="):
                return word.partition("=")[2]
            if word == "--master" and at + 1 < len(words):
                return words[at + 1]
        pid = int(status.rpartition(")")[2].split()[1])
    return None
