"""What is recorded of steps that groups of every kind take: who joined, splits and merges."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import headrace
import headrace.testing
from headrace.groups.decisions import Decision, What, units_text
from headrace.groups.decisions.core import lineage


def run(catalog_url: str, work: object) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url) as hr:
            await work(hr)  # type: ignore[operator]

    headrace.testing.run(asyncio.wait_for(main(), 120), autojump=True)


async def wait_for(hr: headrace.Headrace, group: str, what: What) -> list[Decision]:
    while True:
        found = await hr.groups.decisions(group)
        if any(each.what is what for each in found):
            return list(found)
        await asyncio.sleep(0.05)


def test_an_instance_that_joins_is_recorded_before_what_follows_from_it(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", subjects=["orders.>"], partitions=2)
        await hr.groups.create_static("orders", "billing", max_members=2, members=["m1"])
        async with hr.join("orders", "billing", member="m1"):
            found = await wait_for(hr, "orders/billing", What.PINNED)
            [joined] = [each for each in found if each.what is What.JOINED]
            [pinned] = [each for each in found if each.what is What.PINNED]
            assert (joined.target, joined.instance) == ("m1", pinned.instance)
            assert pinned.cause == joined.number
            async with (
                headrace.open(catalog_url) as other,
                other.join("orders", "billing", member="m1"),
            ):
                found = await wait_for(hr, "orders/billing", What.STANDS_BY)
                whats = [each.what for each in found]
                assert whats.count(What.JOINED) == 2
                assert whats.index(What.STANDS_BY) > max(
                    at for at, what in enumerate(whats) if what is What.JOINED
                )

    run(catalog_url, work)


def test_events_cost_no_records(tmp_path: Path) -> None:
    """Publishing, consuming and acking record nothing: only steps do."""

    async def whats(events: int) -> list[str]:
        async with headrace.open(tmp_path / str(events)) as hr:
            await hr.create_stream("orders", subjects=["orders.>"], partitions=2)
            await hr.groups.create_static("orders", "billing", max_members=2, members=["m1"])
            async with hr.join("orders", "billing", member="m1") as member:
                for n in range(events):
                    await hr.publish(f"orders.{n}", b"x")
                deliveries = aiter(member)
                for _ in range(events):
                    await (await anext(deliveries)).ack()
                await wait_for(hr, "orders/billing", What.ASSIGNED)
            found = await hr.groups.decisions("orders/billing")
            return sorted(each.what.value for each in found)

    async def main() -> None:
        assert await whats(1) == await whats(200)

    headrace.testing.run(asyncio.wait_for(main(), 120), autojump=True)


@pytest.mark.parametrize("kind", ["shared", "reader"])
def test_splits_and_merges_are_recorded_once_each(catalog_url: str, kind: str) -> None:
    async def steps(hr: headrace.Headrace, group: str) -> None:
        await hr.split("orders", 0, 2)
        [split] = [d for d in await wait_for(hr, group, What.SPLIT) if d.what is What.SPLIT]
        assert units_text(split.units) == "orders/1-2"
        assert split.reason.startswith("orders/0 was split: orders/1-2 follow it, and")
        await hr.merge("orders", [1, 2])
        found = await wait_for(hr, group, What.MERGED)
        [merged] = [d for d in found if d.what is What.MERGED]
        assert merged.reason.startswith("orders/1-2 were merged: orders/3 follows them, and")
        assert [d.what for d in found].count(What.SPLIT) == 1

    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", subjects=["orders.>"])
        if kind == "shared":
            async with hr.session("w") as session:
                await session.subscribe("$share/audit/orders.>", start="earliest")
                await wait_for(hr, "$share/audit/orders.>", What.ASSIGNED)
                await steps(hr, "$share/audit/orders.>")
        else:
            readers = await hr.reader_groups.create("report", streams=["orders"])
            async with readers.reader("r1") as reader:
                task = asyncio.create_task(_read(reader))
                await steps(hr, "reader/report")
                task.cancel()

    run(catalog_url, work)


async def _read(reader: object) -> None:
    async for delivery in reader:  # type: ignore[attr-defined]
        await delivery.ack()


def test_what_follows_from_several_and_becomes_several() -> None:
    follows = {"a/3": ["a/1", "a/2"], "a/4": ["a/2", "a/1"], "b/1": ["b/0"], "b/0": []}
    [anew, sealed] = lineage.told(follows, open=True)
    assert anew.what is What.MERGED
    assert anew.reason == "a/1-2 were laid anew: a/3-4 follow them, and can be read now"
    assert sealed.what is What.SPLIT
    assert sealed.reason == "b/0 was sealed: b/1 follows it, and can be read now"
