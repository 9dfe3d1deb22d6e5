"""Checkpoints, cuts and resets: taken at work, gone back to exactly, as often as one likes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import pytest

import headrace
from headrace.errors import (
    CheckpointGoneError,
    CheckpointTimeoutError,
    CutTrimmedError,
    Fenced,
    ForeignCutError,
    InvalidCutTextError,
    InvalidInputError,
    InvalidPositionError,
    NotRetainedByHandError,
    UnknownCheckpointError,
)
from headrace.groups.readers.group import ReaderGroup
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.operations import cut_at_rest
from headrace.groups.readers.positions import GroupCheckpoint, StreamCut
from tests.groups.readers.runtime.support import Taken, freeze, run, send
from tests.support import until


async def one_stream(hr: headrace.Headrace, segments: int = 2, **options: object) -> ReaderGroup:
    await hr.create_stream("orders", ["orders.>"], segments=segments)
    return await hr.reader_groups.create("report", streams=["orders"], **options)  # type: ignore[arg-type]


def _has(got: list[tuple[str, int]], count: int) -> bool:
    return len(got) >= count


def test_a_reset_puts_back_exactly_what_was_acked_at_the_checkpoint(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr)
        await send(hr, *range(40))
        async with group.reader("r1") as r1:
            held = [await anext(aiter(r1)) for _ in range(20)]
            acked = held[1::2]
            for delivery in acked:
                await delivery.ack()
            for delivery in held[::2]:
                await delivery.nack(delay_ms=600_000)
            checkpoint = await group.checkpoint("c1")
            done = {int(delivery.value) for delivery in acked}
            for _ in range(3):
                await group.reset("c1")
                taken = Taken()
                async with group.reader("r2") as r2:
                    taken.start(r1, r2)
                    await until(partial(_has, taken.got, 40 - len(done)))
                    for task in taken.tasks:
                        task.cancel()
                assert sorted(taken.numbers) == sorted(set(range(40)) - done)
            again = GroupCheckpoint.parse(str(checkpoint))
            assert again == checkpoint
            await group.reset("earliest")
            assert (await group.info()).checkpoints == ()
            await group.reset(again)
            assert (await group.lag()).events == 40 - len(done)

    run(catalog_url, work)


def test_a_checkpoint_forgets_a_stream_that_was_dropped_though_it_is_read_again(
    catalog_url: str,
) -> None:
    """What was acked out of order before it was dropped came back with the checkpoint."""

    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr)
        await hr.create_stream("clicks", ["clicks.>"])
        await send(hr, *range(10))
        async with group.reader("r1") as r1:
            held = [await anext(aiter(r1)) for _ in range(10)]
            for delivery in held[5:]:
                await delivery.ack()
            for delivery in held[:5]:
                await delivery.nack(delay_ms=600_000)
            await group.checkpoint("c1")
        await group.add_streams(["clicks"], start="earliest")
        await group.drop_streams(["orders"])
        await group.add_streams(["orders"], start="earliest")
        await group.reset("c1")
        assert (await group.lag()).events == 10

    run(catalog_url, work)


def test_a_checkpoint_waits_until_nothing_is_in_flight_and_tells_the_application(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr)
        saved: list[tuple[str, dict[str, int]]] = []

        async def save(name: str, positions: Mapping[str, int]) -> None:
            saved.append((name, dict(positions)))
            if len(saved) == 1:
                raise OSError("the disk is full")

        async with group.reader("r1", on_checkpoint=save) as r1:
            await send(hr, *range(10))
            held = await anext(aiter(r1))
            with pytest.raises(CheckpointTimeoutError, match="r1") as waited:
                await group.checkpoint("c1", timeout_s=1)
            assert saved == []
            assert list(waited.value.blockers) == ["r1"]
            await held.ack()
            checkpoint = await group.checkpoint("c1", timeout_s=30)
            assert [name for name, _ in saved] == ["c1", "c1"]
            assert saved[-1][1] == checkpoint.positions
            told = [d.reason for d in (await group.explain()).decisions]
            assert any("OSError: the disk is full" in reason for reason in told)

    run(catalog_url, work)


def test_who_never_answers_is_named_and_the_checkpoint_can_be_cancelled(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr)
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            await until(lambda: r1.status.segments and r2.status.segments)
            await send(hr, *range(40))
            held = [await anext(aiter(r1)), await anext(aiter(r2))]
            await held[1].ack()
            with pytest.raises(CheckpointTimeoutError) as waited:
                await group.checkpoint("stuck", timeout_s=1)
            assert set(waited.value.blockers) >= {"r1"}
            lines = (await group.explain()).lines
            assert any("'stuck' waits for r1" in line for line in lines)
            waiting = asyncio.create_task(group.checkpoint("stuck", timeout_s=60))
            await asyncio.sleep(0.1)
            await group.cancel_checkpoint("stuck")
            with pytest.raises(CheckpointGoneError):
                await waiting
            assert r1.status.owes == ()
            await held[0].ack()
            with pytest.raises(UnknownCheckpointError):
                await group.cancel_checkpoint("stuck")

    run(catalog_url, work)


def test_checkpoints_with_idle_readers_with_none_and_with_dead_ones(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr, segments=1)
        alone = await group.checkpoint("nobody")
        assert alone.positions == {"orders/0": 0}
        async with group.reader("r1") as r1, group.reader("idle") as idle:
            await until(lambda: r1.status.segments or idle.status.segments)
            await send(hr, 1, 2)
            taken = Taken()
            taken.start(r1, idle)
            await until(lambda: len(taken.got) == 2)
            assert (await group.checkpoint("both")).positions == {"orders/0": 2}
            freeze(r1)
            freeze(idle)
            # Nobody is left who looks for the dead, but whoever waits.
            assert (await group.checkpoint("dead", timeout_s=60)).positions == {"orders/0": 2}
            assert (await group.info()).readers == ()

    run(catalog_url, work)


def test_five_cuts_at_once_and_none_moves_anything(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr)
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            await until(lambda: r1.status.segments and r2.status.segments)
            await send(hr, *range(20))
            held = [await anext(aiter(r1)), await anext(aiter(r2))]
            cuts = await asyncio.gather(*(group.cut() for _ in range(5)))
            assert [sum(cut.positions.values()) for cut in cuts] == [0] * 5
            for delivery in held:
                await delivery.ack()
            after = await group.cut()
            assert StreamCut.parse(str(after)) == after
            assert sum(after.positions.values()) in (1, 2)
            assert (await group.info()).last_checkpoint == ""
            assert cut_at_rest(hr.log, ReaderGroupName(group.name)) is None
        assert cut_at_rest(hr.log, ReaderGroupName(group.name)) == await group.cut() == after

    run(catalog_url, work)


def test_a_reset_goes_on_in_the_same_loop_and_old_answers_are_fenced(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr)
        revoked: list[str] = []
        async with group.reader("r1", on_revoked=revoked.extend) as r1:
            await send(hr, *range(6))
            held = await anext(aiter(r1))
            await group.reset("latest")
            with pytest.raises(Fenced):
                await held.ack()
            assert set(revoked) == {"orders/0", "orders/1"}
            await send(hr, 100)
            assert (await anext(aiter(r1))).value == b"100"
            await group.reset()
            assert int((await anext(aiter(r1))).value) < 6

    run(catalog_url, work)


def test_bad_places_change_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr)
        await send(hr, *range(20))
        cut = await group.cut()
        text = str(cut)
        for damaged in (text[:-4], text.replace(":", ";"), "headrace-cut:", "headrace-cut:%%%", ""):
            with pytest.raises(InvalidCutTextError):
                StreamCut.parse(damaged)
        with pytest.raises(InvalidCutTextError):
            GroupCheckpoint.parse(text)
        revision = (await group.info()).revision
        for place, error in (
            ({"orders/0": 99, "orders/1": 0}, InvalidInputError),
            ({"orders/0": -1, "orders/1": 0}, InvalidInputError),
            ({"orders/0": 0}, InvalidInputError),
            ({"orders/7": 0}, InvalidInputError),
            ({"clicks": "latest"}, InvalidPositionError),
            (7, InvalidInputError),
            (StreamCut(catalog="x", group="report", streams=cut.streams, offsets=cut.offsets),
             ForeignCutError),
        ):  # fmt: skip
            with pytest.raises(error):
                await group.reset(place)  # type: ignore[arg-type]
        with pytest.raises(UnknownCheckpointError):
            await group.reset("never")
        with pytest.raises(NotRetainedByHandError):
            await group.release(cut)
        assert (await group.info()).revision == revision
        await hr.trim("orders", {0: 10_000})
        with pytest.raises(CutTrimmedError, match="orders/0 begins at") as refused:
            await group.reset(cut)
        assert list(refused.value.first) == ["orders/0"]
        await hr.delete_stream("orders", force=True)
        await hr.create_stream("orders", ["orders.>"], segments=2)
        await group.add_streams(["orders"])
        with pytest.raises(ForeignCutError, match="made anew"):
            await group.reset(cut)

    run(catalog_url, work)


def test_a_place_that_leaves_out_a_stream_is_refused(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("clicks", ["clicks.>"])
        await hr.publish("clicks.1", b"x")
        await hr.create_stream("orders", ["orders.>"], segments=2)
        group = await hr.reader_groups.create("report", streams=["orders", "clicks"])
        place = {"orders/0": 0, "orders/1": 0}
        for attempt in (group.reset, group.plan_reset):
            with pytest.raises(InvalidPositionError, match="says nothing of stream 'clicks'"):
                await attempt(place)
        assert (await group.lag()).events == 1
        await group.reset({**place, "clicks/0": 0})

    run(catalog_url, work)


def test_a_checkpoint_is_taken_by_itself_now_and_then(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        group = await one_stream(hr, checkpoint_every_s=5, checkpoints_kept=2)
        async with group.reader("r1"), group.reader("r2"):
            await asyncio.sleep(23)
            found = (await group.info()).checkpoints
            assert len(found) == 2
            assert all(each.status == "complete" for each in found)

    run(catalog_url, work)
