"""Groups: several streams, ends, streams that come and go, retention, and groups made anew."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.errors import (
    Fenced,
    InvalidInputError,
    InvalidNameError,
    InvalidReaderUpdateError,
    ReaderGroupExistsError,
    StreamInUseError,
    UnknownReaderGroupError,
    UnknownStreamError,
)
from headrace.groups.readers.names import ReaderGroupName
from tests.groups.readers.runtime.support import Taken, freeze, run, send
from tests.support import until


def test_three_streams_with_the_same_numbers_merge_without_mixing_them_up(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        names = ["orders", "clicks", "returns"]
        for name in names:
            await hr.create_stream(name, [f"{name}.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=names)
        taken = Taken()
        async with group.reader("r1") as r1, group.reader("r2") as r2, group.reader("r3") as r3:
            taken.start(r1, r2, r3)
            for at, name in enumerate(names):
                await send(hr, *range(at * 1000, at * 1000 + 60), stream=name)
            for name in names:
                await hr.merge(name, [0, 1])
            for at, name in enumerate(names):
                await send(hr, *range(at * 1000 + 60, at * 1000 + 120), stream=name)
            await until(lambda: len(taken.got) == 360)
            wanted = {at * 1000 + n for at in range(3) for n in range(120)}
            assert set(taken.numbers) == wanted
            for at in range(3):
                mine = [n for n in taken.numbers if n // 1000 == at]
                for key in range(20):
                    of_key = [n for n in mine if n % 20 == key]
                    assert of_key == sorted(of_key)
            await until(
                lambda: sum(len(r.status.segments) for r in (r1, r2, r3)) == 3,
            )

    run(catalog_url, work)


@pytest.mark.parametrize("split_first", [False, True])
def test_a_group_ends_at_its_end_cut_on_either_side_of_a_split(
    catalog_url: str, split_first: bool
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        await send(hr, *range(40))
        if split_first:
            await hr.split("orders", 0)
            await send(hr, *range(40, 60))
        whole = await hr.reader_groups.create("whole", streams=["orders"], start="latest")
        end = await whole.cut()
        before = 60 if split_first else 40
        await send(hr, *range(1000, 1040))
        if not split_first:
            await hr.split("orders", 0)
            await send(hr, *range(2000, 2040))
        group = await hr.reader_groups.create("report", streams=["orders"], end=end)
        taken = Taken()
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            assert (await group.lag()).events == before
            taken.start(r1, r2)
            await asyncio.gather(*taken.tasks)
            assert sorted(taken.numbers) == list(range(before))
            assert (await group.info()).end_of_data
            assert (await group.lag()).events == 0

    run(catalog_url, work)


def test_a_group_made_anew_while_an_old_reader_sleeps(catalog_url: str) -> None:
    """The sleeper counts for nothing: not its acks, not its updates, not its lease."""

    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        await send(hr, *range(20))
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as sleeper:
            held = await anext(aiter(sleeper))
            old = (await group.info()).revision
            running = sleeper.running
            life = running._life
            assert life is not None
            freeze(sleeper)
            running._hub.leave(running._following, running)  # type: ignore[union-attr,arg-type]
            await hr.reader_groups.delete("report")
            again = await hr.reader_groups.create("report", streams=["orders"])
            assert again.record.id > old
            async with again.reader("r1") as r1:
                await until(lambda: len(r1.status.segments) == 2)
                with pytest.raises(Fenced):
                    await held.ack()
                await life._put(headrace.groups.readers.RemoveReader("r1", token=life.token))
                assert len((await again.info()).readers) == 1
                taken = Taken()
                taken.start(r1)
                await until(lambda: len(taken.got) == 20)
                assert sorted(taken.numbers) == list(range(20))

    run(catalog_url, work)


def test_a_reader_of_a_deleted_group_is_told_and_its_loop_ends(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1:
            await until(lambda: r1.status.segments)
            await hr.reader_groups.delete("report")
            with pytest.raises(UnknownReaderGroupError):
                await anext(aiter(r1))
            assert await r1.next(timeout_s=1) is None

    run(catalog_url, work)


def test_a_stream_that_is_read_is_not_deleted_but_by_force(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        for name in ("orders", "clicks"):
            await hr.create_stream(name, [f"{name}.>"], segments=2)
        await send(hr, *range(20))
        group = await hr.reader_groups.create("report", streams=["orders", "clicks"])
        taken = Taken()
        async with group.reader("r1") as r1:
            taken.start(r1)
            await until(lambda: len(taken.got) == 20)
            with pytest.raises(StreamInUseError, match="report"):
                await hr.delete_stream("orders")
            await hr.delete_stream("orders", force=True)
            await hr.create_stream("orders", ["orders.>"], segments=2)
            await send(hr, *range(100, 120))
            await send(hr, *range(200, 220), stream="clicks")
            await until(lambda: len(taken.got) == 40)
            assert (await group.info()).streams == ("clicks",)
            checkpoint = await group.checkpoint("c1")
            assert {p.partition("/")[0] for p in checkpoint.positions} == {"clicks"}
            await group.add_streams(["orders"], start="earliest")
            await until(lambda: len(taken.got) == 60)
            assert sorted(taken.numbers[40:]) == list(range(100, 120))
            await group.drop_streams(["clicks"])
            await until(lambda: len(r1.status.segments) == 2)

    run(catalog_url, work)


def test_an_application_that_answers_nothing_loses_its_segments_until_it_does(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=["orders"])
        reluctant = group.reader("stuck", stall_after_ms=2000, ack_wait_ms=600_000)
        async with group.reader("r1") as r1, reluctant as stuck:
            await until(lambda: r1.status.segments and stuck.status.segments)
            await send(hr, *range(40))
            held = await anext(aiter(stuck))
            taken = Taken()
            taken.start(r1)
            await until(lambda: len(taken.got) == 40)
            assert not stuck.status.online
            assert "answer" in stuck.status.waits_for
            told = [(d.what.value, d.source) for d in (await group.explain()).decisions]
            assert ("evicted", "stuck") in told
            with pytest.raises(Fenced):
                await held.ack()
            await until(lambda: stuck.status.segments)

    run(catalog_url, work)


def test_an_operator_puts_a_reader_offline_and_may_take_acks_back(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=1)
        await send(hr, *range(10))
        group = await hr.reader_groups.create("report", streams=["orders"])
        assert not await group.offline("r1")
        async with group.reader("r1") as r1:
            for _ in range(5):
                await (await anext(aiter(r1))).ack()
            with pytest.raises(InvalidInputError, match="does not own"):
                await group.offline("r1", positions={"orders/7": 1})
            with pytest.raises(InvalidInputError, match="rewind"):
                await group.offline("r1", positions={"orders/0": 2})
            assert await group.offline("r1", positions={"orders/0": 2}, rewind=True)
            taken = Taken()
            taken.start(r1)
            await until(lambda: len(taken.got) == 8)
            assert taken.numbers == list(range(2, 10))

    run(catalog_url, work)


def test_retention_keeps_what_the_group_asks_for(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], retention=headrace.Groups())
        group = await hr.reader_groups.create("report", streams=["orders"], retain="checkpoint")

        async def tail() -> int:
            await hr.trim("orders")
            return (await hr.stream("orders")).segments[0].tail

        async with group.reader("r1") as r1:
            taken = Taken()
            taken.start(r1)
            for n in range(10):
                await send(hr, n)
            await until(lambda: len(taken.got) == 10)
            assert await tail() == 0
            await group.checkpoint("c1")
            assert await tail() == 10
            for n in range(10, 20):
                await send(hr, n)
            await until(lambda: len(taken.got) == 20)
            await group.checkpoint("c2")
            await group.configure(retain="manual")
            for n in range(20, 30):
                await send(hr, n)
            await until(lambda: len(taken.got) >= 30)
            held = await tail()
            assert held == 20
            await group.release({"orders/0": 25})
            assert await tail() == 25
            with pytest.raises(InvalidInputError, match="released up to 25"):
                await group.release({"orders/0": 22})
            await group.configure(retain="nothing")
            assert await tail() == 25  # nobody asks, so the policy of the stream decides
            await group.configure(retain="positions")
            await send(hr, 30)
            await until(lambda: len(taken.got) >= 31)
            assert await tail() == 31

    run(catalog_url, work)


def test_segments_behind_the_start_hold_back_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], retention=headrace.Groups())
        await send(hr, *range(20))
        await hr.split("orders", 0)
        group = await hr.reader_groups.create("report", streams=["orders"], start="latest")
        assert (await group.lag()).events == 0
        assert sorted((await group.info()).unassigned) == ["orders/1", "orders/2"]
        await hr.trim("orders")
        assert (await hr.stream("orders")).segments[0].tail == 20

    run(catalog_url, work)


def test_output_and_ack_are_one_transaction(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        for name in ("orders", "bills"):
            await hr.create_stream(name, [f"{name}.>"])
        await send(hr, *range(4))
        group = await hr.reader_groups.create("report", streams=["orders"])
        async with group.reader("r1") as r1:
            delivery = await anext(aiter(r1))
            async with delivery.transaction() as tx:
                tx.publish("bills.1", b"paid")
            late = await anext(aiter(r1))
            await group.offline("r1")
            with pytest.raises(Fenced):
                async with late.transaction() as tx:
                    tx.publish("bills.2", b"never")
            assert (await hr.stream("bills")).segments[0].head == 1
            await until(lambda: r1.status.segments)
            assert (await group.lag()).events == 3

    run(catalog_url, work)


def test_bad_input_makes_no_group(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        groups = hr.reader_groups
        await groups.create("report", streams=["orders"])
        await groups.create("report", streams=["orders"])
        for error, call in (
            (InvalidInputError, lambda: groups.create("g", streams=[])),
            (InvalidInputError, lambda: groups.create("g", streams="orders")),
            (InvalidInputError, lambda: groups.create("g", streams=["orders", "orders"])),
            (UnknownStreamError, lambda: groups.create("g", streams=["nope"])),
            (InvalidNameError, lambda: groups.create("a.b", streams=["orders"])),
            (InvalidInputError, lambda: groups.create("g", streams=["orders"], retain="all")),
            (InvalidInputError, lambda: groups.create("g", streams=["orders"], filter="x.>")),
            (InvalidInputError, lambda: groups.create("g", streams=["orders"], start="noon")),
            (ReaderGroupExistsError, lambda: groups.create("report", ["orders"], start="latest")),
            (InvalidReaderUpdateError, lambda: groups.create("g", ["orders"], checkpoints_kept=0)),
            (InvalidInputError, lambda: groups.create("g", ["orders"], end={"orders/0": 5})),
            (UnknownReaderGroupError, lambda: groups.get("g")),
            (UnknownReaderGroupError, lambda: groups.delete("g")),
        ):
            with pytest.raises(error):
                await call()
        assert [group.name for group in await groups.list()] == ["report"]
        group = await groups.get("report")
        with pytest.raises(InvalidNameError):
            group.reader("no/slash")
        with pytest.raises(InvalidReaderUpdateError, match="half"):
            group.reader("r1", lease_ttl_ms=1000, heartbeat_ms=600)
        with pytest.raises(InvalidInputError, match="unknown option"):
            group.reader("r1", colour="red")
        with pytest.raises(InvalidInputError):
            group.reader("r1", on_checkpoint="save")  # type: ignore[arg-type]

    run(catalog_url, work)


def test_no_derived_name_is_another_group_s() -> None:
    name = ReaderGroupName("report")
    derived = {name.key, name.kept, name.leases, name.lease("r1")}
    assert len(derived) == 4
    assert all("." not in each and ":" not in each for each in derived)
