"""Bounds: what a consumer holds, and what it costs when there is nothing to do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import InvalidDeliveryConfigError
from headrace.groups.consumer import CatalogAcks, Consumer, ConsumerOptions, OwnedUnit
from headrace.groups.consumer.prefetch import Prefetch
from headrace.groups.progress import Progress
from headrace.log import limits
from tests.groups.consumer.rig import Heard, Rig, rig, run, run_with_threads, take
from tests.loads import openers, watched
from tests.support import until

KB = 1024


async def fill_large(r: Rig, count: int, size_bytes: int) -> None:
    """Events of one size, in as many appends as it takes for none to become a file."""
    for start in range(0, count, 64):
        rows = min(64, count - start)
        await r.hr.append(
            "orders",
            pa.table(
                {
                    "subject": [f"orders.{start + n}" for n in range(rows)],
                    "value": pa.array([bytes(size_bytes)] * rows, pa.binary()),
                }
            ),
        )


@pytest.mark.parametrize("batches", [False, True])
def test_what_is_held_is_bounded_whatever_the_backlog(tmp_path: Path, batches: bool) -> None:
    async def work() -> None:
        async with rig(str(tmp_path), segments=4) as r:
            await fill_large(r, 2000, 10 * KB)  # 20 MB
            most = 500 * KB
            consumer = r.consumer(prefetch_bytes=most)
            for segment in range(4):
                consumer.open(await r.claim(segment))
            done, peak = 0, 0
            if batches:
                async for batch in consumer.batches():
                    peak = max(peak, consumer.held_bytes)
                    done += len(batch)
                    await batch.ack()
                    if done == 2000:
                        break
            else:
                async for delivery in consumer:
                    peak = max(peak, consumer.held_bytes)
                    done += 1
                    delivery.ack_soon()
                    if done == 2000:
                        break
            await consumer.flush()
            assert most / 4 < peak < 1.5 * most
            assert consumer.held_bytes < KB
            assert {await r.stored(n) for n in range(4)} == {
                Progress(segment.head) for segment in (await r.hr.stream("orders")).segments
            }

    run(work())


def test_nothing_is_fetched_beyond_the_bound_while_nothing_is_acked(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await fill_large(r, 1000, 10 * KB)
            consumer = r.consumer(prefetch_bytes=3000 * KB)
            consumer.open(await r.claim())
            held = await take(consumer, 250)
            fetches = consumer.prefetch
            await until(_quiet(fetches))
            reader = held[0]._run.reader
            assert 280 <= reader.position <= 380
            for delivery in held:
                delivery.ack_soon()
            assert len(await take(consumer, 150)) == 150

    run(work())


def _quiet(fetches: Prefetch) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return not fetches._tasks and not fetches._pumping

    return look


def test_a_slow_application_is_handed_no_scraps(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await fill_large(r, 1500, 1 * KB)
            consumer = r.consumer(prefetch_bytes=300 * KB)
            consumer.open(await r.claim())
            sizes: list[int] = []
            async for batch in consumer.batches():
                sizes.append(len(batch))
                await until(_quiet(consumer.prefetch))
                await batch.ack()
                if sum(sizes) == 1500:
                    break
            assert min(sizes[:-1]) > 300 / 8 - 5

    run(work())


def test_an_event_larger_than_the_bound_is_delivered(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await fill_large(r, 3, 100 * KB)
            consumer = r.consumer(prefetch_bytes=1)
            consumer.open(await r.claim())
            for n in range(3):
                (one,) = await take(consumer, 1)
                assert one.offset == n
                await one.ack()

    run(work())


def test_loads_leave_turns_to_others(
    tmp_path: Path, anywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two loads that the event loop reads it is everybody else's turn."""
    monkeypatch.setattr(limits, "READ_BYTES", 10 * KB)

    async def work() -> None:
        async with rig(str(tmp_path), segments=4) as r:
            await fill_large(r, 1000, 1 * KB)
            async with watched(monkeypatch) as loads:
                consumer = r.consumer()
                for segment in range(4):
                    consumer.open(await r.claim(segment))
                done = 0
                async for batch in consumer.batches():
                    done += len(batch)
                    await batch.ack()
                    if done == 1000:
                        break
            assert len(loads.at_turns) > 20
            if anywhere:
                assert len(set(loads.at_turns)) == len(loads.at_turns)
                assert loads.threads == {threading.get_ident()}

    run(work())


@pytest.mark.usefixtures("anywhere")
def test_a_backlog_in_files_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_by = openers(monkeypatch)

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            count = 2 * limits.INLINE_BYTES // 100
            await r.hr.append(
                "orders",
                pa.table(
                    {
                        "subject": [f"orders.{n % 1000}" for n in range(count)],
                        "value": pa.array([bytes(100)] * count, pa.binary()),
                    }
                ),
            )
            consumer = r.consumer()
            consumer.open(await r.claim())
            seen = 0
            async for delivery in consumer:
                seen += 1
                delivery.ack_soon()
                if seen == count:
                    break
            await consumer.flush()
            assert await r.stored() == Progress(count)

    run_with_threads(work())
    assert opened_by
    assert threading.get_ident() not in opened_by


def test_events_that_arrive_later_wake_the_right_consumer(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url, segments=3) as r:
            stream = await r.hr.stream("orders")
            consumers = []
            for segment in range(3):
                consumers.append(r.consumer(heard=Heard()))
                consumers[-1].open(await r.claim(segment))
            waiting = [asyncio.ensure_future(anext(consumer)) for consumer in consumers]
            await asyncio.sleep(0)
            for n in range(40):
                await r.hr.publish("orders.x", b"", key=str(n))
            found = await asyncio.gather(*waiting)
            assert [delivery.segment for delivery in found] == [0, 1, 2]
            assert len(stream.segments) == 3

    run(work())


def test_many_idle_consumers_cost_next_to_nothing(tmp_path: Path) -> None:
    """Five hundred in one process: no timers, no polling, one look at the stream for all."""

    async def work() -> None:
        async with rig(str(tmp_path), segments=1) as r:
            unit = await r.claim()
            consumers = []
            for n in range(500):
                consumer = Consumer(r.hr.host, ConsumerOptions(), CatalogAcks(r.hr.host))
                consumer.open(
                    OwnedUnit(
                        group=f"orders.g{n}",
                        unit="0",
                        token=1,
                        stream="orders",
                        segment=0,
                        segment_id=unit.segment_id,
                        progress=Progress(),
                    ),
                    Heard(),
                )
                consumers.append(consumer)
                r.consumers.append(consumer)
            waiting = [asyncio.ensure_future(anext(consumer)) for consumer in consumers]

            async def all_listen() -> bool:
                return all(run_.news for c in consumers for run_ in c._runs.values())

            await until(all_listen)
            assert min([await _cpu_s(0.1) for _ in range(5)]) < 0.01
            await r.fill("a")
            assert len(await asyncio.gather(*waiting)) == 500

    run_with_threads(work())


async def _cpu_s(window_s: float) -> float:
    """Processor time of the event loop while it has nothing to do.

    Not of the whole process: servers and clients of other tests live in it as well.
    """
    before_s = time.thread_time()
    await asyncio.sleep(window_s)
    return time.thread_time() - before_s


def test_options_are_checked() -> None:
    bounds: list[dict[str, Any]] = [
        {"prefetch_bytes": 0},
        {"ack_delay_ms": -1},
        {"batch_events_max": 0},
    ]
    for bad in bounds:
        with pytest.raises(InvalidDeliveryConfigError):
            ConsumerOptions(**bad)
