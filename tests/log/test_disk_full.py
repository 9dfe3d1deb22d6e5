"""A full disk: the append fails and says so, the log stays readable, and goes on afterwards."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.catalog import Tx, batches, open_catalog
from headrace.catalog.sqlite import SqliteCatalog
from headrace.errors import CatalogUnavailableError, DiskFullError
from headrace.log import limits, reserve
from headrace.log.log import Log
from headrace.log.open import open_log
from headrace.store import open_store
from tests.log.helpers import check_dense, create, event, everything, files, read, table
from tests.support import process


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(open_catalog(tmp_path / "catalog")) as catalog:
        yield Log(catalog, open_store(tmp_path / "store"))


def set_room(log: Log, pages: int) -> None:
    """Let the database grow by so many pages, as a disk with so much room would."""
    log.catalog.write(
        lambda tx: tx.rows(f"PRAGMA max_page_count = {tx.rows('PRAGMA page_count')[0][0] + pages}")
    )


def test_an_append_without_room_changes_nothing(log: Log) -> None:
    create(log, segments=2)
    log.append("s", table(50))
    set_room(log, 5)
    before = everything(log)
    for _ in range(3):
        with pytest.raises(DiskFullError, match="no room left"):
            log.append("s", table(50, value_bytes=2000))
        assert everything(log) == before
        assert len(read(log)) == 50
    log.append("s", event("a small one fits"))
    set_room(log, 10_000)
    log.append("s", table(50, value_bytes=2000))
    rows = read(log)
    check_dense(rows)
    assert len(rows) == 101


def test_companions_of_an_append_without_room_are_told_the_truth(log: Log) -> None:
    """In one group: each append that was said to be good is there, and no other."""
    create(log)
    set_room(log, 40)
    entered, release = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        assert release.wait(20)

    holder = threading.Thread(target=lambda: log.catalog.write(hold))
    holder.start()
    assert entered.wait(20)
    outcomes: dict[int, bool] = {}

    def send(number: int) -> None:
        size = 400_000 if number == 4 else 20
        try:
            log.append("s", event(f"{number}:" + "x" * size))
            outcomes[number] = True
        except DiskFullError:
            outcomes[number] = False

    threads = [threading.Thread(target=send, args=(n,)) for n in range(9)]
    for thread in threads:
        thread.start()
    release.set()
    for thread in threads:
        thread.join()
    holder.join()
    assert outcomes[4] is False
    stored = {int(row["value"].split(b":")[0]) for row in read(log)}
    assert stored == {number for number, good in outcomes.items() if good}
    set_room(log, 10_000)
    log.append("s", event("9:"))


def test_a_store_without_room_changes_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    create(log, segments=2)
    log.append("s", table(200))
    before = everything(log)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(DiskFullError):
            log.append("s", table(200))
    assert everything(log) == before
    assert len(read(log)) == 200
    log.append("s", table(200))
    assert len(read(log)) == 400


def test_a_trim_gets_room_that_was_kept_back(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be removed before something is written; steps become small, and go on."""
    create(log)
    for n in range(30):
        log.append("s", event(n))
    reserve.fill(log.catalog)
    assert isinstance(log.catalog, SqliteCatalog)
    kept = log.catalog.folder / reserve.FILE
    assert not kept.exists(), "a small catalog keeps nothing back"
    monkeypatch.setattr(reserve, "CATALOG_BYTES_MIN", 1)
    real, steps = batches.trim, []

    def trim(tx: Tx, stream_id: int, segment_id: int, before: int, most: int) -> bool:
        steps.append(most)
        if kept.exists() or most > 10:
            raise DiskFullError("no room left to write")
        return real(tx, stream_id, segment_id, before, most)

    monkeypatch.setattr(batches, "trim", trim)
    for cut in (10, 25):
        reserve.fill(log.catalog)
        assert os.stat(kept).st_blocks * 512 >= reserve.BYTES
        assert log.trim("s", {0: cut}) == {0: cut}
        assert not kept.exists()
    assert steps[:4] == [1000, 100, 10, 10]

    def never(*_: object) -> bool:
        raise DiskFullError("no room left to write")

    monkeypatch.setattr(batches, "trim", never)
    with pytest.raises(DiskFullError):
        log.trim("s", {0: 30})
    assert [row["value"] for row in read(log)] == [b"%d" % n for n in range(25, 30)]


def test_a_catalog_that_cannot_be_opened_gets_room_that_was_kept_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log(tmp_path / "catalog").catalog.close()
    kept = tmp_path / "catalog" / reserve.FILE
    kept.touch()

    def full(url: object, *, create: bool) -> SqliteCatalog:
        if kept.exists():
            raise CatalogUnavailableError("disk I/O error")
        return SqliteCatalog(tmp_path / "catalog", create=create)

    monkeypatch.setattr("headrace.log.open.open_catalog", full)
    with pytest.raises(CatalogUnavailableError):
        open_log(tmp_path / "catalog")
    assert kept.exists(), "there is room, so that is not the reason"
    monkeypatch.setattr(reserve, "BYTES", 1 << 62)
    open_log(tmp_path / "catalog").catalog.close()


@pytest.mark.parametrize("what", ["blobs", "files"])
def test_a_process_that_may_write_no_more_fails_cleanly(
    log: Log, tmp_path: Path, what: str, reopened: Callable[[], Log]
) -> None:
    """For real: the system refuses to let the files grow."""
    create(log)
    assert isinstance(log.catalog, SqliteCatalog)
    with process("tests.log.filler", str(log.catalog.folder), str(tmp_path / "store"), what) as one:
        good, refused, kinds, readable, after = one.line().split()
        one.finish()
    assert int(refused) > 0
    assert int(readable) == 300 + 1000 * int(good)
    assert int(after) == int(readable) + 1000
    assert kinds == "DiskFullError"
    rows = read(reopened())
    check_dense(rows)
    assert len(rows) == int(after)
    named = log.catalog.read(lambda tx: tx.rows("SELECT path FROM batches WHERE path <> ''"))
    assert files(log) == sorted(row[0] for row in named)


@pytest.fixture
def reopened(tmp_path: Path) -> Iterator[Callable[[], Log]]:
    opened: list[Log] = []

    def again() -> Log:
        opened.append(Log(open_catalog(tmp_path / "catalog"), open_store(tmp_path / "store")))
        return opened[-1]

    yield again
    for each in opened:
        each.catalog.close()
