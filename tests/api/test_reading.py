"""Reading through the asynchronous API: places, resuming, following, giving up and closing."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.errors import (
    CatalogClosedError,
    CatalogUnavailableError,
    DamagedBatchError,
    InvalidFilterError,
    InvalidPositionError,
    UnknownSegmentError,
    UnknownStreamError,
)
from headrace.log import limits
from headrace.log.cursor import Cursor
from headrace.log.query import Place
from tests.api.test_client import run, table_of, values_of
from tests.loads import openers, watched

START = datetime(2013, 7, 4, tzinfo=UTC)


async def filled(hr: headrace.Headrace, count: int = 10) -> None:
    """One segment with events 0, 1, 2 … an hour apart, each in its own batch."""
    await hr.create_stream("orders", subjects=["orders.>"])
    for i in range(count):
        await hr.publish(
            f"orders.{'odd' if i % 2 else 'even'}",
            b"%d" % i,
            timestamp=START + timedelta(hours=i),
        )


def test_places_bound_a_read(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await filled(hr)
            assert await values_of(hr, "orders", start=7) == [b"7", b"8", b"9"]
            assert await values_of(hr, "orders", until={0: 2}) == [b"0", b"1"]
            assert await values_of(hr, "orders", start="latest") == []
            at_three = START + timedelta(hours=3)
            assert await values_of(hr, "orders", start=at_three, until=7) == [
                b"3",
                b"4",
                b"5",
                b"6",
            ]
            assert await values_of(hr, "orders", subject="orders.odd", limit=2) == [b"1", b"3"]
            assert await values_of(hr, "orders", segments=[0], start=9) == [b"9"]

    run(work())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "soon"}, InvalidPositionError),
        ({"start": {0: 11}}, InvalidPositionError),
        ({"start": {3: 0}}, UnknownSegmentError),
        ({"segments": [4]}, UnknownSegmentError),
        ({"limit": 0}, InvalidPositionError),
        ({"follow": True, "until": "latest"}, InvalidPositionError),
        ({"subject": "a..b"}, InvalidFilterError),
    ],
)
def test_a_read_of_nowhere_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await filled(hr)
            with pytest.raises(error):
                await values_of(hr, "orders", **options)
            with pytest.raises(UnknownStreamError):
                await values_of(hr, "elsewhere")

    run(work())


def test_positions_resume_where_another_read_stopped(catalog_url: str) -> None:
    """Stopped after every batch, over a split, the parts are the whole: in order, each once."""

    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"], segments=2)
            keys = [str(i % 9) for i in range(300)]
            for at in range(0, 300, 50):
                values = [b"%d" % i for i in range(at, at + 50)]
                table = table_of(["orders.n"] * 50, values, keys[at : at + 50])
                await hr.append("orders", table)
                if at == 100:
                    await hr.split("orders", 0)
            seen: dict[str, list[int]] = {}
            place: Place = "earliest"
            for _ in range(300 // 40 + 2):
                async with hr.read("orders", start=place, limit=40) as reading:
                    async for batch in reading:
                        for row in batch.to_pylist():
                            seen.setdefault(row["key"], []).append(int(row["value"]))
                    place = reading.positions
            assert seen == {str(k): list(range(k, 300, 9)) for k in range(9)}

    run(work())


def test_a_read_to_the_end_can_be_taken_up_again_later(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await filled(hr, 3)
            seen = []
            place: Place = "earliest"
            for step in range(4):
                async with hr.read("orders", start=place) as reading:
                    seen.append([v async for b in reading for v in b.column("value").to_pylist()])
                place = reading.positions
                if step == 1:
                    await hr.publish("orders.n", b"before the split")
                    await hr.split("orders", 0)
                    await hr.publish("orders.n", b"after the split")
            assert seen == [
                [b"0", b"1", b"2"],
                [],
                [b"before the split", b"after the split"],
                [],
            ]

    run(work())


def test_a_read_that_ended_early_goes_on_from_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await filled(hr, 6)
            await hr.split("orders", 0)
            await hr.append("orders", table_of(["orders.n"], [b"after"]))
            async with hr.read("orders", until=START + timedelta(hours=4)) as reading:
                first = [v async for b in reading for v in b.column("value").to_pylist()]
            assert first == [b"0", b"1", b"2", b"3"]
            assert await values_of(hr, "orders", start=reading.positions) == [b"4", b"5", b"after"]

    run(work())


def test_a_tail_gets_what_is_published_by_another_client(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr, headrace.open(catalog_url) as other:
            await filled(hr, 3)
            tail = hr.tail("orders", subject="orders.new")
            pending = asyncio.ensure_future(anext(tail))
            for _ in range(3):
                await asyncio.sleep(0)
            await other.publish("orders.old", b"not this")
            while not pending.done():
                await other.publish("orders.new", b"this")
            batch = await pending
            assert set(batch.column("value").to_pylist()) == {b"this"}
            await tail.close()

    run(work())


def test_a_follower_goes_on_into_successors(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await filled(hr, 4)
            seen: list[bytes] = []
            async with hr.read("orders", follow=True) as reading:
                async for batch in reading:
                    seen += batch.column("value").to_pylist()
                    if len(seen) == 4:
                        await hr.split("orders", 0, 3)
                        await hr.append("orders", table_of(["orders.n"], [b"after"]))
                    if len(seen) == 5:
                        break
            assert seen == [b"0", b"1", b"2", b"3", b"after"]

    run(work())


def test_a_reader_that_gave_up_waiting_misses_nothing(tmp_path: Path) -> None:
    """Timeouts strike at every moment of a read; the events are the same as without them."""

    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await filled(hr, 1)
            seen: list[bytes] = []
            gave_up = 0
            reading = hr.tail("orders", start="earliest")
            publishing = asyncio.ensure_future(_publish_slowly(hr, 60))
            patience_s = 0.0
            while len(seen) < 61:
                patience_s = (patience_s + 0.00007) % 0.004
                try:
                    batch = await asyncio.wait_for(anext(reading), patience_s)
                except TimeoutError:
                    gave_up += 1
                else:
                    seen += batch.column("value").to_pylist()
            await publishing
            await reading.close()
            assert seen == [b"0", *(b"n%d" % i for i in range(60))]
            assert gave_up > 0

    async def _publish_slowly(hr: headrace.Headrace, count: int) -> None:
        for i in range(count):
            await hr.publish("orders.even", b"n%d" % i)

    run(work())


async def read_impatiently(reading: headrace.Reading, start: int, end: int) -> None:
    """Read events that tell their offsets, one at a time, often without the patience for it."""
    seen = list(range(start))
    patience_s = 0.0
    while len(seen) < end:
        patience_s = (patience_s + 0.00007) % 0.004
        with contextlib.suppress(TimeoutError):
            batch = await asyncio.wait_for(anext(reading), patience_s)
            seen += map(int, batch.column("value").to_pylist())
            assert reading.positions == {0: len(seen)}
    assert seen == list(range(end))


@pytest.mark.usefixtures("anywhere")
def test_a_read_that_ends_misses_nothing_when_its_reader_gives_up_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many loads, more than are fetched ahead, for a reader that is now early and now late."""
    monkeypatch.setattr(limits, "READ_ROWS", 1)

    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            for i in range(60):
                await hr.publish("orders.even", b"%d" % i)
            reading = hr.read("orders")
            await read_impatiently(reading, 0, 60)
            assert await anext(reading, None) is None

    run(work())


