"""What tasks stage, and the one commit that counts it; no Spark is needed for that."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.catalog import Catalog
from headrace.catalog.streams import StreamConfig
from headrace.errors import InvalidSinkError, StagedFileLostError, UnknownStreamError
from headrace.log import limits
from headrace.log.log import Log
from headrace.spark import staging
from headrace.spark.staged_write import StagedWrite
from headrace.spark.staging import Part, Stager
from headrace.store import Store

ROWS = 3000
KEYS = 50


@pytest.fixture
def stream(log: Log) -> str:
    log.create_stream("clean", StreamConfig(subjects=("clean.>",)), segments=3)
    return "clean"


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and portions so small that a few rows need many of them."""
    monkeypatch.setattr(staging, "ROUTE_BYTES", 8_000)
    monkeypatch.setattr(staging, "FILE_BYTES", 16_000)


def rows(first: int = 0, count: int = ROWS, task: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "timestamp": pa.array(np.arange(first, first + count), pa.timestamp("us", "UTC")),
            "subject": pa.array([f"clean.{n % 7}" for n in numbers]),
            "key": pa.array([f"{task}-{n % KEYS}" for n in numbers]),
            "value": pa.array([f"{task}:{n}".encode() for n in numbers], pa.binary()),
        }
    )


def stage(log: Log, stream: str, *batches: pa.RecordBatch, rows_bytes: int | None = 20_000) -> Part:
    stager = Stager(log, log.routes.refresh(stream), rows_bytes=rows_bytes)
    for batch in batches:
        for at in range(0, batch.num_rows, 200):
            stager.add(batch.slice(at, 200))
    return stager.finish()


def values(log: Log, stream: str) -> list[bytes]:
    found: list[bytes] = []
    for batch in log.read(stream):
        found += batch.column("value").to_pylist()
    return found


def check_order(found: list[bytes]) -> None:
    """Rows of one key of one task come in their order."""
    last: dict[tuple[bytes, int], int] = {}
    for value in found:
        task, number = value.split(b":")
        key = task, int(number) % KEYS
        assert last.get(key, -1) < int(number)
        last[key] = int(number)


def files(log: Log) -> set[str]:
    assert log.store is not None
    return {file.path for file in log.store.list(f"{log.prefix}/")}


@pytest.mark.usefixtures("small_files")
def test_files_and_rows_of_all_tasks_are_appended_in_one_commit(log: Log, stream: str) -> None:
    parts = [stage(log, stream, rows(task=task), rows(ROWS, 10, task)) for task in range(3)]
    assert all(len(part.files) > 3 for part in parts)
    assert any(part.rows for part in parts)
    assert values(log, stream) == []
    before = log.catalog.statistics()["commits"]
    outcome = StagedWrite(log, parts, "query", 0).commit()
    assert log.catalog.statistics()["commits"] == before + 1
    assert sum(spot.count for spot in outcome.placed) == 3 * (ROWS + 10)
    assert sorted(spot.segment for spot in outcome.placed) == [0, 1, 2]
    found = values(log, stream)
    assert len(found) == len(set(found)) == 3 * (ROWS + 10)
    check_order(found)


@pytest.mark.usefixtures("small_files")
def test_a_batch_that_comes_again_writes_nothing_and_leaves_no_files(log: Log, stream: str) -> None:
    first = StagedWrite(log, [stage(log, stream, rows())], "query", 7).commit()
    kept = files(log)
    again = StagedWrite(log, [stage(log, stream, rows())], "query", 7).commit()
    assert again.repeat
    assert again.placed == first.placed
    assert files(log) == kept
    assert len(values(log, stream)) == ROWS


@pytest.mark.usefixtures("small_files")
def test_files_for_a_segment_that_was_split_go_to_its_successors_in_order(
    log: Log, stream: str
) -> None:
    parts = [stage(log, stream, rows(task=task), rows(ROWS, 10, task)) for task in range(2)]
    log.split(stream, 1, 2)
    log.merge(stream, [0, 3])
    StagedWrite(log, parts, "query", 0).commit()
    found = values(log, stream)
    assert len(found) == len(set(found)) == 2 * (ROWS + 10)
    check_order(found)
    # The files that were staged for the sealed segments are gone with them.
    assert len(files(log)) == count_of_batches_in_files(log)


