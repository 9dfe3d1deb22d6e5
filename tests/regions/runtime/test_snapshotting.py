"""Snapshots while everything runs: real members, killed agents, files, another database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace
from headrace.catalog import Tx, batches, leases
from headrace.catalog.streams import StreamConfig
from headrace.errors import CatalogError, LeaseLost
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import Progress, store
from headrace.log.compact_policy import CompactionPolicy
from headrace.regions import kinds, moving
from headrace.regions.core.effects import SnapshotSettings
from headrace.regions.leaving import remove
from headrace.regions.records import AGENT_LEASE, get_group
from headrace.regions.runtime import following, turns
from headrace.regions.runtime.runner import RegionRunner
from tests.regions.runtime.test_groups import (
    SHARES,
    consume,
    in_loop,
    publish,
    running,
    two_regions,
)
from tests.regions.runtime.test_moving import take
from tests.regions.runtime.test_snapshots import (
    GROUP,
    ONE,
    SnapshotPlace,
    enable,
    exchange,
    head_of,
    regions,
)
from tests.regions.runtime.world import linked
from tests.support import until

QUICK = SnapshotSettings(interval_ms=50)
TWO = StreamConfig(subjects=("orders.>",), partitions=2)


@contextmanager
def quickly(*clients: headrace.Headrace) -> Iterator[list[RegionRunner]]:
    """What a region does by itself, with a snapshot every 50 ms."""
    with running(*clients) as runners:
        for each in runners:
            each.agent.snapshots.settings = QUICK
        yield runners


@pytest.mark.parametrize("layout", ["segments", "shares"])
@in_loop
async def test_members_of_another_region_go_on_behind_the_last_snapshot(
    tmp_path: Path, layout: str
) -> None:
    config, segments = (TWO, None) if layout == "segments" else (SHARES, 2)
    first, members = ("orders", ("m1",)) if layout == "segments" else ("shares", ("m1", "m2"))
    async with two_regions(tmp_path, config, segments) as (eu, us):
        most = 2 if layout == "segments" else 4
        await eu.groups.create_static(
            "orders", "billing", max_members=most, members=members, home="eu", mode="snapshot"
        )
        with quickly(eu, us) as runners:
            await publish(eu, "eu", 30, first)
            await publish(us, "us", 30, first)
            acked, _ = await consume(eu, 60, lambda: True, members)
            assert len(set(acked)) == 60

            def is_known() -> bool:
                found = us.log.catalog.read(lambda tx: get_group(tx, GROUP))
                return found is not None and found.ready and not _unacked(us)

            await until(is_known, "the update")
            await publish(eu, "late", 10, first)
            await asyncio.to_thread(
                moving.switch, eu.log, GROUP, "us", runners[0]._neighbours, timeout_s=20
            )
            rest, _ = await consume(us, 10, lambda: True, members)
    assert sorted(rest) == sorted(b"late-%d" % at for at in range(10))


@in_loop
async def test_sessions_of_another_region_go_on_behind_the_last_snapshot(tmp_path: Path) -> None:
    """A shared group, with a lagging session in each region and one that is new."""
    name, key = "$share/audit/orders.>", "audit:orders.>"
    async with two_regions(tmp_path, TWO) as (eu, us):
        await eu.shared_groups.declare("audit", "orders.>", start="earliest")
        await eu.regions.enable(name, home="eu", mode="snapshot")
        with quickly(eu, us):
            await publish(eu, "eu", 20)
            await publish(us, "us", 20)
            first = await take(eu, 25)
            await until(lambda: not _unread(eu, us), "both to hold all")
            second = await take(eu, 15)
            assert len({*first, *second}) == 40

            def is_known() -> bool:
                found = us.log.catalog.read(lambda tx: get_group(tx, key))
                return found is not None and found.ready and not _unacked(us, key)

            await until(is_known, "the update")
            await publish(eu, "late", 10)
            await eu.regions.switch(name, to="us", timeout_s=20)
            rest = await take(us, 10)
    assert sorted(rest) == sorted(b"late-%d" % at for at in range(10))


def _unread(*clients: headrace.Headrace) -> bool:
    """Whether some events have not reached some region."""
    counts = [sum(batch.num_rows for batch in each.log.read("orders")) for each in clients]
    return counts != [40] * len(clients)


def _unacked(client: headrace.Headrace, key: str = GROUP) -> bool:
    """Whether some row of progress does not hold every event."""

    def look(tx: Tx) -> list[dict[int, Progress]]:
        record = get_group(tx, key)
        assert record is not None
        return [store.load_all(tx, reader) for reader in kinds.readers(tx, record)]

    numbers = {s.number: s.id for s in client.log.stream("orders").segments}
    events = [
        (numbers[row["segment"]], row["offset"])
        for batch in client.log.read("orders")
        for row in batch.to_pylist()
    ]
    return any(
        at not in known or offset not in known[at].acked()
        for known in client.log.catalog.read(look)
        for at, offset in events
    )


def test_another_database_takes_part(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_POSTGRES_FSYNC", "off")
    eu = SnapshotPlace("eu", str(tmp_path / "eu"))
    us = SnapshotPlace("us", postgres_url.replace("postgres:@", "postgres@"))
    try:
        linked([eu, us], segments=1, config=ONE)
        create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
        enable(eu)
        for place in (eu, us):
            place.publish(3)
        exchange(eu, us)
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert us.unacked() == []
        eu.publish(2)
        exchange(eu, us)
        us.ack(floor=head_of(us))
        exchange(eu, us)
        assert eu.unacked() == []
    finally:
        eu.close()
        us.close()


def test_snapshots_are_found_again_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "KEPT_MAX", 1)
    eu = SnapshotPlace("eu", str(tmp_path / "eu"), store=tmp_path / "eu-store")
    us = SnapshotPlace("us", str(tmp_path / "us"))
    try:
        linked([eu, us], segments=1, config=ONE)
        create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
        enable(eu)
        middle = 0
        for turn in range(3):
            eu.publish(3)
            exchange(eu, us)
            middle = head_of(eu) if turn == 1 else middle
        eu.log.compact("orders", CompactionPolicy(min_age_s=0, min_batches=2))
        segment = eu.log.stream("orders").segments[0]
        held = eu.log.catalog.read(lambda tx: batches.pieces(tx, segment.id, 0, 100))
        assert [each.path is not None for each in held] == [True]
        eu.ack(floor=middle)
        exchange(eu, us)
        assert len(us.unacked()) == 3
        eu.restart()
        us.restart()
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert us.unacked() == []
    finally:
        eu.close()
        us.close()


def test_an_agent_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        exchange(eu, us)
        old = eu.log.catalog.leases.acquire(AGENT_LEASE, "old", 60_000)
        assert old is not None
        eu.agent._lease = old
        eu.log.catalog.write(lambda tx: leases.fence(tx, AGENT_LEASE))
        eu.publish(2)
        head, place = head_of(eu), eu.state().place
        with pytest.raises(LeaseLost):
            eu.agent.step()
        assert (head_of(eu), eu.state().place) == (head, place)
        eu.restart()
        exchange(eu, us)
        assert eu.state().completed == 1


def test_a_transaction_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        exchange(eu, us)
        eu.publish(2)
        before = head_of(eu)

        def fails(*_: object) -> None:
            raise CatalogError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(turns, "put_state", fails)
            with pytest.raises(CatalogError, match="no room"):
                eu.agent.step()
        assert head_of(eu) == before
        exchange(eu, us)
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert us.unacked() == []
        assert eu.state().completed == 1


def test_a_region_that_leaves_in_the_middle_ends_a_snapshot(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us", "ap") as (eu, us, ap):
        enable(eu)
        exchange(eu, us, ap)
        eu.publish(3)
        eu.agent.step()
        us.pull("eu")
        us.agent.step()
        eu.pull("us")  # ap has not answered, and never will
        assert [each.waiting_for for each in eu.state().pending] == [("ap", "us")]
        remove(eu.log, "ap", eu.neighbours, force=True)
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert eu.state().last_abort.startswith("the members changed")
        assert eu.state().completed == 1
        assert us.unacked() == []
