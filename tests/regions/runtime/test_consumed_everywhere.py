"""Both regions consume a group without a home: what one has acked is passed over in the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import headrace
from headrace.catalog.streams import StreamConfig
from headrace.groups.consumer import Batch, ConsumerOptions
from headrace.groups.consumer.in_hand import _PART
from headrace.groups.delivery import DeliveryConfig
from headrace.groups.delivery.base import UnitDispatcher
from headrace.groups.progress import store
from headrace.regions.linking import link, name_region
from headrace.regions.records import get_group
from tests.regions.runtime.test_groups import in_loop, running
from tests.support import until

ONE = StreamConfig(subjects=("orders.>",), partitions=1)
WHOLE = StreamConfig(subjects=(">",))
NAMES = {"static": "orders/billing", "share": "orders/billing", "shared": "$share/billing/orders.>"}
KEYS = {"static": "orders.billing", "share": "orders.billing", "shared": "billing:orders.>"}
ROWS = KEYS | {"share": "orders.billing.member.m1"}
COUNT = 24


@asynccontextmanager
async def everywhere(
    tmp_path: Path, there: str, kind: str, *, late: bool = False
) -> AsyncIterator[tuple[headrace.Headrace, headrace.Headrace]]:
    """Two regions with one segment, all events, and a group without a home that is ready."""
    async with headrace.open(tmp_path / "eu") as eu, headrace.open(there) as us:
        name_region(eu.log, "eu")
        name_region(us.log, "us")
        eu.log.create_stream("orders", WHOLE if kind == "share" else ONE, 1)
        link(eu.log, "orders", "us", here=str(tmp_path / "eu"), catalog=there)
        if kind == "shared":
            await eu.shared_groups.declare("billing", "orders.>", start="earliest")
        else:
            await eu.groups.create_static("orders", "billing", max_members=1, members=["m1"])
        if not late:
            await eu.regions.enable(NAMES[kind])
        with running(eu, us):
            first = "0" if kind == "share" else "orders"
            for at in range(COUNT):
                await eu.publish(f"{first}.{at}", b"%d" % at, key=str(at % 5))
            await until(lambda: us.log.stream("orders").segments[0].head >= COUNT)
            if not late:
                await until(lambda: is_ready(us, kind))
            yield eu, us


def is_ready(client: headrace.Headrace, kind: str) -> bool:
    found = client.log.catalog.read(lambda tx: get_group(tx, KEYS[kind]))
    return found is not None and found.ready


@asynccontextmanager
async def member(
    client: headrace.Headrace, kind: str, **limits: int
) -> AsyncIterator[headrace.Member | headrace.Session]:
    async with AsyncExitStack() as stack:
        if kind == "shared":
            options = ConsumerOptions(delivery=DeliveryConfig(**limits))
            session = await stack.enter_async_context(client.session(options=options))
            await session.subscribe(NAMES[kind])
            yield session
        else:
            joined = client.join("orders", "billing", member="m1", **limits)
            yield await stack.enter_async_context(joined)


def knows(client: headrace.Headrace, offset: int) -> bool:
    """Whether a consumer of the program counts an offset as acked."""
    dispatchers: list[UnitDispatcher] = [
        run.dispatcher
        for consumer in client.host.parts.get(_PART, ())
        for run in consumer._runs.values()
    ]
    return any(offset in each.progress().acked() for each in dispatchers)


async def is_done(client: headrace.Headrace, kind: str) -> bool:
    """Whether all that was published is acked in a region."""
    found = client.log.catalog.read(lambda tx: store.load_all(tx, ROWS[kind]))
    return any(each.floor >= COUNT for each in found.values())


def number(delivery: headrace.Delivery) -> int:
    return int(delivery.value)


def numbers(batch: Batch) -> list[int]:
    return [int(value) for value in batch.data.column("value").to_pylist()]


@pytest.mark.parametrize("kind", ["static", "share", "shared"])
@in_loop
async def test_what_one_region_has_acked_the_other_passes_over(
    tmp_path: Path, there: str, kind: str
) -> None:
    async with everywhere(tmp_path, there, kind) as (eu, us), AsyncExitStack() as stack:
        async with asyncio.timeout(60):
            near = aiter(await stack.enter_async_context(member(eu, kind, max_pending=1)))
            far = aiter(await stack.enter_async_context(member(us, kind, max_pending=1)))
            mine, theirs = await anext(near), await anext(far)
            assert number(mine) == number(theirs) == 0
            for at in range(1, 11):
                await mine.ack()
                mine = await anext(near)
                assert number(mine) == at
            await until(lambda: knows(us, 9), "the acks of eu")
            await theirs.ack()  # a repeat, and harmless
            theirs = await anext(far)
            assert number(theirs) == 10
            for at in range(11, 16):
                await theirs.ack()
                theirs = await anext(far)
                assert number(theirs) == at
            await until(lambda: knows(eu, 14), "the acks of us")
            await mine.ack()
            for at in range(15, COUNT):
                mine = await anext(near)
                assert number(mine) == at
                await mine.ack()
            await theirs.ack()
            await until(lambda: is_done(us, kind), "all acks in us")
            await until(lambda: is_done(eu, kind), "all acks in eu")


@in_loop
async def test_batches_leave_out_what_the_other_region_has_acked(
    tmp_path: Path, there: str
) -> None:
    async with everywhere(tmp_path, there, "static") as (eu, us), AsyncExitStack() as stack:
        async with asyncio.timeout(60):
            near = await stack.enter_async_context(member(eu, "static", max_pending_per_key=100))
            limits = {"batch_events_max": 8}
            far = await stack.enter_async_context(member(us, "static", **limits))
            batches = aiter(far.batches())
            held = await anext(batches)
            events = aiter(near)
            given = [await anext(events) for _ in range(COUNT)]
            acked = [0, 1, 9, 11, 12, *range(16, COUNT)]
            for at in acked:
                await given[at].ack()
            await until(lambda: knows(us, COUNT - 1), "the acks of eu")
            await held.ack()
            held_there = set(numbers(held))
            values: list[int] = []
            expected = [at for at in range(COUNT) if at not in held_there.union(acked)]
            while len(values) < len(expected):
                rest = await anext(batches)
                values += numbers(rest)
                await rest.ack()
            assert values == expected
            await until(lambda: is_done(us, "static"), "all acks in us")
            await until(lambda: is_done(eu, "static"), "all acks in eu")


@in_loop
async def test_a_group_that_becomes_replicated_is_followed_by_who_consumes_it(
    tmp_path: Path, there: str
) -> None:
    async with (
        everywhere(tmp_path, there, "static", late=True) as (eu, us),
        asyncio.timeout(60),
        member(eu, "static", max_pending=1) as here,
    ):
        near = aiter(here)
        mine = await anext(near)
        await eu.regions.enable("orders", "billing")
        await until(lambda: is_ready(us, "static"))
        async with member(us, "static") as other:
            async for delivery in other:
                if delivery.value == b"7":
                    break
                await delivery.ack()
        await until(lambda: knows(eu, 6), "the acks of us")
        await mine.ack()
        assert number(await anext(near)) == 7
