"""Exactly once: output and ack commit together, or neither does."""

from __future__ import annotations

import asyncio
import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import AlreadyAckedError, AnsweredError, Fenced, NoStreamError
from headrace.groups.consumer import CatalogAcks, Delivery, UnitAck
from headrace.groups.progress import Progress, store
from tests.api.test_client import table_of
from tests.groups.consumer.rig import Rig, rig, run, run_with_threads, take, values
from tests.support import until


async def outputs(hr: headrace.Headrace) -> list[bytes]:
    return [row["value"] async for batch in hr.read("invoices") for row in batch.to_pylist()]


async def with_invoices(r: Rig) -> None:
    await r.hr.create_stream("invoices", subjects=["invoices.>"])


async def dead_letter_streams(hr: headrace.Headrace) -> list[str]:
    return [s.name for s in await hr.streams(internal=True) if s.name.endswith(".dead")]


def test_output_and_ack_are_one(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            await with_invoices(r)
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("abc")
            one, two, three = await take(consumer, 3)
            async with two.transaction() as tx:
                tx.publish("invoices.1", b"first", key="1")
                tx.append("invoices", table_of(["invoices.2"], [b"second"]))
            assert [placed.stream for placed in tx.placed] == ["invoices", "invoices"]
            assert await outputs(r.hr) == [b"first", b"second"]
            assert await r.stored() == Progress(0, ((1, 2),))
            await one.ack()
            assert await r.stored() == Progress(2)
            with pytest.raises(AnsweredError):
                await two.ack()
            await three.ack()
            consumer.drain({"0": unit.token})
            await r.heard.until(lambda: r.heard.drained_units)
            assert r.heard.drained_units[0][2] == Progress(3)

    run(work())


def test_a_fenced_owner_writes_nothing(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            await with_invoices(r)
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("a")
            (one,) = await take(consumer, 1)
            await r.claim(owner="m2")
            with pytest.raises(Fenced):
                async with one.transaction() as tx:
                    tx.publish("invoices.1", b"x")
            assert await outputs(r.hr) == []
            assert await r.stored() is None
            assert r.heard.fenced_units == [("0", unit.token)]

    run(work())


def test_acks_before_it_in_the_unit_are_stored_first(catalog_url: str) -> None:
    """Else the event before it of its key could come again after it."""

    async def work() -> None:
        async with rig(catalog_url) as r:
            await with_invoices(r)
            consumer = r.consumer(ack_delay_ms=60_000)
            consumer.open(await r.claim())
            await r.fill("aa")
            (one,) = await take(consumer, 1)
            one.ack_soon()
            (two,) = await take(consumer, 1)
            async with two.transaction() as tx:
                tx.publish("invoices.1", b"x")
            assert await r.stored() == Progress(2)

    run(work())


def test_a_block_that_raises_commits_nothing_and_leaves_the_event_open(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await with_invoices(r)
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("a")
            (one,) = await take(consumer, 1)
            with pytest.raises(ZeroDivisionError):
                async with one.transaction() as tx:
                    tx.publish("invoices.1", b"%d" % (1 // 0))
            with pytest.raises(NoStreamError):
                async with one.transaction() as tx:
                    tx.publish("unknown.1", b"x")
            assert await outputs(r.hr) == []
            async with one.transaction() as tx:
                tx.publish("invoices.1", b"y")
            assert await outputs(r.hr) == [b"y"]

    run(work())


def test_an_event_that_came_twice_has_its_output_once(tmp_path: Path) -> None:
    """An instance that lost its unit and got it back cannot repeat what it had committed."""

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await with_invoices(r)
            unit = await r.claim()
            first, second = r.consumer(), r.consumer()
            first.open(unit)
            second.open(unit)  # the same claim, twice: as after an answer that was lost
            await r.fill("a")
            (one,), (same,) = await take(first, 1), await take(second, 1)
            async with one.transaction() as tx:
                tx.publish("invoices.1", b"x")
            with pytest.raises(AlreadyAckedError):
                async with same.transaction() as tx:
                    tx.publish("invoices.1", b"x")
            assert await outputs(r.hr) == [b"x"]

    run(work())


def test_a_batch_of_which_others_acked_a_part_is_not_taken_for_acked(tmp_path: Path) -> None:
    """As by another region: the rest of it has no output, and comes again."""

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await with_invoices(r)
            await r.fill("abcd")
            unit, consumer = await r.claim(), r.consumer()
            consumer.open(unit)
            batches = consumer.batches()
            held = await anext(batches)
            part = Progress(0, ((1, 2),))
            join = partial(store.join, group=r.group, places={unit.segment_id: part})
            await r.hr.in_thread(r.hr.log.catalog.write, join)
            with pytest.raises(AlreadyAckedError):
                async with held.transaction() as tx:
                    tx.publish("invoices.1", b"x")
            assert not held.answered
            await held.nack(delay_ms=0)
            again = await anext(batches)
            assert again.attempt == 2
            assert await r.stored() == part
            await again.ack()
            assert await r.stored() == Progress(4)

    run(work())


def test_transactions_and_acks_at_the_same_time_lose_nothing(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            await with_invoices(r)
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("".join(chr(0x100 + n) for n in range(60)))
            held = await take(consumer, 60)

            async def answer(n: int) -> None:
                if n % 2:
                    async with held[n].transaction() as tx:
                        tx.publish("invoices.1", str(n).encode())
                else:
                    await held[n].ack()

            await asyncio.gather(*(answer(n) for n in range(60)))
            assert await r.stored() == Progress(60)
            assert sorted(map(int, await outputs(r.hr))) == list(range(1, 60, 2))

    run(work())


def test_time_does_not_run_out_during_a_commit(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await with_invoices(r)
            consumer = r.consumer(ack_wait_ms=20, backoff_min_ms=0)
            consumer.open(await r.claim())
            await r.fill("a")
            (one,) = await take(consumer, 1)
            release = asyncio.Event()
            plain = r.hr.host.commit

            async def slow(*args: Any) -> Any:
                await release.wait()
                return await plain(*args)

            r.hr.host.commit = slow  # type: ignore[assignment,method-assign]

            async def commit() -> None:
                async with one.transaction() as tx:
                    tx.publish("invoices.1", b"x")

            task = asyncio.create_task(commit())
            again = asyncio.create_task(anext(consumer))
            done, _ = await asyncio.wait([again], timeout=0.1)
            assert not done
            release.set()
            await task
            r.hr.host.commit = plain  # type: ignore[method-assign]
            assert await r.stored() == Progress(1)
            again.cancel()

    run(work())


def test_a_batch_and_its_output_are_one(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            await with_invoices(r)
            consumer = r.consumer()
            consumer.open(await r.claim(filter="orders.a"))
            await r.fill("abaa")
            async for batch in consumer.batches():
                assert batch.data.column("value").to_pylist() == [b"0", b"2", b"3"]
                async with batch.transaction() as tx:
                    tx.publish("invoices.1", b"sum")
                break
            assert await outputs(r.hr) == [b"sum"]
            stored = await r.stored()
            assert stored == Progress(1, ((2, 4),))  # what is between them is stored later
            await consumer.close()
            again = r.consumer()
            await r.fill("a", start=4)
            again.open(await r.claim(filter="orders.a"))
            assert values(await take(again, 1)) == ["4"]

    run(work())


def test_a_fenced_owner_of_a_batch_writes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await with_invoices(r)
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            batch = await anext(aiter(consumer.batches()))
            await r.claim(owner="m2")
            with pytest.raises(Fenced):
                async with batch.transaction() as tx:
                    tx.publish("invoices.1", b"x")
            assert await outputs(r.hr) == []

    run(work())


@pytest.mark.parametrize("max_deliveries", [0, 1])
def test_a_transaction_that_is_cancelled_while_it_commits_has_the_outcome_of_its_commit(
    tmp_path: Path, max_deliveries: int
) -> None:
    """Its delivery neither comes again nor dies, nor blocks the next of its key."""

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await with_invoices(r)
            consumer = r.consumer(ack_wait_ms=200, backoff_min_ms=0, max_deliveries=max_deliveries)
            consumer.open(await r.claim())
            await r.fill("aa")
            handed_out: list[bytes] = []

            async def handle(delivery: Delivery) -> None:
                handed_out.append(delivery.value)
                first = len(handed_out) == 1
                lock = os.open(tmp_path / "write.lock", os.O_RDWR)
                if first:  # another process is writing
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    asyncio.get_running_loop().call_later(1, os.close, lock)
                async with asyncio.timeout(0.2 if first else None):
                    async with delivery.transaction() as tx:
                        tx.publish("invoices.1", delivery.value)

            task = asyncio.create_task(consumer.consume(handle))

            async def both() -> bool:
                return await r.stored() == Progress(2)

            await until(both)
            await consumer.close()
            await task
            assert handed_out == [b"0", b"1"]
            assert await outputs(r.hr) == [b"0", b"1"]
            assert not await dead_letter_streams(r.hr)

    run_with_threads(work())


@pytest.mark.parametrize("max_deliveries", [0, 1])
def test_an_event_that_is_acked_already_counts_as_acked(
    tmp_path: Path, max_deliveries: int
) -> None:
    """It is not handed out for ever, and is no dead letter."""

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await with_invoices(r)
            consumer = r.consumer(backoff_min_ms=0, max_deliveries=max_deliveries)
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("aa")
            store = CatalogAcks(r.hr.host)
            first = UnitAck(unit, Progress(1))
            await r.hr.host.in_transaction(lambda tx: store.stage(tx, first), store.locks(unit))
            handed_out: list[bytes] = []

            async def handle(delivery: Delivery) -> None:
                handed_out.append(delivery.value)
                async with delivery.transaction() as tx:
                    tx.publish("invoices.1", delivery.value)

            task = asyncio.create_task(consumer.consume(handle))

            async def both() -> bool:
                return await r.stored() == Progress(2)

            await until(both)
            await consumer.close()
            await task
            assert handed_out == [b"0", b"1"]
            assert await outputs(r.hr) == [b"1"]
            assert not await dead_letter_streams(r.hr)

    run_with_threads(work())
