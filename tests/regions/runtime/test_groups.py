"""Groups follow their consumers to another region, exactly where they were."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ParamSpec

import pytest

import headrace
from headrace.catalog import replicas
from headrace.catalog.streams import StreamConfig
from headrace.errors import LinkError, SwitchError, UnknownGroupError
from headrace.regions import enabling, moving
from headrace.regions.linking import link, name_region
from headrace.regions.records import get_group
from headrace.regions.runtime.runner import RegionRunner
from tests.support import until

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


PARTITIONED = StreamConfig(subjects=("orders.>",), partitions=4)
SHARES = StreamConfig(subjects=(">",))


@contextmanager
def running(*clients: headrace.Headrace) -> Iterator[list[RegionRunner]]:
    """The region's own work, beside the clients."""
    stop = threading.Event()
    runners = [RegionRunner(client.log) for client in clients]
    threads = [threading.Thread(target=each.run, args=(stop,)) for each in runners]
    for thread in threads:
        thread.start()
    try:
        yield runners
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@asynccontextmanager
async def two_regions(
    tmp_path: Path, config: StreamConfig, segments: int | None = None
) -> AsyncIterator[tuple[headrace.Headrace, headrace.Headrace]]:
    async with (
        headrace.open(tmp_path / "eu") as eu,
        headrace.open(tmp_path / "us") as us,
    ):
        name_region(eu.log, "eu")
        name_region(us.log, "us")
        eu.log.create_stream("orders", config, segments)
        link(eu.log, "orders", "us", here=str(tmp_path / "eu"), catalog=tmp_path / "us")
        yield eu, us


async def publish(
    client: headrace.Headrace, region: str, count: int, first: str = "orders"
) -> None:
    for at in range(count):
        await client.publish(
            f"{first if first == 'orders' else at % 4}.{at % 5}",
            f"{region}-{at}".encode(),
            key=str(at % 9),
        )


async def consume(
    client: headrace.Headrace, count: int, keep: Callable[[], bool], members: tuple[str, ...]
) -> tuple[list[bytes], list[bytes]]:
    """Take ``count`` events by all members, ack some of them; (acked, left)."""
    acked: list[bytes] = []
    left: list[bytes] = []
    done = asyncio.Event()
    busy: set[str] = set()

    async def member(name: str) -> None:
        async with client.join("orders", "billing", member=name, max_pending_per_key=1000) as m:
            async for delivery in m:
                if done.is_set():
                    return
                busy.add(name)
                if keep():
                    await delivery.ack()
                    acked.append(delivery.value)
                else:
                    left.append(delivery.value)
                if len(acked) + len(left) >= count:
                    done.set()
                busy.discard(name)

    tasks = [asyncio.create_task(member(name)) for name in members]
    async with asyncio.timeout(30):
        await done.wait()
        await until(lambda: not busy)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return acked, left


@pytest.mark.parametrize("layout", ["segments", "shares"])
@in_loop
async def test_a_switched_group_goes_on_exactly_where_it_was(tmp_path: Path, layout: str) -> None:
    config, segments = (PARTITIONED, None) if layout == "segments" else (SHARES, 2)
    random.seed(7)
    async with two_regions(tmp_path, config, segments) as (eu, us):
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1", "m2"])
        enabling.enable(eu.log, "orders.billing", RegionRunner(eu.log)._neighbours, home="eu")
        first = "orders" if layout == "segments" else "shares"
        with running(eu, us) as runners:
            await publish(eu, "eu", 60, first)
            await publish(us, "us", 60, first)
            acked, left = await consume(eu, 90, lambda: random.random() < 0.6, ("m1", "m2"))
            await until(
                lambda: us.log.catalog.read(lambda tx: get_group(tx, "orders.billing")) is not None
            )
            report = await asyncio.to_thread(
                moving.switch, eu.log, "orders.billing", "us", runners[0]._neighbours
            )
            assert report.target == "us"
            rest, none = await consume(us, 120 - len(acked), lambda: True, ("m1", "m2"))
    assert none == []
    assert len(acked) + len(rest) == 120
    assert sorted(acked + rest) == sorted(
        [b"eu-%d" % at for at in range(60)] + [b"us-%d" % at for at in range(60)]
    )
    assert set(left) <= set(rest)


