"""A follower: a process that follows the streams and checks what it sees as it goes.

    python -m tests.torture.follower URL STORE SEED steady|hopping

``steady`` holds one read open; ``hopping`` closes it now and then and goes on from where it was.
Offsets of each segment must come without gap or repeat, and every writer's events of a key in
their order, through splits and merges.  The parent ends it by a line of JSON with the final heads
on standard input; it exits once it has seen them all, and prints how many events it checked.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading

import msgspec
import numpy as np
import pyarrow as pa

import headrace
from headrace.errors import CatalogUnavailableError
from tests.torture.ledger import STREAMS, identities_of, show_uid
from tests.torture.order import OrderCheck
from tests.torture.writer import create_streams, until_open

Heads = dict[str, dict[int, int]]
FAILURES_MAX = 240


class Seen(msgspec.Struct, frozen=True):
    """What a follower prints at its end."""

    events: int
    reads: int
    reopened: int


class Violation(Exception):
    """The reader was shown something that must not be."""


class Follower:
    """One stream as it is read."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.events = 0
        self.reads = 0
        self.reopened = 0
        self._offsets: dict[int, int] = {}
        self._order = OrderCheck()
        self.news = asyncio.Event()

    def take(self, batch: pa.RecordBatch) -> None:
        segment = batch.column("segment")[0].as_py()
        offsets = np.asarray(batch.column("offset"))
        expected = self._offsets.get(segment, 0)
        if not np.array_equal(offsets, np.arange(expected, expected + len(offsets))):
            raise Violation(
                f"{self.stream}, segment {segment}: offsets {offsets[0]} to {offsets[-1]} came "
                f"when {expected} was due"
            )
        self._offsets[segment] = expected + len(offsets)
        wrong = self._order.feed(identities_of(batch.column("value")))
        if wrong is not None:
            raise Violation(
                f"{self.stream}: {show_uid(wrong[0])} came after {show_uid(wrong[1])} of its key"
            )
        self.events += len(offsets)
        self.reads += 1

    def reached(self, heads: dict[int, int]) -> bool:
        return all(self._offsets.get(segment, 0) >= head for segment, head in heads.items())

    async def follow(self, hr: headrace.Headrace, rng: random.Random, hopping: bool) -> None:
        """Read for ever; a read that is cut goes on from where it was."""
        start: str | dict[int, int] = "earliest"
        failures = 0
        while True:
            reading = hr.read(self.stream, start=start, follow=True)
            hop_after = self.reads + (rng.randint(1, 40) if hopping else 1 << 60)
            try:
                async with reading:
                    async for batch in reading:
                        self.take(batch)
                        self.news.set()
                        failures = 0
                        if self.reads >= hop_after:
                            break
            except CatalogUnavailableError:
                failures += 1
                if failures > FAILURES_MAX:
                    raise
                await asyncio.sleep(0.25)
            if reading.positions:
                start = reading.positions
                self.reopened += 1

    async def until(self, heads: dict[int, int]) -> None:
        while not self.reached(heads):
            self.news.clear()
            await self.news.wait()


async def final_heads() -> Heads:
    """What the parent says at the end; raises EOFError when it is gone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Heads] = loop.create_future()

    def wait() -> None:
        line = sys.stdin.readline()
        if line:
            heads = msgspec.json.decode(line, type=Heads)
            loop.call_soon_threadsafe(future.set_result, heads)
        else:
            loop.call_soon_threadsafe(future.set_exception, EOFError("the parent is gone"))

    threading.Thread(target=wait, daemon=True).start()
    return await future


async def follow_all(
    hr: headrace.Headrace, followers: list[Follower], rng: random.Random, hopping: bool
) -> None:
    """Follow every stream until the parent's heads are reached; the first failure ends it."""
    endless = [asyncio.create_task(each.follow(hr, rng, hopping)) for each in followers]

    async def to_the_end() -> None:
        heads = await final_heads()
        for follower in followers:
            await follower.until(heads[follower.stream])

    ending = asyncio.create_task(to_the_end())
    done, _ = await asyncio.wait([ending, *endless], return_when=asyncio.FIRST_COMPLETED)
    for task in [ending, *endless]:
        task.cancel()
    await asyncio.gather(ending, *endless, return_exceptions=True)
    for task in done:
        task.result()


async def main(arguments: list[str]) -> None:
    url, store, seed, manner = arguments
    followers = [Follower(stream) for stream in STREAMS]

    async def work() -> None:
        async with headrace.open(url, store=store) as hr:
            await create_streams(hr)
            await follow_all(hr, followers, random.Random(seed), manner == "hopping")

    await until_open(work)
    seen = Seen(
        events=sum(each.events for each in followers),
        reads=sum(each.reads for each in followers),
        reopened=sum(each.reopened for each in followers),
    )
    print(msgspec.json.encode(seen).decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
