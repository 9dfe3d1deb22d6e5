"""The floor of what SQLite can do here: a bare synced commit, to compare others with."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path


def commit_times(path: Path, value: bytes, seconds: float) -> list[float]:
    """Commit rows with a value to a new file for so long; how long each took."""
    times = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE floor (id INTEGER PRIMARY KEY, data BLOB)")
        end_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < end_s:
            connection.execute("INSERT INTO floor (data) VALUES (?)", (value,))
            times.append(time.perf_counter() - began_s)
    return times
