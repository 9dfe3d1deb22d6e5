"""A Spark query in a reader group, without Spark: what its reader plans, opens, counts, settles."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.errors import (
    BatchFenced,
    CheckpointPutBackError,
    DataLossError,
    ForeignCheckpointError,
    QueryReplacedError,
    ReaderBusyError,
    UnknownReaderGroupError,
)
from headrace.groups.readers.core.spark_batches import SparkPlan
from tests.groups.readers.runtime.spark_query import LEASE_MS, Directory, Query, everything
from tests.groups.readers.runtime.support import Taken, run, send
from tests.support import until

PAST_LEASE_S = LEASE_MS / 1000 + 1


async def begin(hr: headrace.Headrace, segments: int = 4, events: int = 100) -> None:
    await hr.create_stream("orders", ["orders.>"], segments=segments)
    await hr.reader_groups.create("report", streams=["orders"])
    await send(hr, *range(events))


async def next_batch(query: Query, *, foreign: bool = False) -> list[tuple[str, int]]:
    """The next batch that has something in it."""
    while not (found := await query.batch(foreign=foreign)):
        await asyncio.sleep(0.05)
    return found


async def next_plan(query: Query) -> SparkPlan:
    """The next batch that is planned."""
    while (plan := await query.plan()) is None:
        await asyncio.sleep(0.05)
    return plan


async def owns(hr: headrace.Headrace, reader: str, count: int) -> None:
    group = await hr.reader_groups.get("report")
    while True:
        info = await group.info()
        found = {each.reader: len(each.segments) for each in info.readers}
        if found.get(reader) == count:
            return
        await asyncio.sleep(0.05)


async def read_alone(hr: headrace.Headrace, *, until_read: int) -> list[int]:
    """A Python reader reads so many events, and leaves."""
    group = await hr.reader_groups.get("report")
    got: list[int] = []
    async with group.reader("r1") as reader:
        while len(got) < until_read:
            delivery = await reader.next()
            assert delivery is not None
            await delivery.ack()
            got.append(int(delivery.value))
    return got


def test_every_event_counts_once_in_a_query_and_two_readers(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=6)
        group = await hr.reader_groups.get("report")
        query = Query(hr, Directory())
        assert await next_batch(query)
        taken = Taken()
        async with group.reader("r1") as r1, group.reader("r2") as r2:
            taken.start(r1, r2)
            while min(len(r1.status.segments), len(r2.status.segments)) < 2:
                await query.batch()
                await asyncio.sleep(0.05)
            await send(hr, *range(100, 300))
            for _ in range(10):
                await query.batch()
                await asyncio.sleep(0.05)
            await until(lambda: len(taken.got) + len(query.written) == 300)
        assert len(set(query.written)) == len(query.written)
        assert {reader for reader, _ in taken.got} == {"r1", "r2"}
        lag = await group.lag()
        assert lag.events == 0
        await query.reader.leave()

    run(catalog_url, work)


def test_a_checkpoint_waits_for_the_batch_and_completes_when_a_sink_counts_it(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        group = await hr.reader_groups.get("report")
        query = Query(hr, Directory())
        await query.reader.plan(None, None)
        await owns(hr, "spark-1", 4)
        plan = await next_plan(query)
        opening = await query.reader.open(plan)
        await query.bind(opening)
        waiting = asyncio.create_task(group.checkpoint("nightly", timeout_s=600))
        await asyncio.sleep(60)
        assert not waiting.done()
        why = await group.explain()
        assert "a batch of Spark" in str(why)
        await query.count(opening)
        taken = await waiting  # though Spark has not asked for anything since
        assert sum(taken.cut.values()) == 100
        await query.reader.leave()

    run(catalog_url, work)


def test_a_killed_driver_has_its_name_back_at_once_and_replays_exactly(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        first = Query(hr, directory)
        await next_batch(first)
        await send(hr, *range(100, 150))
        plan = await first.plan()
        assert plan is not None
        opened = await first.reader.open(plan)
        await first.bind(opened)
        first.freeze()
        async with headrace.open(catalog_url, housekeeping=False) as other:
            second = Query(other, directory)
            began_s = asyncio.get_running_loop().time()
            again = await second.reader.open(plan)
            assert asyncio.get_running_loop().time() - began_s < 1
            assert [span.ranges for span in again.spans] == [span.ranges for span in opened.spans]
            with pytest.raises(BatchFenced):
                await first.count(opened)
            with pytest.raises(BatchFenced):
                await first.bind(opened)
            replayed = await second.batch()
            assert sorted(first.written + replayed) == everything(hr)
            assert await first.count(opened) is False  # it was counted before
            await second.reader.leave()

    run(catalog_url, work)


def test_what_others_did_meanwhile_is_left_to_them(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=1)
        directory = Directory()
        first = Query(hr, directory)
        plan = await next_plan(first)
        await first.bind(await first.reader.open(plan))
        await first.reader.leave()
        assert await read_alone(hr, until_read=30) == list(range(30))
        async with headrace.open(catalog_url, housekeeping=False) as other:
            second = Query(other, directory)
            assert await second.batch() == [("orders/0", offset) for offset in range(30, 100)]
            await second.reader.leave()

    run(catalog_url, work)


def test_a_checkpoint_is_usable_after_another_reader_has_finished_its_segments(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=1)
        directory = Directory()
        first = Query(hr, directory)
        plan = await next_plan(first)
        await first.bind(await first.reader.open(plan))
        await first.reader.leave()
        await hr.split("orders", 0, 2)
        assert await read_alone(hr, until_read=100) == list(range(100))
        await send(hr, *range(100, 150))
        async with headrace.open(catalog_url, housekeeping=False) as other:
            second = Query(other, directory)
            assert await second.batch() == []  # the last batch again: nothing of it is left
            written: list[tuple[str, int]] = []
            while len(written) < 50:
                written += await next_batch(second)
            assert {segment for segment, _ in written} == {"orders/1", "orders/2"}
            assert sorted([*written, *(("orders/0", n) for n in range(100))]) == everything(hr)
            await second.reader.leave()

    run(catalog_url, work)


def test_of_two_drivers_on_one_checkpoint_the_later_one_goes_on_and_the_other_ends(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        written: list[tuple[str, int]] = []
        async with headrace.open(catalog_url, housekeeping=False) as other:
            drivers = [Query(hr, directory)]
            written += await next_batch(drivers[0])
            for number, where in enumerate((other, hr, other)):
                await send(hr, *range(100 + 10 * number, 110 + 10 * number))
                drivers.append(Query(where, directory))  # started while the last one is alive
                while len(written) < 110 + 10 * number:
                    written += await next_batch(drivers[-1])
                earlier = drivers[-2].reader
                while earlier._life is not None and not earlier._life.over:
                    await asyncio.sleep(0.05)  # it hears of it in a moment
                with pytest.raises(QueryReplacedError, match="so this one ends"):
                    await earlier.plan(directory.offsets[-1], None)
            assert sorted(written) == everything(hr)
            await drivers[-1].reader.leave()

    run(catalog_url, work)


def test_a_batch_that_a_sink_has_counted_is_not_opened_again_even_after_a_reset(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        first = Query(hr, directory)
        plan = await next_plan(first)
        opening = await first.reader.open(plan)
        await first.bind(opening)
        assert await first.count(opening)
        first.freeze()
        group = await hr.reader_groups.get("report")
        await group.reset("earliest")
        async with headrace.open(catalog_url, housekeeping=False) as other:
            second = Query(other, directory)
            assert await second.batch() == []
            read: list[tuple[str, int]] = []
            while len(read) < 100:
                read += await next_batch(second)
            assert sorted(read) == everything(hr)
            await second.reader.leave()

    run(catalog_url, work)


def test_a_driver_that_slept_past_its_lease_counts_for_nothing_and_ends(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        first = Query(hr, directory)
        plan = await next_plan(first)
        opening = await first.reader.open(plan)
        await first.bind(opening)
        first.freeze()
        await asyncio.sleep(PAST_LEASE_S)
        async with headrace.open(catalog_url, housekeeping=False) as other:
            second = Query(other, directory)
            assert sorted(await second.batch()) == everything(hr)
            assert await first.count(opening) is False
            assert first.written == []
            life = first.reader._life
            assert life is not None
            life.end()
            first.reader._life = None
            with pytest.raises(QueryReplacedError, match="another run of this query"):
                await first.reader.plan(plan, None)
            await send(hr, *range(100, 120))
            assert len(await next_batch(second)) == 20
            await second.reader.leave()

    run(catalog_url, work)


@pytest.mark.parametrize("stopped", ["in order", "killed"])
def test_a_foreign_sink_has_every_event_once_if_nobody_took_over(
    catalog_url: str, stopped: str
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        first = Query(hr, directory)
        written = list(await next_batch(first, foreign=True))
        while len(written) < 100:
            written += await next_batch(first, foreign=True)
        group = await hr.reader_groups.get("report")
        assert (await group.lag()).events > 0  # the last batch is settled when Spark asks again
        if stopped == "in order":
            await first.reader.leave()
        else:
            first.freeze()
        await send(hr, *range(100, 150))
        async with headrace.open(catalog_url, housekeeping=False) as other:
            second = Query(other, directory)
            while len(written) < 150:
                written += await next_batch(second, foreign=True)
            assert sorted(written) == everything(hr)
            assert await second.plan() is None
            assert (await group.lag()).events == 0
            await second.reader.leave()

    run(catalog_url, work)


def test_a_batch_in_which_driver_after_driver_is_killed_is_written_once_by_a_foreign_sink(
    catalog_url: str,
) -> None:
    """One of them has finished it, and nobody knows which; all have read the same."""

    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        first = Query(hr, directory)
        plan = await next_plan(first)
        await first.bind(await first.reader.open(plan))
        first.freeze()
        async with (
            headrace.open(catalog_url, housekeeping=False) as two,
            headrace.open(catalog_url, housekeeping=False) as three,
        ):
            second = Query(two, directory)
            written = list(await next_batch(second, foreign=True))
            assert len(written) == sum(high - low for s in plan.spans for low, high in s.ranges)
            second.freeze()
            await send(hr, *range(100, 150))
            third = Query(three, directory)
            while len(written) < 150:
                written += await next_batch(third, foreign=True)
            assert sorted(written) == everything(hr)
            await third.reader.leave()

    run(catalog_url, work)


def test_a_reset_under_a_batch_fences_it_and_everything_is_read_again(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        query = Query(hr, directory)
        plan = await next_plan(query)
        opening = await query.reader.open(plan)
        await query.bind(opening)
        group = await hr.reader_groups.get("report")
        await group.reset("earliest")
        with pytest.raises(BatchFenced):
            await query.count(opening)
        # The query ends with this error; its next run replays the batch.
        await query.reader.leave()
        async with headrace.open(catalog_url, housekeeping=False) as other:
            again = Query(other, directory)
            read = list(await again.batch())
            while len(read) < 100:
                read += await next_batch(again)
            assert sorted(read) == everything(hr)
            await again.reader.leave()

    run(catalog_url, work)


def test_acks_that_are_taken_back_are_not_acked_by_the_batch_that_was_open(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=1)
        directory = Directory()
        query = Query(hr, directory)
        while len(query.written) < 100:
            await next_batch(query, foreign=True)
        group = await hr.reader_groups.get("report")
        await group.offline("spark-1", positions={"orders/0": 0}, rewind=True)
        read: list[tuple[str, int]] = []
        while len(read) < 100:
            read += await next_batch(query, foreign=True)
        assert sorted(read) == everything(hr)
        await query.reader.leave()

    run(catalog_url, work)


def test_splits_and_merges_are_followed_in_order(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=2)
        query = Query(hr, Directory())
        await hr.split("orders", 0, 3)
        await send(hr, *range(100, 200))
        await hr.merge("orders", [2, 3])
        await send(hr, *range(200, 300))
        while len(query.written) < 300:
            await query.batch()
            await asyncio.sleep(0.05)
        assert sorted(query.written) == everything(hr)
        order = [segment for segment, _ in query.written]
        assert order.index("orders/2") > order.index("orders/0")
        assert order.index("orders/5") > order.index("orders/3")
        await query.reader.leave()

    run(catalog_url, work)


def test_available_now_reads_what_there_is_through_a_split_and_then_ends(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=2)
        await hr.split("orders", 0, 2)
        await send(hr, *range(100, 200))
        query = Query(hr, Directory())
        query.reader.freeze()
        first = await query.batch()
        assert first
        await send(hr, *range(200, 250))
        while await query.batch():
            pass
        assert len(query.written) == 200
        await query.reader.leave()

    run(catalog_url, work)


def test_what_reads_what_there_is_waits_for_its_whole_share_first(catalog_url: str) -> None:
    """Of those who have too much one gives up first, and the others a moment later."""

    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=6)
        group = await hr.reader_groups.get("report")
        async with group.reader("r1"), group.reader("r2"):
            await owns(hr, "r1", 3)
            await owns(hr, "r2", 3)
            query = Query(hr, Directory())
            query.reader.freeze()
            plan = await next_plan(query)
            assert len({span.segment for span in plan.spans}) == 2
            await query.reader.leave()

    run(catalog_url, work)


def test_a_checkpoint_that_was_put_back_is_refused(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        query = Query(hr, directory)
        await next_batch(query)
        await send(hr, *range(100, 150))
        await next_batch(query)
        await query.reader.leave()
        await send(hr, *range(150, 180))
        del directory.offsets[1:]
        directory.commits -= {1}
        async with headrace.open(catalog_url, housekeeping=False) as other:
            again = Query(other, directory)
            with pytest.raises(CheckpointPutBackError, match="put back"):
                await next_batch(again)
            await again.reader.leave()

    run(catalog_url, work)


def test_a_checkpoint_put_back_with_its_group_acks_nothing_that_is_not_written_again(
    catalog_url: str,
) -> None:
    """Both go back to the middle of a batch, which a sink has counted since, and one after it."""

    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=1, events=10)
        directory = Directory()
        first = Query(hr, directory)
        await next_batch(first)
        await send(hr, *range(10, 20))
        await next_batch(first)
        await first.reader.leave()
        del directory.offsets[1:]
        directory.commits.clear()
        group = await hr.reader_groups.get("report")
        await group.reset("earliest")
        second = Query(hr, directory)
        with pytest.raises(CheckpointPutBackError):
            await second.batch()
        await second.reader.leave()
        assert (await group.lag()).events == 20
        anew = Query(hr, Directory("another"))
        assert await next_batch(anew) == everything(hr)
        await anew.reader.leave()

    run(catalog_url, work)


def test_the_same_name_twice_is_refused_with_who_has_it(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        first = Query(hr, Directory())
        await next_batch(first)
        async with headrace.open(catalog_url, housekeeping=False) as other:
            with pytest.raises(ReaderBusyError, match="spark/"):
                await Query(other, Directory("another")).batch()
            group = await other.reader_groups.get("report")
            with pytest.raises(ReaderBusyError):
                async with group.reader("spark-1"):
                    pass
        await first.reader.leave()

    run(catalog_url, work)


def test_a_query_of_a_deleted_group_ends(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        query = Query(hr, Directory())
        plan = await next_plan(query)
        opening = await query.reader.open(plan)
        await query.bind(opening)
        await hr.reader_groups.delete("report")
        await hr.reader_groups.create("report", streams=["orders"])
        with pytest.raises(BatchFenced):
            await query.count(opening)
        query.commit()
        # It depends on when it looked which of the two it hears of.
        with pytest.raises((ForeignCheckpointError, UnknownReaderGroupError)):
            await query.batch()
        await hr.reader_groups.delete("report")
        with pytest.raises(UnknownReaderGroupError):
            await Query(hr, Directory()).batch()
        await query.reader.leave()

    run(catalog_url, work)


def test_what_was_trimmed_before_it_was_read_is_an_error_unless_it_may_be(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr, segments=1, events=40)
        await send(hr, *range(40, 100))
        await hr.trim("orders", {0: 40})
        query = Query(hr, Directory())
        with pytest.raises(DataLossError, match="offsets 0 to 39"):
            await next_batch(query)
        query.reader.let_data_go()
        assert await next_batch(query) == [("orders/0", offset) for offset in range(40, 100)]
        await query.reader.leave()

    run(catalog_url, work)