@pytest.mark.usefixtures("anywhere")
def test_a_read_that_failed_goes_on_where_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_ROWS", 1)

    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            for i in range(20):
                await hr.publish("orders.even", b"%d" % i)
            failing = iter([False] * 10 + [True])
            real = Cursor.next

            def fetch(cursor: Cursor, end: int, *, brief: bool) -> pa.RecordBatch | None:
                if next(failing, False):
                    raise CatalogUnavailableError("the disk is away for a moment")
                return real(cursor, end, brief=brief)

            monkeypatch.setattr(Cursor, "next", fetch)
            reading = hr.read("orders")
            seen: list[bytes] = []
            for _ in range(10):
                seen += (await anext(reading)).column("value").to_pylist()
            with pytest.raises(CatalogUnavailableError):
                await anext(reading)
            async for batch in reading:
                seen += batch.column("value").to_pylist()
            assert seen == [b"%d" % i for i in range(20)]

    run(work())


def test_a_read_that_finds_nothing_lets_others_have_their_turn(
    tmp_path: Path, anywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_ROWS", 1)

    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            for i in range(60):
                await hr.publish("orders.even", b"%d" % i)
            async with watched(monkeypatch) as loads:
                assert await values_of(hr, "orders", subject="orders.odd") == []
            assert len(loads.at_turns) == 60
            if anywhere:
                assert max(loads.at_turns) >= 60

    run(work())


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("follow", [False, True])
def test_files_are_never_opened_by_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 1000)
    opened_by = openers(monkeypatch)

    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            wanted: list[bytes] = []
            seen: list[bytes] = []
            reading = hr.tail("orders", start="earliest") if follow else None
            for turn in range(6):
                # Small ones in the catalog, and now and then one that is a file.
                value = b"%d" % turn * (1 if turn % 3 else 5000)
                await hr.append("orders", [headrace.Event(subject="orders.x", value=value)] * 2)
                wanted += [value] * 2
                while reading is not None and len(seen) < len(wanted):
                    seen += (await anext(reading)).column("value").to_pylist()
            if reading is not None:
                await reading.close()
            else:
                async for batch in hr.read("orders"):
                    seen += batch.column("value").to_pylist()
            assert seen == wanted

    run(work())
    assert opened_by
    assert threading.get_ident() not in opened_by


def test_a_tail_ends_with_an_error_when_its_log_is_closed(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await filled(hr, 1)
            tail = hr.tail("orders", start="earliest")
            await anext(tail)
            pending = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0)
        with pytest.raises(CatalogClosedError):
            await pending

    run(work())


def test_a_tail_of_a_deleted_stream_ends_with_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await filled(hr, 1)
            tail = hr.tail("orders")
            pending = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0)
            await hr.stream("orders")
            await hr.delete_stream("orders")
            with pytest.raises(UnknownStreamError):
                await pending
            await tail.close()

    run(work())


def test_a_damaged_batch_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await filled(hr, 5)
        damage(tmp_path / "d", 2)
        async with headrace.open(tmp_path / "d") as hr:
            with pytest.raises(DamagedBatchError) as caught:
                await values_of(hr, "orders")
            assert (caught.value.segment, caught.value.start, caught.value.end) == (0, 2, 3)
            skipped: list[DamagedBatchError] = []
            values = await values_of(hr, "orders", on_damaged=skipped.append)
            assert values == [b"0", b"1", b"3", b"4"]
            assert [(error.start, error.end) for error in skipped] == [(2, 3)]

    run(work())


def damage(folder: Path, start: int) -> None:
    """Flip a byte of the batch that starts at an offset, as a failing disk would."""
    [file] = [path for path in folder.iterdir() if path.suffix in (".db", ".sqlite")]
    with sqlite3.connect(file) as connection:
        [data] = connection.execute(
            "SELECT data FROM batches WHERE start_offset = ?", (start,)
        ).fetchone()
        broken = bytes([*data[:-20], data[-20] ^ 1, *data[-19:]])
        connection.execute("UPDATE batches SET data = ? WHERE start_offset = ?", (broken, start))
    connection.close()
