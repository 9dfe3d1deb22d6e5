"""Readers in one process: they share, answer, leave, die and come back."""

from __future__ import annotations

import pytest

import headrace
from headrace.errors import Fenced, ReaderBusyError
from tests.groups.readers.runtime.support import Taken, freeze, run, send
from tests.support import until


def test_two_readers_share_the_segments_and_each_event_goes_to_one(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=6)
        await send(hr, *range(200))
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            taken = Taken()
            taken.start(r1, r2)
            await until(lambda: len(taken.got) == 200)
            await until(lambda: len(r1.status.segments) == len(r2.status.segments) == 3)
            await send(hr, *range(200, 300))
            await until(lambda: len(taken.got) == 300)
            assert sorted(taken.numbers) == list(range(300))
            assert taken.in_order()
            assert {reader for reader, _ in taken.got} == {"r1", "r2"}

    run(catalog_url, work)


def test_what_a_reader_had_is_read_by_others_when_it_leaves(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=4)
        group = await hr.reader_groups.create("report", streams=["orders"])
        taken = Taken()
        async with group.reader("r1") as r1:
            taken.start(r1)
            async with group.reader("r2") as r2:
                taken.start(r2)
                await until(lambda: len(r2.status.segments) == 2)
                await send(hr, *range(100))
                await until(lambda: len(taken.got) == 100)
            await until(lambda: len(r1.status.segments) == 4)
            await send(hr, *range(100, 200))
            await until(lambda: len(taken.got) == 200)
        assert sorted(taken.numbers) == list(range(200))
        assert taken.in_order()

    run(catalog_url, work)


def test_a_split_is_followed_in_order(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=["orders"])
        taken = Taken()
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            taken.start(r1, r2)
            await send(hr, *range(100))
            await hr.split("orders", 0, 3)
            await send(hr, *range(100, 200))
            await hr.merge("orders", [2, 3])
            await send(hr, *range(200, 300))
            await until(lambda: len(taken.got) == 300)
            assert sorted(taken.numbers) == list(range(300))
            assert taken.in_order()
            await until(lambda: len(r1.status.segments) + len(r2.status.segments) == 3)

    run(catalog_url, work)


def test_a_dead_reader_is_replaced_and_its_answers_count_no_more(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=4)
        group = await hr.reader_groups.create("report", streams=["orders"])
        taken = Taken()
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            await until(lambda: len(r1.status.segments) == len(r2.status.segments) == 2)
            await send(hr, *range(100))
            held = [await anext(aiter(r2)) for _ in range(3)]
            await held[0].ack()
            freeze(r2)
            taken.start(r1)
            await until(lambda: len(taken.got) == 99)
            with pytest.raises(Fenced):
                await held[1].ack()
            assert sorted([*taken.numbers, int(held[0].value)]) == list(range(100))

    run(catalog_url, work)


def test_a_newcomer_with_a_shorter_lease_than_all_others_is_replaced_when_that_has_run_out(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=4)
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with (
            group.reader("r1", lease_ttl_ms=60_000) as r1,
            headrace.open(catalog_url, housekeeping=False) as other,
        ):
            await until(lambda: len(r1.status.segments) == 4)
            again = await other.reader_groups.get("report")
            async with again.reader("r2", lease_ttl_ms=2000) as r2:
                await until(lambda: len(r1.status.segments) == len(r2.status.segments) == 2)
                freeze(r2)
                began_ms = hr.host.now_ms()
                await until(lambda: len(r1.status.segments) == 4)
                assert hr.host.now_ms() - began_ms <= 2000 + 500

    run(catalog_url, work)


def test_a_name_comes_back_with_its_segments(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=6)
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            await until(lambda: len(r1.status.segments) == len(r2.status.segments) == 3)
            had = r2.status.segments
            freeze(r2)
            async with group.reader("r2", lease_ttl_ms=10_000) as again:
                await until(lambda: again.status.segments)
                assert again.status.segments == had
                assert len(r1.status.segments) == 3

    run(catalog_url, work)


def test_a_name_that_is_alive_elsewhere_is_refused_with_who_holds_it(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1:
            with pytest.raises(ReaderBusyError, match="r1") as refused:
                await group.reader("r1").open()
            assert refused.value.holder == r1.running.instance

    run(catalog_url, work)


def test_a_reader_with_a_short_lease_does_not_take_the_name_of_one_with_a_long_lease(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with (
            group.reader("r1", lease_ttl_ms=30_000) as first,
            headrace.open(catalog_url, housekeeping=False) as other,
        ):
            await until(lambda: len(first.status.segments) == 2)
            again = await other.reader_groups.get("report")
            with pytest.raises(ReaderBusyError, match="r1"):
                async with again.reader("r1", lease_ttl_ms=500):
                    pass
            assert len(first.status.segments) == 2

    run(catalog_url, work)


def test_what_a_reader_rejects_is_kept_as_a_dead_letter_and_is_not_read_again(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=["orders"])
        await send(hr, *range(10))
        got: list[int] = []
        async with group.reader("r1") as reader:
            while len(got) < 9:
                delivery = await reader.next()
                assert delivery is not None
                if int(delivery.value) == 4:
                    await delivery.reject("it has no price")
                else:
                    await delivery.ack()
                    got.append(int(delivery.value))
            await reader.flush()
        assert sorted(got) == [n for n in range(10) if n != 4]
        assert (await group.lag()).events == 0
        letters = [
            value
            async for batch in hr.read("reader/report.dead")
            for value in batch.column("value").to_pylist()
        ]
        assert letters == [b"4"]
        async with group.reader("r2") as other:
            assert await other.next(timeout_s=1) is None

    run(catalog_url, work)
