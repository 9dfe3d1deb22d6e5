"""Sweep: orphans go once they are old; what anybody may still need never does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headrace.catalog import Catalog, open_catalog
from headrace.errors import CatalogError, InvalidInputError, StoreUnavailableError
from headrace.log import limits
from headrace.log import sweep as sweep_module
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.store import Store, open_store
from tests.conftest import s3_options
from tests.log.helpers import create, everything, files, numbers, read, table


@pytest.fixture
def filed(log: Log, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Two files of a stream."""
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    create(log)
    log.append("s", table(200))
    log.append("s", table(200))
    return log


def make_old(log: Log, *paths: str, by_s: float = 4000) -> None:
    assert log.store is not None
    then = time.time() - by_s
    for path in paths:
        os.utime(Path(log.store.url) / path, (then, then))


def bury_longer(log: Log, by_s: float) -> None:
    log.catalog.write(
        lambda tx: tx.execute("UPDATE graveyard SET buried_us = buried_us - ?", (int(by_s * 1e6),))
    )


def put(log: Log, path: str) -> str:
    assert log.store is not None
    log.store.put(path, b"orphan")
    return path


def test_orphans_go_once_they_are_old(filed: Log) -> None:
    named = files(filed)
    young = put(filed, f"{filed.prefix}/1/0/young.parquet")
    old = put(filed, f"{filed.prefix}/1/0/old.parquet")
    make_old(filed, old, *named)
    looked: list[int] = []
    dry = filed.sweep(dry_run=True)
    assert (dry.files, dry.orphans, dry.orphan_bytes, dry.buried, dry.dry_run) == (4, 1, 6, 0, True)
    assert files(filed) == sorted([*named, young, old])
    swept = filed.sweep(progress=looked.append)
    assert (swept.files, swept.orphans, swept.dry_run) == (4, 1, False)
    assert looked == [4]
    assert files(filed) == sorted([*named, young])
    assert filed.sweep().orphans == 0
    assert len(read(filed)) == 400


def test_the_grace_can_be_made_longer_but_not_too_short(filed: Log) -> None:
    orphan = put(filed, f"{filed.prefix}/1/0/o.parquet")
    make_old(filed, orphan, by_s=5000)
    assert filed.sweep(older_than_s=6000).orphans == 0
    for grace_s in (limits.APPEND_DEADLINE_S, 0, -1):
        with pytest.raises(InvalidInputError, match="under way"):
            filed.sweep(older_than_s=grace_s)
    assert orphan in files(filed)
    assert filed.sweep(older_than_s=4000).orphans == 1


def test_files_of_other_catalogs_and_programs_are_left_alone(filed: Log, tmp_path: Path) -> None:
    assert filed.store is not None
    other = Log(open_catalog(tmp_path / "other"), filed.store)
    assert other.prefix != filed.prefix
    create(other)
    other.append("s", table(200))
    foreign = [put(filed, "readme.txt"), put(filed, f"{filed.prefix}x/1/0/a.parquet")]
    make_old(filed, *files(filed))
    assert filed.sweep().orphans == 0
    assert other.sweep().orphans == 0
    assert set(foreign) <= set(files(filed))
    assert len(read(other)) == 200
    other.catalog.close()


def test_trimmed_files_stay_for_a_grace_and_then_go(filed: Log) -> None:
    first, second = [row[0] for row in paths(filed)]
    make_old(filed, *files(filed))
    filed.trim("s", {0: 200})
    assert filed.sweep().buried == 0
    assert filed.empty_graveyard() == 0
    assert files(filed) == sorted([first, second])
    bury_longer(filed, limits.READ_GRACE_S + 1)
    assert filed.sweep(dry_run=True).buried == 1
    assert len(files(filed)) == 2
    swept = filed.sweep()
    assert (swept.buried, swept.orphans) == (1, 0)
    assert files(filed) == [second]
    assert filed.sweep().buried == 0
    assert len(read(filed)) == 200


