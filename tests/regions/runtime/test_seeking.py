"""A seek of a replicated group is a command to every region: whoever runs anywhere is fenced."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import headrace
from headrace import Session
from headrace.catalog.streams import StreamConfig
from headrace.groups.operations.seek import seek
from headrace.groups.partitioned.runtime.member import Member
from headrace.regions import enabling
from headrace.regions.core.markers import Command
from headrace.regions.linking import link, name_region
from headrace.regions.records import get_group
from tests.regions.runtime.test_snapshots import (
    GROUP,
    enable,
    exchange,
    head_of,
    regions,
)
from tests.regions.runtime.test_snapshotting import quickly
from tests.support import until

TWO = StreamConfig(subjects=("orders.>",), partitions=2)
KEYS = {"static": "orders.billing", "shared": "billing:orders.>"}
NAMES = {"static": "orders/billing", "shared": "$share/billing/orders.>"}


@pytest.mark.parametrize("mode", ["origin", "snapshot"])
def test_a_seek_reaches_the_other_regions_back_and_forward(tmp_path: Path, mode: str) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu, mode)
        eu.publish(3)
        us.publish(2)
        exchange(eu, us)
        seek(us.log, "orders/billing", "latest")
        exchange(eu, us)
        assert eu.unacked() == us.unacked() == []
        eu.publish(2)
        exchange(eu, us)
        seek(eu.log, "orders/billing", "earliest")
        exchange(eu, us)
        assert len(eu.unacked()) == len(us.unacked()) == 7
        for place in (eu, us):
            place.restart()  # what a command did is not done again, nor undone
        us.ack(floor=head_of(us))
        exchange(eu, us)
        assert eu.unacked() == us.unacked() == []


@pytest.mark.parametrize("mode", ["origin", "snapshot"])
def test_two_seeks_at_once_end_in_one_place(tmp_path: Path, mode: str) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu, mode)
        eu.publish(4)
        exchange(eu, us)
        seek(eu.log, "orders/billing", {0: 1})
        seek(us.log, "orders/billing", {0: 3})
        eu.agent.step()
        us.agent.step()
        exchange(eu, us)
        assert eu.unacked() == us.unacked()
        assert eu.unacked() in ([b"eu-1", b"eu-2", b"eu-3"], [b"eu-3"])
        us.ack(floor=head_of(us))
        exchange(eu, us)
        assert eu.unacked() == us.unacked() == []


def test_acks_from_before_a_seek_do_not_undo_it(tmp_path: Path) -> None:
    """An update that is under way when a command is given elsewhere counts no more."""
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        exchange(eu, us)
        eu.ack(floor=head_of(eu))
        eu.agent.step()  # its update is written, and not copied yet
        seek(us.log, "orders/billing", "earliest")
        us.agent.step()
        exchange(eu, us)
        assert len(eu.unacked()) == len(us.unacked()) == 3


def test_what_is_acked_here_before_a_command_is_carried_out_does_not_count(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        exchange(eu, us)
        seek(eu.log, "orders/billing", "earliest")
        eu.agent.step()
        us.pull("eu")
        us.ack(floor=head_of(us))
        exchange(eu, us)
        assert len(eu.unacked()) == len(us.unacked()) == 3


def test_a_seek_to_the_end_brings_back_nothing_that_had_not_come(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(2)
        exchange(eu, us)
        us.publish(3)
        us.ack(floor=head_of(us))
        us.agent.step()
        seek(eu.log, "orders/billing", "latest")
        eu.agent.step()
        exchange(eu, us)
        assert us.unacked() == []
        assert [type(m) for m in us.markers().values()].count(Command) == 1


def test_three_regions_follow_a_seek_whichever_way_it_comes(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us", "ap") as (eu, us, ap):
        enable(eu)
        for place in (eu, us, ap):
            place.publish(2)
        exchange(eu, us, ap)
        ap.ack(floor=head_of(ap))
        exchange(eu, us, ap)
        seek(us.log, "orders/billing", "earliest")
        exchange(eu, us, ap)
        assert [len(place.unacked()) for place in (eu, us, ap)] == [6, 6, 6]
        eu.ack(floor=head_of(eu))
        exchange(eu, us, ap)
        assert eu.unacked() == us.unacked() == ap.unacked() == []


def test_a_group_made_anew_after_seeks_begins_anew(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        exchange(eu, us)
        for to in ("latest", "earliest", "latest"):
            seek(us.log, "orders/billing", to)
            exchange(eu, us)
        enabling.disable(eu.log, GROUP)
        seek(eu.log, "orders/billing", "earliest")
        enabling.enable(eu.log, GROUP, eu.neighbours, adopt="eu", mode="snapshot")
        eu.restart()  # which knows nothing of the seeks, and us does
        exchange(eu, us)
        assert us.state().groups[GROUP].life == eu.state().groups[GROUP].life
        assert len(eu.unacked()) == len(us.unacked()) == 3
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert us.unacked() == []


class Consumer:
    """A member or session that acks everything, and what it was given."""

    def __init__(self, client: headrace.Headrace, kind: str) -> None:
        self._client, self._kind = client, kind
        self.given: list[bytes] = []
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with AsyncExitStack() as stack:
            source: Member | Session
            if self._kind == "static":
                member = self._client.join("orders", "billing", member="m1")
                source = await stack.enter_async_context(member)
            else:
                source = session = await stack.enter_async_context(self._client.session())
                await session.subscribe(NAMES["shared"])
            async for delivery in source:
                try:
                    await delivery.ack()
                except headrace.HeadraceError:
                    continue  # it comes again
                self.given.append(delivery.value)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.parametrize("mode", ["origin", "snapshot"])
@pytest.mark.parametrize("kind", ["static", "shared"])
def test_members_that_run_elsewhere_go_on_from_where_a_seek_puts_them(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    monkeypatch.setenv("HEADRACE_POSTGRES_FSYNC", "off")
    asyncio.run(_seek_elsewhere(tmp_path, postgres_url, kind, mode))


async def _seek_elsewhere(tmp_path: Path, url: str, kind: str, mode: str) -> None:
    there = url.replace("postgres:@", "postgres@")
    key = KEYS[kind]

    async with headrace.open(tmp_path / "eu") as eu, headrace.open(there) as us:
        name_region(eu.log, "eu")
        name_region(us.log, "us")
        eu.log.create_stream("orders", TWO)
        link(eu.log, "orders", "us", here=str(tmp_path / "eu"), catalog=there)
        if kind == "static":
            await eu.groups.create_static("orders", "billing", max_members=2, members=["m1"])
        else:
            await eu.shared_groups.declare("billing", "orders.>", start="earliest")
        await eu.regions.enable(NAMES[kind], mode=mode)
        with quickly(eu, us):
            for at in range(6):
                await eu.publish(f"orders.{at}", b"eu-%d" % at, key=str(at))
            await until(
                lambda: bool(
                    (found := us.log.catalog.read(lambda tx: get_group(tx, key))) and found.ready
                )
            )
            consumer = Consumer(us, kind)
            try:
                await until(lambda: len(set(consumer.given)) == 6, "the events", 30)
                consumer.given.clear()
                await eu.seek(NAMES[kind], "earliest")
                await until(lambda: len(set(consumer.given)) == 6, "them again", 30)
            finally:
                await consumer.end()
