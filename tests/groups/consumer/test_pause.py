"""Pausing and resuming units, their rest, and units with an end."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CatalogUnavailableError, HeadraceError, UnknownUnitError
from headrace.groups.consumer import Batch, Consumer, Delivery, OwnedUnit
from headrace.groups.consumer.fetch import Fetched, Gap, UnitReader
from headrace.groups.consumer.types import UnitStanding
from headrace.groups.progress import Progress
from headrace.log.cursor import FileAhead
from headrace.log.events import Event
from tests.groups.consumer.rig import Heard, Rig, RigConsumer, rig, run, take, values
from tests.groups.consumer.test_acks import elsewhere
from tests.support import until


def rested(heard: Heard, unit: str = "0") -> Callable[[], bool]:
    """Whether a unit has come to rest."""
    return lambda: any(one[0] == unit for one in heard.rested_units)


async def turns(count: int = 20) -> None:
    """Let everything that is ready to run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def take_acked(consumer: Consumer, count: int) -> list[Delivery]:
    """The next events, each acked when it comes."""
    found = []
    for _ in range(count):
        found += await take(consumer, 1)
        found[-1].ack_soon()
    return found


async def next_batch(consumer: Consumer) -> Batch:
    return await anext(aiter(consumer.batches()))


def numbers(batch: Batch) -> list[int]:
    return [int(value) for value in batch.data.column("value").to_pylist()]


async def opened(r: Rig, count: int, **options: Any) -> tuple[RigConsumer, OwnedUnit]:
    """A consumer of one unit that holds so many events of different keys."""
    consumer = r.consumer(**options)
    unit = await r.claim()
    consumer.open(unit)
    await r.fill("".join(chr(0x100 + n) for n in range(count)))
    return consumer, unit


def test_a_paused_unit_hands_out_nothing_while_others_go_on(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url, segments=2) as r:
            consumer = r.consumer()
            units = {str(n): await r.claim(n) for n in (0, 1)}
            for unit in units.values():
                consumer.open(unit)
            await r.fill("abcdefghijklmnop")
            heads = {s.number: s.head for s in (await r.hr.stream("orders")).segments}
            first = await anext(consumer)  # a block of both stands ready behind it
            paused = units[first.unit]
            other = units["1" if first.unit == "0" else "0"]
            consumer.pause({paused.unit: paused.token})
            first.ack_soon()
            await r.fill("abcdefghijklmnop", start=16)
            held = await take_acked(consumer, 2 * heads[other.segment])
            assert {one.unit for one in held} == {other.unit}
            consumer.resume({paused.unit: paused.token})
            rest = await take_acked(consumer, 2 * heads[paused.segment] - 1)
            assert {one.unit for one in rest} == {paused.unit}
            offsets = [first.offset, *(one.offset for one in rest)]
            assert sorted(offsets) == list(range(2 * heads[paused.segment]))

    run(work())


