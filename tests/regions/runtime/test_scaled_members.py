"""Members of real groups, while their stream is split and merged and the group moves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog.streams import StreamConfig
from headrace.regions import enabling, moving
from headrace.regions.linking import link, name_region
from headrace.regions.runtime.runner import RegionRunner
from tests.regions.runtime.test_groups import in_loop, running
from tests.support import until

KEYS = 8
KEY = {"static": "orders.billing", "shared": "audit:>", "reader": "reader/report"}


async def take(
    client: headrace.Headrace, kind: str, seen: list[tuple[str, int]], enough: asyncio.Event
) -> None:
    """Ack one by one, and note what was acked; until enough was."""

    async def each(events: Any) -> None:
        async for delivery in events:
            if enough.is_set():
                return
            await delivery.ack()
            seen.append((delivery.key, int(delivery.value)))

    if kind == "static":
        async with client.join("orders", "billing", member="m1") as member:
            await each(member)
        return
    if kind == "reader":
        async with (await client.reader_groups.get("report")).reader("r1") as reader:
            await each(reader)
        return
    async with client.session("worker") as session:
        await session.subscribe("$share/audit/>")
        await each(session)


async def publish(client: headrace.Headrace, first: int, count: int) -> None:
    for at in range(first, first + count):
        for key in range(KEYS):
            await client.publish(f"0.{key}", b"%d" % at, key=str(key))


@pytest.mark.parametrize(
    ("kind", "database"),
    [("static", "sqlite"), ("shared", "postgres"), ("reader", "sqlite"), ("reader", "postgres")],
)
@in_loop
async def test_members_go_on_in_another_region_through_splits_and_merges(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, database: str
) -> None:
    there = str(tmp_path / "us")
    if database == "postgres":
        there = request.getfixturevalue("postgres_url").replace("postgres:@", "postgres@")
    async with (
        headrace.open(tmp_path / "eu") as eu,
        headrace.open(there, store=tmp_path / "us-store") as us,
    ):
        name_region(eu.log, "eu")
        name_region(us.log, "us")
        eu.log.create_stream("orders", StreamConfig(subjects=(">",)), 1)
        address = str(tmp_path / "eu")
        store = tmp_path / "us-store"
        link(eu.log, "orders", "us", here=address, catalog=there, store=store, writers="eu")
        if kind == "static":
            await eu.groups.create_static("orders", "billing", max_members=1, members=["m1"])
        elif kind == "reader":
            await eu.reader_groups.create("report", ["orders"])
        else:
            await eu.shared_groups.declare("audit", ">", start="earliest")
        enabling.enable(eu.log, KEY[kind], RegionRunner(eu.log)._neighbours, home="eu")
        seen: list[tuple[str, int]] = []
        with running(eu, us) as runners:
            await publish(eu, 0, 3)
            enough = asyncio.Event()
            task = asyncio.create_task(take(eu, kind, seen, enough))
            await until(lambda: len(seen) > KEYS)
            eu.log.split("orders", 0)
            await publish(eu, 3, 3)
            eu.log.split("orders", 1)
            await publish(eu, 6, 3)
            await until(lambda: len(seen) >= 5 * KEYS)
            enough.set()
            await publish(eu, 9, 1)  # so that the member looks whether it is enough
            await task
            await asyncio.to_thread(moving.switch, eu.log, KEY[kind], "us", runners[0]._neighbours)
            at_home = len(seen)
            eu.log.merge("orders", [2, 4])
            await publish(eu, 10, 3)
            enough = asyncio.Event()
            task = asyncio.create_task(take(us, kind, seen, enough))
            async with asyncio.timeout(60):
                await until(lambda: len(seen) >= 13 * KEYS)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert at_home < len(seen) == 13 * KEYS
    for key in range(KEYS):
        assert [at for k, at in seen if k == str(key)] == list(range(13)), key
