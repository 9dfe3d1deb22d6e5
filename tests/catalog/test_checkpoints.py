"""Checkpoints of the write-ahead log go on whatever happened to one of them."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from headrace.catalog.checkpoints import Checkpointer
from headrace.catalog.connections import connect
from tests.support import wait_until


def test_a_checkpoint_that_could_not_open_the_database_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute("CREATE TABLE kept (n INTEGER)")
    opened: list[bool] = []

    def open_second(path: Path) -> sqlite3.Connection:
        opened.append(bool(opened))
        if not opened[-1]:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(path)

    file = os.open(path, os.O_RDWR)
    checkpointer = Checkpointer(path, file, open_second)
    finished: list[int] = []

    def write() -> bool:
        writer.execute("INSERT INTO kept VALUES (1)")
        checkpointer.after_commit(lambda: finished.append(len(opened)))
        return len(finished) > 1

    try:
        wait_until(write, "a second checkpoint is made")
        assert finished == [1, 2]
        assert opened == [False, True]
    finally:
        checkpointer.close()
        os.close(file)
        writer.close()
