"""A group is put back while its members run: they go on from there, and nothing is acked across."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import headrace
from headrace.catalog import Tx
from headrace.errors import Fenced, RoundOvertakenError
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime import units
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load_all
from headrace.groups.shared import sessions
from headrace.groups.shared.core.naming import group_key
from headrace.groups.shared.runtime import state
from headrace.log.events import Event
from headrace.log.query import Query
from tests.groups.partitioned.runtime import feeder
from tests.groups.shared.runtime.support import open_log, run
from tests.support import until

NAME = GroupName("orders", "billing")
KEYS = 16
Floors = Mapping[int, int]


class Kind:
    """A group of one kind with one member that runs, on a stream of two segments."""

    stream = "orders"
    reader = NAME.key

    async def make(self, hr: headrace.Headrace) -> None:
        raise NotImplementedError

    async def send(self, hr: headrace.Headrace, first: int, count: int) -> None:
        numbers = range(first, first + count)
        await hr.append("orders", [self.event(n) for n in numbers])

    def event(self, n: int) -> Event:
        return Event(subject=f"orders.{n % KEYS}.x", value=b"%d" % n, key=str(n % KEYS))

    @asynccontextmanager
    async def member(self, hr: headrace.Headrace) -> AsyncIterator[AsyncIterator[Any]]:
        async with hr.join("orders", "billing", "a") as member:
            yield aiter(member)

    def seek(self, tx: Tx, places: Mapping[int, tuple[int, Progress]]) -> None:
        units.seek(tx, NAME, self.reader, places)

    def locks(self, numbers: list[int]) -> list[str]:
        return units.seek_locks(NAME, self.reader, numbers)


class Static(Kind):
    async def make(self, hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], partitions=2)
        await hr.groups.create_static("orders", "billing", max_members=2, members=["a"])


class Shares(Kind):
    reader = NAME.share("a")

    async def make(self, hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", [">"], segments=2)
        await hr.groups.create_static("orders", "billing", max_members=2, members=["a"])

    def event(self, n: int) -> Event:
        return Event(subject=f"{n % 2}.k{n % KEYS}", value=b"%d" % n, key=str(n % KEYS))


class Elastic(Kind):
    stream = NAME.work_queue

    async def make(self, hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        await hr.groups.create_elastic(
            "orders", "billing", max_members=2, filter="orders.*.*", wildcards=[1], members=["a"]
        )

    async def send(self, hr: headrace.Headrace, first: int, count: int) -> None:
        await super().send(hr, first, count)
        await hr.in_thread(feeder.fill, hr.log, NAME)


class InSession(Kind):
    subscription: str

    async def make(self, hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)

    @asynccontextmanager
    async def member(self, hr: headrace.Headrace) -> AsyncIterator[AsyncIterator[Any]]:
        async with hr.session("w") as session:
            if self.subscription not in session.subscriptions:
                await session.subscribe(self.subscription, start="earliest")
            yield aiter(session)

    def seek(self, tx: Tx, places: Mapping[int, tuple[int, Progress]]) -> None:
        state.seek(tx, self.reader, {f"orders/{n}": place for n, place in places.items()})

    def locks(self, numbers: list[int]) -> list[str]:
        return list(state.seek_locks(self.reader, [f"orders/{n}" for n in numbers]))


class Shared(InSession):
    subscription = "$share/g/orders.>"
    reader = group_key("g", "orders.>")


class Private(InSession):
    subscription = "orders.>"
    reader = sessions.private_group("w", "orders.>")


class Readers(Kind):
    reader = "reader/billing"

    async def make(self, hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], segments=2)
        await hr.reader_groups.create("billing", ["orders"])

    @asynccontextmanager
    async def member(self, hr: headrace.Headrace) -> AsyncIterator[AsyncIterator[Any]]:
        group = await hr.reader_groups.get("billing")
        async with group.reader("r") as reader:
            yield aiter(reader)


KINDS = [Static(), Shares(), Elastic(), Shared(), Private()]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__.lower())


async def seek(hr: headrace.Headrace, kind: Kind, choose: Callable[[int], int]) -> Floors:
    """Put the group back in every segment, to what ``choose(head)`` says; tells the places."""
    segments = (await hr.stream(kind.stream)).segments
    floors = {s.number: choose(s.head) for s in segments}
    places = {s.number: (s.id, Progress(floors[s.number])) for s in segments}
    await hr.host.in_transaction(lambda tx: kind.seek(tx, places), kind.locks(list(floors)))
    return floors


def values_from(hr: headrace.Headrace, kind: Kind, floors: Floors) -> set[bytes]:
    """The events at and after some places."""
    found: set[bytes] = set()
    for number, floor in floors.items():
        query = Query(start={number: floor}, segments=[number])
        for batch in hr.log.read(kind.stream, query):
            found |= set(batch.column("value").to_pylist())
    return found


async def all_stored(hr: headrace.Headrace, kind: Kind) -> bool:
    """Whether everything is acked, as the catalog has it."""
    segments = (await hr.stream(kind.stream)).segments
    found = await hr.in_thread(hr.log.catalog.read, lambda tx: load_all(tx, kind.reader))
    return all(found.get(s.id, Progress()).floor >= s.head for s in segments)


class Consuming:
    """Acks everything that comes, and keeps what counted."""

    def __init__(self, deliveries: AsyncIterator[Any]) -> None:
        self._deliveries = deliveries
        self.counted: list[bytes] = []
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            try:
                delivery = await anext(self._deliveries)
                await delivery.ack()
                self.counted.append(delivery.value)
            except Fenced:
                continue
            except StopAsyncIteration:
                return

    def has(self, least: int) -> bool:
        return len(self.counted) >= least

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def nothing_comes_again(hr: headrace.Headrace, kind: Kind) -> None:
    """Another life of the member gets what is new, and nothing before it."""
    await kind.send(hr, 10_000, 5)
    async with kind.member(hr) as deliveries:
        found = []
        for _ in range(5):
            delivery = await anext(deliveries)
            await delivery.ack()
            found.append(int(delivery.value))
        assert sorted(found) == list(range(10_000, 10_005))


@every_kind
def test_an_idle_member_goes_on_from_where_its_group_was_put(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 40)
            async with kind.member(hr) as deliveries:
                consuming = Consuming(deliveries)
                await until(lambda: len(consuming.counted) == 40, "all events")
                assert await all_stored(hr, kind)
                consuming.counted.clear()
                floors = await seek(hr, kind, lambda head: head // 2)
                again = await hr.in_thread(values_from, hr, kind, floors)
                assert 0 < len(again) < 40
                await until(lambda: len(consuming.counted) >= len(again), "what comes again")
                assert sorted(consuming.counted) == sorted(again)
                await kind.send(hr, 100, 10)
                await until(lambda: len(consuming.counted) == len(again) + 10, "what is new")
                assert await all_stored(hr, kind)
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


@every_kind
def test_what_was_in_flight_does_not_count(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 20)
            async with kind.member(hr) as deliveries:
                held = [await anext(deliveries) for _ in range(4)]
                await held.pop(0).ack()
                await seek(hr, kind, lambda _: 0)
                for delivery in held:
                    with pytest.raises(Fenced):
                        await delivery.ack()
                consuming = Consuming(deliveries)
                await until(lambda: len(consuming.counted) == 20, "all events, once more")
                assert sorted(map(int, consuming.counted)) == list(range(20))
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


@every_kind
def test_nothing_that_is_acked_after_a_seek_is_lost(catalog_url: str, kind: Kind) -> None:
    """Put back and forth again and again under a member that acks as fast as it can."""

    async def work() -> None:
        rng = random.Random(7)
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 60)
            async with kind.member(hr) as deliveries:
                consuming = Consuming(deliveries)
                for round in range(5):
                    wanted = len(consuming.counted) + rng.randrange(5, 40)
                    await until(partial(consuming.has, wanted), "some acks")
                    await kind.send(hr, 100 + round * 20, 20)
                    floors = await seek(hr, kind, lambda head: rng.randrange(head // 2 + 1))
                consuming.counted.clear()
                again = await hr.in_thread(values_from, hr, kind, floors)

                async def finished() -> bool:
                    return await all_stored(hr, kind)

                await until(finished)
                # An ack that was stored right before the last seek may be told of after it.
                assert again <= set(consuming.counted)
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


@pytest.mark.parametrize("kind", [Shared(), Private()], ids=["shared", "private"])
def test_a_finished_segment_is_read_again_before_those_that_follow_it(
    catalog_url: str, kind: Kind
) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 30)
            for segment in (await hr.stream("orders")).open_segments:
                await hr.split("orders", segment.number)
            await kind.send(hr, 30, 30)
            async with kind.member(hr) as deliveries:
                consuming = Consuming(deliveries)
                await until(lambda: len(consuming.counted) == 60, "all events")
                consuming.counted.clear()
                await seek(hr, kind, lambda _: 0)
                await until(lambda: len(consuming.counted) >= 60, "all events again")
                for key in range(KEYS):
                    own = [int(value) for value in consuming.counted if int(value) % KEYS == key]
                    assert own == [n for n in range(60) if n % KEYS == key]
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


def test_a_round_that_was_planned_before_does_not_count(catalog_url: str) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            kind = Elastic()
            await kind.make(hr)
            await Kind.send(kind, hr, 0, 40)
            log = hr.log
            first = feeder.plan(log, NAME, events_max=20)
            feeder.commit(log, first, feeder.gather(log, first))
            late = feeder.plan(log, NAME)
            rows = feeder.gather(log, late)
            places = {r.segment: (r.segment_id, Progress(2)) for r in late.reads}
            log.catalog.write(lambda tx: units.seek(tx, NAME, NAME.partition_job, places))
            with pytest.raises(RoundOvertakenError, match="put back to 2"):
                feeder.commit(log, late, rows)
            rows.discard()
            feeder.fill(log, NAME)
            heads = [segment.head for segment in log.stream(NAME.work_queue).segments]
            assert sum(heads) == 40 + sum(read.place - 2 for read in late.reads)

    run(work())
