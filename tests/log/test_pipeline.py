"""A load is fetched while another is joined, and nobody can tell but by the clock."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from zlib_ng.zlib_ng import crc32

from headrace.catalog import Tx
from headrace.errors import CatalogUnavailableError, DamagedBatchError
from headrace.log import cursor, limits
from headrace.log.cursor import Cursor, FileAhead
from headrace.log.log import Log
from headrace.log.pipeline import THREADS_MAX, Pipeline
from headrace.log.read import Query, Reader
from tests.log.helpers import create, event, table
from tests.support import wait_until

ROWS = 3


@pytest.fixture(autouse=True)
def many_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of a few events, which count as large."""
    monkeypatch.setattr(limits, "READ_ROWS", ROWS)
    monkeypatch.setattr(cursor, "LARGE_BYTES", 1)


@pytest.fixture
def pipelines() -> Iterator[list[Pipeline]]:
    """Those that were made, to be closed."""
    made: list[Pipeline] = []
    yield made
    for pipeline in made:
        pipeline.close()


def piped(reader: Reader, pipelines: list[Pipeline]) -> Pipeline:
    pipelines.append(Pipeline(reader))
    return pipelines[-1]


def numbers_of(batch: pa.RecordBatch) -> list[int]:
    return [int(value.rstrip(b".")) for value in batch.column("value").to_pylist()]


def drain(pipeline: Pipeline, seen: list[int]) -> None:
    while (batch := pipeline.next()) is not None:
        seen += numbers_of(batch)


def open_segments(log: Log) -> list[int]:
    return [segment.number for segment in log.stream("s").segments if not segment.sealed]


def fill(log: Log, count: int = 40) -> None:
    """Events 0, 1, 2 … of one segment, each in its own batch."""
    create(log)
    for number in range(count):
        log.append("s", [event(number)])