def test_in_flight_is_acked_during_a_pause_and_the_unseen_comes_after_it(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("aabbacdc")  # 0 to 7
            first, second = await take(consumer, 2)
            assert values([first, second]) == ["0", "2"]
            consumer.pause({"0": unit.token})
            await turns()
            assert not r.heard.rested_units
            await second.ack()
            first.ack_soon()
            await r.heard.until(rested(r.heard))
            assert r.heard.rested_units == [("0", unit.token, Progress(1, ((2, 3),)))]
            assert await r.stored() == Progress(1, ((2, 3),))
            assert consumer.standings(["0"]) == {"0": UnitStanding(1, at_rest=True)}
            consumer.resume({"0": unit.token})
            seen: dict[str | None, list[int]] = defaultdict(list)
            for _ in range(6):
                delivery = await anext(consumer)
                assert delivery.attempt == 1
                seen[delivery.key].append(delivery.offset)
                await delivery.ack()
            assert seen == {"a": [1, 4], "b": [3], "c": [5, 7], "d": [6]}
            assert await r.stored() == Progress(8)

    run(work())


def test_what_a_failure_put_aside_is_taken_back_as_well(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 6)
            (first,) = await take(consumer, 1)
            consumer.fail(CatalogUnavailableError("for a moment"))
            consumer.pause({"0": unit.token})
            await first.ack()
            await r.heard.until(rested(r.heard))
            with pytest.raises(CatalogUnavailableError):
                await anext(consumer)
            consumer.resume({"0": unit.token})
            assert values(await take(consumer, 5)) == ["1", "2", "3", "4", "5"]

    run(work())


def test_batches_go_on_after_a_pause_with_the_next_one(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer, unit = await opened(r, 10, batch_events_max=4)
            batch = await next_batch(consumer)
            assert numbers(batch) == [0, 1, 2, 3]
            consumer.pause({"0": unit.token})
            await turns()
            assert not r.heard.rested_units
            await batch.ack()
            await r.heard.until(rested(r.heard))
            assert await r.stored() == Progress(4)
            waiting = [asyncio.ensure_future(next_batch(consumer)) for _ in range(2)]
            await turns()
            assert not any(one.done() for one in waiting)
            consumer.resume({"0": unit.token})
            done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (second,) = (one.result() for one in done)
            assert numbers(second) == [4, 5, 6, 7]
            assert second.attempt == 1
            await second.ack()
            assert numbers(await left.pop()) == [8, 9]

    run(work())


def test_a_batch_that_nobody_has_seen_is_taken_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 4)
            first = await next_batch(consumer)
            await first.nack(delay_ms=0)
            await until(lambda: consumer._offered)
            consumer._fill_batches()
            assert [batch.attempt for batch in consumer._ready.batches] == [2]
            consumer.pause({"0": unit.token})
            await r.heard.until(rested(r.heard))
            assert not consumer._ready.batches
            consumer.resume({"0": unit.token})
            again = await next_batch(consumer)
            assert (again.attempt, numbers(again)) == (2, [0, 1, 2, 3])
            await again.ack()
            assert await r.stored() == Progress(4)

    run(work())


def test_a_handler_goes_on_after_a_pause_with_every_event_once_and_in_order(
    catalog_url: str,
) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer(max_pending=16)
            unit = await r.claim()
            consumer.open(unit)
            seen: dict[str | None, list[int]] = defaultdict(list)
            may_go = asyncio.Event()
            all_done = asyncio.Event()
            at_work = 0

            async def handle(delivery: Delivery) -> None:
                nonlocal at_work
                at_work += 1
                await may_go.wait()
                seen[delivery.key].append(int(delivery.value))
                if sum(map(len, seen.values())) == 90:
                    all_done.set()
                at_work -= 1

            consuming = asyncio.create_task(consumer.consume(handle, concurrency=4))
            await r.fill("abcabdabe" * 10)
            while at_work < 4:
                await asyncio.sleep(0)
            consumer.pause({"0": unit.token})
            may_go.set()
            await r.heard.until(rested(r.heard))
            assert at_work == 0
            assert sum(map(len, seen.values())) == 4
            for round_ in range(3):  # while a few more are handed out in between
                consumer.resume({"0": unit.token})
                await turns(round_)
                r.heard.rested_units.clear()
                consumer.pause({"0": unit.token})
                await r.heard.until(rested(r.heard))
                assert at_work == 0
                stored = await r.stored()
                assert stored is not None
                acked = stored.floor + sum(hi - lo for lo, hi in stored.ranges)
                assert acked == sum(map(len, seen.values()))
            consumer.resume({"0": unit.token})
            await all_done.wait()
            await consumer.flush()
            assert await r.stored() == Progress(90)
            expected = defaultdict(list)
            for number, key in enumerate("abcabdabe" * 10):
                expected[key].append(number)
            assert seen == expected
            await consumer.close()
            await consuming

    run(work())


def test_rest_is_told_when_acks_are_stored_and_not_before(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, store = await elsewhere(r)
            await r.fill("ab")
            held = await take(consumer, 2)
            token = consumer.units["0"]
            store.gate.clear()
            store.errors.append(CatalogUnavailableError("for a moment"))
            consumer.pause({"0": token})
            for one in held:
                one.ack_soon()
            await turns()
            assert not r.heard.rested_units
            assert consumer.standings(["0"]) == {"0": UnitStanding(2, at_rest=False)}
            store.gate.set()  # the first commit fails, and is made again by itself
            await r.heard.until(rested(r.heard))
            assert store.commits == [([Progress(2)], False)]
            assert r.heard.rested_units == [("0", token, Progress(2))]

    run(work())


def test_what_is_read_while_a_unit_is_paused_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = threading.Event()
    read = UnitReader.next

    def slowly(self: UnitReader, end: int, *, brief: bool = False) -> Fetched | Gap:
        if brief:
            raise FileAhead  # on a thread
        may_read.wait()
        return read(self, end)

    monkeypatch.setattr(UnitReader, "next", slowly)

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 4)
            waiting = asyncio.ensure_future(anext(consumer))
            while not any(one.fetching for one in consumer._runs.values()):
                await asyncio.sleep(0)
            consumer.pause({"0": unit.token})
            may_read.set()
            while any(one.fetching for one in consumer._runs.values()):
                await asyncio.sleep(0)
            assert not waiting.done()
            consumer.resume({"0": unit.token})
            assert values([await waiting, *await take(consumer, 3)]) == ["0", "1", "2", "3"]

    run(work())


async def _nacked(delivery: Delivery) -> None:
    await delivery.nack(delay_ms=0)


async def _rejected(delivery: Delivery) -> None:
    await delivery.reject("bad")


async def _in_transaction(delivery: Delivery) -> None:
    async with delivery.transaction() as tx:
        tx.publish("orders.z", b"more")


@pytest.mark.parametrize(
    ("answer", "progress"),
    [
        (_nacked, Progress(0, (), ((0, 1),))),
        (_rejected, Progress(1)),
        (_in_transaction, Progress(1)),
    ],
)
def test_rest_waits_for_answers_of_every_kind(
    catalog_url: str, answer: Callable[[Delivery], Awaitable[None]], progress: Progress
) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer, unit = await opened(r, 1)
            (one,) = await take(consumer, 1)
            consumer.pause({"0": unit.token})
            await turns()
            assert not r.heard.rested_units
            await answer(one)
            await r.heard.until(rested(r.heard))
            assert r.heard.rested_units == [("0", unit.token, progress)]
            assert await r.stored() == progress

    run(work())


def test_what_times_out_during_a_pause_comes_again_after_it_before_the_next_of_its_key(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(ack_wait_ms=20, backoff_min_ms=0, backoff_max_ms=0)
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("aa")
            await take(consumer, 1)
            consumer.pause({"0": unit.token})
            await r.heard.until(rested(r.heard))
            assert await r.stored() == Progress(0, (), ((0, 1),))
            consumer.resume({"0": unit.token})
            (again,) = await take(consumer, 1)
            assert (again.offset, again.attempt) == (0, 2)
            await again.ack()
            (then,) = await take(consumer, 1)
            assert (then.offset, then.attempt) == (1, 1)

    run(work())


def test_a_unit_that_is_paused_before_it_is_used_rests_at_once_and_stays_so(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path), segments=2) as r:
            consumer = r.consumer()
            units = [await r.claim(n) for n in (0, 1)]
            for unit in units:
                consumer.open(unit)
            tokens = {unit.unit: unit.token for unit in units}
            consumer.pause(tokens)
            await r.heard.until(rested(r.heard, "1"))
            assert consumer.standings(tokens) == dict.fromkeys("01", UnitStanding(0, at_rest=True))
            consumer.resume({"1": tokens["1"]})
            await r.fill("abcdefghijklmnop")
            heads = [s.head for s in (await r.hr.stream("orders")).segments]
            assert {one.unit for one in await take(consumer, heads[1])} == {"1"}
            consumer.resume({"0": tokens["0"]})
            assert {one.unit for one in await take(consumer, heads[0])} == {"0"}

    run(work())


def test_a_paused_unit_is_drained_and_a_drained_one_is_not_resumed(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 3)
            (first,) = await take(consumer, 1)
            consumer.pause({"0": unit.token})
            consumer.drain({"0": unit.token})
            consumer.resume({"0": unit.token})
            waiting = asyncio.ensure_future(anext(consumer))
            await turns()
            assert not waiting.done()
            await first.ack()
            await r.heard.until(lambda: r.heard.drained_units)
            assert r.heard.drained_units == [("0", unit.token, Progress(1))]
            assert not r.heard.rested_units
            waiting.cancel()
            with pytest.raises(UnknownUnitError):
                consumer.pause({"0": unit.token})

    run(work())


def test_of_units_some_of_which_are_not_held_none_is_paused(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 2)
            await take(consumer, 1)
            with pytest.raises(UnknownUnitError):
                consumer.pause({"0": unit.token, "1": 1})
            assert values(await take(consumer, 1)) == ["1"]

    run(work())


# --- the end of a unit ---


def test_a_unit_is_finished_at_its_end_when_all_below_is_acked_in_any_order(
    catalog_url: str,
) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            unit = await r.claim(end=4)
            consumer.open(unit)
            await r.fill("abcdef")
            held = await take(consumer, 4)
            assert values(held) == ["0", "1", "2", "3"]
            for at in (3, 1, 0):
                await held[at].ack()
            await consumer.flush()
            assert not r.heard.finished_units
            await held[2].ack()
            await r.heard.until(lambda: r.heard.finished_units)
            assert r.heard.finished_units == [("0", unit.token)]
            assert await r.stored() == Progress(4)
            waiting = asyncio.ensure_future(anext(consumer))
            await r.fill("gh", start=6)
            await turns()
            assert not waiting.done()
            waiting.cancel()
            assert consumer.standings(["0"]) == {"0": UnitStanding(4, at_rest=True)}

    run(work())


def test_an_end_cuts_a_batch_short_and_waits_for_what_is_still_to_come(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            consumer.open(await r.claim(end=5))
            await r.fill("abc")
            first = await next_batch(consumer)
            assert numbers(first) == [0, 1, 2]
            await first.ack()
            assert not r.heard.finished_units
            await r.fill("defg", start=3)
            second = await next_batch(consumer)
            assert numbers(second) == [3, 4]
            await second.ack()
            await r.heard.until(lambda: r.heard.finished_units)
            assert await r.stored() == Progress(5)

    run(work())


def test_an_end_below_acked_ranges_waits_for_the_gap_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 8)
            held = await take(consumer, 8)
            for at in (0, 2, 3, 4, 5):
                await held[at].ack()
            consumer.drain({"0": unit.token})
            await consumer.close()
            again = r.consumer()
            again.open(await r.claim(end=4))
            (gap,) = await take(again, 1)
            assert gap.offset == 1
            await gap.ack()
            await r.heard.until(lambda: r.heard.finished_units)
            assert await r.stored() == Progress(6)

    run(work())


@pytest.mark.parametrize("used", [False, True])
def test_a_unit_that_is_opened_at_its_end_is_finished_at_once(tmp_path: Path, used: bool) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 3)
            for one in await take(consumer, 3):
                await one.ack()
            await consumer.close()
            again = r.consumer()
            if used:
                waiting = asyncio.ensure_future(anext(again))
                await asyncio.sleep(0)
            unit = await r.claim(end=3)
            again.open(unit)
            await r.heard.until(lambda: r.heard.finished_units)
            if not used:
                waiting = asyncio.ensure_future(anext(again))
            await r.fill("x", start=3)
            await turns()
            assert not waiting.done()
            assert r.heard.finished_units == [("0", unit.token)]
            waiting.cancel()

    run(work())


