"""Nothing of the closed list of decisions is a word only: each is written by what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import headrace
import headrace.testing
from headrace.catalog import leases
from headrace.groups.decisions import What
from tests.groups.decisions.test_steps import run

STATIC, ELASTIC, SHARED = "orders/billing", "jobs/work", "$share/audit/notes.>"
Seen = Callable[[str, What], Awaitable[None]]


def test_every_decision_of_the_list_is_written_by_somebody(catalog_url: str) -> None:
    found: set[What] = set()

    async def work(hr: headrace.Headrace) -> None:
        async def seen(group: str, what: What) -> None:
            for _ in range(200):
                if any(each.what is what for each in await hr.groups.decisions(group)):
                    found.add(what)
                    return
                await asyncio.sleep(0.5)
            raise AssertionError(f"{group} was never {what.value}")

        await _static(hr, catalog_url, seen)
        await _elastic(hr, catalog_url, seen)
        await _shared(hr, seen)

    run(catalog_url, work)
    assert found == set(What)


async def _static(hr: headrace.Headrace, url: str, seen: Seen) -> None:
    """Pins: an instance, its standby, a step-down, and a death that nobody is left to tell of."""
    await hr.create_stream("orders", subjects=["orders.>"], partitions=2)
    await hr.groups.create_static("orders", "billing", max_members=2, members=["m1", "m2"])
    for n in range(8):
        await hr.publish(f"orders.{n}", b"x")
    async with hr.join("orders", "billing", member="m1", max_deliveries=1) as member:
        await (await anext(aiter(member))).reject("bad")
        for what in (What.CONFIGURED, What.JOINED, What.PINNED, What.ASSIGNED, What.DEAD_LETTER):
            await seen(STATIC, what)
        await hr.put_back(STATIC)
        await seen(STATIC, What.PUT_BACK)
        held = await anext(aiter(member))
        await hr.seek(STATIC, "earliest")
        await seen(STATIC, What.SOUGHT)
        try:
            await held.ack()
        except headrace.Fenced:
            await seen(STATIC, What.FENCED)
        await hr.trim("orders", {0: 1, 1: 1})
        await seen(STATIC, What.TRIMMED_PAST)
        async with headrace.open(url) as other, other.join("orders", "billing", member="m1"):
            await seen(STATIC, What.STANDS_BY)
            await hr.groups.step_down("orders", "billing", "m1")
            await seen(STATIC, What.UNPINNED)
    await seen(STATIC, What.LEFT)
    pin = "pin.orders.billing.m2"
    await hr.host.in_transaction(lambda tx: leases.seize(tx, pin, "somebody", 1000), ())
    await seen(STATIC, What.LOST)


async def _elastic(hr: headrace.Headrace, url: str, seen: Seen) -> None:
    """Members that come and go: what moves, and who waits for it."""
    await hr.create_stream("jobs", subjects=["jobs.>"])
    await hr.groups.create_elastic(
        "jobs", "work", max_members=2, filter="jobs.*", wildcards=[1], members=["m1"]
    )
    async with (
        hr.join("jobs", "work", member="m1"),
        headrace.open(url) as other,
        other.join("jobs", "work", member="m2"),
    ):
        await seen(ELASTIC, What.WAITS)
        await hr.groups.add_members("jobs", "work", ["m2"])
        await seen(ELASTIC, What.MOVES)
        await seen(ELASTIC, What.MOVED)


async def _shared(hr: headrace.Headrace, seen: Seen) -> None:
    """A leader, one that acks nothing, and segments that are split and merged."""
    await hr.create_stream("notes", subjects=["notes.>"])
    await hr.shared_groups.declare("audit", "notes.>", start="earliest")
    await hr.shared_groups.configure("audit", stall_timeout_ms=2000)
    await hr.publish("notes.a", b"x", key="a")
    async with hr.session("w") as session:
        await session.subscribe(SHARED)
        await seen(SHARED, What.ELECTED)
        await anext(aiter(session))
        await seen(SHARED, What.EVICTED)
    async with hr.session("w2") as session:
        await session.subscribe(SHARED)
        reading = asyncio.create_task(_read(session))
        await hr.split("notes", 0, 2)
        await seen(SHARED, What.SPLIT)
        await seen(SHARED, What.FINISHED)
        await hr.merge("notes", [1, 2])
        await seen(SHARED, What.MERGED)
        reading.cancel()
    await seen(SHARED, What.DEPOSED)


async def _read(session: headrace.Session) -> None:
    async for delivery in session:
        await delivery.ack()
