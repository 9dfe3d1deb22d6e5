"""A server that is away for a while: loops with a backlog go on, and miss nothing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import headrace
from headrace.errors import CatalogClosedError, CatalogUnavailableError
from tests.postgres_server import PostgresMachine, postgres_machine

EVENTS = 400
AWAY_S = 2.5


async def back(machine: PostgresMachine) -> None:
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(machine.start)


async def consume(machine: PostgresMachine, outage_ms: int) -> list[int]:
    """Read a backlog, little at a time, while the server goes away in its midst."""
    async with headrace.open(machine.url, housekeeping=False) as hr:
        await hr.create_stream("s", subjects=["s.>"], partitions=1)
        for start in range(0, EVENTS, 20):
            events = [
                headrace.Event(subject=f"s.{n}", value=str(n).encode() + bytes(500), key="k")
                for n in range(start, start + 20)
            ]
            await hr.append("s", events)
        await hr.groups.create_static("s", "g", max_members=1, members=["m"])
        followed: list[int] = []
        reads = asyncio.Event()

        async def follow() -> None:
            with contextlib.suppress(CatalogClosedError):  # where the group has given up
                async for batch in hr.read("s", follow=True):
                    values = batch.column("value").to_pylist()
                    followed.extend(int(value.rstrip(b"\0")) for value in values)
                    reads.set()
                    await asyncio.sleep(0.02)

        found: list[int] = []
        # The pin runs out during the outage, and nobody else can take it.
        options = {"prefetch_bytes": 4096, "outage_ms": outage_ms, "pin_ttl_ms": 500}
        async with hr.join("s", "g", member="m", **options) as member:
            deliveries = aiter(member)
            fault = None
            following = None
            while len(found) < EVENTS:
                delivery = await asyncio.wait_for(anext(deliveries), 60)
                delivery.ack_soon()
                found.append(int(delivery.value.rstrip(b"\0")))
                if len(found) == 50:
                    following = asyncio.create_task(follow())
                    await reads.wait()  # a read that begins while the server is away is refused
                    # Nobody goes on meanwhile: there is a backlog yet when it is down.
                    await asyncio.to_thread(machine.stop, "immediate")
                    fault = asyncio.create_task(back(machine))
                await asyncio.sleep(0)
            assert fault is not None
            await fault
            await hr.publish("s.x", b"401", key="k")
            for _ in range(400):
                if 401 in followed:
                    break
                await asyncio.sleep(0.05)
            assert following is not None
            assert not following.done()
            following.cancel()
            assert followed == [*range(EVENTS), 401]
        return found


def test_loops_with_a_backlog_ride_out_a_server_that_is_away() -> None:
    with postgres_machine() as machine:
        assert asyncio.run(consume(machine, 60_000)) == list(range(EVENTS))


def test_without_patience_the_loop_says_at_once_that_the_server_is_away() -> None:
    with postgres_machine() as machine:
        with pytest.raises(CatalogUnavailableError):
            asyncio.run(consume(machine, 0))
        machine.stop("immediate")
