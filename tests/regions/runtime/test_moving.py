"""Shared groups move as static ones do; a region that is gone is done without."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import headrace
from headrace.errors import SwitchRefusedError
from headrace.groups.partitioned.core.messages import Phase
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
async def test_a_switch_of_a_shared_group_waits_for_what_its_sessions_have_in_hand(
    tmp_path: Path,
) -> None:
    """Until they have let go, the other region begins with nothing; and their acks count."""
    key = "audit:orders.>"
    async with two_regions(tmp_path, PARTITIONED) as (eu, us), eu.session() as session:
        await eu.shared_groups.declare("audit", "orders.>", start="earliest")
        await eu.regions.enable("$share/audit/orders.>", home="eu")

        def on_its_way(client: headrace.Headrace) -> bool:
            found = client.log.catalog.read(lambda tx: get_group(tx, key))
            return found is not None and found.home == "us" and found.handing is not None

        with running(eu, us):
            for at in range(20):
                await eu.publish(f"orders.{at % 7}", b"%d" % at, key=str(at))
            await session.subscribe("$share/audit/orders.>")
            async with asyncio.timeout(30):
                source = aiter(session)
                in_hand = [await anext(source) for _ in range(3)]
                moving = asyncio.create_task(eu.regions.switch("$share/audit/orders.>", to="us"))
                await until(lambda: on_its_way(eu) and on_its_way(us))
                first = asyncio.create_task(take(us, 17))
                await until(lambda: len(session.units) < 4)  # those of which nothing is in hand
                assert not moving.done()
                assert on_its_way(us)
                for delivery in in_hand:
                    await delivery.ack()
                await moving
                rest = await first
    given = [*rest, *(each.value for each in in_hand)]
    assert sorted(given, key=int) == [b"%d" % n for n in range(20)]


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


@in_loop
async def test_members_that_run_are_told_where_their_group_has_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They said that it was deleted, and that there was no such group."""
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await eu.groups.create_static(
            "orders", "billing", max_members=4, members=["m1"], replicated=True, home="eu"
        )
        with running(eu, us):
            await until(lambda: us.log.catalog.read(lambda tx: get_group(tx, "orders.billing")))
            async with eu.join("orders", "billing", member="m1") as member:
                await until(lambda: member.status.phase is Phase.PINNED)
                with caplog.at_level(logging.INFO):
                    await eu.regions.switch("orders", "billing", to="us", timeout_s=20)
                    await until(lambda: member.status.phase is Phase.WAITING)
    assert "fenced, the group is at home in us" in caplog.text
    assert "waits, the group is at home in us" in caplog.text
    assert "deleted" not in caplog.text
    assert "no such group" not in caplog.text
