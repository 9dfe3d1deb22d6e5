"""Shared groups move as static ones do; a region that is gone is done without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import headrace
from headrace.errors import SwitchRefusedError
from headrace.regions.records import get_group
from tests.regions.runtime.test_groups import PARTITIONED, in_loop, running, two_regions
from tests.support import until


async def take(client: headrace.Headrace, count: int) -> list[bytes]:
    """Ack ``count`` events of the shared group."""
    found: list[bytes] = []
    async with client.session() as session:
        await session.subscribe("$share/audit/orders.>")
        async with asyncio.timeout(30):
            async for delivery in session:
                await delivery.ack()
                found.append(delivery.value)
                if len(found) >= count:
                    return found
    return found


@in_loop
async def test_a_shared_group_switched_goes_on_where_it_was(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await eu.shared_groups.declare("audit", "orders.>", start="earliest")
        await eu.regions.enable("$share/audit/orders.>", home="eu")
        with running(eu, us):
            for at in range(40):
                await eu.publish(f"orders.{at % 7}", b"eu-%d" % at, key=str(at))
                await us.publish(f"orders.{at % 7}", b"us-%d" % at, key=str(at))
            first = await take(eu, 50)
            await eu.regions.switch("$share/audit/orders.>", to="us")
            rest = await take(us, 80 - len(first))
    assert len(set(first) | set(rest)) == 80


@in_loop
async def test_after_a_fail_over_the_survivor_is_home(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await eu.shared_groups.declare("audit", "orders.>", start="earliest")
        await eu.regions.enable("$share/audit/orders.>", home="eu")
        key = "audit:orders.>"
        with running(eu, us):
            await eu.publish("orders.1", b"one", key="1")
            await until(
                lambda: bool(
                    (found := us.log.catalog.read(lambda tx: get_group(tx, key))) and found.ready
                )
            )
            with pytest.raises(SwitchRefusedError, match="answers"):
                await us.regions.fail_over("eu")
            planned = await us.regions.fail_over("eu", force=True, dry_run=True)
            assert planned.groups == (key,)
            assert us.log.catalog.read(lambda tx: get_group(tx, key)).home == "eu"  # type: ignore[union-attr]
            await us.regions.fail_over("eu", force=True)
            assert await take(us, 1) == [b"one"]
            await us.publish("orders.2", b"two", key="2")
            await us.regions.rejoin("eu")
            await until(lambda: eu.log.catalog.read(lambda tx: get_group(tx, key)).home == "us")  # type: ignore[union-attr]
