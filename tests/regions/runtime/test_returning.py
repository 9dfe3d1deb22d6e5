"""A region that was down asks the others before it takes itself for a home again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog import Tx, claims, entries
from headrace.errors import HeadraceError
from headrace.groups import homes
from headrace.groups.partitioned.runtime.hub import Hub
from headrace.log.log import Log
from headrace.regions import losing
from headrace.regions.records import get_group
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.neighbours import Neighbours
from headrace.regions.status import status
from tests.regions.runtime.test_groups import PARTITIONED, in_loop, running, two_regions
from tests.regions.runtime.test_processes import Start, start
from tests.support import until

__all__ = ["start"]
KEYS = {"static": "orders.billing", "shared": "audit:orders.>"}


def home(log: Log, key: str) -> str | None:
    found = log.catalog.read(lambda tx: get_group(tx, key))
    return None if found is None else found.home


def knows(log: Log, key: str) -> bool:
    found = log.catalog.read(lambda tx: get_group(tx, key))
    return found is not None and found.ready


async def create(eu: headrace.Headrace, kind: str) -> None:
    """A group of that kind, at home in eu."""
    if kind == "static":
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
        await eu.regions.enable("orders", "billing", home="eu")
    else:
        await eu.shared_groups.declare("audit", "orders.>", start="earliest")
        await eu.regions.enable("$share/audit/orders.>", home="eu")


async def take(client: headrace.Headrace, kind: str, into: list[bytes]) -> None:
    """Consume and ack, on and on."""
    if kind == "static":
        async with client.join("orders", "billing", member="m1", pin_ttl_ms=1000) as member:
            async for delivery in member:
                into.append(delivery.value)
                await delivery.ack()
    async with client.session() as session:
        await session.subscribe("$share/audit/orders.>")
        async for delivery in session:
            into.append(delivery.value)
            await delivery.ack()


@asynccontextmanager
async def consuming(path: Path, kind: str) -> AsyncIterator[list[bytes]]:
    """A program that begins now and consumes; what it was given."""
    found: list[bytes] = []
    async with headrace.open(path) as client:
        task = asyncio.create_task(take(client, kind, found))
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", ["static", "shared"])
@in_loop
async def test_what_the_survivor_acked_does_not_come_again_after_a_return(
    tmp_path: Path, start: Start, kind: str
) -> None:
    """Members of the lost region run before its agent does, and before it is known to be back."""
    key = KEYS[kind]
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await create(eu, kind)
        for at in range(20):
            await eu.publish(f"orders.{at}", b"eu-%d" % at, key=str(at))
        with running(us):
            with running(eu):
                await until(lambda: knows(us.log, key), timeout_s=60)
                await until(lambda: sum(len(b) for b in us.log.read("orders")) == 20, timeout_s=60)
            await asyncio.to_thread(losing.fail_over, us.log, "eu", Neighbours(), force=True)
            async with consuming(tmp_path / "us", kind) as survivor:
                await until(lambda: len(survivor) == 20)
            async with consuming(tmp_path / "eu", kind) as returned:
                await eu.publish("orders.1", b"eu-20", key="1")
                await us.regions.rejoin("eu")
                start(str(tmp_path / "eu"))
                await until(lambda: home(eu.log, key) == "us", timeout_s=60)
            assert returned == []
            async with consuming(tmp_path / "us", kind) as survivor:
                await until(lambda: survivor == [b"eu-20"])


class Two:
    """Two regions whose agents are driven step by step; the other one can be hidden."""

    def __init__(self, tmp_path: Path, eu: headrace.Headrace, us: headrace.Headrace) -> None:
        self.path, self.eu, self.us = tmp_path, eu, us
        self.agent = RegionAgent(eu.log, Neighbours())

    async def step(self) -> None:
        await asyncio.to_thread(self.agent.step)

    async def hide(self) -> None:
        """The other region is out of reach, for good."""
        await self.us.close()
        (self.path / "us").rename(self.path / "hidden")

    def owned(self) -> bool:
        rows = self.eu.log.catalog.read(lambda tx: claims.of_group(tx, "orders.billing"))
        return any(row.owner is not None for row in rows)

    def asked(self) -> homes.HomeProof:
        return self.eu.log.catalog.read(homes.proof)


@asynccontextmanager
async def driven(tmp_path: Path) -> AsyncIterator[Two]:
    async with two_regions(tmp_path, PARTITIONED) as (eu, us):
        await create(eu, "static")
        two = Two(tmp_path, eu, us)
        yield two
        two.agent.close()


@in_loop
async def test_an_answer_that_comes_while_a_member_looks_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before the answer, and hears what it saw after the news of the answer."""
    async with driven(tmp_path) as two:
        client = two.eu
        await client.publish("orders.1", b"first", key="1")
        await two.step()
        catalog, late = client.log.catalog, threading.Event()
        read = catalog.read

        def answered_meanwhile(fn: Callable[[Tx], Any], *, snapshot: bool = False) -> Any:
            found = read(fn, snapshot=snapshot)
            match found:
                case (homes.HomeStanding(unproven=True), _) if not late.is_set():
                    late.set()
                    two.agent.step()
                    hub = client.host.parts[Hub]
                    asyncio.run_coroutine_threadsafe(heard(hub), client.host.loop).result()
            return found

        async def heard(hub: Hub) -> None:
            now = read(lambda tx: entries.changes(tx, homes.PROOF_BUCKET, 0))
            # Where it is the hub itself that looks, it hears of the answer once it has looked.
            with suppress(AssertionError):
                await until(lambda: hub._revisions[homes.PROOF_BUCKET] == now.revision, timeout_s=2)

        monkeypatch.setattr(catalog, "read", answered_meanwhile)
        async with client.join("orders", "billing", member="m1") as member:
            async for delivery in member:
                assert delivery.value == b"first"
                await delivery.ack()
                break
        assert late.is_set()


