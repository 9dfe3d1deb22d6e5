"""What is said of a reader group in several regions, and what becomes of its config and state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import headrace
from headrace.catalog import progress
from headrace.cli import run
from headrace.errors import GroupUpdateError, HeadraceError, ReaderGroupElsewhereError
from headrace.groups.names import FullName
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.operations import cut_at_rest
from headrace.groups.readers.runtime import reading
from headrace.groups.view import one_group
from tests.regions.runtime.readers import (
    STREAMS,
    going,
    names,
    publish,
    report,
    synced,
    two,
)
from tests.regions.runtime.test_groups import in_loop, running
from tests.support import until


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


@in_loop
async def test_whoever_looks_is_told_where_it_is_read(
    tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with two(tmp_path, there) as (eu, us):
        create = "reader create report --streams orders,clicks --home eu"
        words = ["--catalog", str(tmp_path / "eu"), *create.split()]
        assert await asyncio.to_thread(run, words) == 0
        with running(eu, us):
            other = await report(us)
            await publish(eu, "eu", 4)
            await until(lambda: sum(len(batch) for batch in us.log.read("clicks")) == 2)
            assert (await other.info()).waits == "the group is at home in eu"
            assert ((await other.lag()).events, (await other.lag()).waits) == (
                4,
                "the group is at home in eu",
            )
            lines = (await other.explain()).lines
            assert "readers wait in this region: the group is at home in eu" in lines
            view = us.log.catalog.read(
                lambda tx: one_group(tx, FullName("reader", "", "report")), snapshot=True
            )
            (finding,) = [each for each in view.findings if each.finding == "no_members"]
            assert "at home in eu" in finding.sentence
            assert not finding.needs_person
            status = await us.regions.status()
            (group,) = status.groups
            assert (group.group, group.home, group.family) == ("reader/report", "eu", "reader")
            assert group.waits == "the group is at home in eu"
            capsys.readouterr()
            for command in ("region explain reader/report", "reader explain report"):
                words = ["--catalog", there, *command.split()]
                assert await asyncio.to_thread(run, words) == 0
                assert "at home in eu" in capsys.readouterr().out


@in_loop
async def test_made_anew_before_anybody_heard_of_its_end_it_reads_other_streams(
    tmp_path: Path, there: str
) -> None:
    async with two(tmp_path, there) as (eu, us):
        await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            other = await report(us)
        await publish(eu, "eu", 10)
        await eu.reader_groups.delete("report")
        await eu.reader_groups.create("report", ["clicks"], home="eu")
        with running(eu, us):

            async def is_new() -> bool:
                return (await other.info()).streams == ("clicks",)

            await until(is_new)
            await eu.regions.switch("reader/report", to="us")
            async with going(r2=other) as (far,):
                await until(lambda: sorted(far.acked) == sorted(names("eu", 10)[1::2]))


@in_loop
async def test_a_checkpoint_before_anybody_reads_again_is_where_the_group_is(
    tmp_path: Path, there: str
) -> None:
    """The state of readers here is old: it is brought up for the checkpoint, and for a cut."""
    async with two(tmp_path, there) as (eu, us):
        group = await eu.reader_groups.create("report", STREAMS, home="eu")
        with running(eu, us):
            await publish(eu, "eu", 10)
            async with going(r1=group) as (here,):
                await until(lambda: len(here.acked) == 10)
            await eu.regions.switch("reader/report", to="us")
            other = await report(us)
            cut = await asyncio.to_thread(cut_at_rest, us.log, ReaderGroupName("report"))
            assert cut is not None
            assert sum(cut.positions.values()) == 10
            taken = await other.checkpoint("moved")
            assert taken.positions == cut.positions
            await publish(us, "us", 2)
            async with going(r2=other) as (far,):
                await until(lambda: len(far.acked) == 2)
                await other.reset("moved")
                await until(lambda: len(far.acked) == 4)
            assert set(far.acked) == set(names("us", 2))
