"""Arrow use: batches in order, answered as a whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.errors import AnsweredError, ConsumerClosedError, Fenced, StaleBatchError
from headrace.groups.consumer import Batch, Consumer
from headrace.groups.progress import Progress
from headrace.log import files
from headrace.log.compact_policy import CompactionPolicy
from headrace.store import Store
from tests.groups.consumer.rig import Heard, rig, run, take, values


def numbers(batch: Batch) -> list[int]:
    return [int(value) for value in batch.data.column("value").to_pylist()]


async def next_batch(consumer: Consumer) -> Batch:
    return await anext(aiter(consumer.batches()))


def test_batches_come_in_order_with_their_places(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer(batch_events_max=4)
            consumer.open(await r.claim(strip=1))
            await r.fill("aabbccddee")
            seen: list[int] = []
            async for batch in consumer.batches():
                assert batch.data.schema.names[:2] == ["segment", "offset"]
                assert batch.data.column("offset").to_pylist() == numbers(batch)
                assert all(
                    len(subject) == 1 for subject in batch.data.column("subject").to_pylist()
                )
                seen += numbers(batch)
                await batch.ack()
                assert await r.stored() == Progress(len(seen))
                if len(seen) == 10:
                    break
            assert seen == list(range(10))

    run(work())


def test_small_batches_of_a_large_file_read_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_file = files.open_file

    def counting(store: Store, path: str, size_bytes: int, checksum: int) -> object:
        opened.append(path)
        return open_file(store, path, size_bytes, checksum)

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            for start in range(0, 40, 20):
                await r.fill("abcdefghijklmnopqrst", start)
            await r.hr.compact("orders", CompactionPolicy(min_batches=2, min_age_s=0))
            monkeypatch.setattr(files, "open_file", counting)
            consumer = r.consumer(batch_events_max=3)
            consumer.open(await r.claim(filter="orders.*"))
            seen: list[int] = []
            async for batch in consumer.batches():
                assert len(batch) <= 3
                seen += numbers(batch)
                await batch.ack()
                assert await r.stored() == Progress(len(seen))
                if len(seen) == 40:
                    break
            assert seen == list(range(40))
            assert len(opened) == 1

    run(work())


def test_a_refused_batch_comes_again_before_what_follows(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(batch_events_max=3)
            consumer.open(await r.claim())
            await r.fill("abcdef")
            first = await next_batch(consumer)
            assert numbers(first) == [0, 1, 2]
            await first.nack(delay_ms=0)
            again = await next_batch(consumer)
            assert (numbers(again), again.attempt) == ([0, 1, 2], 2)
            await again.ack()
            assert numbers(await next_batch(consumer)) == [3, 4, 5]
            with pytest.raises(AnsweredError):
                await again.ack()

    run(work())


def test_one_batch_of_a_unit_is_out_at_a_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(batch_events_max=2)
            consumer.open(await r.claim())
            await r.fill("abcd")
            first = await next_batch(consumer)
            waiting = asyncio.ensure_future(next_batch(consumer))
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
            first.ack_soon()
            assert numbers(await waiting) == [2, 3]

    run(work())


def test_a_batch_that_is_not_answered_in_time_comes_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(ack_wait_ms=30, backoff_min_ms=0)
            consumer.open(await r.claim())
            await r.fill("ab")
            late = await next_batch(consumer)
            again = await next_batch(consumer)
            assert again.attempt == 2
            with pytest.raises(StaleBatchError):
                await late.ack()
            await again.ack()
            assert await r.stored() == Progress(2)

    run(work())


def test_what_an_earlier_owner_acked_is_left_out(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            await r.fill("abcdef")
            events = r.consumer(heard=Heard())
            events.open(await r.claim())
            held = await take(events, 6)
            for n in (1, 4):
                await held[n].ack()
            await events.close()
            consumer = r.consumer()
            consumer.open(await r.claim())
            batch = await next_batch(consumer)
            assert numbers(batch) == [0, 2, 3, 5]
            await batch.ack()
            assert await r.stored() == Progress(6)

    run(work())


def test_a_bad_event_is_found_among_good_ones_and_becomes_a_dead_letter(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer(max_deliveries=2, backoff_min_ms=0)
            consumer.open(await r.claim())
            await r.fill("abcdefgh")
            done: list[int] = []
            async for batch in consumer.batches():
                if 5 in numbers(batch):
                    await batch.nack(reason="five")
                else:
                    done += numbers(batch)
                    await batch.ack()
                if len(done) == 7:
                    break
            assert done == [0, 1, 2, 3, 4, 6, 7]
            await consumer.flush()
            assert await r.stored() == Progress(8)
            (letter,) = await r.dead()
            headers = {pair["key"]: pair["value"] for pair in letter["headers"]}
            assert letter["value"] == b"5"
            assert headers["headrace-offset"] == b"5"
            assert headers["headrace-detail"] == b"five"

    run(work())


def test_a_rejected_batch_becomes_dead_letters(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(batch_events_max=2)
            consumer.open(await r.claim())
            await r.fill("abc")
            await (await next_batch(consumer)).reject("no good")
            assert [row["value"] for row in await r.dead()] == [b"0", b"1"]
            assert await r.stored() == Progress(2)
            assert numbers(await next_batch(consumer)) == [2]

    run(work())


def test_a_unit_in_batches_is_drained_and_handed_over(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer(batch_events_max=2)
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("abcdef")
            first = await next_batch(consumer)
            consumer.drain({"0": unit.token})
            await first.ack()
            await r.heard.until(lambda: r.heard.drained_units)
            assert r.heard.drained_units[0][2] == Progress(2)
            with pytest.raises(AnsweredError):
                await first.ack()
            other = r.consumer(heard=Heard())
            other.open(await r.claim(owner="m2"))
            assert values(await take(other, 4)) == ["2", "3", "4", "5"]

    run(work())


def test_a_fenced_batch_does_not_count(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            batch = await next_batch(consumer)
            await r.claim(owner="m2")
            with pytest.raises(Fenced):
                await batch.ack()
            assert await r.stored() is None

    run(work())


def test_closing_ends_the_batches(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            batch = await next_batch(consumer)
            await consumer.close()
            with pytest.raises(ConsumerClosedError):
                await batch.ack()
            assert [one async for one in consumer.batches()] == []

    run(work())


def test_a_sealed_segment_is_finished_when_its_last_batch_is_acked(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(batch_events_max=2)
            unit = await r.claim(filter="orders.a")
            consumer.open(unit)
            await r.fill("aab")  # the last one is not for this group
            await r.hr.split("orders", 0)
            batches = aiter(consumer.batches())
            await (await anext(batches)).ack()
            waiting = asyncio.ensure_future(anext(batches))
            await r.heard.until(lambda: r.heard.finished_units)
            assert r.heard.finished_units == [("0", unit.token)]
            assert await r.stored() == Progress(3)
            waiting.cancel()

    run(work())
