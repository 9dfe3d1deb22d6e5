"""Publishers on a real catalog: rows and lines in one commit, take-overs, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.epochs.core.lines import Line
from headrace.epochs.runtime.progress_log import ProgressLog
from headrace.errors import (
    CapabilityError,
    EpochLimitError,
    EpochStreamEndedError,
    EpochStreamError,
    Fenced,
    FrontierError,
    HeadraceError,
    IllegalTimeError,
    InvalidEventError,
    InvalidInputError,
    LateEventError,
    NoEpochsError,
    NotStoredError,
    PublisherClosedError,
    PublisherInUseError,
    SequenceReusedError,
    TimeShapeError,
    UnknownStreamError,
)

Work = Callable[[headrace.Headrace], Awaitable[None]]


def table(rows: int, epochs: list[list[int] | None] | None = None) -> pa.Table:
    columns = {
        "subject": pa.array([f"a.{row}" for row in range(rows)]),
        "value": pa.array([b"%d" % row for row in range(rows)]),
    }
    if epochs is not None:
        columns["epoch"] = pa.array(epochs, pa.list_(pa.int64()))
    return pa.table(columns)


def run(url: str, work: Work, **options: object) -> None:
    """Open, make a stream ``a`` of four segments with epochs, and work."""

    async def main() -> None:
        async with headrace.open(url, housekeeping=False) as hr:
            epochs = headrace.Epochs(**options)  # type: ignore[arg-type]
            await hr.create_stream("a", ["a.>"], segments=4, epochs=epochs)
            await work(hr)

    asyncio.run(main())


async def lines(hr: headrace.Headrace, stream: str = "a") -> list[Line]:
    def read() -> list[Line]:
        progress = ProgressLog(hr.log, hr.log.stream(stream))
        return [line for _, line in progress.scan(*progress.bounds())]

    return await hr.in_thread(read)


async def rows(hr: headrace.Headrace, stream: str = "a") -> Counter[tuple[int, ...]]:
    """How many rows of which epoch are stored."""
    found: Counter[tuple[int, ...]] = Counter()
    async for batch in hr.read(stream):
        found.update(tuple(epoch) for epoch in batch.column("epoch").to_pylist())
    return found


async def check_lines(hr: headrace.Headrace) -> None:
    """Every line names exactly the rows that are at its offsets."""
    stored: dict[tuple[int, int], list[int]] = {}
    async for batch in hr.read("a"):
        columns = (batch.column(name).to_pylist() for name in ("segment", "offset", "epoch"))
        for segment, offset, epoch in zip(*columns, strict=True):
            stored[segment, offset] = epoch
    for line in await lines(hr):
        found: Counter[object] = Counter()
        for span in line.spans:
            for offset in range(span.start, span.end):
                epoch = stored.pop((span.segment, offset))
                found[epoch[0] if len(epoch) == 1 else tuple(epoch)] += 1
        assert found == Counter(line.rows_by_time())
    assert not stored


def test_rows_and_progress_are_one_commit(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            assert pub.frontier == 0
            placed = await pub.append(0, table(100))
            assert sum(spot.count for spot in placed) == 100
            await pub.append(3, table(10))  # early
            await pub.append(1, table(50), advance_to=2)
            await pub.publish(2, "a.x", b"one", key="k")
            await pub.advance_to(4)
            assert pub.frontier == 4
        assert await rows(hr) == {(0,): 100, (3,): 10, (1,): 50, (2,): 1}
        found = await lines(hr)
        assert [line.lower for line in found] == [(0,), (0,), (0,), (2,), (2,), (4,)]
        assert [line.first_open for line in found] == [1, 1, 1, 2, 2, 6]
        await check_lines(hr)

    run(catalog_url, work)


def test_a_time_in_every_row(catalog_url: str, either_way: None) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(None, table(300, [[row % 7, row % 3] for row in range(300)]))
            await pub.append((9, 9), table(5, [[9, 9]] * 5))
            await pub.advance_to([(4, 0), (0, 2)])
            assert pub.frontiers == ((0, 2), (4, 0))
        await check_lines(hr)

    run(catalog_url, work, length=2)


def test_plain_appends_are_refused_by_every_way(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        with pytest.raises(EpochStreamError, match="epoch_publisher"):
            await hr.publish("a.b", b"")
        with pytest.raises(EpochStreamError):
            await hr.append("a", table(2))
        with pytest.raises(EpochStreamError):
            await hr.append("a", table(2), producer="p", sequence=1)
        with pytest.raises(EpochStreamError):
            async with hr.transaction() as tx:
                tx.append("a", table(2))
        with pytest.raises(EpochStreamError):
            async with hr.appender("a") as appender:
                await appender.append(table(2))
        await hr.create_stream("plain", ["plain.>"])
        with pytest.raises(EpochStreamError):
            await asyncio.gather(hr.publish("a.b", b""), hr.publish("plain.b", b""))
        assert not await rows(hr)
        with pytest.raises(NoEpochsError, match="chosen when a stream is created"):
            await hr.epoch_publisher("plain", "eu").__aenter__()
        with pytest.raises(UnknownStreamError):
            await hr.epoch_publisher("nowhere", "eu").__aenter__()

    run(catalog_url, work)


def test_declared_publishers_and_those_that_come_later(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as eu:
            await eu.append(0, table(3), advance_to=5)
            assert (await lines(hr))[-1].lower == (0,)
            async with hr.epoch_publisher("a", "us") as us:
                await us.advance_to(3)
            assert (await lines(hr))[-1].lower == (3,)
            with pytest.raises(FrontierError, match="frontier or later"):
                await hr.epoch_publisher("a", "as", start=2).__aenter__()
            async with hr.epoch_publisher("a", "as") as late:
                assert late.frontier == 3
                await late.close()
        async with hr.epoch_publisher("a", "us") as us:
            assert us.frontier == 3
            assert us.recovered.total == 0

    run(catalog_url, work, publishers=("eu", "us"))


def test_bad_input_changes_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.advance_to(7)
            before = len(await lines(hr))
            many = table(10_001, [[row + 7] for row in range(10_001)])
            refused: list[tuple[type[HeadraceError], Awaitable[object]]] = [
                (TimeShapeError, pub.append(-1, table(1))),
                (TimeShapeError, pub.append(True, table(1))),
                (TimeShapeError, pub.append(7.0, table(1))),  # type: ignore[arg-type]
                (TimeShapeError, pub.append((7, 7), table(1))),
                (TimeShapeError, pub.append(1 << 63, table(1))),
                (InvalidEventError, pub.append(None, table(1))),
                (InvalidEventError, pub.append(None, table(2, [[7], None]))),
                (InvalidEventError, pub.append(None, table(2, [[7], [7, 8]]))),
                (InvalidEventError, pub.append(None, table(2, [[7], [-1]]))),
                (InvalidEventError, pub.append(8, table(2, [[8], [9]]))),
                (
                    EpochLimitError,
                    pub.append(None, many),
                ),
                (LateEventError, pub.append(6, table(1))),
                (FrontierError, pub.advance_to(6)),
                (FrontierError, pub.advance_to([])),
                (TimeShapeError, pub.advance_to("8")),
                (TimeShapeError, pub.advance_to(8.0)),
                (IllegalTimeError, pub.hold(6)),
                (InvalidInputError, pub.abort("")),
            ]
            for kind, call in refused:
                with pytest.raises(kind):
                    await call
            with pytest.raises(LateEventError, match=r"2 rows at epoch 5.*first is row 1") as it:
                await pub.append(None, table(4, [[9], [5], [8], [5]]))
            assert (it.value.rows, it.value.row, it.value.held) == (2, 1, (7,))
            assert len(await lines(hr)) == before
            assert not await rows(hr)
            with pytest.raises(PublisherInUseError, match="another program is active"):
                await hr.epoch_publisher("a", "eu", standby=False).__aenter__()
            with pytest.raises(InvalidInputError, match="recover"):
                hr.epoch_publisher("a", "eu", recover="drop")  # type: ignore[arg-type]
            with pytest.raises(InvalidInputError):
                hr.epoch_publisher("a", "not a name")
        with pytest.raises(PublisherClosedError, match="has left"):
            await pub.append(9, table(1))
        for bad in (
            headrace.Epochs(length=9),
            headrace.Epochs(publishers=("x", "x")),
            headrace.Epochs(publishers=("no name",)),
        ):
            with pytest.raises(InvalidInputError):
                await hr.create_stream("b", ["b.>"], epochs=bad)
        with pytest.raises(HeadraceError, match="exists in another form"):
            await hr.create_stream("a", ["a.>"], segments=4)
        await hr.create_stream("live", ["live.>"], epochs=headrace.Epochs(stored=False))
        with pytest.raises(NotStoredError):
            await hr.epoch_publisher("live", "eu").__aenter__()

    run(catalog_url, work)


def test_capabilities_hold_times_apart_from_the_frontier(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            kept = await pub.hold(2)
            await pub.advance_to(9)
            assert (pub.frontier, set(pub.held)) == (2, {2, 9})
            await pub.append(3, table(4))
            await kept.downgrade(5)
            with pytest.raises(IllegalTimeError, match="forward only"):
                await kept.downgrade(4)
            await kept.drop()
            assert pub.frontier == 9
            with pytest.raises(CapabilityError):
                await kept.downgrade(9)
        assert [line.lower for line in await lines(hr)][-3:] == [(2,), (5,), (9,)]

    run(catalog_url, work)


def test_the_end_of_the_block_leaves_and_close_gives_up(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(2))
        async with hr.epoch_publisher("a", "eu") as pub:
            assert (pub.frontier, pub.recovered.total) == (0, 0)  # it was left cleanly: rows stay
            await pub.close()
            with pytest.raises(PublisherClosedError, match="has closed"):
                await pub.advance_to(1)
        assert (await lines(hr))[-1].lower == ()
        with pytest.raises(EpochStreamEndedError, match="closed"):
            await hr.epoch_publisher("a", "eu").__aenter__()

    run(catalog_url, work)


def test_an_aborted_stream_tells_its_reason(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.abort("the source is gone")
        line = (await lines(hr))[-1]
        assert (line.event, line.reason, line.lower) == ("aborted", "the source is gone", (0,))
        with pytest.raises(EpochStreamEndedError, match="the source is gone"):
            await hr.epoch_publisher("a", "us").__aenter__()

    run(catalog_url, work)


def test_a_repeat_is_answered_though_its_epoch_is_complete(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            first = await pub.append(0, table(5), advance_to=1, producer="p", sequence=1)
            count = len(await lines(hr))
            again = await pub.append(0, table(5), advance_to=1, producer="p", sequence=1)
            assert (again, len(await lines(hr))) == (first, count)
            with pytest.raises(LateEventError):
                await pub.append(0, table(5), producer="p", sequence=2)
            assert await rows(hr) == {(0,): 5}

    run(catalog_url, work)


def test_a_transaction_takes_epochs_and_plain_events_or_neither(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("log", ["log.>"])
        async with hr.epoch_publisher("a", "eu") as pub:
            async with hr.transaction() as tx:
                tx.publish("log.x", b"did 0")
                pub.within(tx).append(0, table(3), advance_to=1)
                pub.within(tx).publish(1, "a.y", b"")
            assert pub.frontier == 1
            late = hr.transaction()
            await late.__aenter__()
            late.publish("log.x", b"did nothing")
            pub.within(late).append(0, table(3))
            with pytest.raises(LateEventError):
                await late.__aexit__(None)
        assert sum([batch.num_rows async for batch in hr.read("log")]) == 1
        await check_lines(hr)

    run(catalog_url, work)


def test_a_program_that_was_replaced_writes_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with (
            headrace.open(catalog_url, housekeeping=False) as other,
            hr.epoch_publisher("a", "eu", lease_ttl_ms=100) as pub,
        ):
            await pub.append(0, table(3), advance_to=1)
            await pub.append(1, table(2))
            await pub.append(4, table(5))
            # As if frozen: nobody renews.
            renewals = next(v for v in hr.host.parts.values() if hasattr(v, "drop"))
            renewals._kept.clear()
            async with other.epoch_publisher("a", "eu", lease_ttl_ms=60_000) as successor:
                assert successor.frontier == 1
                assert successor.recovered.rows == {1: 2, 4: 5}
                before = await lines(hr), await rows(hr)
                with pytest.raises(Fenced):
                    await pub.append(1, table(7))
                with pytest.raises(Fenced):
                    await pub.advance_to(2)
                assert (await lines(hr), await rows(hr)) == before
                await successor.append(1, table(4), advance_to=2)
        taken = [line.taken_back for line in await lines(hr) if line.taken_back]
        assert taken == [(1,)]

    run(catalog_url, work)


def test_rows_of_a_program_that_was_replaced_are_kept_if_its_successor_says_so(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with (
            headrace.open(catalog_url, housekeeping=False) as other,
            hr.epoch_publisher("a", "eu", lease_ttl_ms=100) as pub,
        ):
            await pub.append(0, table(3), advance_to=1)
            await pub.append(1, table(2))
            await pub.append(4, table(5))
            # As if frozen: nobody renews.
            renewals = next(v for v in hr.host.parts.values() if hasattr(v, "drop"))
            renewals._kept.clear()
            async with other.epoch_publisher(
                "a", "eu", lease_ttl_ms=60_000, recover="keep"
            ) as successor:
                assert (successor.frontier, successor.recovered.total) == (1, 0)
                assert await rows(hr) == {(0,): 3, (1,): 2, (4,): 5}
                with pytest.raises(Fenced):
                    await pub.append(1, table(7))
                await successor.append(1, table(4), advance_to=5)
        assert not [line for line in await lines(hr) if line.taken_back]
        async with hr.epochs("a", start="earliest", until=5) as epochs:
            found = [(epoch.time, (await epoch.table()).num_rows) async for epoch in epochs]
        assert found == [(0, 3), (1, 6), (4, 5)]

    run(catalog_url, work)


def test_a_split_in_the_middle_of_an_epoch_changes_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(40))
            # Another log scales, so that this one's route is stale when it appends.
            async with headrace.open(catalog_url, housekeeping=False) as other:
                for segment in range(4):
                    await other.split("a", segment)
            await pub.append(0, table(40), advance_to=1)
        assert await rows(hr) == {(0,): 80}
        await check_lines(hr)

    run(catalog_url, work)


def test_deleting_the_stream_removes_all_of_it(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(4), advance_to=3)
            await hr.delete_stream("a")
            with pytest.raises(HeadraceError):
                await pub.append(3, table(4))
        assert await hr.streams(internal=True) == ()
        await hr.create_stream("a", ["a.>"], segments=4, epochs=headrace.Epochs())
        async with hr.epoch_publisher("a", "eu") as again:
            assert again.frontier == 0

    run(catalog_url, work)


def test_operators_act_for_a_publisher_that_will_not_come_back(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as eu, hr.epoch_publisher("a", "us") as us:
            await eu.append(0, table(2))
            await us.advance_to(5)
            await hr.rollback_publisher("a", "eu")
            with pytest.raises(Fenced):
                await eu.advance_to(1)
            line = (await lines(hr))[-1]
            assert (line.event, line.taken_back, line.lower) == ("rolled back", (0,), (5,))
            with pytest.raises(HeadraceError, match="no publisher of stream"):
                await hr.release_publisher("a", "eu")
            await hr.release_publisher("a", "us")
            with pytest.raises(Fenced):
                await us.advance_to(6)
        assert (await lines(hr))[-1].lower == ()
        with pytest.raises(EpochStreamEndedError):
            await hr.abort_epochs("a", "us", "too late")

    run(catalog_url, work)


async def test_a_publisher_is_shown_with_what_it_holds(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        await hr.create_stream("days", ["days.>"], epochs=headrace.Epochs())
        publisher = hr.epoch_publisher("days", "eu")
        assert repr(publisher) == "<EpochPublisher 'eu' of 'days', holding nothing>"
        async with publisher:
            await publisher.advance_to(17)
            assert repr(publisher) == "<EpochPublisher 'eu' of 'days', holding 17>"


async def test_a_sequence_that_comes_again_with_another_advance_is_refused(tmp_path: Path) -> None:
    async with headrace.open(tmp_path) as hr:
        await hr.create_stream("days", ["days.>"], epochs=headrace.Epochs())
        event = headrace.Event(subject="days.x", value=b"1")
        async with hr.epoch_publisher("days", "eu") as publisher:
            once: dict[str, Any] = {"producer": "source", "sequence": 1}
            first = await publisher.append(3, event, advance_to=4, **once)
            assert await publisher.append(3, event, advance_to=4, **once) == first
            for advance_to in (None, 5):
                with pytest.raises(SequenceReusedError):
                    await publisher.append(3, event, advance_to=advance_to, **once)
            with pytest.raises(SequenceReusedError):
                await publisher.append(4, event, advance_to=4, **once)
            assert publisher.frontier == 4
