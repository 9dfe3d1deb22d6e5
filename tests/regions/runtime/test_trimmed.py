"""Acks and trims cross: what was in flight is acked everywhere, what was never read is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog import Tx, replicas
from headrace.catalog.streams import StreamConfig
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import AckedRanges, Progress, store
from headrace.log.events import Event
from headrace.regions import enabling
from headrace.regions.linking import link
from tests.regions.runtime.test_groups import in_loop
from tests.regions.runtime.world import Stepped, settle
from tests.support import until

ONE = StreamConfig(subjects=("orders.>",), partitions=1)
KEYS = {"static": "orders.billing", "shared": "audit:orders.>", "reader": "reader/report"}


class Side(Stepped):
    """A region whose agent is stepped by hand."""

    def one_by_one(self, count: int) -> None:
        """Publish events that can be trimmed one by one, each with a key of its own."""
        for at in range(count):
            self.log.append("orders", [Event(subject=f"orders.{at}", key=str(at), value=b"x")])

    def acked(self, reader: str) -> set[int]:
        """The offsets that are acked; they are the same in both regions, which have one lane."""

        def look(tx: Tx) -> Progress:
            return store.load(tx, reader, self.log.stream("orders").segments[0].id) or Progress()

        found = self.log.catalog.read(look).acked()
        return {offset for offset in range(found.end) if offset in found}


@pytest.fixture
def two(tmp_path: Path, catalog_url: str) -> Iterator[tuple[Side, Side]]:
    """Two regions, of which the first is on the database of the test."""
    a = Side("a", catalog_url.replace("postgres:@", "postgres@"), tmp_path / "a-store")
    b = Side("b", str(tmp_path / "b"), tmp_path / "b-store")
    a.log.create_stream("orders", ONE)
    link(a.log, "orders", "b", here=a.url, catalog=b.url, store=b.store)
    yield a, b
    a.close()
    b.close()


@asynccontextmanager
async def member(hr: headrace.Headrace, kind: str, *sides: Side) -> AsyncIterator[Any]:
    """A member of the group, as an iterator of deliveries."""
    if kind == "reader":
        async with (await hr.reader_groups.get("report")).reader("r1") as reader:

            def is_online() -> bool:
                settle(*sides)  # the agent answers for its home
                return reader.status.online

            await until(is_online)
            yield aiter(reader)
    elif kind == "static":
        async with hr.join("orders", "billing", member="m1") as joined:
            yield aiter(joined)
    else:
        async with hr.session("worker") as session:
            await session.subscribe("$share/audit/orders.>")
            yield aiter(session)


@asynccontextmanager
async def ten_published(a: Side, b: Side, kind: str) -> AsyncIterator[headrace.Headrace]:
    """The first region, with a replicated group and ten events that have crossed."""
    async with headrace.open(a.url, store=a.store) as hr:
        if kind == "static":
            await hr.groups.create_static("orders", "billing", max_members=1, members=["m1"])
        elif kind == "reader":
            await hr.reader_groups.create("report", ["orders"])
        else:
            await hr.shared_groups.declare("audit", "orders.>", start="earliest")
        home = "a" if kind == "reader" else None
        enabling.enable(a.log, KEYS[kind], a.neighbours, home=home)
        settle(a, b)
        a.one_by_one(10)
        settle(a, b)
        yield hr


@pytest.mark.parametrize("kind", ["static", "shared", "reader"])
@in_loop
async def test_an_ack_of_what_was_trimmed_in_flight_counts_everywhere(
    two: tuple[Side, Side], kind: str
) -> None:
    a, b = two
    key = KEYS[kind]
    async with ten_published(a, b, kind) as hr:
        async with asyncio.timeout(60), member(hr, kind, a, b) as events:
            found = [await anext(events) for _ in range(8)]
            await found[4].ack()
            settle(a, b)
            a.log.trim("orders", {0: 6})
            await found[0].ack()
            settle(a, b)
            assert b.acked(key) == {0, 4}
            await found[7].ack()
            settle(a, b)
            a.agent._forget_due_s = 0.0  # where what is gone came from is still needed
            settle(a, b)
            for delivery in (*found[1:4], found[5]):
                await delivery.ack()
            settle(a, b)
            assert b.acked(key) == {0, 1, 2, 3, 4, 5, 7}
            await found[6].ack()
        settle(a, b)
    assert b.acked(key) == set(range(8))
    assert a.acked(key) == set(range(8))


@pytest.mark.parametrize("kind", ["static", "shared", "reader"])
@in_loop
async def test_what_was_trimmed_unread_is_consumed_elsewhere(
    two: tuple[Side, Side], kind: str
) -> None:
    a, b = two
    key = KEYS[kind]
    async with ten_published(a, b, kind) as hr:
        async with asyncio.timeout(60):
            async with member(hr, kind, a, b) as events:
                found = [await anext(events) for _ in range(8)]
                await found[1].ack()
                await found[7].ack()
            settle(a, b)
            a.log.trim("orders", {0: 5})
            async with member(hr, kind, a, b) as events:
                found = [await anext(events) for _ in range(4)]
                assert [delivery.offset for delivery in found] == [5, 6, 8, 9]
                await found[1].ack()
                settle(a, b)
                assert b.acked(key) == {1, 6, 7}
                await found[0].ack()
                await found[2].ack()
                settle(a, b)
                assert b.acked(key) == {1, 5, 6, 7, 8}
        settle(a, b)
    assert a.acked(key) == set(range(9))


def test_what_was_trimmed_before_a_group_was_replicated_is_consumed_elsewhere(
    two: tuple[Side, Side],
) -> None:
    a, b = two
    key = KEYS["static"]
    create_static(a.log, "orders", "billing", max_members=1, members=["m1"])
    a.one_by_one(10)
    b.pull("a")

    def ack(*ranges: tuple[int, int]) -> None:
        acked = AckedRanges()
        for lo, hi in ranges:
            acked.ack_range(lo, hi)
        segment = a.log.stream("orders").segments[0]
        progress = Progress.of(acked, {})
        a.log.catalog.write(lambda tx: store.join(tx, key, {segment.id: progress}))

    ack((1, 2))
    a.log.trim("orders", {0: 5})
    enabling.enable(a.log, key, a.neighbours)
    ack((0, 7))  # of a member that went over what is gone before that
    settle(a, b)
    assert b.acked(key) == {5, 6}, "of what was gone by then, nothing counts"


def test_trims_that_nobody_consumes_leave_one_row(two: tuple[Side, Side]) -> None:
    a, _ = two
    create_static(a.log, "orders", "billing", max_members=1, members=["m1"])
    enabling.enable(a.log, KEYS["static"], a.neighbours)
    a.one_by_one(10)
    for upto in range(1, 8):
        a.log.trim("orders", {0: upto})
    segment = a.log.stream("orders").segments[0]
    reader = KEYS["static"]
    assert a.log.catalog.read(lambda tx: replicas.unread(tx, reader, segment.id)) == [(0, 7)]
    (trim,) = a.log.catalog.read(lambda tx: replicas.trims(tx, reader, segment.id))
    assert trim.upto == 7
