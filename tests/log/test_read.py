"""Read: from any place to any place, filtered, followed, resumed; never a silent gap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace.catalog import Catalog, checkpoints
from headrace.catalog.connections import SqliteTx
from headrace.catalog.postgres_tx import PostgresTx
from headrace.catalog.sqlite import SqliteCatalog
from headrace.errors import (
    CatalogClosedError,
    InvalidFilterError,
    InvalidPositionError,
    StoreError,
    TrimmedError,
    UnknownSegmentError,
    UnknownStreamError,
)
from headrace.log import limits
from headrace.log.events import READ_SCHEMA, Event
from headrace.log.log import Log
from headrace.log.query import Query
from headrace.store import Store
from tests.log.helpers import check_dense, create, event, numbers, per_key, read, table
from tests.scaling import split_while_empty
from tests.support import wait_until

T0 = datetime(2024, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def _longer(seen: list[bytes], count: int) -> bool:
    return len(seen) > count


# --- places ----------------------------------------------------------------------------------


def test_an_empty_stream_has_nothing_to_read(log: Log) -> None:
    create(log, segments=3)
    assert read(log) == []
    assert read(log, start="latest") == []
    assert read(log, start=T0) == []


def test_a_read_ends_at_the_heads_of_its_start(log: Log) -> None:
    create(log)
    log.append("s", [event(n) for n in range(3)])
    batches = log.read("s")
    first = next(batches)
    log.append("s", event(3))
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 3


def test_every_batch_has_the_public_columns(log: Log) -> None:
    create(log)
    log.append("s", event(0))
    log.append("s", table(5))
    for batch in log.read("s"):
        assert batch.schema == READ_SCHEMA


@pytest.mark.parametrize("inline_bytes", [1 << 20, 300])
def test_reading_by_offset_starts_and_ends_anywhere(
    log: Log, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    """Inside and between batches, in blobs and in files."""
    monkeypatch.setattr(limits, "INLINE_BYTES", inline_bytes)
    create(log)
    for first in (0, 10, 25):
        log.append(
            "s",
            pa.table(
                {
                    "subject": ["s.x"] * 10 if first < 25 else ["s.x"] * 5,
                    "value": [
                        str(n).encode().ljust(60, b".")
                        for n in range(first, first + (10 if first < 25 else 5))
                    ],
                }
            )
            if first != 10
            else pa.table(
                {
                    "subject": ["s.x"] * 15,
                    "value": [str(n).encode().ljust(60, b".") for n in range(10, 25)],
                }
            ),
        )
    for start in range(31):
        assert numbers(log, start=start) == list(range(start, 30))
        for until in (0, start, start + 1, 17, 30):
            if until <= 30:
                found = numbers(log, start=start, until=until)
                assert found == list(range(start, until))
    assert numbers(log, start={0: 7}, until={0: 12}) == list(range(7, 12))
    assert numbers(log, until="latest") == list(range(30))
    assert numbers(log, until="earliest") == []


def test_latest_starts_after_what_is_there(log: Log) -> None:
    create(log, segments=2)
    log.append("s", table(10))
    reader = log.reader("s", Query(start="latest", follow=True))
    assert reader.next() is None
    log.append("s", event("new", key="k1"))
    found = reader.next()
    assert found is not None
    assert found.column("value").to_pylist() == [b"new"]


def test_reading_by_time_starts_at_the_first_event_of_that_time(log: Log) -> None:
    create(log)
    for first in range(0, 40, 10):
        log.append("s", [event(n, timestamp=at(n)) for n in range(first, first + 10)])
    for minute in (0, 3, 9.5, 10, 19, 20.5, 39):
        assert numbers(log, start=at(minute)) == [n for n in range(40) if n >= minute]
        assert numbers(log, until=at(minute)) == [n for n in range(40) if n < minute]
    assert numbers(log, start=at(-5)) == list(range(40))
    assert numbers(log, start=at(40)) == []
    assert numbers(log, start=at(5), until=at(25)) == list(range(5, 25))
    naive = at(30).replace(tzinfo=None)
    assert numbers(log, start=naive) == list(range(30, 40))


def test_reading_by_time_misses_nothing_when_times_are_out_of_order(log: Log) -> None:
    create(log, segments=3)
    order = [(n * 37) % 101 for n in range(101)]
    for first in range(0, 101, 10):
        log.append(
            "s",
            [event(n, key=str(n), timestamp=at(n)) for n in order[first : first + 10]],
        )
    for minute in (0, 1, 50, 99, 100):
        found = numbers(log, start=at(minute))
        assert set(found) >= {n for n in range(101) if n >= minute}
        assert len(found) == len(set(found))


def test_reading_by_time_with_files_and_equal_times(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    create(log)
    for hour in range(4):
        stamps = pa.array([at(60 * hour)] * 100, pa.timestamp("us", "UTC"))
        log.append(
            "s",
            pa.table(
                {
                    "subject": ["s.x"] * 100,
                    "value": [str(hour).encode()] * 100,
                    "timestamp": stamps,
                }
            ),
        )
    assert len(numbers(log, start=at(60))) == 300
    assert len(numbers(log, start=at(60.01))) == 200
    assert set(numbers(log, start=at(60), until=at(120))) == {1}


def test_a_place_that_is_none_is_refused(log: Log) -> None:
    create(log, segments=2)
    create(log, "one")
    log.append("one", event(0, stream="one"))
    no_places: list[Any] = ["soon", 1.5, True, None, [1], b"earliest"]
    for place in no_places:
        with pytest.raises(InvalidPositionError):
            read(log, "one", start=place)
    outside: list[Any] = [-1, 2, {0: -1}, {0: 2}, {0: "1"}, {0: None}]
    for place in outside:
        with pytest.raises(InvalidPositionError):
            read(log, "one", start=place)
        with pytest.raises(InvalidPositionError):
            read(log, "one", until=place)
    with pytest.raises(InvalidPositionError, match="single segment"):
        read(log, start=0)
    for bad in ({5: 0}, {"0": 0}):
        with pytest.raises(UnknownSegmentError):
            read(log, start=bad)
    with pytest.raises(UnknownSegmentError):
        read(log, segments=[0, 9])
    for limit in (0, -1):
        with pytest.raises(InvalidPositionError):
            read(log, limit=limit)
    with pytest.raises(InvalidPositionError, match="follow"):
        read(log, follow=True, until=5)
    with pytest.raises(InvalidFilterError):
        read(log, subject="a..b")
    with pytest.raises(UnknownStreamError, match="known streams: one, s"):
        read(log, "none")


# --- filters, limits, segments ---------------------------------------------------------------


def test_a_filter_shows_only_its_subjects_at_their_offsets(log: Log) -> None:
    create(log)
    subjects = ["s.eu.1", "s.us.1", "s.eu.2.x", "s.eu.3"]
    log.append("s", [Event(subject=name, value=b"") for name in subjects])
    log.append_marker("s", 0, b"m")
    log.append("s", Event(subject="s.eu.4", value=b""))

    def shown(subject: str) -> list[tuple[int, str]]:
        return [(row["offset"], row["subject"]) for row in read(log, subject=subject)]

    assert shown("s.eu.*") == [(0, "s.eu.1"), (3, "s.eu.3"), (5, "s.eu.4")]
    assert shown("s.eu.>") == [(0, "s.eu.1"), (2, "s.eu.2.x"), (3, "s.eu.3"), (5, "s.eu.4")]
    assert shown("s/eu/#") == shown("s.eu.>")
    assert shown("none.>") == []
    assert len(shown(">")) == 5


def test_a_limit_counts_what_is_shown(log: Log) -> None:
    create(log)
    for first in (0, 10):
        log.append(
            "s",
            [Event(subject=f"s.{n % 2}", value=str(n).encode()) for n in range(first, first + 10)],
        )
    assert numbers(log, limit=3) == [0, 1, 2]
    assert numbers(log, limit=15) == list(range(15))
    assert numbers(log, limit=100) == list(range(20))
    assert numbers(log, limit=7, subject="s.1") == [1, 3, 5, 7, 9, 11, 13]
    assert numbers(log, start=18, limit=5) == [18, 19]


@pytest.mark.parametrize("inline_bytes", [1 << 20, 300])
def test_a_read_goes_on_where_a_limited_one_stopped(
    log: Log, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", inline_bytes)
    create(log, segments=3)
    log.append("s", table(50, keys=20, value_bytes=20))
    log.append("s", table(30, keys=20, value_bytes=20))
    found: list[tuple[int, int]] = []
    place: Any = "earliest"
    for _ in range(100):
        reader = log.reader("s", Query(start=place, limit=7))
        count = 0
        while (batch := reader.next()) is not None:
            found.extend(
                zip(
                    batch.column("segment").to_pylist(),
                    batch.column("offset").to_pylist(),
                    strict=True,
                )
            )
            count += batch.num_rows
        assert count <= 7
        if count == 0:
            break
        place = reader.positions
    assert len(found) == len(set(found)) == 80


def test_a_read_that_ended_can_be_continued_later(log: Log) -> None:
    create(log, segments=2)
    log.append("s", table(10))
    reader = log.reader("s", Query())
    first = []
    while (batch := reader.next()) is not None:
        first.extend(batch.to_pylist())
    assert reader.done
    log.append("s", table(6))
    log.split("s", 0, 2)
    log.append("s", table(8))
    second = read(log, start=reader.positions)
    assert len(first) == 10
    assert len(second) == 14
    check_dense([*first, *second])


def test_until_and_start_at_the_same_cut_share_out_everything(log: Log) -> None:
    """Whatever cut a reader gives, what is before it and after it is all there is, once."""
    create(log, segments=2)
    log.append("s", table(20, keys=12))
    log.split("s", 0, 2)
    log.append("s", table(20, keys=12))
    log.merge("s", [1, 3])
    log.append("s", table(20, keys=12))
    total = sorted((row["segment"], row["offset"]) for row in read(log))
    assert len(total) == 60
    for limit in range(1, 60, 7):
        reader = log.reader("s", Query(limit=limit))
        while reader.next() is not None:
            pass
        cut = reader.positions
        before = [(row["segment"], row["offset"]) for row in read(log, until=cut)]
        after = [(row["segment"], row["offset"]) for row in read(log, start=cut)]
        assert sorted([*before, *after]) == total
        assert len(before) == limit


def test_chosen_segments_are_read_alone_each_once(log: Log) -> None:
    create(log, segments=4)
    log.append("s", table(100, keys=50))
    expected = [row for row in read(log) if row["segment"] in (1, 3)]
    for chosen in ([1, 3], [3, 1], [3, 1, 3, 1]):
        found = read(log, segments=chosen)
        check_dense(found)
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert read(log, segments=[]) == []
    offset = log.stream("s").segments[2].head - 1
    assert [row["offset"] for row in read(log, segments=[2], start=offset)] == [offset]


def test_chosen_segments_are_followed_to_their_end_and_no_further(log: Log) -> None:
    create(log, segments=2)
    reader = log.reader("s", Query(segments=[0], follow=True))
    log.append("s", table(20, keys=20))
    log.split("s", 0)
    log.append("s", table(20, keys=20))
    found = []
    while (batch := reader.next()) is not None:
        found.extend(batch.to_pylist())
    assert {row["segment"] for row in found} == {0}
    assert len(found) == log.stream("s").segments[0].head
    assert reader.done


# --- order through scaling -------------------------------------------------------------------


def test_a_successor_is_read_after_all_its_predecessors(log: Log) -> None:
    create(log, segments=2)
    log.append("s", table(30, keys=15))
    log.merge("s", [0, 1])
    log.append("s", table(30, keys=15))
    log.split("s", 2, 3)
    log.append("s", table(30, keys=15))
    rows = read(log)
    check_dense(rows)
    assert len(rows) == 90
    segments = [row["segment"] for row in rows]
    assert max(n for n, s in enumerate(segments) if s < 2) < segments.index(2)
    assert max(n for n, s in enumerate(segments) if s == 2) < min(
        n for n, s in enumerate(segments) if s > 2
    )


def test_a_read_from_a_cut_takes_in_what_follows(log: Log) -> None:
    create(log)
    log.append("s", [event(n, key=str(n)) for n in range(10)])
    log.split("s", 0)
    log.append("s", [event(n, key=str(n)) for n in range(10, 20)])
    assert sorted(numbers(log, start={0: 6})) == list(range(6, 20))
    assert sorted(numbers(log, start={0: 10})) == list(range(10, 20))
    assert numbers(log, until={0: 6}) == list(range(6))
    assert sorted(numbers(log, until={1: 0})) == sorted(
        int(row["value"]) for row in read(log) if row["segment"] != 1
    )
    one = read(log, start={1: 0})
    assert {row["segment"] for row in one} == {1}


def test_latest_leaves_out_sealed_segments(log: Log) -> None:
    create(log)
    log.append("s", event(0))
    log.split("s", 0)
    assert log.reader("s", Query(start="latest", follow=True)).positions == {1: 0, 2: 0}


# --- following -------------------------------------------------------------------------------


def test_a_follower_is_woken_by_appends_of_this_and_other_processes(
    log: Log, reopen: Callable[[], Catalog], store: Store
) -> None:
    create(log, segments=2)
    other = Log(reopen(), store)
    seen: list[bytes] = []
    delays: list[float] = []

    def follow() -> None:
        for batch in log.read("s", Query(follow=True)):
            for value in batch.column("value").to_pylist():
                seen.append(value)
                delays.append(time.monotonic() - float(value))
            if len(seen) == 20:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(20):
        source = (log, other)[number % 2]
        source.append("s", event(time.monotonic(), key=str(number)))
        wait_until(partial(_longer, seen, number), "the event to arrive")
    thread.join(10)
    assert not thread.is_alive()
    assert sorted(delays)[10] < 0.5


def test_a_follower_goes_through_splits_and_merges(log: Log) -> None:
    create(log)
    reader = log.reader("s", Query(follow=True))
    rows: list[dict[str, Any]] = []

    def drain() -> None:
        while (batch := reader.next()) is not None:
            rows.extend(batch.to_pylist())

    for step in range(4):
        log.append("s", [event(f"{step}.{n}", key=f"k{n % 9}") for n in range(30)])
        if step == 2:
            drain()
        if step == 0:
            log.split("s", 0, 3)
        if step == 1:
            log.merge("s", [1, 2])
            drain()
    drain()
    assert not reader.done
    check_dense(rows)
    assert per_key(rows) == {
        f"k{k}": [f"{step}.{n}" for step in range(4) for n in range(30) if n % 9 == k]
        for k in range(9)
    }


def test_a_segment_that_was_split_while_it_was_empty_keeps_its_successors_waiting(log: Log) -> None:
    create(log)
    reader = log.reader("s", Query(follow=True))
    expected = split_while_empty(log, "s", "s.x")
    assert numbers(log) == expected
    assert numbers(log, start={0: 100}) == expected[100:]
    followed: list[int] = []
    while (batch := reader.next()) is not None:
        followed += map(int, batch.column("value").to_pylist())
    assert followed == expected


def test_following_a_stream_that_is_deleted_is_an_error(
    log: Log, reopen: Callable[[], Catalog]
) -> None:
    create(log)
    log.append("s", event(0))
    reader = log.reader("s", Query(follow=True))
    assert reader.next() is not None
    other = Log(reopen(), None)
    other.delete_stream("s")
    with pytest.raises(UnknownStreamError):
        reader.next()
    create(other)
    other.append("s", [event(n) for n in range(5)])
    with pytest.raises(UnknownStreamError):
        reader.next()


def test_reading_a_stream_that_is_deleted_meanwhile_is_an_error(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(log)
    for _ in range(3):
        log.append("s", table(10))
    reader = log.reader("s", Query())
    log.delete_stream("s")
    with pytest.raises(UnknownStreamError):
        reader.next()


def test_a_follower_learns_that_the_catalog_was_closed(log: Log) -> None:
    create(log)
    errors: list[BaseException] = []
    started = threading.Event()

    def follow() -> None:
        try:
            for _ in log.read("s", Query(follow=True)):
                started.set()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    log.append("s", event(0))
    assert started.wait(10)
    log.catalog.close()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(errors[0], CatalogClosedError)


# --- what is no longer there -----------------------------------------------------------------


def test_below_what_is_retained_the_error_says_where_it_starts(log: Log) -> None:
    create(log)
    for first in (0, 5, 10):
        log.append("s", [event(n) for n in range(first, first + 5)])
    log.trim("s", {0: 10})
    for start in (0, 9, {0: 3}):
        with pytest.raises(TrimmedError) as caught:
            read(log, start=start)
        assert (caught.value.segment, caught.value.first) == (0, 10)
    assert numbers(log) == list(range(10, 15))
    assert numbers(log, start=10) == list(range(10, 15))
    assert numbers(log, start=T0) == list(range(10, 15))


def test_a_read_overtaken_by_a_trim_is_told(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_ROWS", 10)
    create(log)
    for first in range(0, 50, 10):
        log.append("s", [event(n) for n in range(first, first + 10)])
    reader = log.reader("s", Query(follow=True))
    first_batch = reader.next()
    assert first_batch is not None
    got = first_batch.num_rows
    log.trim("s", {0: 40})
    with pytest.raises(TrimmedError) as caught:
        reader.next()
    assert caught.value.first == 40
    assert caught.value.offset == got


def test_files_without_their_store_are_an_error_of_the_store(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 100)
    create(log)
    log.append("s", table(100))
    with pytest.raises(StoreError, match="open the catalog with its store"):
        read(Log(log.catalog, None))


def test_large_batches_are_read_while_more_are_written(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small loads, with the file growing and being written behind the reader's back."""
    monkeypatch.setattr(limits, "READ_BYTES", 60_000)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_FRAMES", 50)
    create(log)
    reader = log.reader("s", Query(follow=True))
    seen: list[bytes] = []
    for number in range(120):
        log.append("s", event(str(number).rjust(20_000)))
        while number % 7 == 0 and (batch := reader.next()) is not None:
            seen += batch.column("value").to_pylist()
    while (batch := reader.next()) is not None:
        seen += batch.column("value").to_pylist()
    assert [int(value) for value in seen] == list(range(120))
    assert numbers(log) == list(range(120))


def test_a_reader_fetches_a_bounded_load_at_a_time(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when large batches follow upon many small ones."""
    monkeypatch.setattr(limits, "READ_BYTES", 40_000)
    create(log)
    for _ in range(60):
        log.append("s", event("small"))
    for _ in range(60):
        log.append("s", event("x" * 10_000))
    fetched: list[int] = []
    real = SqliteTx.iterate if isinstance(log.catalog, SqliteCatalog) else PostgresTx.iterate

    def note(tx: Any, sql: str, params: Any) -> Iterator[Any]:
        if isinstance(tx, PostgresTx):
            # The driver holds all rows of an answer at once.
            fetched.extend(len(row[-1]) for row in tx.rows(sql, params))
        for row in real(tx, sql, params):
            if isinstance(tx, SqliteTx):
                fetched.append(len(row[-1]))
            yield row

    reader = log.reader("s", Query(follow=True))
    monkeypatch.setattr(type(log.catalog.read(lambda tx: tx)), "iterate", note)
    total = largest = 0
    while True:
        fetched.clear()
        batch = reader.next()
        if batch is None:
            break
        total += batch.num_rows
        largest = max(largest, sum(fetched))
    assert total == 120
    assert largest <= 40_000 + 2 * 11_000
