"""The asynchronous API: publishing, appending, transactions, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import headrace
import headrace.sync
from headrace.errors import (
    CatalogClosedError,
    EventTooLargeError,
    HeadMoved,
    InvalidEventError,
    InvalidSubjectError,
    NoStreamError,
    NotACatalogError,
    SequenceError,
    UnknownStreamError,
)
from headrace.log import limits

PATIENCE_S = 30


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def rows_of(hr: headrace.Headrace, stream: str, **options: Any) -> list[dict[str, Any]]:
    return [row async for batch in hr.read(stream, **options) for row in batch.to_pylist()]


async def values_of(hr: headrace.Headrace, stream: str, **options: Any) -> list[bytes]:
    return [row["value"] for row in await rows_of(hr, stream, **options)]


def table_of(subjects: list[str], values: list[bytes], keys: list[str] | None = None) -> pa.Table:
    columns: dict[str, Any] = {"subject": subjects, "value": pa.array(values, pa.binary())}
    return pa.table(columns | ({} if keys is None else {"key": keys}))


def test_a_published_event_is_read_back_as_it_was(catalog_url: str) -> None:
    moment = datetime(2013, 7, 4, 12, 30, 0, 250, tzinfo=UTC)

    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            position = await hr.publish(
                "orders.eu.42",
                b"12 apples",
                key="42",
                headers=[("source", "till"), ("source", b"\xff")],
                timestamp=moment,
                epoch=(3, 1),
            )
            assert position == headrace.Position("orders", 0, 0)
        async with headrace.open(catalog_url, create=False) as hr:
            [row] = await rows_of(hr, "orders")
            assert row == {
                "segment": 0,
                "offset": 0,
                "timestamp": moment,
                "subject": "orders.eu.42",
                "key": "42",
                "value": b"12 apples",
                "headers": [
                    {"key": "source", "value": b"till"},
                    {"key": "source", "value": b"\xff"},
                ],
                "epoch": [3, 1],
                "origin": None,
            }

    run(work())


def test_appends_of_one_turn_of_the_event_loop_share_a_commit(tmp_path: Path) -> None:
    rounds = 20
    data = table_of([f"o.{row}" for row in range(500)], [b"x" * 100] * 500)

    async def work() -> None:
        async with headrace.open(tmp_path / "log", housekeeping=False) as hr:
            await hr.create_stream("orders", subjects=["o.>"], segments=4)
            before = hr.log.catalog.statistics()["commits"]
            for _ in range(rounds):
                await asyncio.gather(*(hr.append("orders", data) for _ in range(4)))
            assert hr.log.catalog.statistics()["commits"] - before < 1.5 * rounds
            assert len(await values_of(hr, "orders")) == rounds * 4 * 500

    run(work())


def test_a_write_begun_before_the_log_closes_is_finished(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            written = hr.host.in_transaction(lambda tx: tx.now_us())
        assert await written > 0
        late = hr.host.in_transaction(lambda tx: tx.now_us())
        with pytest.raises(CatalogClosedError):
            await late

    run(work())


def test_events_published_at_once_share_commits_and_all_get_their_own_place(
    catalog_url: str,
) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"], segments=4)
            await hr.publish("orders.first", b"")
            before = hr.log.catalog.statistics()["commits"]
            positions = await asyncio.gather(
                *(hr.publish("orders.n", b"%d" % i, key=str(i % 7)) for i in range(500))
            )
            assert hr.log.catalog.statistics()["commits"] - before < 50
            by_place = {(p.segment, p.offset): b"%d" % i for i, p in enumerate(positions)}
            assert len(by_place) == 500
            read = {
                (row["segment"], row["offset"]): row["value"]
                for row in await rows_of(hr, "orders", subject="orders.n")
            }
            assert read == by_place

    run(work())


def test_a_program_s_events_of_a_key_keep_the_order_of_its_calls(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"], segments=4)
            calls = [
                asyncio.ensure_future(hr.publish("orders.n", b"%d" % i, key=str(i % 5)))
                for i in range(300)
            ]
            await hr.split("orders", 0)
            await asyncio.gather(*calls)
            seen: dict[str, list[int]] = {}
            for row in await rows_of(hr, "orders"):
                seen.setdefault(row["key"], []).append(int(row["value"]))
            assert seen == {str(k): list(range(k, 300, 5)) for k in range(5)}

    run(work())


def test_many_publishers_lose_nothing_while_segments_split_and_merge(catalog_url: str) -> None:
    async def publisher(hr: headrace.Headrace, name: int) -> None:
        for i in range(40):
            await hr.publish(f"orders.{name}", b"%d" % i, key=str(name))

    async def scaler(hr: headrace.Headrace) -> None:
        for _ in range(3):
            for segment in (await hr.stream("orders")).open_segments[:1]:
                scaled = await hr.split("orders", segment.number)
                await hr.merge("orders", scaled.opened)

    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"], segments=2)
            await asyncio.gather(scaler(hr), *(publisher(hr, name) for name in range(16)))
            seen: dict[str, list[int]] = {}
            for row in await rows_of(hr, "orders"):
                seen.setdefault(row["key"], []).append(int(row["value"]))
            assert seen == {str(name): list(range(40)) for name in range(16)}

    run(work())


def test_a_cancelled_publish_does_not_disturb_the_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            calls = [asyncio.ensure_future(hr.publish("orders.n", b"%d" % i)) for i in range(20)]
            await asyncio.sleep(0)
            calls[3].cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(done[3], asyncio.CancelledError)
            others = [d for i, d in enumerate(done) if i != 3]
            assert all(isinstance(d, headrace.Position) for d in others)
            kept = {int(value) for value in await values_of(hr, "orders")}
            assert kept >= set(range(20)) - {3}

    run(work())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"subject": "orders..x"}, InvalidSubjectError),
        ({"subject": "orders.\ud800"}, InvalidSubjectError),
        ({"subject": "elsewhere.x"}, NoStreamError),
        ({"value": "text"}, InvalidEventError),
        ({"value": b"x" * (limits.EVENT_BYTES_MAX + 1)}, EventTooLargeError),
        ({"key": "k" * (limits.KEY_BYTES_MAX + 1)}, EventTooLargeError),
        ({"key": "\ud800"}, InvalidEventError),
        ({"headers": {"a": "\ud800"}}, InvalidEventError),
        ({"headers": {"a": "ö" * limits.HEADERS_BYTES_MAX}}, EventTooLargeError),
        ({"headers": [("a", 1)]}, InvalidEventError),
        ({"timestamp": "2013-07-04"}, InvalidEventError),
        ({"epoch": (1 << 63,)}, InvalidEventError),
        ({"epoch": (True,)}, InvalidEventError),
        ({"epoch": ()}, InvalidEventError),
        ({"producer": "p"}, headrace.InvalidInputError),
    ],
)
def test_a_bad_event_is_refused_and_changes_nothing(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            with pytest.raises(error):
                await hr.publish(**({"subject": "orders.n", "value": b""} | options))
            assert (await hr.stream("orders")).segments[0].head == 0
            await hr.publish("orders.n", b"still works")

    run(work())


def test_one_stream_s_trouble_is_not_another_s(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr, headrace.open(tmp_path / "d") as other:
            await hr.create_stream("orders", subjects=["orders.>"])
            await hr.create_stream("audit", subjects=["audit.>"])
            await asyncio.gather(hr.publish("orders.n", b""), hr.publish("audit.n", b""))
            await other.delete_stream("audit")
            done = await asyncio.gather(
                hr.publish("orders.n", b"good"),
                hr.publish("audit.n", b"gone"),
                return_exceptions=True,
            )
            assert isinstance(done[0], headrace.Position)
            assert isinstance(done[1], NoStreamError | UnknownStreamError)

    run(work())


def test_a_repeat_of_a_producer_s_event_writes_nothing(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            first = await hr.publish("orders.n", b"one", producer="till", sequence=5)
            again = await hr.publish("orders.n", b"one", producer="till", sequence=5)
            assert first == again
            assert await values_of(hr, "orders") == [b"one"]

    run(work())


def test_a_sequence_from_long_ago_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            for sequence in (0, 1000):
                hr.log.append(
                    "orders",
                    headrace.Event(subject="orders.n", value=b""),
                    producer="till",
                    sequence=sequence,
                )
            with pytest.raises(SequenceError):
                await hr.publish("orders.n", b"late", producer="till", sequence=0)

    run(work())


def test_a_table_is_appended_whole_or_not_at_all(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"], segments=3)
            subjects = [f"orders.{i}" for i in range(1000)]
            placed = await hr.append("orders", table_of(subjects, [b"v"] * 1000))
            assert sum(spot.count for spot in placed) == 1000
            with pytest.raises(InvalidEventError) as caught:
                await hr.append("orders", table_of([*subjects, "orders..x"], [b"v"] * 1001))
            assert caught.value.row == 1000
            with pytest.raises(InvalidEventError, match="captures"):
                await hr.append("orders", table_of(["orders.a", "other.b"], [b"1", b"2"]))
            with pytest.raises(InvalidEventError, match="cannot append"):
                await hr.append("orders", cast(Any, 7))
            assert len(await values_of(hr, "orders")) == 1000

    run(work())


def test_no_caller_can_set_an_origin(tmp_path: Path) -> None:
    origins = pa.array([{"region": "eu", "sequence": 7}])
    given = table_of(["orders.n"], [b"v"]).append_column("origin", origins)
    refused = pytest.raises(InvalidEventError, match="row 0: origin cannot be given")

    async def in_a_transaction(hr: headrace.Headrace) -> None:
        async with hr.transaction() as tx:
            tx.publish("orders.n", b"before")
            tx.append("orders", given)

    async def with_an_ack(hr: headrace.Headrace) -> None:
        async with hr.session("w") as session:
            await session.subscribe("orders.>", start="earliest")
            async with (await anext(aiter(session))).transaction() as tx:
                tx.append("orders", given)

    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            await hr.publish("orders.n", b"first")
            with refused:
                await hr.append("orders", given)
            async with hr.appender("orders") as appender:
                with refused:
                    await appender.append(given)
            with refused:
                await in_a_transaction(hr)
            with refused:
                await with_an_ack(hr)
            with pytest.raises(TypeError):
                await hr.publish("orders.n", b"v", origin=("eu", 7))  # type: ignore[call-arg]
            assert await values_of(hr, "orders") == [b"first"]
        with headrace.sync.open(tmp_path / "d") as here:
            with refused:
                here.append("orders", given)
            with here.appender("orders") as blocking, refused:
                blocking.append(given)

    run(work())


def test_events_from_a_generator_are_appended(tmp_path: Path) -> None:
    async def work() -> None:
        async with headrace.open(tmp_path / "d") as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            given = (headrace.Event(subject="orders.n", value=b"%d" % i) for i in range(3))
            assert (await hr.append("orders", given))[0].count == 3
            assert await hr.append("orders", []) == ()
            assert await values_of(hr, "orders") == [b"0", b"1", b"2"]

    run(work())


def test_a_conditional_append_loses_to_whoever_came_first(catalog_url: str) -> None:
    event = headrace.Event(subject="orders.n", value=b"x")

    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            await hr.append("orders", event, expected_heads={0: 0})
            with pytest.raises(HeadMoved) as caught:
                await hr.append("orders", event, expected_heads={0: 0})
            assert (caught.value.expected, caught.value.head) == (0, 1)
            assert (await hr.stream("orders")).segments[0].head == 1

    run(work())


def test_a_transaction_commits_all_its_streams_or_none(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            await hr.create_stream("audit", subjects=["audit.>"])
            async with hr.transaction() as tx:
                tx.publish("orders.n", b"1", key="k")
                tx.append("audit", table_of(["audit.n"], [b"2"]))
            assert [(spot.stream, spot.count) for spot in tx.placed] == [
                ("orders", 1),
                ("audit", 1),
            ]
            with pytest.raises(RuntimeError, match="changed my mind"):
                await given_up(hr)
            with pytest.raises(HeadMoved):
                await too_late(hr)
            assert await values_of(hr, "orders") == [b"1"]
            assert await values_of(hr, "audit") == [b"2"]

    run(work())


async def given_up(hr: headrace.Headrace) -> None:
    async with hr.transaction() as tx:
        tx.publish("orders.n", b"3")
        raise RuntimeError("changed my mind")


async def too_late(hr: headrace.Headrace) -> None:
    async with hr.transaction() as tx:
        tx.publish("orders.n", b"4")
        tx.append("audit", table_of(["audit.n"], [b"5"]), expected_heads={0: 0})


def test_a_repeated_transaction_gives_the_first_one_s_places(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            placed = []
            for _ in range(2):
                async with hr.transaction(producer="job", sequence=1) as tx:
                    tx.publish("orders.n", b"once")
                placed.append(tx.placed)
            assert placed[0] == placed[1]
            assert await values_of(hr, "orders") == [b"once"]

    run(work())


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        hr = headrace.open(tmp_path / "d")
        with pytest.raises(CatalogClosedError, match="async with"):
            await hr.streams()
        async with hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            pending = asyncio.ensure_future(hr.publish("orders.n", b"in time"))
            await asyncio.sleep(0)
        assert (await pending).offset == 0
        with pytest.raises(CatalogClosedError):
            await hr.publish("orders.n", b"too late")
        await hr.close()
        async with headrace.open(tmp_path / "d") as hr:
            assert await values_of(hr, "orders") == [b"in time"]

    run(work())


def test_opening_what_is_not_there_creates_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(headrace.HeadraceError):
            async with headrace.open(tmp_path / "typo", create=False):
                pass
        assert not (tmp_path / "typo").exists()
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
        with pytest.raises(NotACatalogError):
            async with headrace.open(tmp_path / "photos"):
                pass
        assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]

    run(work())


def test_streams_are_configured_trimmed_and_deleted(catalog_url: str) -> None:
    async def work() -> None:
        async with headrace.open(catalog_url) as hr:
            await hr.create_stream("orders", subjects=["orders.>"])
            for value in (b"1", b"2", b"3"):
                await hr.publish("orders.n", value)
            changed = await hr.configure_stream(
                "orders",
                retention=headrace.Limits(events=1),
                scaling=headrace.ByEvents(target_per_s=100),
            )
            assert changed.config.retention == headrace.Limits(events=1)
            assert await hr.trim("orders") == {0: 2}
            assert await values_of(hr, "orders") == [b"3"]
            with pytest.raises(headrace.TrimmedError) as caught:
                await values_of(hr, "orders", start={0: 0})
            assert caught.value.first == 2
            assert await hr.autoscale("orders") == []
            assert [stream.name for stream in await hr.streams()] == ["orders"]
            await hr.delete_stream("orders")
            assert await hr.streams() == ()
            with pytest.raises(UnknownStreamError):
                await hr.stream("orders")

    run(work())
