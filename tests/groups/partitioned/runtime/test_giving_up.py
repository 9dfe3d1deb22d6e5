"""Joins that are given up half-way leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import headrace
from headrace.groups.partitioned.runtime.hub import Hub

ROUNDS = 12
JOINS = 60


async def _given_up(hr: headrace.Headrace, group: str, chance: random.Random) -> None:
    try:
        async with asyncio.timeout(chance.uniform(0, 0.006)), hr.join("s", group, "m"):
            await asyncio.sleep(0.001)
    except TimeoutError:
        pass


async def _instance(hr: headrace.Headrace, group: str) -> str | None:
    return (await hr.groups.active("s", group)).members[0].instance


async def _round(hr: headrace.Headrace, number: int) -> None:
    group, chance = f"g{number}", random.Random(number)
    await hr.groups.create_static("s", group, max_members=2, members=["m"])
    for _ in range(JOINS):
        await _given_up(hr, group, chance)
    async with asyncio.timeout(2):  # the pin would run out after 5 s
        while Hub in hr.host.parts or await _instance(hr, group) is not None:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(5), hr.join("s", group, "m") as member:
        delivery = await anext(aiter(member))
        await delivery.ack()


def test_a_join_that_is_given_up_at_any_moment_leaves_no_zombie(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path / "d", housekeeping=False) as hr:
            await hr.create_stream("s", ["s.>"], partitions=2)
            await hr.publish("s.x", b"1", key="a")
            for number in range(ROUNDS):
                await _round(hr, number)

    asyncio.run(main())