def paths(log: Log) -> list[tuple[str]]:
    return log.catalog.read(
        lambda tx: tx.rows("SELECT path FROM batches WHERE path <> '' ORDER BY start_offset")
    )


def test_the_files_of_a_deleted_stream_go_after_the_grace(filed: Log) -> None:
    make_old(filed, *files(filed))
    filed.delete_stream("s")
    assert len(files(filed)) == 2
    assert filed.sweep().orphans == 0
    assert len(files(filed)) == 2
    bury_longer(filed, limits.READ_GRACE_S + 1)
    assert filed.empty_graveyard() == 2
    assert files(filed) == []


def test_more_files_than_a_page_are_swept(filed: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "PAGE", 3)
    orphans = [put(filed, f"{filed.prefix}/1/0/o{n}.parquet") for n in range(10)]
    make_old(filed, *orphans)
    filed.trim("s", {0: 400})
    for number in range(7):
        filed.catalog.write(
            lambda tx, number=number: tx.execute(  # type: ignore[misc]
                "INSERT INTO graveyard (path, buried_us) VALUES (?, 0)", (f"gone/{number}",)
            )
        )
    bury_longer(filed, limits.READ_GRACE_S + 1)
    dry = filed.sweep(dry_run=True)
    assert (dry.orphans, dry.buried) == (10, 9)
    done = filed.sweep()
    assert (done.orphans, done.buried) == (10, 9)
    assert files(filed) == []


def test_an_append_that_takes_too_long_starts_over(
    filed: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a sweep in between can not have taken its files."""
    from headrace.log.given import to_batch

    write = filed.write_of()
    write.add("s", to_batch(table(200)))
    write.prepare()
    (mine,) = set(files(filed)) - {row[0] for row in paths(filed)}
    write._files_since -= limits.APPEND_DEADLINE_S + 1
    filed.commit(write)
    assert mine not in files(filed)
    assert sorted(files(filed)) == sorted(row[0] for row in paths(filed))
    assert len(read(filed)) == 600


def test_a_log_without_a_store_has_nothing_to_sweep(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="no store"):
        Log(catalog, None).sweep()


def test_a_store_out_of_reach_is_told_and_nothing_is_forgotten(filed: Log) -> None:
    filed.trim("s", {0: 200})
    bury_longer(filed, limits.READ_GRACE_S + 1)
    before = everything(filed)
    away = Log(filed.catalog, open_store("s3://bucket/p", s3_options("http://127.0.0.1:1")))
    with pytest.raises(StoreUnavailableError):
        away.sweep()
    with pytest.raises(StoreUnavailableError):
        away.append("s", table(200))
    assert everything(filed) == before
    assert len(read(filed)) == 200


def test_everything_works_on_object_storage(
    catalog: Catalog, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    monkeypatch.setattr(limits, "FILE_BYTES", 20_000)
    log = Log(catalog, s3_store)
    create(log, segments=2)
    log.append("s", table(1000, keys=40, value_bytes=30), producer="p", sequence=1)
    log.append("s", table(1000, keys=40, value_bytes=30), producer="p", sequence=1)
    log.append("s", table(5))
    assert sorted(numbers(log)) == sorted([*range(1000), *range(5)])
    count = len(files(log))
    assert count >= 3
    middle = log.stream("s").segments[0].head // 2
    found = read(log, segments=[0], start=middle)
    assert [row["offset"] for row in found] == list(range(middle, log.stream("s").segments[0].head))
    log.trim("s", {segment.number: segment.head for segment in log.stream("s").segments})
    assert len(files(log)) == count
    bury_longer(log, limits.READ_GRACE_S + 1)
    swept = log.sweep()
    assert swept.buried == count
    assert files(log) == []


def test_a_store_that_fails_for_a_while_is_read_again(
    catalog: Catalog, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    log = Log(catalog, s3_store)
    create(log)
    log.append("s", table(300))
    reader = log.reader("s", Query())

    def away(*_: object) -> memoryview:
        raise StoreUnavailableError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "read_range", away)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                reader.next()
    batch = reader.next()
    assert batch is not None
    assert batch.num_rows == 300