def count_of_batches_in_files(log: Log) -> int:
    row = log.catalog.read(lambda tx: tx.row("SELECT count(*) FROM batches WHERE path IS NOT NULL"))
    assert row is not None
    return int(row[0])


@pytest.mark.usefixtures("small_files")
def test_a_split_between_the_last_look_and_the_commit_is_noticed(
    log: Log, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = stage(log, stream, rows())
    write = StagedWrite(log, [part], "query", 0)
    prepare, splits = write.prepare, iter([1])

    def prepare_then_split() -> None:
        prepare()
        for segment in splits:
            log.split(stream, segment)

    monkeypatch.setattr(write, "prepare", prepare_then_split)
    write.commit()
    found = values(log, stream)
    assert len(found) == len(set(found)) == ROWS
    check_order(found)


@pytest.mark.usefixtures("small_files")
def test_files_that_a_sweep_could_take_are_staged_again(log: Log, stream: str) -> None:
    part = stage(log, stream, rows())
    old = [
        msgspec.structs.replace(file, staged_s=file.staged_s - limits.APPEND_DEADLINE_S)
        for file in part.files
    ]
    StagedWrite(log, [msgspec.structs.replace(part, files=tuple(old))], "query", 0).commit()
    assert files(log).isdisjoint(file.batch.path for file in old)
    found = values(log, stream)
    assert len(found) == ROWS
    check_order(found)


@pytest.mark.usefixtures("small_files")
def test_a_staged_file_that_is_gone_fails_the_batch_and_nothing_is_written(
    log: Log, stream: str, store: Store
) -> None:
    part = stage(log, stream, rows())
    gone = part.files[1].batch.path
    assert gone is not None
    store.delete(gone)
    log.split(stream, part.files[1].segment)
    with pytest.raises(StagedFileLostError, match="run the batch again"):
        StagedWrite(log, [part], "query", 0).commit()
    assert values(log, stream) == []


@pytest.mark.usefixtures("small_files")
def test_a_stream_that_was_made_anew_does_not_get_what_was_staged_for_the_old_one(
    log: Log, stream: str
) -> None:
    part = stage(log, stream, rows())
    log.delete_stream(stream)
    log.create_stream(stream, StreamConfig(subjects=("clean.>",)), segments=3)
    with pytest.raises(UnknownStreamError, match="made anew"):
        StagedWrite(log, [part], "query", 0).commit()
    assert values(log, stream) == []


def test_a_small_batch_needs_no_file(log: Log, stream: str) -> None:
    part = stage(log, stream, rows(count=100), rows_bytes=None)
    assert part.files == ()
    StagedWrite(log, [part], "query", 0).commit()
    assert files(log) == set()
    assert len(values(log, stream)) == 100


def test_without_a_store_rows_travel_and_too_many_are_refused(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(catalog, None)
    log.create_stream("clean", StreamConfig(subjects=("clean.>",)), segments=3)
    part = stage(log, "clean", rows(), rows_bytes=None)
    assert part.files == ()
    StagedWrite(log, [part], "query", 0).commit()
    assert len(values(log, "clean")) == ROWS
    monkeypatch.setattr(staging, "ROWS_BYTES_WITHOUT_STORE", 10_000)
    with pytest.raises(InvalidSinkError, match="no store"):
        stage(log, "clean", rows(), rows_bytes=None)


@pytest.mark.usefixtures("small_files")
def test_a_task_never_holds_more_than_its_bound(
    log: Log, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FILE_BYTES", 10**9)
    monkeypatch.setattr(staging, "HELD_BYTES_MAX", 50_000)
    stager = Stager(log, log.routes.refresh(stream))
    for first in range(0, ROWS, 100):
        stager.add(rows(first, 100))
        assert sum(stager._held_bytes.values()) <= 50_000
    StagedWrite(log, [stager.finish()], "query", 0).commit()
    check_order(values(log, stream))
    assert len(values(log, stream)) == ROWS


def test_columns_that_are_all_null_are_not_stored(log: Log, stream: str) -> None:
    batch = rows().set_column(2, "key", pa.nulls(ROWS, pa.string()))
    StagedWrite(log, [stage(log, stream, batch, rows_bytes=0)], "query", 0).commit()
    layouts = log.catalog.read(lambda tx: tx.rows("SELECT DISTINCT layout FROM batches"))
    assert layouts == [(0b1011,)]
