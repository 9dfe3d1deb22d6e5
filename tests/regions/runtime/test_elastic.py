"""Elastic groups follow their consumers to another region: by what is acked of their source."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headrace
from headrace.catalog.streams import StreamConfig
from headrace.groups.partitioned.names import GroupName
from headrace.spark.partition import PartitionJob
from tests.regions.runtime.test_groups import consume, in_loop, publish, running, two_regions

ORDERS = StreamConfig(subjects=("orders.>",))
BILLING = GroupName("orders", "billing")


@contextmanager
def filling(*addresses: Path | str) -> Iterator[None]:
    """The partition job of each region, as its pipeline would run it."""
    stop = threading.Event()

    def fill(address: Path | str) -> None:
        while not stop.is_set():
            PartitionJob(str(address), None, BILLING).run(stop)
            stop.wait(0.02)  # the group is not here yet

    threads = [threading.Thread(target=fill, args=(each,)) for each in addresses]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


async def create(client: headrace.Headrace, home: str | None = "eu", **options: object) -> None:
    await client.groups.create_elastic(
        "orders",
        "billing",
        max_members=4,
        filter="orders.*",
        wildcards=[1],
        members=["m1", "m2"],
        replicated=True,
        home=home,
        **options,  # type: ignore[arg-type]
    )


@in_loop
async def test_a_switched_elastic_group_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    random.seed(7)
    async with two_regions(tmp_path, ORDERS, 2) as (eu, us):
        await create(eu)
        with running(eu, us), filling(tmp_path / "eu", tmp_path / "us"):
            await publish(eu, "eu", 60)
            await publish(us, "us", 60)
            await eu.publish("orders.other.1", b"no", key="1")  # passes no filter
            acked, left = await consume(eu, 90, lambda: random.random() < 0.6, ("m1", "m2"))
            assert left
            await eu.regions.switch("orders", "billing", to="us")
            rest, _ = await consume(us, 120 - len(acked), lambda: True, ("m1", "m2"))
            await eu.publish("orders.1", b"late", key="1")
            assert await consume(us, 1, lambda: True, ("m1", "m2")) == ([b"late"], [])
    assert sorted(acked + rest) == sorted(
        [b"eu-%d" % at for at in range(60)] + [b"us-%d" % at for at in range(60)]
    )
    assert set(left) <= set(rest)
