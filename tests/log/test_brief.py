"""Reads on an event loop: one load a turn, and nobody can tell but by the clock."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from zlib_ng.zlib_ng import crc32

from headrace.catalog import Tx
from headrace.catalog.connections import SqliteTx
from headrace.errors import (
    CatalogUnavailableError,
    DamagedBatchError,
    TrimmedError,
    UnknownStreamError,
)
from headrace.log import limits
from headrace.log.cursor import Cursor, FileAhead
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.log.read import Reader
from tests.log.helpers import create, event, table

ROWS = 3


@pytest.fixture(autouse=True)
def many_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of a few events."""
    monkeypatch.setattr(limits, "READ_ROWS", ROWS)


def numbers_of(batch: pa.RecordBatch) -> list[int]:
    return [int(value.rstrip(b".")) for value in batch.column("value").to_pylist()]


def drain(reader: Reader, seen: list[int]) -> None:
    while (batch := reader.next(brief=True)) is not None:
        seen += numbers_of(batch)


def open_segments(log: Log) -> list[int]:
    return [segment.number for segment in log.stream("s").segments if not segment.sealed]


def fill(log: Log, count: int = 40) -> None:
    """Events 0, 1, 2 … of one segment, each in its own batch."""
    create(log)
    for number in range(count):
        log.append("s", [event(number)])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "query", [{}, {"subject": "s.x"}, {"markers": True}, {"start": "middle", "until": "end"}]
)
def test_all_is_as_without_it(log: Log, query: dict[str, Any], seed: int) -> None:
    """Events and positions, through splits and merges; and no batch changes with later ones."""
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
    batches: list[pa.RecordBatch] = []
    wanted: list[list[dict[str, Any]]] = []
    while (expected := plain.next()) is not None:
        batch = reader.next(brief=True)
        while batch is not None and not batch.num_rows:
            batch = reader.next(brief=True)
        assert batch is not None
        assert reader.positions == plain.positions
        batches.append(batch)
        wanted.append(expected.to_pylist())
    while (batch := reader.next(brief=True)) is not None:
        assert not batch.num_rows
    assert reader.done
    assert [batch.to_pylist() for batch in batches] == wanted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("query", [{}, {"subject": "s.x"}, {"limit": 70}])
def test_a_read_that_follows_is_as_without_it(log: Log, query: dict[str, Any], seed: int) -> None:
    """Through splits and merges, trims and files; most of the time one segment is read."""
    rng = random.Random(seed)
    create(log)
    plain = log.reader("s", Query(follow=True, **query))
    reader = log.reader("s", Query(follow=True, **query))
    found: list[dict[str, Any]] = []
    wanted: list[dict[str, Any]] = []
    for turn in range(60):
        match rng.randrange(8):
            case 0 if turn > 20:
                log.split("s", open_segments(log)[-1])
            case 1 if len(open_segments(log)) > 1:
                log.merge("s", open_segments(log))
            case 2:
                log.append_marker("s", open_segments(log)[0], b"m")
            case 3:
                log.append("s", table(rng.randrange(1, 8)))
            case _:
                log.append("s", [event(turn, key=str(rng.randrange(50)))])
        while (batch := plain.next()) is not None:
            wanted += batch.to_pylist()
        while (batch := reader.next(brief=True)) is not None:
            found += batch.to_pylist()
        assert sorted(map(place, found)) == sorted(map(place, wanted))
        assert (reader.positions, reader.done) == (plain.positions, plain.done)


def place(row: dict[str, Any]) -> tuple[int, int, bytes]:
    return row["segment"], row["offset"], row["value"]


