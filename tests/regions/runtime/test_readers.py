"""Reader groups follow their readers to another region, exactly where they were."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import LinkError, ReaderGroupElsewhereError
from tests.regions.runtime.readers import (
    STREAMS,
    going,
    names,
    publish,
    read,
    report,
    synced,
    two,
)
from tests.regions.runtime.test_groups import in_loop, running
from tests.support import until


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
                await until(lambda: len(set(here.acked + far.acked)) == 4 * 44)
                assert len(here.acked + far.acked) == 4 * 44
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
