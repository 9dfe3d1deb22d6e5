"""``consume``: a handler for every event, and the answers for it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from headrace.errors import DamagedBatchError, InvalidInputError
from headrace.groups.consumer import Delivery
from headrace.groups.progress import Progress
from tests.groups.consumer.rig import rig, run, soon


def test_keys_are_handled_side_by_side_and_each_in_its_order(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("abcd" * 25)
            busy: set[str] = set()
            most = 0
            by_key: dict[str, list[int]] = defaultdict(list)

            async def handle(delivery: Delivery) -> None:
                nonlocal most
                assert delivery.key is not None
                assert delivery.key not in busy
                busy.add(delivery.key)
                most = max(most, len(busy))
                await asyncio.sleep(0)
                by_key[delivery.key].append(int(delivery.value))
                busy.remove(delivery.key)
                if sum(map(len, by_key.values())) == 100:
                    asyncio.get_running_loop().create_task(consumer.close())

            await consumer.consume(handle, concurrency=8)
            assert most == 4
            assert by_key == {key: list(range(n, 100, 4)) for n, key in enumerate("abcd")}
            assert await r.stored() == Progress(100)

    run(work())


def test_a_handler_that_raises_nacks_with_the_reason_and_the_consumer_lives(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(max_deliveries=2, backoff_min_ms=0)
            consumer.open(await r.claim())
            await r.fill("abc")
            seen: list[tuple[bytes, int]] = []

            async def handle(delivery: Delivery) -> None:
                seen.append((delivery.value, delivery.attempt))
                if delivery.value == b"1":
                    raise RuntimeError("out of paper")

            task = asyncio.create_task(consumer.consume(handle))

            async def three() -> bool:
                return await r.stored() == Progress(3)

            await soon(three)
            await consumer.close()
            await task
            assert sorted(seen) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"2", 1)]
            (letter,) = await r.dead()
            headers = {pair["key"]: pair["value"] for pair in letter["headers"]}
            assert headers["headrace-detail"] == b"RuntimeError: out of paper"

    run(work())


def test_a_handler_may_answer_by_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")

            async def handle(delivery: Delivery) -> None:
                if delivery.value == b"0":
                    await delivery.reject("mine")
                else:
                    asyncio.get_running_loop().create_task(consumer.close())

            await consumer.consume(handle)
            assert await r.stored() == Progress(2)
            assert len(await r.dead()) == 1

    run(work())


def test_a_plain_function_runs_on_a_thread(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            threads: list[str] = []
            task = asyncio.create_task(
                consumer.consume(lambda _: threads.append(threading.current_thread().name))
            )

            async def two() -> bool:
                return await r.stored() == Progress(2)

            await soon(two)
            await consumer.close()
            await task
            assert len(threads) == 2
            assert threading.main_thread().name not in threads

    run(work())


def test_a_handler_that_is_stopped_gives_its_event_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("a")
            begun = asyncio.Event()

            async def handle(_: Delivery) -> None:
                begun.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(consumer.consume(handle, concurrency=2))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            again = await anext(consumer)
            assert again.attempt == 2

    run(work())


def test_a_unit_that_is_lost_does_not_end_the_work_on_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path), segments=2) as r:
            consumer = r.consumer()
            for segment in (0, 1):
                consumer.open(await r.claim(segment))
            await r.claim(0, owner="m2")
            await r.fill("abcdefghijklmnop")
            stream = await r.hr.stream("orders")
            task = asyncio.create_task(consumer.consume(_nothing))

            async def done() -> bool:
                return await r.stored(1) == Progress(stream.segments[1].head)

            await soon(done)
            await r.heard.until(lambda: r.heard.fenced_units)
            await consumer.close()
            await task
            assert await r.stored(0) is None

    run(work())


async def _nothing(_: Delivery) -> None:
    pass


def test_an_error_of_the_runtime_ends_consume(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await r.fill("a")
            await r.hr.in_thread(
                r.hr.log.catalog.write, lambda tx: tx.execute("UPDATE batches SET checksum = 1")
            )
            consumer = r.consumer()
            consumer.open(await r.claim())
            with pytest.raises(DamagedBatchError):
                await consumer.consume(_nothing)

    run(work())


def test_concurrency_is_at_least_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            with pytest.raises(InvalidInputError):
                await r.consumer().consume(_nothing, concurrency=0)

    run(work())