def test_news_of_the_only_segment_take_one_query(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    if not log.catalog.quick:
        pytest.skip("a server far away is asked for heads and batches together")
    create(log)
    reader = log.reader("s", Query(follow=True))
    assert reader.next(brief=True) is None
    asked: list[str] = []

    def told(name: str) -> None:
        original = getattr(SqliteTx, name)

        def ask(tx: SqliteTx, sql: str, *more: Any) -> Any:
            asked.append(sql)
            return original(tx, sql, *more)

        monkeypatch.setattr(SqliteTx, name, ask)

    told("iterate")
    told("rows")
    log.append("s", [event(1)])
    asked.clear()
    batch = reader.next(brief=True)
    assert batch is not None
    assert numbers_of(batch) == [1]
    assert len(asked) == 1, asked
    assert reader.next(brief=True) is None


def test_what_is_not_at_hand_is_told_as_ever(log: Log) -> None:
    """Trimmed, deleted, and damaged while a read follows."""
    fill(log, 3)
    reader = log.reader("s", Query(follow=True))
    seen: list[int] = []
    drain(reader, seen)
    assert seen == [0, 1, 2]
    for number in (3, 4):
        log.append("s", [event(number)])
    spoil(log, 3, "checksum = checksum + 1")
    with pytest.raises(DamagedBatchError):
        reader.next(brief=True)
    log.trim("s", {0: 4})
    with pytest.raises(TrimmedError):
        reader.next(brief=True)
    other = log.reader("s", Query(start="latest", follow=True))
    assert other.next(brief=True) is None
    log.delete_stream("s")
    create(log)
    log.append("s", [event(0)])
    with pytest.raises(UnknownStreamError):
        other.next(brief=True)


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
    log: Log, flaw: str, bad: int
) -> None:
    fill(log, 22)
    spoil(log, bad, flaw)
    reader = log.reader("s", Query())
    seen: list[int] = []
    while len(seen) < bad:
        batch = reader.next(brief=True)
        assert batch is not None
        seen += numbers_of(batch)
        assert reader.positions == {0: len(seen)}
    assert seen == list(range(bad))
    for _ in range(2):
        with pytest.raises(DamagedBatchError) as caught:
            reader.next(brief=True)
        assert (caught.value.start, caught.value.end) == (bad, bad + 1)
        assert reader.positions == {0: bad}


@pytest.mark.parametrize("flaw", FLAWS)
def test_damage_is_skipped_in_its_turn_and_once(log: Log, flaw: str) -> None:
    fill(log)
    for bad in (4, 17, 18, 30):
        spoil(log, bad, flaw)
    seen: list[int] = []
    reader = log.reader("s", Query(), lambda error: seen.append(-error.start))
    drain(reader, seen)
    assert seen == [-n if n in (4, 17, 18, 30) else n for n in range(40)]


def test_what_cannot_be_fetched_is_told_in_its_turn_and_is_there_later(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    reader = log.reader("s", Query())
    real, away = Cursor._gather, 20

    def gather(cursor: Cursor, *args: Any, **how: Any) -> Any:
        if cursor.position >= away:
            raise CatalogUnavailableError("the disk is away for a moment")
        return real(cursor, *args, **how)

    monkeypatch.setattr(Cursor, "_gather", gather)
    seen: list[int] = []
    for _ in range(3):
        with pytest.raises(CatalogUnavailableError):
            drain(reader, seen)
        assert away <= len(seen) < away + ROWS
        assert reader.positions == {0: len(seen)}
    away = 1000
    drain(reader, seen)
    assert seen == list(range(40))


def test_an_error_of_any_kind_leaves_nothing_behind(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was being joined then is not taken for what is asked for next."""
    fill(log)
    reader = log.reader("s", Query())
    real, turns = Cursor._gather, iter([False] * 5 + [True])

    def gather(cursor: Cursor, *args: Any, **how: Any) -> Any:
        if next(turns, False):
            raise MemoryError
        return real(cursor, *args, **how)

    monkeypatch.setattr(Cursor, "_gather", gather)
    seen: list[int] = []
    with pytest.raises(MemoryError):
        drain(reader, seen)
    drain(reader, seen)
    assert seen == list(range(40))


def test_a_file_is_left_to_others_once_all_before_it_was_returned(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)
    monkeypatch.setattr(limits, "INLINE_BYTES", 100)
    log.append("s", table(50))
    reader = log.reader("s", Query())
    seen: list[int] = []
    with pytest.raises(FileAhead):
        drain(reader, seen)
    assert seen == list(range(40))
    while (batch := reader.next()) is not None:
        seen += numbers_of(batch)
    assert seen == [*range(40), *range(50)]