def joiners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-join"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "query", [{}, {"subject": "s.x"}, {"markers": True}, {"start": "middle", "until": "end"}]
)
def test_all_is_as_without_it(
    log: Log, pipelines: list[Pipeline], query: dict[str, Any], seed: int
) -> None:
    """Batches and positions, through splits and merges; and no batch changes with later ones."""
    rng = random.Random(seed)
    create(log, segments=2)
    for turn in range(3):
        for _ in range(12):
            log.append("s", table(rng.randrange(1, 6)))
            log.append("s", [event(1, key=str(rng.randrange(50)))])
            log.append_marker("s", rng.choice(open_segments(log)), b"m")
        if turn == 0:
            log.split("s", 0, 2)
        elif turn == 1:
            log.merge("s", open_segments(log))
    if "start" in query:
        query = {
            "start": {0: log.stream("s").segments[0].head // 2, 1: 1},
            "until": {open_segments(log)[-1]: 11},
        }
    plain = log.reader("s", Query(**query))
    reader = log.reader("s", Query(**query))
    pipeline = piped(reader, pipelines)
    batches: list[pa.RecordBatch] = []
    wanted: list[list[dict[str, Any]]] = []
    while (expected := plain.next(brief=True)) is not None:
        batch = pipeline.next()
        assert batch is not None
        assert reader.positions == plain.positions
        batches.append(batch)
        wanted.append(expected.to_pylist())
    assert pipeline.next() is None
    assert reader.done
    assert [batch.to_pylist() for batch in batches] == wanted
    assert joiners()


FLAWS = ["checksum = checksum + 1", "data = NULL", "junk", "layout = 999"]


def spoil(log: Log, offset: int, flaw: str) -> None:
    junk = bytes(80)
    sql, params = f"UPDATE batches SET {flaw} WHERE start_offset = ?", [offset]

    def apply(tx: Tx) -> None:
        if flaw == "junk":
            # Its checksum is right: it is found out only when it is decoded.
            tx.execute(
                "UPDATE batches SET data = ?, bytes = ?, checksum = ? WHERE start_offset = ?",
                (junk, len(junk), crc32(junk), offset),
            )
        else:
            tx.execute(sql, params)

    log.catalog.write(apply)


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("bad", [0, 2, 13, 14, 15, 20, 21])
def test_damage_is_told_after_all_that_stands_before_it_and_again(
    log: Log, pipelines: list[Pipeline], flaw: str, bad: int
) -> None:
    fill(log, 22)
    spoil(log, bad, flaw)
    reader = log.reader("s", Query())
    pipeline = piped(reader, pipelines)
    seen: list[int] = []
    while len(seen) < bad:
        batch = pipeline.next()
        assert batch is not None
        seen += numbers_of(batch)
        assert reader.positions == {0: len(seen)}
    assert seen == list(range(bad))
    for _ in range(2):
        with pytest.raises(DamagedBatchError) as caught:
            pipeline.next()
        assert (caught.value.start, caught.value.end) == (bad, bad + 1)
        assert reader.positions == {0: bad}


@pytest.mark.parametrize("flaw", FLAWS)
def test_damage_is_skipped_in_its_turn_and_once(
    log: Log, pipelines: list[Pipeline], flaw: str
) -> None:
    fill(log)
    for bad in (4, 17, 18, 30):
        spoil(log, bad, flaw)
    seen: list[int] = []
    pipeline = piped(log.reader("s", Query(), lambda error: seen.append(-error.start)), pipelines)
    drain(pipeline, seen)
    assert seen == [-n if n in (4, 17, 18, 30) else n for n in range(40)]


def test_what_cannot_be_fetched_is_told_in_its_turn_and_is_there_later(
    log: Log, pipelines: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    reader = log.reader("s", Query())
    pipeline = piped(reader, pipelines)
    real, away = Cursor._gather, 20

    def gather(cursor: Cursor, start: int, *args: Any, **how: Any) -> Any:
        if start >= away:
            raise CatalogUnavailableError("the disk is away for a moment")
        return real(cursor, start, *args, **how)

    monkeypatch.setattr(Cursor, "_gather", gather)
    seen: list[int] = []
    for _ in range(3):
        with pytest.raises(CatalogUnavailableError):
            drain(pipeline, seen)
        assert away <= len(seen) < away + ROWS
        assert reader.positions == {0: len(seen)}
    away = 1000
    drain(pipeline, seen)
    assert seen == list(range(40))


def test_an_error_of_any_kind_leaves_nothing_behind(
    log: Log, pipelines: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was being joined then is not taken for what is asked for next."""
    fill(log)
    pipeline = piped(log.reader("s", Query()), pipelines)
    real, turns = Cursor._gather, iter([False] * 5 + [True])

    def gather(cursor: Cursor, start: int, *args: Any, **how: Any) -> Any:
        if next(turns, False):
            raise MemoryError
        return real(cursor, start, *args, **how)

    monkeypatch.setattr(Cursor, "_gather", gather)
    seen: list[int] = []
    with pytest.raises(MemoryError):
        drain(pipeline, seen)
    drain(pipeline, seen)
    assert seen == list(range(40))


def test_a_file_is_left_to_others_once_all_before_it_was_returned(
    log: Log, pipelines: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    monkeypatch.setattr(limits, "INLINE_BYTES", 100)
    log.append("s", table(50))
    reader = log.reader("s", Query())
    pipeline = piped(reader, pipelines)
    seen: list[int] = []
    with pytest.raises(FileAhead):
        drain(pipeline, seen)
    assert seen == list(range(40))
    pipeline.close()
    while (batch := reader.next()) is not None:
        seen += numbers_of(batch)
    assert seen == [*range(40), *range(50)]


def test_one_that_is_closed_forgets_what_was_done_ahead(
    log: Log, pipelines: list[Pipeline]
) -> None:
    fill(log)
    reader = log.reader("s", Query())
    pipeline = piped(reader, pipelines)
    seen: list[int] = []
    for _ in range(5):
        batch = pipeline.next()
        assert batch is not None
        seen += numbers_of(batch)
    assert len(joiners()) == 1
    pipeline.close()
    assert not joiners()
    while (batch := reader.next(brief=True)) is not None:
        seen += numbers_of(batch)
    assert seen == list(range(40))


def test_small_loads_need_no_thread(
    log: Log, pipelines: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor, "LARGE_BYTES", 1_000_000)
    fill(log)
    pipeline = piped(log.reader("s", Query()), pipelines)
    seen: list[int] = []
    while (batch := pipeline.next()) is not None:
        seen += numbers_of(batch)
        assert not joiners()
    assert seen == list(range(40))


def test_more_reads_than_threads_are_read_as_well(log: Log, pipelines: list[Pipeline]) -> None:
    fill(log)
    seen: list[list[int]] = [[] for _ in range(THREADS_MAX + 2)]
    many = [piped(log.reader("s", Query()), pipelines) for _ in seen]
    for _ in range(5):
        for pipeline, own in zip(many, seen, strict=True):
            batch = pipeline.next()
            assert batch is not None
            own += numbers_of(batch)
    assert len(joiners()) == THREADS_MAX
    for pipeline, own in zip(many, seen, strict=True):
        drain(pipeline, own)
        assert own == list(range(40))
        pipeline.close()
    assert not joiners()
    drain(piped(log.reader("s", Query()), pipelines), [])
    assert len(joiners()) == 1


def test_the_thread_ends_with_a_read_that_nobody_closed(log: Log) -> None:
    fill(log)
    pipeline = Pipeline(log.reader("s", Query()))
    while not joiners():
        assert pipeline.next() is not None
    del pipeline
    gc.collect()
    wait_until(lambda: not joiners(), "the thread to end")
