"""Reader groups follow their readers to another region, exactly where they were."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import headrace
from headrace.catalog.streams import StreamConfig
from headrace.errors import HeadraceError
from headrace.groups.readers.group import ReaderGroup
from headrace.regions.linking import link, name_region
from tests.regions.runtime.test_groups import in_loop, running
from tests.support import until

STREAMS = ("orders", "clicks")


@pytest.fixture(params=["sqlite", "postgres"])
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the region us has its catalog; eu has it on SQLite."""
    if request.param == "sqlite":
        return str(tmp_path / "us")
    monkeypatch.setenv("HEADRACE_POSTGRES_FSYNC", "off")
    url: str = request.getfixturevalue("postgres_url")
    return url.replace("postgres:@", "postgres@")


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


@in_loop
async def test_a_switched_group_goes_on_exactly_where_it_was(tmp_path: Path, there: str) -> None:
    random.seed(7)
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, replicated=True, home="eu")
        with running(eu, us):
            await publish(eu, "eu", 60)
            await publish(us, "us", 60)
            acked, left = await read(group, 90, lambda: random.random() < 0.6)
            assert left
            await eu.regions.switch("reader/report", to="us")
            rest, none = await read(await report(us), 120 - len(acked))
            assert none == []
            await publish(eu, "late", 4)
            assert sorted((await read(await report(us), 4))[0]) == sorted(names("late", 4))
    assert sorted(acked + rest) == sorted(names("eu", 60) + names("us", 60))