def test_a_paused_unit_tells_its_rest_and_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            unit = await r.claim(end=2)
            consumer.open(unit)
            await r.fill("ab")
            held = await take(consumer, 2)
            consumer.pause({"0": unit.token})
            for one in held:
                one.ack_soon()
            await r.heard.until(lambda: r.heard.finished_units)
            assert r.heard.rested_units == [("0", unit.token, Progress(2))]

    run(work())


def test_the_owner_hears_that_a_stream_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, unit = await opened(r, 1)
            (one,) = await take(consumer, 1)
            await one.ack()
            await r.hr.delete_stream("orders")
            await r.heard.until(lambda: r.heard.gone)
            name, token, error = r.heard.gone[0]
            assert (name, token) == ("0", unit.token)
            assert isinstance(error, HeadraceError)
            await consumer.flush()  # and the application need not care

    run(work())


def test_many_units_pause_and_resume_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path), segments=64) as r:
            consumer = r.consumer()
            tokens = {}
            for n in range(64):
                unit = await r.claim(n)
                consumer.open(unit)
                tokens[unit.unit] = unit.token
            events = [Event(subject="orders.x", value=b"", key=str(n)) for n in range(2000)]
            await r.hr.append("orders", events)
            held = await take(consumer, 100)
            consumer.pause(tokens)
            for one in held:
                one.ack_soon()
            await r.heard.until(lambda: len(r.heard.rested_units) == 64)
            standings = consumer.standings(tokens)
            assert all(standing.at_rest for standing in standings.values())
            consumer.resume(tokens)
            held += await take(consumer, 1900)
            places = [(one.segment, one.offset) for one in held]
            assert len(set(places)) == 2000

    run(work())


def test_a_transaction_ends_before_a_unit_rests_also_where_a_leader_stores_acks(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, store = await elsewhere(r)
            await r.fill("a")
            (one,) = await take(consumer, 1)
            consumer.pause(consumer.units)
            async with one.transaction() as tx:
                tx.publish("orders.z", b"more")
            await r.heard.until(rested(r.heard))
            assert store.commits[-1][0] == [Progress(1)]

    run(work())
