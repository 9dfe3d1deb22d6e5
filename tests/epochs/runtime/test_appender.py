"""Appenders of epoch publishers: pipelined, in order, and all behind a failure is left out."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import headrace
import headrace.sync
from headrace.catalog import epochs, leases
from headrace.errors import (
    AppenderClosedError,
    Fenced,
    FrontierError,
    InvalidEventError,
    LateEventError,
    PublisherClosedError,
)
from headrace.log import limits
from tests.epochs.runtime.test_publisher import check_lines, lines, rows, run, table


def test_calls_share_commits_and_keep_their_order(catalog_url: str, either_way: None) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            before = len(await lines(hr))
            async with pub.appender() as appender:
                for time in range(200):
                    await appender.append(time, table(3))
                    if time % 2:
                        await appender.advance_to(time + 1)
                    else:
                        await appender.publish(time, "a.x", b"v", advance_to=time + 1)
                await appender.flush()
                assert pub.frontier == 200
                await appender.append(200, table(1))
            assert len(await lines(hr)) - before < 100
            await pub.advance_to(201)
        found = await rows(hr)
        assert found == {(time,): 4 - time % 2 for time in range(200)} | {(200,): 1}
        await check_lines(hr)
        async with hr.epochs("a", start="earliest", until=201) as whole:
            assert [epoch.time async for epoch in whole] == list(range(201))

    run(catalog_url, work)


def test_what_breaks_a_rule_raises_at_once_and_the_appender_goes_on(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub, pub.appender() as appender:
            await appender.append(3, table(2), advance_to=4)
            with pytest.raises(LateEventError):  # known before it is stored
                await appender.append(3, table(1))
            with pytest.raises(FrontierError):
                await appender.advance_to(2)
            with pytest.raises(FrontierError, match="close"):
                await appender.advance_to([])
            with pytest.raises(InvalidEventError):
                await appender.append(None, table(1))
            with pytest.raises(InvalidEventError, match="captures"):
                await appender.publish(4, "b.c", b"", advance_to=9)
            capability = await pub.hold(4)
            await appender.append(4, table(1), advance_to=6)
            await appender.append(4, table(1))  # by the capability
            await appender.flush()
            await capability.drop()
            with pytest.raises(LateEventError):
                await appender.append(4, table(1))
            await appender.close()
            with pytest.raises(AppenderClosedError):
                await appender.append(6, table(1))
        with pytest.raises(PublisherClosedError):
            pub.appender()
        assert await rows(hr) == {(3,): 2, (4,): 2}
        await check_lines(hr)

    run(catalog_url, work)


def test_one_that_was_replaced_writes_nothing_and_fails_for_good(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            appender = pub.appender()
            await appender.append(0, table(5))
            await appender.flush()
            before = (await lines(hr), await rows(hr))
            name = epochs.lease_name(pub.where.stream.id, "eu")
            await hr.in_thread(hr.log.catalog.write, lambda tx: leases.fence(tx, name))
            await appender.append(0, table(7))
            with pytest.raises(Fenced):
                await appender.flush()
            with pytest.raises(Fenced):
                await appender.append(0, table(7))
            with pytest.raises(Fenced):
                await pub.advance_to(1)
            assert (await lines(hr), await rows(hr)) == before

    run(catalog_url, work)


def test_more_epochs_than_a_line_may_hold_are_not_joined(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        each = limits.EPOCHS_JOINED // 3
        async with hr.epoch_publisher("a", "eu") as pub, pub.appender() as appender:
            for part in range(8):
                first = part * each
                await appender.append(
                    None,
                    table(each, [[first + row] for row in range(each)]),
                    advance_to=first + each,
                )
        assert len(await rows(hr)) == 8 * each
        assert max(len(line.times) for line in await lines(hr)) <= limits.EPOCHS_JOINED

    run(catalog_url, work)


def test_many_loops_at_once_are_bounded(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub, pub.appender() as appender:

            async def loop() -> None:
                for _ in range(50):
                    await appender.append(0, table(2))

            await asyncio.gather(*(loop() for _ in range(8)))
        assert await rows(hr) == {(0,): 800}
        await check_lines(hr)

    run(catalog_url, work)


def test_without_await(catalog_url: str) -> None:
    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        hr.create_stream("a", ["a.>"], segments=4, epochs=headrace.Epochs())
        with hr.epoch_publisher("a", "eu") as pub:
            with pub.appender() as appender:
                for time in range(300):
                    appender.append(time, table(2), advance_to=time + 1)
                appender.publish(300, "a.x", b"")
                appender.advance_to(301)
            assert pub.frontier == 301
            held = pub.hold(400)
            held.downgrade(401)
            held.drop()
        with hr.epochs("a", start="earliest", until=301) as whole:
            assert [len(epoch.table()) for epoch in whole] == [2] * 300 + [1]


def test_times_by_row_and_one_for_all_share_commits(catalog_url: str, either_way: None) -> None:
    async def work(hr: headrace.Headrace) -> None:
        noted = {"subject": "a.h", "value": b"v", "headers": [{"key": "k", "value": b"w"}]}
        headers = pa.Table.from_pylist([noted] * 2, hr_schema)
        async with hr.epoch_publisher("a", "eu") as pub:
            before = len(await lines(hr))
            async with pub.appender() as appender:
                for time in range(0, 60, 3):
                    await appender.append(time, table(5))
                    await appender.append(None, table(2, [[time + 1], [time + 2]]))
                    await appender.append(None, table(3, [[time]] * 3))
                    await appender.append(time, table(1), advance_to=time + 1)
                    await appender.append(time + 2, headers)
                    await appender.advance_to(time + 3)
            assert len(await lines(hr)) - before < 60
        each = {(time,): (9, 1, 3)[time % 3] for time in range(60)}
        assert await rows(hr) == each
        await check_lines(hr)
        async with hr.epochs("a", start="earliest", until=60) as whole:
            found = {(epoch.time,): (await epoch.table()).num_rows async for epoch in whole}
        assert found == each

    hr_schema = pa.schema(
        [
            ("subject", pa.string()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )
    run(catalog_url, work)
