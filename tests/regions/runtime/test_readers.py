"""Reader groups follow their readers to another region, exactly where they were."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import headrace
from headrace.catalog import progress
from headrace.catalog.streams import StreamConfig
from headrace.errors import GroupUpdateError, HeadraceError, LinkError, ReaderGroupElsewhereError
from headrace.groups.readers.group import ReaderGroup
from headrace.groups.readers.runtime import reading
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


@in_loop
async def test_readers_elsewhere_wait_and_begin_when_the_group_comes(
    tmp_path: Path, there: str
) -> None:
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            other = await report(us)
            async with going(r1=group, r2=other) as (here, far):
                await until(lambda: "at home in eu" in far.waits_for)
                for turn, (to, wins) in enumerate(
                    [("us", far), ("eu", here), ("us", far), ("eu", here)]
                ):
                    await publish(eu, f"{turn}-eu", 20)
                    await publish(us, f"{turn}-us", 20)
                    source = us if to == "eu" else eu
                    await source.regions.switch("reader/report", to=to)
                    await publish(eu, f"{turn}-then", 4)
                    await until(partial(wins.has, names(f"{turn}-then", 4)))
                    lost = here if to == "us" else far
                    await until(partial(lost.waits_in, f"at home in {to}"))
                acked = here.acked + far.acked
                assert len(acked) == len(set(acked)) == 4 * 44
                info = await group.info()
                assert [each.reader for each in info.readers] == ["r1"]
                assert not (await other.info()).readers


@in_loop
async def test_a_lost_region_is_gone_on_for_and_returns(tmp_path: Path, there: str) -> None:
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(us):
            with running(eu):
                await publish(eu, "eu", 20)
                async with going(r1=group) as (here,):
                    await until(lambda: len(here.acked) == 20)
                await synced(eu, "reader/report")
            # eu is gone: nothing of it runs, and what it publishes now does not cross
            other = await report(us)
            await publish(eu, "tail", 10)
            async with going(r2=other) as (far,):
                await us.regions.fail_over("eu", force=True)
                await publish(us, "us", 10)
                await until(lambda: set(names("us", 10)) <= set(far.acked))
                with running(eu):
                    await us.regions.rejoin("eu")
                    await until(lambda: set(names("tail", 10)) <= set(far.acked))
                    async with going(r1=group) as (here,):
                        await until(lambda: "at home in us" in here.waits_for)
                        await us.regions.switch("reader/report", to="eu")
                        await publish(us, "back", 4)
                        await until(lambda: len(here.acked) == 4)
                        assert sorted(here.acked) == sorted(names("back", 4))
                assert len(far.acked) == len(set(far.acked)) == 20


async def synced(client: headrace.Headrace, group: str) -> None:
    async def is_known() -> bool:
        return not await client.regions.unsynced(group)

    await until(is_known)


@in_loop
async def test_a_reset_at_home_counts_in_every_region(tmp_path: Path, there: str) -> None:
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            other = await report(us)
            await publish(eu, "eu", 20)
            async with going(r1=group) as (here,):
                await until(lambda: len(here.acked) == 20)
                await synced(eu, "reader/report")
                with pytest.raises(ReaderGroupElsewhereError, match="reset where it is at home"):
                    await other.reset("earliest")
                await group.reset("earliest")
                await until(lambda: len(here.acked) == 40)
            await group.reset("earliest")
            await synced(eu, "reader/report")
            await eu.regions.switch("reader/report", to="us")
            async with going(r2=other) as (far,):
                await until(lambda: len(far.acked) == 20)
            await other.reset("latest")
            await us.regions.switch("reader/report", to="eu")
            await publish(us, "then", 3)
            async with going(r1=group) as (here,):
                await until(lambda: len(here.acked) == 3)
                assert sorted(here.acked) == sorted(names("then", 3))


@in_loop
async def test_checkpoints_are_of_the_region_that_took_them(tmp_path: Path, there: str) -> None:
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            other = await report(us)
            await publish(eu, "eu", 10)
            async with going(r1=group) as (here,):
                await until(lambda: len(here.acked) == 10)
                await group.checkpoint("ten")
            with pytest.raises(ReaderGroupElsewhereError, match="taken where it is at home"):
                await other.checkpoint("there")
            await publish(eu, "more", 4)
            async with going(r1=group) as (here,):
                await until(lambda: len(here.acked) == 4)
            # away and back, and nothing was read meanwhile: the checkpoint is still what it was
            await eu.regions.switch("reader/report", to="us")
            assert not await other.checkpoints()
            await us.regions.switch("reader/report", to="eu")
            async with going(r1=group) as (here,):
                await until(lambda: here.reader.status.online)
                await group.reset("ten")
                await until(lambda: len(here.acked) == 4)
            await eu.regions.switch("reader/report", to="us")
            await publish(us, "us", 4)
            async with going(r2=other) as (far,):
                await until(lambda: len(far.acked) == 4)
                assert set(far.acked) == set(names("us", 4))
            await us.regions.switch("reader/report", to="eu")
            await publish(us, "end", 1)
            async with going(r1=group) as (here,):
                await until(lambda: here.acked == names("end", 1))
                assert not await group.checkpoints()


@in_loop
async def test_a_group_is_deleted_in_every_region(tmp_path: Path, there: str) -> None:
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            other = await report(us)
            async with going(r2=other) as (far,):
                await until(lambda: "at home in eu" in far.waits_for)
                await eu.reader_groups.delete("report")
                await until(lambda: "there is no reader group" in far.waits_for)
            assert await us.reader_groups.list() == ()
            await publish(eu, "old", 4)
            group = await eu.reader_groups.create("report", STREAMS, start="latest", home="eu")
            await publish(eu, "new", 2)
            async with going(r1=group) as (here,):
                await until(lambda: sorted(here.acked) == names("new", 2))
            await report(us)
            await eu.regions.switch("reader/report", to="us")
            await publish(us, "us", 2)
            async with going(r2=await report(us)) as (far,):
                await until(lambda: len(far.acked) == 2)
                assert sorted(far.acked) == names("us", 2)


@in_loop
async def test_a_group_of_both_regions_begins_where_one_of_them_is(
    tmp_path: Path, there: str
) -> None:
    """eu has acked 4, us has acked everything on its own; eu's progress is adopted."""
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS)
        other = await us.reader_groups.create("report", STREAMS, start="latest")
        with running(eu, us):
            await publish(eu, "eu", 10)
            done, _ = await read(group, 4, readers=("r1",))
            async with going(r2=other) as (far,):
                await until(lambda: sorted(far.acked) == names("eu", 10))
                with pytest.raises(LinkError, match="--adopt eu"):
                    await eu.regions.enable("reader/report", home="eu")
                await eu.regions.enable("reader/report", home="eu", adopt="eu")
                await until(lambda: "at home in eu" in far.waits_for)
                await eu.regions.switch("reader/report", to="us")
                await until(lambda: len(far.acked) >= 16 - len(set(done)) + 4)
                assert sorted(far.acked[10:]) == sorted(set(names("eu", 10)) - set(done))


