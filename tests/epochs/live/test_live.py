"""Live epochs as their document describes them: snapshots first, whole epochs, and no lies."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.epochs.live import items
from headrace.epochs.live.items import LiveBatch, LiveEpoch, LiveFrontier, LiveSkipped, StartedOver
from headrace.errors import (
    EpochsAbortedError,
    FrontierError,
    IllegalTimeError,
    InvalidConfigError,
    InvalidInputError,
    LivePublisherError,
)
from tests.epochs.live.support import Live, programs, rows, run, values
from tests.support import until


async def gather(epochs: Any, found: list[Any]) -> None:
    """Take all that comes, until the end."""
    async for item in epochs:
        found.append(item)


def test_two_programs_four_partitions_and_whole_epochs(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 3) as (one, two, reader), AsyncExitStack() as stack:
            publishers = [
                await stack.enter_async_context(live.publisher(f"p{n}"))
                for n, live in enumerate((one, one, two, two))
            ]
            epochs = await stack.enter_async_context(reader.subscription())
            await epochs.wait_for(0)
            for day in range(3):
                for publisher in publishers:
                    await publisher.append(day, rows(f"{publisher.name}-{day}"))
                for publisher in publishers:
                    await publisher.advance_to(day + 1)
            for publisher in publishers:
                await publisher.close()
            found = [
                (epoch.time, await values(epoch))
                async for epoch in epochs
                if isinstance(epoch, LiveEpoch)
            ]
            assert found == [(day, [f"p{n}-{day}" for n in range(4)]) for day in range(3)]
            assert epochs.end == "closed"

    run(work())


def test_a_late_subscriber_sees_no_half_of_what_had_begun_and_decodes_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def counting(data: Any) -> Any:
        decoded.append(data.payload.nbytes)
        return items.decoded(data)

    monkeypatch.setattr("headrace.epochs.live.subscription.decoded", counting)

    async def work() -> None:
        async with programs(tmp_path, 2) as (one, reader), one.publisher("eu") as eu:
            await eu.append(3, rows("early"))
            await eu.append(5, rows("early"))
            async with reader.subscription(mode="streaming", filtered=False) as epochs:
                await epochs.wait_for(0)
                await eu.append(4, rows("hole" * 1000))
                await eu.append(5, rows("half" * 1000))
                await eu.append(6, rows("whole"))
                await eu.advance_to(7)
                await eu.close()
                found = [item async for item in epochs]
            batches = [item for item in found if isinstance(item, LiveBatch)]
            assert [(item.time, item.batch.num_rows) for item in batches] == [(6, 1)]
            frontiers = [item.frontier for item in found if isinstance(item, LiveFrontier)]
            assert frontiers[0] == (0,)
            assert frontiers[-1] == ()
            # What was dropped was counted in bytes and never looked into.
            counts = epochs.statistics
            assert (counts.batches, counts.dropped_batches) == (3, 2)
            assert counts.dropped_bytes > 8000
            assert sum(decoded) < 1000

    run(work())


@pytest.mark.parametrize("mode", ["streaming", "whole"])
def test_what_a_subscription_would_drop_is_not_sent(tmp_path: Path, mode: str) -> None:
    async def work() -> None:
        async with programs(tmp_path, 2) as (one, reader), AsyncExitStack() as stack:
            eu = await stack.enter_async_context(one.publisher("eu"))
            us = await stack.enter_async_context(one.publisher("us"))
            await eu.append(5, rows("early"))
            async with reader.subscription(mode=mode) as epochs:
                await epochs.wait_for(0)
                await eu.append(4, rows("hole" * 1000))
                await us.append(5, rows("half"))  # begun elsewhere: only the subscription knows
                await eu.append(6, rows("whole"))
                await eu.advance_to(6)
                await us.advance_to(6)
                await us.append(6, rows("too"))
                await eu.close()
                await us.close()
                kind = LiveBatch if mode == "streaming" else LiveEpoch
                times = [item.time async for item in epochs if isinstance(item, kind)]
            assert times == ([6, 6] if mode == "streaming" else [6])
            counts = epochs.statistics
            assert (counts.batches, counts.dropped_batches) == (3, 1)
            assert counts.dropped_bytes < 4000

    run(work())


def test_unfiltered_gives_what_comes(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 2) as (one, reader), one.publisher("eu") as eu:
            await eu.append(5, rows("early"))
            async with reader.subscription(mode="unfiltered") as epochs:
                await epochs.wait_for(0)
                await eu.append(5, rows("half"))
                await eu.close()
                batches = [item async for item in epochs if isinstance(item, LiveBatch)]
            assert [item.time for item in batches] == [5]

    run(work())


def test_a_publisher_that_leaves_has_aborted_and_one_that_closes_has_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 2) as (one, reader):
            async with AsyncExitStack() as stack:
                eu = await stack.enter_async_context(one.publisher("eu"))
                epochs = await stack.enter_async_context(reader.subscription())
                await epochs.wait_for(0)
                await eu.append(0, rows("a"), advance_to=1)
                await eu.append(1, rows("never whole"))
                await eu.leave()
                found: list[Any] = []
                with pytest.raises(EpochsAbortedError, match="eu has left"):
                    await gather(epochs, found)
                assert [epoch.time for epoch in found] == [0]
                assert epochs.end == "aborted"
            async with one.publisher("eu") as eu, reader.subscription() as epochs:
                await epochs.wait_for(0)
                await eu.abort("the source is gone")
                with pytest.raises(EpochsAbortedError, match="the source is gone"):
                    await gather(epochs, [])

    run(work())


async def _stalled(one: Live, reader: Live, policy: str) -> Any:
    """A subscription that takes nothing while a publisher sends far more than all room."""
    publisher = await one.publisher("eu").__aenter__()
    epochs = await reader.subscription(mode="streaming", policy=policy, batches_max=4).__aenter__()
    await epochs.wait_for(0)
    return publisher, epochs


BIG = "x" * 4_000_000


def test_a_stalled_subscriber_that_blocks_holds_its_publisher_up_and_misses_nothing(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with programs(tmp_path, 2) as (one, reader):
            eu, epochs = await _stalled(one, reader, "block")
            sent = 0

            async def publish() -> None:
                nonlocal sent
                for day in range(40):
                    await eu.append(day, rows(BIG), advance_to=day + 1)
                    sent += 1
                await eu.close()

            task = asyncio.create_task(publish())
            await until(lambda: eu.running.core.blocking(99) and not task.done())
            assert sent < 40
            found = [item.time async for item in epochs if isinstance(item, LiveBatch)]
            await task
            assert found == list(range(40))

    run(work())


def test_a_stalled_subscriber_that_skips_goes_on_with_the_next_whole_epoch(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 2) as (one, reader):
            eu, epochs = await _stalled(one, reader, "skip")
            for day in range(40):
                await eu.append(day, rows(BIG), advance_to=day + 1)
            closing = asyncio.create_task(eu.close())
            found = [item async for item in epochs]
            await closing
            times = [item.time for item in found if isinstance(item, LiveBatch)]
            assert any(isinstance(item, LiveSkipped) for item in found)
            assert 0 < len(times) < 40
            assert times == sorted(set(times))

    run(work())


def test_a_stalled_subscriber_can_be_cut_off_and_learns_why(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 2) as (one, reader):
            eu, epochs = await _stalled(one, reader, "disconnect")
            for day in range(40):
                await eu.append(day, rows(BIG), advance_to=day + 1)
            assert eu.subscribers == 0
            with pytest.raises(EpochsAbortedError, match="too slow"):
                await gather(epochs, [])
            await eu.close()

    run(work())


def test_a_later_publisher_is_added_in_place_or_the_subscription_starts_over(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with programs(tmp_path, 3) as (one, two, reader), AsyncExitStack() as stack:
            eu = await stack.enter_async_context(one.publisher("eu"))
            epochs = await stack.enter_async_context(reader.subscription(mode="streaming"))
            await epochs.wait_for(0)
            us = await stack.enter_async_context(two.publisher("us", start=4))
            await until(lambda: us.subscribers)
            await eu.append(4, rows("a"), advance_to=5)
            await us.append(4, rows("b"), advance_to=5)
            await epochs.wait_for(5)
            assert epochs.statistics.restarts == 0
            # What is complete cannot be added to: everything begins anew, and says so.
            late = await stack.enter_async_context(two.publisher("late", start=2))
            await until(lambda: late.subscribers and eu.subscribers and us.subscribers)
            for publisher in (eu, us, late):
                await publisher.append(9, rows(publisher.name))
                await publisher.close()
            found = [item async for item in epochs]
            over = next(n for n, item in enumerate(found) if isinstance(item, StartedOver))
            before = [item.time for item in found[:over] if isinstance(item, LiveBatch)]
            after = [item.time for item in found[over:] if isinstance(item, LiveBatch)]
            assert (before, after) == ([4, 4], [9, 9, 9])

    run(work())


def test_a_publisher_that_was_started_anew_is_a_loss_and_the_old_one_reaches_nobody(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with programs(tmp_path, 3) as (one, two, reader), AsyncExitStack() as stack:
            old = await stack.enter_async_context(one.publisher("eu"))
            epochs = await stack.enter_async_context(reader.subscription(on_loss="restart"))
            await epochs.wait_for(0)
            await old.append(1, rows("old"))
            new = await stack.enter_async_context(two.publisher("eu"))
            await until(lambda: new.subscribers)
            await until(lambda: old.running._replaced)
            with pytest.raises(LivePublisherError, match="another program publishes as 'eu'"):
                await old.append(1, rows("old"))
            await new.append(1, rows("new"))
            await new.close()
            found = [item async for item in epochs if isinstance(item, LiveEpoch)]
            assert [await values(epoch) for epoch in found] == [["new"]]

    run(work())


def test_tuples_and_until(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 2, length=2) as (one, reader), one.publisher("eu") as eu:
            async with reader.subscription(until=(2, 0)) as epochs:
                await epochs.wait_for((0, 0))
                await eu.append((0, 3), rows("a"))
                await eu.append((2, 1), rows("not wanted"))
                await eu.advance_to((2, 0))
                found = [item.time async for item in epochs if isinstance(item, LiveEpoch)]
            assert found == [(0, 3)]
            assert epochs.end == "reached"

    run(work())


def test_events_up_to_the_limit_of_the_log_pass(tmp_path: Path) -> None:
    async def work() -> None:
        large = 8 * 1024 * 1024 - 100
        async with (
            programs(tmp_path, 2) as (one, reader),
            one.publisher("eu") as eu,
            reader.subscription() as epochs,
        ):
            await epochs.wait_for(0)
            await eu.append(0, rows(*["y" * large] * 3))
            await eu.close()
            (epoch,) = [item async for item in epochs]
            assert [len(v) for v in await values(epoch)] == [large] * 3

    run(work())


def test_bad_input_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with programs(tmp_path, 1) as (one,), one.publisher("eu") as eu:
            await eu.append(3, rows("a"), advance_to=3)
            wrong: tuple[Any, ...] = (-1, 2**63 - 1, True, 1.5, (1, 2), "3")
            for time in wrong:
                with pytest.raises(InvalidInputError):
                    await eu.append(time, rows("b"))
            with pytest.raises(IllegalTimeError):
                await eu.append(2, rows("late"))
            with pytest.raises(FrontierError):
                await eu.advance_to(2)
            with pytest.raises((FrontierError, InvalidInputError)):
                await eu.advance_to([])
            assert eu.frontier == (3,)
            with pytest.raises(LivePublisherError):
                await one.publisher("eu").__aenter__()
            for options in ({"mode": "half"}, {"policy": "wait"}, {"on_loss": "cry"},
                            {"mode": "unfiltered", "filtered": True}):  # fmt: skip
                with pytest.raises(InvalidConfigError):
                    one.subscription(**options)
            await eu.close()
            with pytest.raises(LivePublisherError):
                await eu.append(9, rows("after"))

    run(work())


def test_frames_of_every_size_reach_every_subscriber_as_they_were_sent(tmp_path: Path) -> None:
    async def work() -> None:
        sent = [["x" * size] for size in (0, 1, 50, 2_000, 70_000, 300_000)] * 3
        async with (
            programs(tmp_path, 3) as (one, two, three),
            one.publisher("p") as publisher,
            two.subscription(mode="streaming") as a,
            three.subscription() as b,
        ):
            await a.wait_for(0)
            await b.wait_for(0)
            for value in sent:
                await publisher.append(0, rows(*value))
            await publisher.close()
            batches = [item.batch async for item in a if isinstance(item, LiveBatch)]
            told = [[v.decode() for v in batch.column("value").to_pylist()] for batch in batches]
            assert told == sent
            (epoch,) = [item async for item in b if isinstance(item, LiveEpoch)]
            assert await values(epoch) == sorted(value for each in sent for value in each)

    run(work())
