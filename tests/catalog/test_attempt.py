"""Commits on the caller's own thread: only where nobody has to be waited for."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.catalog import Catalog, Tx
from headrace.catalog.committer import Operation
from headrace.catalog.sqlite import SqliteCatalog
from headrace.catalog.sqlite_writer import LOCK_FILE
from tests.catalog.test_commit import Hold, Outcomes, put, stored
from tests.support import wait_until


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(tmp_path / "catalog")
    yield catalog
    catalog.close()


def operations(
    outcomes: Outcomes, *writes: Callable[[Tx], object], sync: bool = False
) -> list[Operation]:
    return [Operation(write, (), sync, outcomes.of(n)) for n, write in enumerate(writes)]


def test_small_writes_are_committed_before_the_call_returns(sqlite: SqliteCatalog) -> None:
    outcomes = Outcomes(3)

    def broken(tx: Tx) -> None:
        put("broken")(tx)
        raise ValueError("no")

    assert sqlite.attempt(operations(outcomes, put("a"), broken, put("b")))
    assert set(outcomes.results) == {0, 2}
    assert isinstance(outcomes.errors[1], ValueError)
    assert stored(sqlite) == {"a", "b"}


def test_whoever_is_committing_is_not_waited_for(sqlite: SqliteCatalog) -> None:
    with Hold(sqlite):
        assert not sqlite.attempt(operations(Outcomes(1), put("a")))
    assert stored(sqlite) == set()


def test_another_process_that_writes_is_not_waited_for(sqlite: SqliteCatalog) -> None:
    lock = os.open(sqlite.folder / LOCK_FILE, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not sqlite.attempt(operations(Outcomes(1), put("a")))
    finally:
        os.close(lock)
    assert sqlite.attempt(operations(Outcomes(1), put("a")))
    assert stored(sqlite) == {"a"}


def test_the_write_lock_is_free_again_afterwards(sqlite: SqliteCatalog) -> None:
    assert sqlite.attempt(operations(Outcomes(1), put("a")))
    lock = os.open(sqlite.folder / LOCK_FILE, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)


def test_a_closed_catalog_and_a_server_take_no_attempts(
    sqlite: SqliteCatalog, reopen: Callable[[], Catalog], catalog_url: str
) -> None:
    sqlite.close()
    assert not sqlite.attempt(operations(Outcomes(1), put("a")))
    taken = reopen().attempt(operations(Outcomes(1), put("a")))
    assert taken == (not catalog_url.startswith("postgresql"))


class LateTurn:
    """A turn that others can have while the committer's thread is on its way to it."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def __enter__(self) -> None:
        assert self.free.wait(20)

    def __exit__(self, *_: object) -> None:
        pass

    def acquire(self, blocking: bool = True) -> bool:
        return not blocking

    def release(self) -> None:
        pass

    def _is_owned(self) -> bool:
        return False


def test_what_the_thread_has_taken_and_not_begun_is_not_overtaken(sqlite: SqliteCatalog) -> None:
    committer = sqlite._committer
    turn = LateTurn()
    committer._turn = turn  # type: ignore[assignment]
    outcomes = Outcomes(1)
    sqlite.submit(put("first"), outcomes.of(0))
    wait_until(committer._queue.empty, "the thread to take it")
    assert not sqlite.attempt(operations(Outcomes(1), put("second")))
    turn.free.set()
    outcomes.wait()
    assert stored(sqlite) == {"first"}
