"""Compaction: the same events at the same offsets, in fewer and larger files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.catalog import Catalog, Tx, batches, open_catalog
from headrace.catalog.streams import ByEvents, Limits
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    DamagedBatchError,
    HeadraceError,
    StoreUnavailableError,
    TrimmedError,
    UnknownStreamError,
)
from headrace.log import compact_policy, limits
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.store import Store
from tests.log.compactor import POINTS
from tests.log.helpers import create, event, everything, files, heads, numbers, read, table
from tests.support import ROOT, SOURCES

EAGER = CompactionPolicy(min_batches=2, min_age_s=0)
START = datetime(2026, 1, 1, tzinfo=UTC)


def fill(log: Log, count: int = 12) -> None:
    """Batches of ten events, each a minute after the one before; values number them."""
    create(log)
    add(log, count)


def add(log: Log, count: int, rows: int = 10, first: int = 0) -> None:
    for at in range(count):
        numbered = range(first + at * rows, first + (at + 1) * rows)
        log.append("s", [event(n, timestamp=START + timedelta(minutes=n)) for n in numbered])


def rows_of(log: Log) -> list[batches.Piece]:
    ids = [segment.id for segment in log.stream("s").segments]
    return log.catalog.read(
        lambda tx: [piece for one in ids for piece in batches.pieces(tx, one, 0, 10_000)]
    )


def change(log: Log, sql: str, *params: Any) -> None:
    def apply(tx: Tx) -> None:
        assert tx.execute(sql, params) >= 1

    log.catalog.write(apply)


def test_the_same_events_at_the_same_offsets_in_one_file(log: Log) -> None:
    fill(log)
    before, stream = read(log), log.stream("s")
    done = log.compact("s", EAGER)
    assert (done.files, done.batches, done.events, done.lost) == (1, 12, 120, 0)
    assert read(log) == before
    assert log.stream("s") == stream
    (row,) = rows_of(log)
    assert (row.start, row.end, row.total_bytes) == (0, 120, stream.segments[0].bytes)
    assert row.size_bytes == done.bytes_after
    assert files(log) == [row.path]
    assert log.compact("s", EAGER).files == 0


def test_events_appended_afterwards_follow(log: Log) -> None:
    fill(log)
    log.compact("s", EAGER)
    add(log, 3, first=120)
    assert numbers(log) == list(range(150))
    assert numbers(log, start={0: 115}) == list(range(115, 150))
    assert numbers(log, start={0: 30}, until={0: 130}) == list(range(30, 130))


def test_a_dry_run_changes_nothing(log: Log) -> None:
    fill(log)
    before = everything(log)
    done = log.compact("s", EAGER, dry_run=True)
    assert (done.files, done.batches, done.dry_run) == (1, 12, True)
    assert everything(log) == before


def test_columns_that_only_some_batches_have_are_kept(log: Log) -> None:
    create(log)
    log.append("s", [event("plain")])
    log.append("s", [event("keyed", key="k"), event("not keyed")])
    log.append("s", [event("all", key="k", headers={"a": b"1"}, epoch=(3, 4))])
    log.append_marker("s", 0, b"between")
    log.append("s", [event("after")])
    before = read(log)
    marked = [row for batch in log.read("s", Query(markers=True)) for row in batch.to_pylist()]
    assert log.compact("s", EAGER).batches == 5
    assert read(log) == before
    assert [row["offset"] for row in before] == [0, 1, 2, 3, 5]
    after = [row for batch in log.read("s", Query(markers=True)) for row in batch.to_pylist()]
    wide = dict.fromkeys(("key", "headers", "epoch", "marker"))
    assert [wide | row for row in after] == [wide | row for row in marked]


def test_any_parquet_reader_can_read_the_file(log: Log) -> None:
    create(log)
    for first in range(0, 200_000, 50_000):
        log.append("s", table(200_000).slice(first, 50_000))
    assert log.compact("s", EAGER).files == 1
    (path,) = [row.path for row in rows_of(log)]
    assert log.store is not None
    file = Path(log.store.url) / str(path)
    found = pq.read_table(file)
    assert found["value"].to_pylist() == table(200_000)["value"].to_pylist()
    meta = pq.read_metadata(file)
    groups = [meta.row_group(at).num_rows for at in range(meta.num_row_groups)]
    assert groups == [65_536, 65_536, 65_536, 3392]
    assert log.catalog.read(lambda tx: batches.count_buried(tx, tx.now_us())) == 4


def test_time_searches_find_the_same_place(log: Log) -> None:
    fill(log)
    log.append("s", [event("late", timestamp=START + timedelta(days=9)), event("early")])
    moments = [START + timedelta(minutes=n) for n in (-5, 0, 7, 55, 119, 120, 500)]
    before = [read(log, start=moment) for moment in moments]
    until = [read(log, until=moment) for moment in moments]
    assert log.compact("s", EAGER).batches == 13
    assert [read(log, start=moment) for moment in moments] == before
    assert [read(log, until=moment) for moment in moments] == until


def test_trimming_counts_sizes_as_they_were_appended(log: Log) -> None:
    fill(log, count=40)
    (segment,) = log.stream("s").segments
    log.configure_stream("s", retention=Limits(bytes=segment.bytes // 2))
    done = log.compact("s", CompactionPolicy(min_batches=2, min_age_s=0, target_bytes=1 << 16))
    assert done.files > 3
    log.trim("s")
    (after,) = log.stream("s").segments
    assert segment.bytes // 2 <= after.retained_bytes < segment.bytes
    assert after.trimmed_bytes > 0
    assert numbers(log) == list(range(after.tail, 400))
    log.trim("s", {0: 400})
    assert log.stream("s").segments[0].retained_bytes == 0


def test_age_limits_never_lose_an_event_to_an_older_neighbour(log: Log) -> None:
    fill(log)
    change(log, "UPDATE batches SET created_us = created_us - 3600000000 WHERE start_offset < 60")
    log.configure_stream("s", retention=Limits(age_s=1800))
    log.compact("s", CompactionPolicy(min_batches=2, min_age_s=0, span_s=10**6))
    log.trim("s")
    assert numbers(log) == list(range(60, 120))


def test_sealed_segments_are_compacted_to_their_end(log: Log) -> None:
    fill(log)
    log.split("s", 0)
    add(log, 2, first=120)
    before = read(log)
    assert log.compact("s", CompactionPolicy(min_age_s=0, min_batches=500)).files == 1
    assert read(log) == before


def test_what_scaling_measures_is_left_alone(log: Log) -> None:
    create(log, scaling=ByEvents(target_per_s=10))
    add(log, 12)
    assert log.compact("s", EAGER).files == 0
    log.split("s", 0)
    assert log.compact("s", EAGER).files == 1


def test_a_damaged_batch_stays_an_error_that_names_it(log: Log) -> None:
    fill(log)
    change(log, "UPDATE batches SET checksum = checksum + 1 WHERE start_offset = 50")
    done = log.compact("s", EAGER)
    assert (done.files, done.batches, len(done.damaged)) == (2, 11, 1)
    assert "offsets 50 to 59" in done.damaged[0]
    with pytest.raises(DamagedBatchError, match="offsets 50 to 59"):
        numbers(log)
    skipped: list[DamagedBatchError] = []
    found = [row for batch in log.read("s", None, skipped.append) for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == [*range(50), *range(60, 120)]


def test_a_damaged_batch_is_looked_at_once(log: Log) -> None:
    fill(log)
    change(log, "UPDATE batches SET checksum = checksum + 1 WHERE start_offset = 50")
    compactor = log.compactor("s", EAGER)
    assert len(compactor.compact().damaged) == 1
    assert compactor.compact().damaged == ()


def test_large_files_are_looked_at_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    create(log)
    policy = CompactionPolicy(min_batches=2, min_age_s=0, target_bytes=1 << 16)
    compactor = log.compactor("s", policy)
    for first in range(0, 120, 10):
        noise = [event(os.urandom(20_000).hex()) for _ in range(5)]
        log.append("s", noise)
        add(log, 2, first=first)
    compactor.compact()
    looked: list[int] = []
    real = batches.pieces

    def pieces(tx: Tx, segment_id: int, start: int, limit: int) -> list[batches.Piece]:
        found = real(tx, segment_id, start, limit)
        looked.append(len(found))
        return found

    monkeypatch.setattr(batches, "pieces", pieces)
    assert list(compactor.plan()) == []
    assert sum(looked) <= 2, "what comes after the last large one"
    add(log, 2, first=0)
    assert [len(run.pieces) for run in compactor.plan()] == [3]
    log.split("s", 0)
    looked.clear()
    assert sum(len(run.pieces) for run in compactor.plan()) >= 3
    assert sum(looked) > 12, "a sealed segment is looked through once more"


def test_a_missing_batch_is_not_papered_over(log: Log) -> None:
    fill(log)
    change(log, "DELETE FROM batches WHERE start_offset = 50")
    assert log.compact("s", EAGER).files == 2
    with pytest.raises(DamagedBatchError, match="missing"):
        numbers(log)


def test_of_two_compactors_one_commits_and_the_other_cleans_up(log: Log) -> None:
    fill(log)
    one, two = log.compactor("s", EAGER), log.compactor("s", EAGER)
    (mine,), (theirs,) = list(one.plan()), list(two.plan())
    now_s = time.monotonic()
    first, second = one.rewrite(mine), two.rewrite(theirs)
    assert len(files(log)) == 2
    assert one.commit(mine, first, now_s) is True
    assert two.commit(theirs, second, now_s) is False
    assert files(log) == [first.path]
    assert one.commit(mine, first, now_s) is True, "an answer that was lost"
    assert files(log) == [first.path]
    assert numbers(log) == list(range(120))


def test_runs_that_overlap_in_part_do_not_both_commit(log: Log) -> None:
    fill(log)
    early = log.compactor("s", EAGER)
    (run,) = early.plan()
    file = early.rewrite(run)
    add(log, 4, first=120)
    assert log.compact("s", EAGER).batches == 16
    assert early.commit(run, file, time.monotonic()) is False
    assert numbers(log) == list(range(160))


def test_a_trim_during_a_compaction_wins(log: Log) -> None:
    fill(log)
    compactor = log.compactor("s", EAGER)
    (run,) = compactor.plan()
    file = compactor.rewrite(run)
    log.trim("s", {0: 30})
    assert compactor.commit(run, file, time.monotonic()) is False
    assert files(log) == []
    assert numbers(log) == list(range(30, 120))
    with pytest.raises(TrimmedError):
        compactor.rewrite(run)
    log.trim("s", {0: 120})
    assert compactor.compact().files == 0


def test_a_stream_deleted_during_a_compaction_stays_deleted(log: Log) -> None:
    fill(log)
    log.set_compaction("s", EAGER)
    compactor = log.compactor("s")
    (run,) = compactor.plan()
    file = compactor.rewrite(run)
    log.delete_stream("s")
    assert compactor.commit(run, file, time.monotonic()) is False
    assert files(log) == []
    create(log)
    with pytest.raises(UnknownStreamError, match="made anew"):
        compactor.rewrite(run)
    assert log.compaction("s") is None, "a new stream of the name has no policy"


def test_a_file_that_a_sweep_may_have_taken_does_not_count(log: Log) -> None:
    fill(log)
    compactor = log.compactor("s", EAGER)
    (run,) = compactor.plan()
    file = compactor.rewrite(run)
    assert compactor.commit(run, file, time.monotonic() - limits.APPEND_DEADLINE_S - 1) is False
    assert files(log) == []


def test_a_commit_of_unknown_outcome_leaves_the_file_to_the_sweep(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    compactor = log.compactor("s", EAGER)
    (run,) = compactor.plan()
    file = compactor.rewrite(run)
    for error, left in ((CatalogUnavailableError("gone"), [file.path]), (CatalogError("no"), [])):

        def fail(*_: object, error: HeadraceError = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(log.catalog, "write", fail)
            with pytest.raises(type(error)):
                compactor.commit(run, file, time.monotonic())
        assert files(log) == left


def test_a_store_that_fails_changes_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log)
    before = everything(log)

    def full(*_: object) -> None:
        raise StoreUnavailableError("no")

    monkeypatch.setattr(log.store, "put", full)
    with pytest.raises(StoreUnavailableError):
        log.compact("s", EAGER)
    assert everything(log) == before


def test_a_catalog_without_a_store_says_so(catalog: Catalog) -> None:
    log = Log(catalog, None)
    create(log)
    with pytest.raises(CatalogError, match="no store"):
        log.compact("s")
    with pytest.raises(UnknownStreamError):
        log.compact("unknown")


def test_policies_are_kept_with_the_stream(log: Log) -> None:
    fill(log)
    assert log.compaction("s") is None
    log.set_compaction("s", EAGER)
    assert log.compaction("s") == EAGER
    assert log.compact("s").files == 1, "its own policy"
    log.set_compaction("s", None)
    assert log.compaction("s") is None
    with pytest.raises(UnknownStreamError):
        log.set_compaction("unknown", EAGER)


# --- crashes -------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_a_compactor_killed_at_any_point_leaves_the_log_whole(
    log: Log, catalog_url: str, point: str
) -> None:
    fill(log)
    assert log.store is not None
    ended = subprocess.run(
        [sys.executable, "-m", "tests.log.compactor", catalog_url, log.store.url, point],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": SOURCES},
        timeout=60,
        check=False,
    )
    assert ended.returncode == (0 if point == "never" else -9)
    assert numbers(log) == list(range(120))
    done = point in ("committed", "never")
    assert len(rows_of(log)) == (1 if done else 12)
    assert len(files(log)) == (0 if point == "file-not-written" else 1)
    for path in files(log):
        os.utime(Path(log.store.url) / path, (1, 1))
    orphans = point in ("file-written", "in-the-transaction")
    assert log.sweep().orphans == int(orphans)
    assert log.compact("s", EAGER).files == (0 if done else 1)
    assert numbers(log) == list(range(120))


# --- readers -------------------------------------------------------------------------------


@pytest.mark.parametrize("in_files", [False, True])
def test_a_reader_in_the_middle_of_a_load_is_undisturbed(
    log: Log, monkeypatch: pytest.MonkeyPatch, in_files: bool
) -> None:
    monkeypatch.setattr(limits, "READ_ROWS", 7)
    if in_files:
        monkeypatch.setattr(limits, "INLINE_BYTES", 100)
    fill(log)
    reader = log.reader("s", Query())
    found = []
    turn = 0
    while not reader.done:
        batch = reader.next()
        if batch is not None:
            found += [int(value.as_py()) for value in batch.column("value")]
        turn += 1
        if turn in (3, 9):
            assert log.compact("s", EAGER).files == 1
            add(log, 12, first=heads(log)[0])
    assert found == list(range(120))
    assert numbers(log) == list(range(360))


def test_a_reader_whose_file_was_removed_goes_on_in_the_new_one(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 100)
    fill(log)
    reader = log.reader("s", Query())
    first = reader.next()
    assert first is not None
    log.compact("s", EAGER)
    change(log, "UPDATE graveyard SET buried_us = 0")
    assert log.empty_graveyard() == 12
    found = [int(value.as_py()) for value in first.column("value")]
    while not reader.done:
        batch = reader.next()
        if batch is not None:
            found += [int(value.as_py()) for value in batch.column("value")]
    assert found == list(range(120))


def test_a_batch_that_is_replaced_before_a_query_or_between_two_is_found(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    real = batches.from_offset
    meddled: list[bool] = []

    def from_offset(tx: Tx, *args: int) -> Iterator[batches.Batch]:
        if meddled:
            yield from real(tx, *args)
            return
        if not tx.lazy:  # there it is one query
            meddled.append(True)
            log.compact("s", EAGER)
            yield from real(tx, *args)
            return
        look = tx.row

        def look_and_compact(sql: str, params: Any = ()) -> Any:
            found = look(sql, params)
            if not meddled:
                meddled.append(True)
                worker = threading.Thread(target=log.compact, args=("s", EAGER))
                worker.start()
                worker.join()
            return found

        tx.row = look_and_compact  # type: ignore[method-assign]
        try:
            yield from real(tx, *args)
        finally:
            del tx.row

    monkeypatch.setattr(batches, "from_offset", from_offset)
    assert numbers(log, start={0: 55}) == list(range(55, 120))
    assert meddled
    assert len(rows_of(log)) == 1


def test_readers_a_writer_and_two_compactors_at_once(
    log: Log, catalog_url: str, store: Store
) -> None:
    create(log)
    total, step = 3000, 10
    written = threading.Event()
    failures: list[BaseException] = []
    compacted: list[int] = []

    def guarded(work: Callable[[Log], None]) -> threading.Thread:
        def run() -> None:
            own = Log(open_catalog(catalog_url), store)
            try:
                work(own)
            except BaseException as error:
                failures.append(error)
            finally:
                own.catalog.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(own: Log) -> None:
        try:
            for first in range(0, total, step):
                own.append("s", [event(n) for n in range(first, first + step)])
        finally:
            written.set()

    def compact_all(own: Log) -> None:
        while not written.is_set():
            compacted.append(own.compact("s", EAGER).files)

    def follow(own: Log) -> None:
        seen = 0
        for batch in own.read("s", Query(follow=True)):
            for row in batch.to_pylist():
                assert (row["offset"], int(row["value"])) == (seen, seen)
                seen += 1
            if seen == total:
                return

    def look(own: Log) -> None:
        while not written.is_set():
            head = heads(own)[0]
            start = head // 3
            assert numbers(own, start={0: start}, until={0: head}) == list(range(start, head))

    threads = [guarded(work) for work in (follow, look, compact_all, compact_all, write)]
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sum(compacted) > 1
    assert numbers(log) == list(range(total))
    assert heads(log) == {0: total}


def test_an_object_store_holds_compacted_files(catalog: Catalog, s3_store: Store) -> None:
    log = Log(catalog, s3_store)
    fill(log)
    assert log.compact("s", EAGER).files == 1
    assert numbers(log) == list(range(120))
    assert compact_policy.get_policy(catalog, "s") is None