@in_loop
async def test_members_wait_where_the_group_is_not_at_home(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
        enabling.enable(eu.log, "orders.billing", RegionRunner(eu.log)._neighbours, home="eu")
        with running(eu, us):
            await publish(eu, "eu", 10)
            await until(
                lambda: bool(
                    us.log.catalog.read(
                        lambda tx: (found := get_group(tx, "orders.billing")) and found.ready
                    )
                )
            )
            async with us.join("orders", "billing", member="m1") as member:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await anext(aiter(member))


@in_loop
async def test_a_seek_counts_in_every_region(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
        enabling.enable(eu.log, "orders.billing", RegionRunner(eu.log)._neighbours)
        with running(eu, us) as runners:
            await publish(eu, "eu", 20)
            await consume(eu, 20, lambda: True, ("m1",))
            near = runners[0]._neighbours
            await until(lambda: not moving.unsynced(eu.log, "orders.billing", near))
            await eu.seek("orders/billing", "earliest")
            await until(lambda: not moving.unsynced(eu.log, "orders.billing", near))
            again, _ = await consume(us, 20, lambda: True, ("m1",))
    assert len(set(again)) == 20


@in_loop
async def test_what_was_trimmed_unconsumed_stays_to_be_consumed_elsewhere(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
        enabling.enable(eu.log, "orders.billing", RegionRunner(eu.log)._neighbours)
        with running(eu, us) as runners:
            near = runners[0]._neighbours
            await publish(eu, "eu", 20)
            acked, _ = await consume(eu, 4, lambda: True, ("m1",))
            await until(lambda: not moving.unsynced(eu.log, "orders.billing", near))
            heads = {s.number: s.head for s in eu.log.stream("orders").segments}
            eu.log.trim("orders", heads)
            await publish(eu, "late", 8)
            late, _ = await consume(eu, 8, lambda: True, ("m1",))
            await until(lambda: not moving.unsynced(eu.log, "orders.billing", near))
            rest, _ = await consume(us, 20 - len(acked), lambda: True, ("m1",))
    assert sorted(acked + rest) == sorted(b"eu-%d" % at for at in range(20))
    assert len(late) == 8


@in_loop
async def test_a_group_that_exists_on_both_sides_needs_to_be_told_whose_progress_counts(
    tmp_path: Path,
) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        for client in (eu, us):
            await client.groups.create_static(
                "orders",
                "billing",
                max_members=4,
                members=["m1"],
                start="earliest" if client is eu else "latest",
            )
        near = RegionRunner(eu.log)._neighbours
        with pytest.raises(LinkError, match="adopt"):
            enabling.enable(eu.log, "orders.billing", near)
        enabling.enable(eu.log, "orders.billing", near, adopt="eu")
        await publish(eu, "eu", 12)

        def is_adopted() -> bool:
            found = us.log.catalog.read(lambda tx: get_group(tx, "orders.billing"))
            return found is not None and found.ready

        with running(eu, us):
            await until(is_adopted)  # which fences who consumes there
            rest, _ = await consume(us, 12, lambda: True, ("m1",))
    assert len(set(rest)) == 12


@in_loop
async def test_a_switch_that_cannot_end_changes_nothing(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, _):
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
        near = RegionRunner(eu.log)._neighbours
        enabling.enable(eu.log, "orders.billing", near, home="eu")
        before = eu.log.catalog.read(lambda tx: get_group(tx, "orders.billing"))
        for target, said in (("us", "no agent runs in us"), ("eu", "already")):
            with pytest.raises(SwitchError, match=said):
                moving.switch(eu.log, "orders.billing", target, near)
        with pytest.raises(LinkError, match="none of the regions"):
            moving.switch(eu.log, "orders.billing", "mars", near)
        assert eu.log.catalog.read(lambda tx: get_group(tx, "orders.billing")) == before
        assert eu.log.catalog.read(replicas.revision) == 0


@in_loop
async def test_a_group_made_anew_where_one_was_deleted_stays(tmp_path: Path) -> None:
    """A deletion is carried out once, where it was made and where it is heard of."""
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        near = RegionRunner(eu.log)._neighbours

        def settled(key: str, *, deleted: bool) -> bool:
            found = us.log.catalog.read(lambda tx: get_group(tx, key))
            return found is not None and found.ready and found.deleted == deleted

        with running(eu, us):
            await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
            enabling.enable(eu.log, "orders.billing", near)
            await until(lambda: settled("orders.billing", deleted=False))
            await eu.groups.delete("orders", "billing")
            await until(lambda: settled("orders.billing", deleted=True))
            for client in (eu, us):
                await client.groups.create_static(
                    "orders", "billing", max_members=4, members=["m1"]
                )
            # Another group makes both agents look at all groups again.
            await eu.groups.create_static("orders", "audit", max_members=4, members=["m1"])
            enabling.enable(eu.log, "orders.audit", near)
            await until(lambda: settled("orders.audit", deleted=False))
        for client in (eu, us):
            assert await client.groups.get("orders", "billing")


@in_loop
async def test_a_deleted_group_goes_in_every_region_and_may_come_again(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        near = RegionRunner(eu.log)._neighbours

        def has(client: headrace.Headrace) -> bool:
            return (
                client.log.catalog.entries.get("static-consumer-groups", "orders.billing")
                is not None
            )

        with running(eu, us):
            await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
            enabling.enable(eu.log, "orders.billing", near)
            await publish(eu, "eu", 12)
            await consume(eu, 12, lambda: True, ("m1",))
            await until(lambda: has(us) and not moving.unsynced(eu.log, "orders.billing", near))
            await eu.groups.delete("orders", "billing")
            await until(lambda: not has(us))
            await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
            enabling.enable(eu.log, "orders.billing", near)
            await until(lambda: has(us))
            again, _ = await consume(us, 12, lambda: True, ("m1",))
    assert len(set(again)) == 12


@in_loop
async def test_a_group_is_replicated_from_its_first_moment_or_not_made(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        config: dict[str, Any] = {"max_members": 4, "members": ["m1"]}
        with pytest.raises(LinkError, match="none of the regions"):
            await eu.groups.create_static("orders", "billing", **config, home="mars")
        await us.groups.create_static("orders", "billing", **config)
        with pytest.raises(LinkError, match="exists in 'us' as well"):
            await eu.groups.create_static("orders", "billing", **config, replicated=True)
        with pytest.raises(UnknownGroupError):
            await eu.groups.get("orders", "billing")
        await us.groups.delete("orders", "billing")
        await eu.groups.create_static("orders", "billing", **config, home="us")
        found = eu.log.catalog.read(lambda tx: get_group(tx, "orders.billing"))
        assert found is not None
        assert found.home == "us"