@in_loop
async def test_its_config_travels_and_is_changed_at_home(tmp_path: Path, there: str) -> None:
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create(
            "report", STREAMS, start="latest", filter="*.1", retain="checkpoint", home="eu"
        )
        with running(eu, us):
            other = await report(us)
            info = await other.info()
            assert (info.filter, info.retain, info.start) == ("*.1", "checkpoint", "latest")
            with pytest.raises(ReaderGroupElsewhereError, match="configured where it is at home"):
                await other.configure(retain="nothing")
            with pytest.raises(GroupUpdateError, match="region group disable reader/report"):
                await group.drop_streams(["clicks"])
            await group.configure(checkpoint_every_s=60)

            async def is_told() -> bool:
                return (await other.info()).checkpoint_every_s == 60

            await until(is_told)
            # what only checkpoints keep is kept where they are taken: here its positions
            assert _subscribed(us) == {"reader/report"}
            assert _subscribed(eu) == {"reader/report/kept/"}
            await eu.regions.switch("reader/report", to="us")
            async with going(r2=other) as (far,):
                await until(lambda: far.reader.status.online)
            assert _subscribed(us) == {"reader/report/kept/"}
            assert _subscribed(eu) == {"reader/report"}
            again = await us.reader_groups.create(
                "report",
                STREAMS,
                start="latest",
                filter="*.1",
                retain="checkpoint",
                checkpoint_every_s=60,
            )
            assert (await again.info()).revision == (await other.info()).revision


def _subscribed(client: headrace.Headrace) -> set[str]:
    stream = client.log.stream("clicks")
    return set(client.log.catalog.read(lambda tx: progress.subscribed(tx, stream.id)))


@in_loop
async def test_unlinked_it_is_in_this_region_alone(tmp_path: Path, there: str) -> None:
    async with two(tmp_path, there) as (eu, us):
        await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            other = await report(us)
            await publish(eu, "eu", 10)
            async with going(r1=await report(eu)) as (here,):
                await until(lambda: len(here.acked) == 10)
                await synced(eu, "reader/report")
            async with going(r2=other) as (far,):
                await until(lambda: "at home in eu" in far.waits_for)
                unlinked = await us.regions.unlink("clicks")
                assert unlinked.groups == ("reader/report",)
                await us.publish("clicks.1", b"here", key="1")
                await until(lambda: far.acked == [b"here"])


@in_loop
async def test_a_running_reader_goes_on_when_its_group_is_given_a_home(
    tmp_path: Path, there: str
) -> None:
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS)
        await publish(eu, "eu", 6)
        async with going(r1=group) as (here,):
            await until(lambda: len(here.acked) == 6)
            with running(eu, us):
                await eu.regions.enable("reader/report", home="eu")
                await publish(eu, "then", 4)
                await until(lambda: len(here.acked) == 10)
                await synced(eu, "reader/report")
                await eu.regions.switch("reader/report", to="us")
                await publish(eu, "us", 2)
                async with going(r2=await report(us)) as (far,):
                    await until(lambda: sorted(far.acked) == names("us", 2))
        assert len(here.acked) == len(set(here.acked)) == 10


@in_loop
async def test_what_is_not_answered_when_it_leaves_comes_again_elsewhere(
    tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "HAND_OVER_S", 0.2)
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            await publish(eu, "eu", 6)
            other = await report(us)
            async with group.reader("r1", max_pending_per_key=100) as reader:
                held = [await reader.next(timeout_s=20) for _ in range(6)]
                assert held[0] is not None
                assert held[1] is not None
                await held[0].ack()
                await eu.regions.switch("reader/report", to="us")
                with pytest.raises(HeadraceError):
                    await held[1].ack()
            async with going(r2=other) as (far,):
                await until(lambda: len(far.acked) == 5)
                assert set(far.acked) == set(names("eu", 6)) - {held[0].value}
