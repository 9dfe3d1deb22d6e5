"""Event by event: order, acks, refusals, hand-over, and what is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.errors import (
    AnsweredError,
    ConsumerClosedError,
    ConsumerModeError,
    Fenced,
    StaleDeliveryError,
    UnknownUnitError,
)
from headrace.groups.consumer import Consumer, Delivery
from headrace.groups.progress import Progress
from headrace.log.events import Event
from tests.groups.consumer.rig import Heard, nothing_comes, rig, run, take, values
from tests.support import until


def test_events_come_in_order_and_acks_are_stored(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("abc")
            first, second, third = await take(consumer, 3)
            assert values([first, second, third]) == ["0", "1", "2"]
            assert first.subject == "orders.a"
            assert first.key == "a"
            assert first.position.segment == 0
            assert first.attempt == 1
            await first.ack()
            await third.ack()
            assert await r.stored() == Progress(1, ((2, 3),))
            await second.ack()
            assert await r.stored() == Progress(3)

    run(work())


def test_a_key_waits_for_its_event_while_others_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("aabac")
            first, b, c = await take(consumer, 3)
            assert values([first, b, c]) == ["0", "2", "4"]
            assert await nothing_comes(r, consumer)
            await first.ack()
            (second,) = await take(consumer, 1)
            assert second.value == b"1"
            await second.nack(delay_ms=0)
            (again,) = await take(consumer, 1)
            assert (again.value, again.attempt) == (b"1", 2)
            again.ack_soon()
            (last,) = await take(consumer, 1)
            assert last.value == b"3"

    run(work())


def test_ack_soon_is_stored_without_a_word(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("abcdef")
            for delivery in await take(consumer, 4):
                delivery.ack_soon()

            async def stored() -> bool:
                return await r.stored() == Progress(4)

            await until(stored)

    run(work())


def test_many_acks_share_a_commit(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("".join(chr(0x100 + n) for n in range(300)))
            deliveries = await take(consumer, 300)
            before = consumer.commits.commits
            await asyncio.gather(*(delivery.ack() for delivery in deliveries))
            assert consumer.commits.commits - before <= 2
            assert await r.stored() == Progress(300)

    run(work())


def test_a_fenced_owner_is_told_and_its_ack_does_not_count(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            mine = await r.claim()
            consumer.open(mine)
            await r.fill("ab")
            first, second = await take(consumer, 2)
            await first.ack()
            await r.claim(owner="m2")
            with pytest.raises(Fenced) as raised:
                await second.ack()
            assert raised.value.token == mine.token
            assert await r.stored() == Progress(1)
            assert r.heard.fenced_units == [("0", mine.token)]
            assert consumer.units == {}

    run(work())


def test_ack_soon_of_a_fenced_owner_raises_at_the_next_delivery(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            first, second = await take(consumer, 2)
            await r.claim(owner="m2")
            first.ack_soon()
            with pytest.raises(Fenced):
                await anext(consumer)
            with pytest.raises(Fenced):
                second.ack_soon()
            assert await r.stored() in (None, Progress(0))

    run(work())


def test_ack_soon_of_a_fenced_owner_raises_at_flush(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("a")
            (first,) = await take(consumer, 1)
            await r.claim(owner="m2")
            first.ack_soon()
            with pytest.raises(Fenced):
                await consumer.flush()

    run(work())


def test_ack_soon_of_an_event_that_came_again_raises_when_its_unit_is_lost(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(ack_delay_ms=60_000)
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("a")
            (first,) = await take(consumer, 1)
            await first.nack(delay_ms=0)
            (again,) = await take(consumer, 1)
            again.ack_soon()
            consumer.abandon("0", unit.token, Fenced("g", "0", unit.token, unit.token + 1))
            with pytest.raises(Fenced):
                await consumer.flush()

    run(work())


def test_an_abandoned_unit_refuses_answers_and_hands_out_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("abc")
            (first,) = await take(consumer, 1)
            consumer.abandon("0", unit.token, Fenced(r.group, "0", unit.token, unit.token + 1))
            with pytest.raises(Fenced):
                await first.ack()
            assert await nothing_comes(r, consumer)
            assert consumer.held_bytes == 0

    run(work())


def test_a_drained_unit_is_given_back_with_its_exact_ranges(catalog_url: str) -> None:
    """What was acked never comes again, and what was not comes to the next owner."""

    async def work() -> None:
        async with rig(catalog_url) as r:
            old = r.consumer()
            unit = await r.claim()
            old.open(unit)
            await r.fill("abcdefgh")
            held = await take(old, 6)
            for n in (0, 2, 3):
                await held[n].ack()
            old.drain({"0": unit.token})
            assert await nothing_comes(r, old)
            assert r.heard.drained_units == []  # 1, 4 and 5 are in the application's hands
            await held[1].ack()
            await held[5].nack()
            await held[4].nack(reason="later")
            await r.heard.until(lambda: r.heard.drained_units)
            ((name, token, progress),) = r.heard.drained_units
            assert (name, token) == ("0", unit.token)
            assert progress == Progress(4, (), ((4, 1), (5, 1)))
            assert await r.stored() == progress
            with pytest.raises(AnsweredError):
                await held[4].ack()

            new = r.consumer(heard=Heard())
            new.open(await r.claim(owner="m2"))
            found = await take(new, 4)
            assert values(found) == ["4", "5", "6", "7"]
            assert [delivery.attempt for delivery in found] == [2, 2, 1, 1]

    run(work())


def test_what_the_application_has_not_seen_goes_back_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("abcdefgh")
            (first,) = await take(consumer, 1)  # the others stand ready
            await first.ack()
            consumer.drain({"0": unit.token})
            await r.heard.until(lambda: r.heard.drained_units)
            assert r.heard.drained_units[0][2] == Progress(1)

    run(work())


def test_a_unit_that_was_never_used_is_given_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            consumer.drain({"0": unit.token})
            await r.heard.until(lambda: r.heard.drained_units)

    run(work())


def test_a_unit_that_comes_back_is_a_new_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("ab")
            (old,) = await take(consumer, 1)
            consumer.abandon("0", unit.token, Fenced(r.group, "0", unit.token, 2))
            consumer.open(await r.claim())
            new = await take(consumer, 2)
            assert values(new) == ["0", "1"]
            with pytest.raises(Fenced):
                await old.ack()
            await new[0].ack()
            assert await r.stored() == Progress(1)

    run(work())


def test_an_answer_is_given_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("abc")
            one, two, three = await take(consumer, 3)
            await one.ack()
            with pytest.raises(AnsweredError, match="acked already"):
                await one.ack()
            with pytest.raises(AnsweredError, match="acked already"):
                one.ack_soon()
            two.ack_soon()
            with pytest.raises(AnsweredError):
                two.ack_soon()
            with pytest.raises(AnsweredError):
                await two.nack()
            await three.nack(delay_ms=60_000)
            with pytest.raises(AnsweredError, match="nacked already"):
                await three.extend()

    run(work())


def test_an_ack_after_close_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            one, two = await take(consumer, 2)
            one.ack_soon()
            await consumer.close()
            assert await r.stored() == Progress(1)  # given before, and kept
            with pytest.raises(ConsumerClosedError):
                await two.ack()
            with pytest.raises(ConsumerClosedError):
                two.ack_soon()
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)
            with pytest.raises(ConsumerClosedError):
                consumer.open(await r.claim())

    run(work())


def test_closing_ends_a_loop_that_waits(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            seen: list[Delivery] = []

            async def loop() -> None:
                async for delivery in consumer:
                    seen.append(delivery)
                    await delivery.ack()

            task = asyncio.create_task(loop())
            await r.fill("a")
            await until(_has(seen))
            await consumer.close()
            await task
            assert values(seen) == ["0"]

    run(work())


def _has(seen: list[Delivery]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return bool(seen)

    return look


def _all_on_offer(consumer: Consumer) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return all(run_.offered for run_ in consumer._runs.values())

    return look


def test_an_event_that_is_not_answered_in_time_comes_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(ack_wait_ms=30, backoff_min_ms=0)
            consumer.open(await r.claim())
            await r.fill("aab")
            first, b = await take(consumer, 2)
            b.ack_soon()
            (again,) = await take(consumer, 1)
            assert (again.value, again.attempt) == (b"0", 2)
            with pytest.raises(StaleDeliveryError):
                await first.ack()
            await again.ack()
            (second,) = await take(consumer, 1)
            assert second.value == b"1"

    run(work())


def test_time_does_not_run_for_what_nobody_has_seen(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(ack_wait_ms=30, backoff_min_ms=0)
            consumer.open(await r.claim())
            await r.fill("abcdef")
            (first,) = await take(consumer, 1)
            (again,) = [await _again(consumer, first)]
            assert again.attempt == 2
            await again.ack()
            rest = await take(consumer, 5)
            assert [delivery.attempt for delivery in rest] == [1] * 5

    run(work())


async def _again(consumer: Consumer, first: Delivery) -> Delivery:
    """Hold an event until it has timed out; the others stay unseen meanwhile."""
    run_ = first._run
    await until(lambda: run_.dispatcher.attempt_of(first.offset) != 1)
    kept = list(consumer._at_hand)
    consumer._at_hand.clear()
    found: Delivery = await anext(consumer)
    consumer._at_hand.extend(kept)
    return found


def test_extend_gives_more_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(ack_wait_ms=150)
            consumer.open(await r.claim())
            await r.fill("a")
            (first,) = await take(consumer, 1)
            for _ in range(4):
                await asyncio.sleep(0.05)
                await first.extend()
            await first.ack()
            assert await r.stored() == Progress(1)

    run(work())


def test_one_at_a_time_means_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(max_pending=1)
            consumer.open(await r.claim())
            await r.fill("abc")
            for n in range(3):
                (one,) = await take(consumer, 1)
                assert one.value == str(n).encode()
                assert one._run.dispatcher.in_flight == 1
                await one.ack()

    run(work())


def test_filters_strips_and_markers(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim(filter="orders.eu.*", strip=2))
            await r.hr.append(
                "orders",
                [Event(subject=s, value=b"") for s in ("orders.us.1", "orders.eu.2", "orders.x")],
            )
            await r.hr.in_thread(r.hr.log.append_marker, "orders", 0, b"!")
            await r.hr.append(
                "orders", Event(subject="orders.eu.7", value=b"7", headers={"h": "v"})
            )
            two, seven = await take(consumer, 2)
            assert [two.subject, seven.subject] == ["2", "7"]
            assert seven.headers == (("h", b"v"),)
            assert two.headers == ()
            await two.ack()
            assert await r.stored() == Progress(4)
            await seven.ack()
            assert await r.stored() == Progress(5)

    run(work())


def test_several_filters_and_order_by_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim(filter=("orders.eu.*", "orders.us.*"), order_by=(3,)))
            subjects = ["orders.eu.1", "orders.us.1", "orders.x.1", "orders.us.2"]
            await r.hr.append("orders", [Event(subject=s, value=b"", key=s) for s in subjects])
            one, two = await take(consumer, 2)
            assert [one.subject, two.subject] == ["orders.eu.1", "orders.us.2"]
            assert await nothing_comes(r, consumer)  # the other 1 waits for the first
            await one.ack()
            (last,) = await take(consumer, 1)
            assert last.subject == "orders.us.1"

    run(work())


def test_a_sealed_segment_that_is_acked_is_finished(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("ab")
            one, two = await take(consumer, 2)
            await r.hr.split("orders", 0)
            await one.ack()
            assert r.heard.finished_units == []
            await two.ack()
            await r.heard.until(lambda: r.heard.finished_units)
            assert r.heard.finished_units == [("0", unit.token)]
            assert await r.stored() == Progress(2)

    run(work())


def test_a_consumer_that_answers_nothing_has_stalled(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(stall_after_ms=40)
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("ab")
            await take(consumer, 1)
            await r.heard.until(lambda: r.heard.stalls)
            ((name, token, stall),) = r.heard.stalls
            assert (name, token) == ("0", unit.token)
            assert stall.unanswered == 2

    run(work())


def test_units_take_turns(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path), segments=4) as r:
            await r.fill("".join(chr(0x4E00 + n) for n in range(6000)))
            consumer = r.consumer()
            for segment in range(4):
                consumer.open(await r.claim(segment))
            early = await take(consumer, 1)
            await until(_all_on_offer(consumer))
            early += await take(consumer, 511)  # what one unit gave before the others were there
            seen = await take(consumer, 512)
            assert {delivery.segment for delivery in seen} == {0, 1, 2, 3}
            for delivery in early + seen:
                delivery.ack_soon()
            for delivery in await take(consumer, 6000 - 1024):
                delivery.ack_soon()
            await consumer.flush()
            heads = {s.number: s.head for s in (await r.hr.stream("orders")).segments}
            stored = [await r.stored(segment) for segment in range(4)]
            assert stored == [Progress(heads[segment]) for segment in range(4)]

    run(work())


def test_a_trimmed_part_is_passed_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await r.fill("ab")
            await r.fill("cd", start=2)
            await r.hr.trim("orders", {0: 2})
            consumer = r.consumer()
            consumer.open(await r.claim())
            found = await take(consumer, 2)
            assert values(found) == ["2", "3"]
            await found[0].ack()
            assert await r.stored() == Progress(3)

    run(work())


def test_units_are_opened_once_and_drained_by_their_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            with pytest.raises(UnknownUnitError, match="open already"):
                consumer.open(unit)
            with pytest.raises(UnknownUnitError):
                consumer.drain({"0": unit.token + 1})
            with pytest.raises(UnknownUnitError):
                consumer.drain({"7": 1})
            assert consumer.units == {"0": unit.token}

    run(work())


def test_a_consumer_is_used_in_one_way(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.batches()
            with pytest.raises(ConsumerModeError):
                await anext(consumer)

    run(work())
