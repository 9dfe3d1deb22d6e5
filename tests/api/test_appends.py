"""Appends that are under way at the same time: written together, answered one by one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.catalog.producers import Placed
from headrace.errors import InvalidEventError, UnknownStreamError
from headrace.log import limits
from tests.api.test_client import rows_of, run, table_of

Places = tuple[Placed, ...]


def some(name: str, rows: int, keys: bool = True) -> pa.Table:
    """Events that can be told from all others by their values."""
    return table_of(
        [f"{name}.{row % 7}" for row in range(rows)],
        [f"{name}-{row}".encode() for row in range(rows)],
        [f"k{row % 23}" for row in range(rows)] if keys else None,
    )


async def append_all(hr: headrace.Headrace, given: list[tuple[str, pa.Table]]) -> list[Places]:
    # Routes are known from here on; before that, appends are not joined.
    for stream in {stream for stream, _ in given}:
        await hr.append(stream, some(stream, 1))
    return await asyncio.gather(*(hr.append(stream, table) for stream, table in given))


async def check(
    hr: headrace.Headrace, given: list[tuple[str, pa.Table]], found: list[Places]
) -> None:
    """Every event is where its append was told, and in its order."""
    stored = {
        (stream, row["segment"], row["offset"]): row
        for stream in {stream for stream, _ in given}
        for row in await rows_of(hr, stream)
    }
    for (stream, table), places in zip(given, found, strict=True):
        events = [
            stored.pop((place.stream, place.segment, place.start + at))
            for place in places
            for at in range(place.count)
        ]
        assert {place.stream for place in places} <= {stream}
        wanted = table.to_pylist()
        order = {row["value"]: at for at, row in enumerate(wanted)}
        assert sorted(order[row["value"]] for row in events) == list(range(len(wanted)))
        for place in places:
            own = [order[row["value"]] for row in events if row["segment"] == place.segment]
            assert own == sorted(own)
        for row in events:
            original = wanted[order[row["value"]]]
            assert {name: row[name] for name in original} == original
    assert len(stored) == len({stream for stream, _ in given})


def batches_in(hr: headrace.Headrace) -> int:
    [(count,)] = hr.log.catalog.read(lambda tx: tx.rows("SELECT count(*) FROM batches"))
    return int(count)


@pytest.mark.parametrize("segments", [1, 4])
def test_appends_at_once_share_batches_and_are_told_their_own_places(
    catalog_url: str, segments: int
) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=segments)
            given = [("a", some("a", rows)) for rows in (100, 1, 40, 300, 0)]
            found = await append_all(hr, given)
            await check(hr, given, found)
            assert batches_in(hr) == 1 + segments
            for places in found:
                assert [place.segment for place in places] == sorted(p.segment for p in places)

    run(work())


def test_appends_at_once_to_several_streams_with_several_columns(catalog_url: str) -> None:
    chosen = random.Random(7)

    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            for name in ("a", "b", "c"):
                await hr.create_stream(name, subjects=[f"{name}.>"], segments=3)
            given = [
                (name, some(name, chosen.randrange(60), chosen.random() < 0.7))
                for name in chosen.choices(("a", "b", "c"), k=24)
            ]
            await check(hr, given, await append_all(hr, given))

    run(work())


def test_appends_at_once_keep_the_order_in_which_they_were_made(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=4)
            # With and without a key column, which cannot be one batch; the subject is the key.
            tables = [table_of(["a.1"] * 3, [b"%d" % at] * 3) for at in range(9)]
            for at in (2, 3, 7):
                tables[at] = tables[at].append_column("key", pa.array(["a.1"] * 3))
            await append_all(hr, [("a", table) for table in tables])
            values = [row["value"] for row in await rows_of(hr, "a") if row["subject"] == "a.1"]
            assert values == sorted(values)

    run(work())


def test_nothing_else_of_the_same_turn_overtakes_an_append(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", subjects=["a.>"])
            await hr.append("a", table_of(["a.1"], [b"first"]))
            one, two, three = (table_of(["a.1"], [b"%d" % at]) for at in (1, 2, 3))
            await asyncio.gather(
                hr.append("a", one),
                hr.append("a", two, producer="p", sequence=1),
                hr.append("a", three),
            )
            assert [row["value"] for row in await rows_of(hr, "a")] == [b"first", b"1", b"2", b"3"]

    run(work())


def test_one_that_is_refused_takes_no_other_with_it(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=4)
            await hr.append("a", some("a", 1))
            good, foreign, other = some("a", 30), some("b", 30), some("a", 20)
            answers: list[Any] = await asyncio.gather(
                *(hr.append("a", table) for table in (good, foreign, other)),
                hr.append("nowhere", good),
                return_exceptions=True,
            )
            assert isinstance(answers[1], InvalidEventError)
            assert "not 'b.0'" in str(answers[1])
            assert isinstance(answers[3], UnknownStreamError)
            await check(hr, [("a", good), ("a", other)], [answers[0], answers[2]])

    run(work())


def test_appends_at_once_to_a_stream_that_was_split_find_the_new_segments(
    catalog_url: str,
) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr, headrace.open(catalog_url) as elsewhere:
            await hr.create_stream("a", subjects=["a.>"], segments=2)
            await hr.append("a", some("a", 1))
            await elsewhere.split("a", 0)
            given = [("a", some("a", rows)) for rows in (50, 60)]
            found = await asyncio.gather(*(hr.append(*each) for each in given))
            await check(hr, given, list(found))
            assert all(place.segment != 0 for places in found for place in places)

    run(work())


def test_many_appends_at_once_stay_in_the_catalog(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 20_000)

    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=2)
            given = [("a", some("a", 60)) for _ in range(20)]
            await check(hr, given, await append_all(hr, given))
            files = hr.log.catalog.read(
                lambda tx: tx.rows("SELECT path FROM batches WHERE path IS NOT NULL")
            )
            assert not files
            assert 2 < batches_in(hr) < 20

    run(work())


def test_the_first_of_a_turn_is_cancelled_and_the_others_are_stored(catalog_url: str) -> None:
    """It hands over for all of them, so it does that before it gives up."""

    async def scenario() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("a", subjects=["a.>"], segments=3)
            await hr.append("a", some("a", 1))
            tables = [some("a", rows) for rows in (20, 30, 40)]
            calls = [asyncio.create_task(hr.append("a", table)) for table in tables]
            await asyncio.sleep(0)
            calls[0].cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            for table, places in zip(tables[1:], found[1:], strict=True):
                assert isinstance(places, tuple)
                assert sum(place.count for place in places) == table.num_rows
            # Nothing is left behind that would hold up the next one.
            await asyncio.wait_for(hr.append("a", some("a", 5)), 30)

    run(scenario())
