"""Two regions with two streams, and readers of a group in both, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import headrace
from headrace.catalog.streams import StreamConfig
from headrace.errors import HeadraceError
from headrace.groups.readers.group import ReaderGroup
from headrace.regions.linking import link, name_region
from tests.support import until

STREAMS = ("orders", "clicks")


@asynccontextmanager
async def two(
    tmp_path: Path, there: str, writers: str = "all"
) -> AsyncIterator[tuple[headrace.Headrace, headrace.Headrace]]:
    """Two regions with two streams."""
    async with headrace.open(tmp_path / "eu") as eu, headrace.open(there) as us:
        name_region(eu.log, "eu")
        name_region(us.log, "us")
        for name in STREAMS:
            eu.log.create_stream(name, StreamConfig(subjects=(f"{name}.>",)), 2)
            here = str(tmp_path / "eu")
            link(eu.log, name, "us", here=here, catalog=there, writers=writers)
        yield eu, us


async def publish(client: headrace.Headrace, region: str, count: int, first: int = 0) -> None:
    for at in range(first, first + count):
        stream = STREAMS[at % 2]
        await client.publish(f"{stream}.{at % 5}", f"{region}-{at}".encode(), key=str(at % 9))


async def read(
    group: ReaderGroup,
    count: int,
    keep: Callable[[], bool] = lambda: True,
    readers: tuple[str, ...] = ("r1", "r2"),
) -> tuple[list[bytes], list[bytes]]:
    """Take ``count`` events by all readers, ack some of them; (acked, left)."""
    acked: list[bytes] = []
    left: list[bytes] = []
    done = asyncio.Event()

    async def one(name: str) -> None:
        async with group.reader(name, max_pending_per_key=1000) as reader:
            async for delivery in reader:
                if done.is_set():
                    return
                if keep():
                    await delivery.ack()
                    acked.append(delivery.value)
                else:
                    left.append(delivery.value)
                if len(acked) + len(left) >= count:
                    done.set()

    tasks = [asyncio.create_task(one(name)) for name in readers]
    async with asyncio.timeout(30):
        await done.wait()
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return acked, left


async def report(client: headrace.Headrace) -> ReaderGroup:
    """The group, once it is in this region."""

    async def is_here() -> bool:
        try:
            await client.reader_groups.get("report")
        except HeadraceError:
            return False
        return True

    await until(is_here)
    return await client.reader_groups.get("report")


def names(region: str, count: int) -> list[bytes]:
    return [f"{region}-{at}".encode() for at in range(count)]


class Going:
    """A reader that acks all that it is given, and goes on and on."""

    def __init__(self, group: ReaderGroup, name: str) -> None:
        self.reader = group.reader(name, max_pending_per_key=1000)
        self.acked: list[bytes] = []
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async with self.reader:
            async for delivery in self.reader:
                try:
                    await delivery.ack()
                except HeadraceError:
                    continue  # it comes again
                self.acked.append(delivery.value)

    def has(self, wanted: list[bytes]) -> bool:
        return set(wanted) <= set(self.acked)

    def waits_in(self, why: str) -> bool:
        return why in self.waits_for

    @property
    def waits_for(self) -> str:
        return self.reader.status.waits_for

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def going(**groups: ReaderGroup) -> AsyncIterator[list[Going]]:
    """Readers that run beside the test, one for each group, by its name."""
    found = [Going(group, name) for name, group in groups.items()]
    try:
        yield found
    finally:
        for each in found:
            await each.end()


async def synced(client: headrace.Headrace, group: str) -> None:
    async def is_known() -> bool:
        return not await client.regions.unsynced(group)

    await until(is_known)
