"""Groups of every kind go on when segments go of which nothing is left."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import headrace
from headrace.catalog import Tx, claims, progress, streams
from headrace.errors import HeadraceError, UnknownSegmentError, UnknownStreamError
from headrace.groups.shared import ended_units
from headrace.groups.vacant import drop_claims, drop_vacant
from headrace.log.audit import examine
from headrace.log.events import Event
from tests.groups.readers.runtime.support import run

KEYS = 5


def numbers_of(hr: headrace.Headrace) -> list[int]:
    return [segment.number for segment in hr.log.stream("s").segments]


async def send(hr: headrace.Headrace, first: int) -> None:
    await hr.append(
        "s",
        [
            Event(subject="s.x", key=str(n % KEYS), value=b"%d" % n)
            for n in range(first, first + 10)
        ],
    )


async def turn_over(hr: headrace.Headrace) -> None:
    """Split what is open, merge it again, and let go of all that was acked before."""
    (segment,) = [each.number for each in hr.log.stream("s").open_segments]
    opened = (await hr.split("s", segment)).opened
    await hr.merge("s", opened)


async def take(source: Any, count: int) -> list[int]:
    found = []
    async for delivery in source:
        await delivery.ack()
        found.append(int(delivery.value))
        if len(found) == count:
            break
    return found


async def until_dropped(hr: headrace.Headrace, left: int) -> None:
    """Trim and drop until so many segments are left.

    Groups record the ends of segments on their own, in less than the time that those stay.
    """
    await asyncio.sleep(10)
    while True:
        stream = hr.log.stream("s")
        await hr.trim("s", {s.number: s.head for s in stream.segments if s.sealed})
        await asyncio.to_thread(drop_vacant, hr.log, hr.log.stream("s"), -1)
        if len(numbers_of(hr)) <= left:
            return
        await asyncio.sleep(0.05)


def ends(tx: Tx) -> int:
    """How many ends of units groups keep."""
    stream = streams.require(tx, "s")
    groups = progress.subscribed(tx, stream.id)
    return sum(len(ended_units.finished(tx, group)) for group in groups)


def in_order(found: list[int]) -> bool:
    by_key = [[n for n in found if n % KEYS == key] for key in range(KEYS)]
    return all(each == sorted(each) for each in by_key)


@pytest.mark.parametrize("kind", ["shared", "private", "reader"])
def test_events_come_once_and_in_order_while_segments_come_and_go(
    catalog_url: str, kind: str
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("s", ["s.>"])
        if kind == "reader":
            group = await hr.reader_groups.create("g", streams=["s"])
            source: Any = await group.reader("r").__aenter__()
        else:
            source = await hr.session("one").__aenter__()
            await source.subscribe("$share/g/s.>" if kind == "shared" else "s.>", start="earliest")
        found: list[int] = []
        for part in range(4):
            await send(hr, part * 20)
            await turn_over(hr)
            await send(hr, part * 20 + 10)
            found += await take(source, 20)
            await until_dropped(hr, 1)
            drop_claims(hr.log)
            assert len(hr.log.catalog.read(claims.every)) <= 1  # of the segment that is open
        assert sorted(found) == list(range(80))
        assert in_order(found)
        await source.close()
        assert list(examine(hr.log)) == []
        assert hr.log.catalog.read(ends) <= 1

    run(catalog_url, work)


def test_what_a_group_has_not_acked_keeps_its_segment(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("s", ["s.>"])
        await hr.shared_groups.declare("g", "s.>", start="earliest")
        await hr.groups.create_elastic("s", "e", max_members=2, filter="s.*", wildcards=[1])
        await send(hr, 0)
        await turn_over(hr)
        await hr.trim("s", {0: 10})
        assert drop_vacant(hr.log, hr.log.stream("s"), -1) == 0
        await hr.shared_groups.delete("g")
        assert drop_vacant(hr.log, hr.log.stream("s"), -1) == 0
        await hr.groups.delete("s", "e")
        assert drop_vacant(hr.log, hr.log.stream("s"), -1) == 3
        assert numbers_of(hr) == [3]

    run(catalog_url, work)


def test_a_checkpoint_that_names_a_segment_keeps_it_until_it_is_forgotten(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("s", ["s.>"])
        group = await hr.reader_groups.create("g", streams=["s"])
        await send(hr, 0)
        cut = await group.checkpoint("before")
        async with group.reader("r") as reader:
            await take(reader, 10)
            await turn_over(hr)
            await send(hr, 10)
            await take(reader, 10)
        await hr.trim("s", {0: 10})
        assert drop_vacant(hr.log, hr.log.stream("s"), -1) == 0
        await group.reset("latest")  # which forgets its checkpoints
        assert drop_vacant(hr.log, hr.log.stream("s"), -1) > 0
        assert 0 not in numbers_of(hr)
        with pytest.raises(HeadraceError, match="s/0"):
            await group.reset(cut)
        await send(hr, 20)
        async with group.reader("r") as reader:
            assert sorted(await take(reader, 10)) == list(range(20, 30))

    run(catalog_url, work)


def test_claims_of_a_members_share_go_with_their_segments(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("s", ["*.>"])
        await hr.groups.create_static("s", "g", max_members=1, members=["m"])
        async with hr.join("s", "g", "m") as member:
            for part in range(2):
                await hr.publish("0.x", b"%d" % part)
                assert await take(member, 1) == [part]
                await turn_over(hr)
            await hr.publish("0.x", b"2")
            assert await take(member, 1) == [2]
            await until_dropped(hr, 1)
            drop_claims(hr.log)
            left = hr.log.catalog.read(claims.every)
            assert left == [("s.g", "0"), ("s.g.member.m", str(numbers_of(hr)[0]))]
            await hr.publish("0.x", b"3")
            assert await take(member, 1) == [3]

    run(catalog_url, work)


def test_no_token_comes_again_when_a_stream_is_made_anew(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        groups: set[str] = set()
        tokens: list[int] = []
        async with hr.session("one") as session:
            for _ in range(3):
                await hr.create_stream("s", ["s.>"])
                for text in ("$share/g/s.>", "s.>") if not groups else ():
                    await session.subscribe(text, start="earliest")
                await hr.publish("s.x", b"1")
                taken = 0
                while taken < 2:
                    # Those of the stream before are gone.
                    with suppress(UnknownStreamError, UnknownSegmentError):
                        taken += len(await take(session, 1))
                found = hr.log.catalog.read(_tokens)
                groups = set(found)
                tokens.append(min(found.values()))
                await hr.delete_stream("s", force=True)
                assert drop_claims(hr.log) == 2
                assert hr.log.catalog.read(claims.every) == []
        assert sorted(set(tokens)) == tokens

    run(catalog_url, work)


def _tokens(tx: Tx) -> dict[str, int]:
    return {
        group: claim.token
        for group in {group for group, _ in claims.every(tx)}
        for claim in claims.of_group(tx, group)
    }


def test_groups_that_were_deleted_leave_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("s", ["s.>"], partitions=2)

        def rows() -> dict[str, int]:
            tables = ("leases", "claims", "progress", "subscriptions", "buckets")
            counts = ", ".join(f"(SELECT COUNT(*) FROM {table})" for table in tables)
            found = hr.log.catalog.read(lambda tx: tx.row(f"SELECT {counts}"))
            return dict(zip(tables, found or (), strict=True))

        async def one(name: str) -> None:
            await hr.groups.create_static("s", name, max_members=2, members=["m"])
            async with hr.join("s", name, "m"):
                pass
            await hr.groups.delete("s", name)
            async with hr.session(f"session-{name}", expiry_ms=0) as session:
                await session.subscribe(f"$share/{name}/s.>", start="earliest")
                await session.subscribe("s.>", start="earliest")
                await hr.publish("s.x", b"1")
                await take(session, 2)
            await hr.shared_groups.delete(name, force=True)

        await one("first")
        before = rows()
        for number in range(3):
            await one(f"g{number}")
        assert rows() == before

    run(catalog_url, work)
