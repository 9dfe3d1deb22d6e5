"""What an application is told of its answers is true, also when the leader is frozen."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import headrace
from headrace.errors import Fenced
from tests.groups.shared.runtime.support import open_log, publish
from tests.groups.shared.runtime.test_processes import TEXT, Cluster, cluster
from tests.support import until


async def two_units(source: AsyncIterator[headrace.Delivery]) -> list[headrace.Delivery]:
    """Two deliveries of different units."""
    first = second = await anext(source)
    while second.unit == first.unit:
        second = await anext(source)
    return [first, second]


async def counts(answer: headrace.Delivery, *, transaction: bool) -> bool:
    """Answer an event; whether that is said to count."""
    try:
        if transaction:
            async with answer.transaction() as tx:
                tx.publish("out.x", answer.value)
        else:
            await answer.ack()
    except Fenced:
        return False
    return True


async def output(hr: headrace.Headrace) -> list[bytes]:
    return [value async for batch in hr.read("out") for value in batch.column("value").to_pylist()]


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Cluster]:
    """A group whose leader, in a process of its own, can be frozen."""
    with cluster(str(tmp_path / "catalog"), tmp_path / "answers") as peers:
        peers.start("b")
        yield peers


def test_under_a_frozen_leader_an_answer_counts_if_and_only_if_that_is_said(
    frozen: Cluster,
) -> None:
    async def test() -> None:
        async with open_log(frozen.url) as hr, hr.session("a") as session:
            await hr.create_stream("out", ["out.>"])
            await session.subscribe(TEXT)
            await until(lambda: len(session.units) == 3, "half of the units")
            os.kill(frozen.members["b"].pid, signal.SIGSTOP)
            await publish(hr, "orders", 40)
            source = aiter(session)
            acked, committed = await two_units(source)
            ack, commit = await asyncio.gather(
                counts(acked, transaction=False), counts(committed, transaction=True)
            )
            assert commit == (committed.value in await output(hr))
            again = []
            while (await hr.shared_groups.get("g")).lag_events:
                delivery = await anext(source)
                again.append(delivery.value)
                await counts(delivery, transaction=False)
            assert (committed.value in again) == (not commit)
            assert (acked.value in again) == (not ack)

    asyncio.run(asyncio.wait_for(test(), 60))
