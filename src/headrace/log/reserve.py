"""Room kept back on the disk of a folder catalog, so that one can trim when there is no other.

Removing batches takes room first: SQLite writes the changed pages to its write-ahead log (WAL).  So
a file of ``BYTES`` lies beside a database that is not small.  A trim that finds the disk full
removes it, which is room enough to copy the WAL into the database and to begin it anew.  The file
is made again when the log is opened, or its housekeeping runs, and there is room.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headrace.catalog import Catalog
from headrace.catalog.sqlite import FILE as DATABASE
from headrace.catalog.sqlite import SqliteCatalog

FILE = "reserve"
BYTES = 4 * 1024 * 1024
CATALOG_BYTES_MIN = 16 * BYTES
"""Smaller catalogs do without: they did not fill the disk."""


def fill(catalog: Catalog) -> None:
    """Keep room back, if there is any and it is not kept back already."""
    if not isinstance(catalog, SqliteCatalog):
        return
    path = catalog.folder / FILE
    if path.exists() or _size(path.with_name(DATABASE)) < CATALOG_BYTES_MIN:
        return
    made = path.with_name(f"{FILE}.{os.getpid()}")
    with suppress(OSError):
        try:
            descriptor = os.open(made, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, BYTES)
            finally:
                os.close(descriptor)
            made.rename(path)
        finally:
            made.unlink(missing_ok=True)


def spend(catalog: Catalog) -> bool:
    """Give the room back to the disk; false if none was kept."""
    if not isinstance(catalog, SqliteCatalog):
        return False
    path = catalog.folder / FILE
    kept = path.exists()
    path.unlink(missing_ok=True)
    catalog.begin_log_anew()
    return kept


def spend_to_open(url: str | Path) -> bool:
    """For a catalog that cannot be opened: give the room back if the disk is full."""
    path = Path(url).expanduser() / FILE
    if "://" in str(url) or not path.exists():
        return False
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize >= BYTES:
        return False
    path.unlink(missing_ok=True)
    return True


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
