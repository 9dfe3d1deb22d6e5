"""``consume``: a handler for every event, and the answers for it."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DamagedBatchError, InvalidInputError
from headrace.groups.consumer import Delivery
from headrace.groups.progress import Progress
from headrace.log.events import Event
from tests.groups.consumer.rig import PATIENCE_S, rig, run, run_with_threads
from tests.support import until


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

            await until(three)
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

            await until(two)
            await consumer.close()
            await task
            assert len(threads) == 2
            assert threading.main_thread().name not in threads

    run_with_threads(work())


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

            await until(done)
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


def _decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def measured(*args: Any) -> Any:
        return function(*args)

    return measured


@pytest.mark.parametrize("form", ["lambda", "decorated", "partial", "future"])
def test_what_a_handler_returns_is_awaited_before_the_event_is_acked(
    tmp_path: Path, form: str
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("abcdefghij")
            seen: list[bytes] = []
            loop = asyncio.get_running_loop()

            async def bill(delivery: Delivery) -> None:
                await asyncio.sleep(0)
                seen.append(delivery.value)

            forms: dict[str, Callable[[Delivery], Awaitable[object]]] = {
                "lambda": lambda delivery: bill(delivery),
                "decorated": _decorated(bill),
                "partial": functools.partial(bill),
                "future": lambda delivery: asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(bill(delivery), loop), loop=loop
                ),
            }
            task = asyncio.create_task(consumer.consume(forms[form]))

            async def ten() -> bool:
                return await r.stored() == Progress(10)

            await until(ten)
            await consumer.close()
            await task
            assert sorted(seen) == [b"%d" % n for n in range(10)]

    run_with_threads(work())


def _stop_iteration(_: Delivery) -> None:
    next(iter([]))


def _exit(_: Delivery) -> None:
    sys.exit(3)


def _returned_coroutine_raises(_: Delivery) -> Awaitable[None]:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    return cancelled()


async def _stops_on_the_loop(_: Delivery) -> None:
    raise StopAsyncIteration


async def _waits_for_what_is_cancelled(_: Delivery) -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


@pytest.mark.parametrize(
    "failing",
    [
        _stop_iteration,
        _exit,
        _returned_coroutine_raises,
        _stops_on_the_loop,
        _waits_for_what_is_cancelled,
    ],
)
def test_whatever_a_handler_raises_is_answered_and_the_consumer_goes_on(
    tmp_path: Path, failing: Callable[[Delivery], object]
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(max_deliveries=2, backoff_min_ms=0)
            consumer.open(await r.claim())
            await r.fill("abc")

            def handle(delivery: Delivery) -> object:
                return failing(delivery) if delivery.value == b"1" else None

            async def handle_async(delivery: Delivery) -> None:
                if delivery.value == b"1":
                    await failing(delivery)  # type: ignore[misc]

            is_async = asyncio.iscoroutinefunction(failing)
            task = asyncio.create_task(consumer.consume(handle_async if is_async else handle))

            async def three() -> bool:
                return await r.stored() == Progress(3)

            await until(three)
            await consumer.close()
            await task
            assert len(await r.dead()) == 1

    run_with_threads(work())


def test_concurrency_on_threads_is_what_was_asked_for(tmp_path: Path) -> None:
    many = 40  # more than the threads that asyncio keeps for everybody

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.hr.append(
                "orders",
                [Event(subject="orders.x", value=b"%d" % n, key=str(n)) for n in range(many)],
            )
            together = threading.Barrier(many)

            def handle(_: Delivery) -> None:
                together.wait(PATIENCE_S)  # raises unless all of them are at work at once

            task = asyncio.create_task(consumer.consume(handle, concurrency=many))

            async def done() -> bool:
                return await r.stored() == Progress(many)

            await until(done)
            await consumer.close()
            await task

    run_with_threads(work())


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "4", 10_001])
def test_a_concurrency_that_is_none_is_refused(tmp_path: Path, concurrency: Any) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            with pytest.raises(InvalidInputError, match="concurrency"):
                await r.consumer().consume(_nothing, concurrency=concurrency)

    run_with_threads(work())
