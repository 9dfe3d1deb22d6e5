"""The server is killed again and again, and with it who publishes and consumes, in the middle.

Nothing published is lost, and nothing acked comes again, in any kind of group.  For longer:
``python -m tests.catalog.test_postgres_kills 20``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import headrace
from headrace.errors import HeadraceError
from headrace.groups.partitioned.names import GroupName
from tests.groups.partitioned.runtime import feeder
from tests.postgres_server import PostgresMachine, postgres_machine
from tests.support import until

KINDS = ("static", "elastic", "shared", "private", "readers")
PUBLISHED = "published"
KEYS = 5
STEP = 1_000_000
"""Each life publishes numbers of its own."""


async def make(url: str) -> None:
    async with headrace.open(url, housekeeping=False) as hr:
        await hr.create_stream("s", subjects=["s.>"], partitions=2)
        await hr.groups.create_static("s", "static", max_members=2, members=["m"])
        await hr.groups.create_elastic(
            "s", "elastic", max_members=1, filter="s.*", wildcards=[1], members=["m"]
        )
        await hr.reader_groups.create("readers", streams=["s"])


class Life:
    """A program that publishes and consumes, and says what was answered."""

    def __init__(self, url: str, first: int, say: Callable[..., None] = print) -> None:
        self._url = url
        self._say = say
        self._first = first
        self.acked = {kind: Counter[int]() for kind in KINDS}

    async def live(self, *, ends: bool = False) -> None:
        """Publish and consume until killed, or until everybody has some last events of each key."""
        async with (
            headrace.open(self._url, housekeeping=False) as hr,
            hr.session("w1") as shared,
            hr.session("w2") as private,
            hr.join("s", "static", member="m") as static,
            hr.join("s", "elastic", member="m") as elastic,
            (await hr.reader_groups.get("readers")).reader("r") as reader,
        ):
            await shared.subscribe("$share/audit/s.>", start="earliest")
            await private.subscribe("s.>", start="earliest")
            sources: list[Any] = [static, elastic, shared, private, reader]
            tasks = [
                asyncio.create_task(self._take(kind, aiter(source)))
                for kind, source in zip(KINDS, sources, strict=True)
            ]
            tasks.append(asyncio.create_task(self._feed(hr)))
            try:
                if not ends:
                    await self._publish(hr)
                last = range(self._first, self._first + KEYS)
                for number in last:
                    await hr.publish(f"s.{number}", str(number).encode(), key=str(number % KEYS))
                await until(lambda: all({*last} <= {*a} for a in self.acked.values()), "the last")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _publish(self, hr: headrace.Headrace) -> None:
        number = self._first
        while True:
            with contextlib.suppress(HeadraceError):
                await hr.publish(f"s.{number}", str(number).encode(), key=str(number % KEYS))
                self._say(PUBLISHED, number, flush=True)
            number += 1
            await asyncio.sleep(0.005)

    async def _feed(self, hr: headrace.Headrace) -> None:
        while True:
            with contextlib.suppress(HeadraceError):
                await hr.in_thread(feeder.fill, hr.log, GroupName("s", "elastic"))
            await asyncio.sleep(0.02)

    async def _take(self, kind: str, deliveries: AsyncIterator[headrace.Delivery]) -> None:
        async for delivery in deliveries:
            with contextlib.suppress(HeadraceError):
                await delivery.ack()
                self.acked[kind][int(delivery.value)] += 1
                self._say(kind, int(delivery.value), flush=True)


def killed_life(machine: PostgresMachine, first: int, rng: random.Random) -> list[list[str]]:
    """What a program said until it and the server were killed, the one soon after the other."""
    module = "tests.catalog.test_postgres_kills"
    command = [sys.executable, "-m", module, "--live", machine.url, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        said = [program.stdout.readline()]  # the first thing is done
        time.sleep(rng.uniform(0.1, 2.0))
        ends = [machine.kill, program.kill]
        rng.shuffle(ends)
        for end in ends:
            end()
        said += program.stdout.read().splitlines(keepends=True)
    return [line.split() for line in said if line.endswith("\n")]


async def stored(url: str) -> list[int]:
    async with headrace.open(url, housekeeping=False) as hr:
        return [int(v) async for b in hr.read("s") for v in b.column("value").to_pylist()]


def run(kills: int, seed: int) -> dict[str, int]:
    """The ordeal; how often something was published, and acked in each group."""
    rng = random.Random(seed)
    answered = {what: Counter[int]() for what in (PUBLISHED, *KINDS)}
    with postgres_machine() as machine:
        asyncio.run(make(machine.url))
        for life in range(kills):
            for what, number in killed_life(machine, life * STEP, rng):
                answered[what][int(number)] += 1
            machine.start()
        last = Life(machine.url, kills * STEP, lambda *_, **__: None)
        asyncio.run(last.live(ends=True))
        there = asyncio.run(stored(machine.url))
    assert len(there) == len({*there}), "stored twice"
    assert {*answered[PUBLISHED]} <= {*there}, "published and lost"
    for kind, acked in last.acked.items():
        answered[kind] += acked
        again = sorted(number for number, count in answered[kind].items() if count > 1)
        assert not again, f"{kind}: acked, and again: {again} (seed {seed})"
        # A program that is killed may have stored one ack of each kind, and not said so.
        missing = sorted({*there} - {*answered[kind]})
        assert len(missing) <= kills, f"{kind}: never delivered: {missing} (seed {seed})"
    return {what: len(numbers) for what, numbers in answered.items()}


def test_what_was_acked_does_not_come_again_when_the_server_and_its_clients_are_killed() -> None:
    counts = run(3, seed=random.randrange(1 << 30))
    assert all(counts.values())


if __name__ == "__main__":
    if sys.argv[1] == "--live":
        asyncio.run(Life(sys.argv[2], int(sys.argv[3])).live())
    else:
        print(run(int(sys.argv[1]), seed=random.randrange(1 << 30)))