@in_loop
async def test_a_region_that_was_down_waits_and_says_for_what(tmp_path: Path) -> None:
    async with driven(tmp_path) as two:
        await two.hide()
        async with consuming(tmp_path / "eu", "static") as found:
            await until(lambda: two.asked().asked == 1)
            group = status(two.eu.log, Neighbours()).groups[0]
            assert "has not asked the other regions yet" in group.waits
            await two.step()
            group = status(two.eu.log, Neighbours()).groups[0]
            assert "cannot be asked of us" in group.waits
            assert "headrace region fail-over --lost us" in group.waits
            assert two.asked().answered == 0
            assert not two.owned()
            await two.eu.publish("orders.1", b"one", key="1")
            # A person says that the other region is gone.
            await two.eu.regions.fail_over("us")
            await two.step()
            await until(lambda: found == [b"one"])
        assert status(two.eu.log, Neighbours()).groups[0].waits == ""


@in_loop
async def test_a_home_that_is_cut_off_goes_on(tmp_path: Path) -> None:
    """Its agent lives on and had read the other region: nothing here was down."""
    async with driven(tmp_path) as two:
        await two.step()
        await two.hide()
        await two.eu.publish("orders.1", b"one", key="1")
        async with consuming(tmp_path / "eu", "static") as found:
            await until(lambda: two.asked().asked == 1)
            await two.step()
            await until(lambda: found == [b"one"])


@in_loop
async def test_an_answer_is_for_those_who_asked_before_it_was_looked_for(tmp_path: Path) -> None:
    async with driven(tmp_path) as two:
        for turn in (1, 2):
            async with consuming(tmp_path / "eu", "static"):
                await until(lambda: two.asked().asked > two.asked().answered)
                assert two.asked().answered == turn - 1
                await two.step()
                assert two.asked().answered == turn
                await until(two.owned)


@in_loop
async def test_a_group_that_is_given_a_home_while_it_is_consumed_goes_on(tmp_path: Path) -> None:
    async with two_regions(tmp_path, PARTITIONED) as (eu, _):
        await eu.groups.create_static("orders", "billing", max_members=4, members=["m1"])
        async with consuming(tmp_path / "eu", "static") as found:
            await eu.publish("orders.1", b"one", key="1")
            await until(lambda: found == [b"one"])
            await eu.regions.enable("orders", "billing", home="eu")
            await eu.publish("orders.1", b"two", key="1")
            await until(lambda: found == [b"one", b"two"])
        assert eu.log.catalog.read(homes.proof).asked == 0


def test_a_record_of_what_was_asked_that_is_damaged_is_named(tmp_path: Path) -> None:
    from headrace.catalog import entries
    from headrace.log.open import open_log

    log = open_log(str(tmp_path / "d"), None)
    log.catalog.write(
        lambda tx: entries.put(tx, homes.PROOF_BUCKET, homes.PROOF_KEY, b"\xc1"),
        locks=(entries.lock(homes.PROOF_BUCKET),),
    )
    with pytest.raises(HeadraceError, match="cannot be read"):
        log.catalog.read(homes.proof)
    log.catalog.close()
