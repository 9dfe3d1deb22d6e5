"""What is stored of checkpoints of Spark queries goes when nobody uses them any more."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.catalog import Tx, spark_readers
from headrace.errors import BatchFenced
from headrace.groups.readers.spark_use import forget_unused
from tests.groups.readers.runtime.spark_query import Directory, Query, everything
from tests.groups.readers.runtime.support import run, send
from tests.groups.readers.runtime.test_spark_reader import begin, next_batch, next_plan

KEPT_S = 30


async def forget(hr: headrace.Headrace) -> int:
    catalog = hr.host.log.catalog
    return await hr.host.in_thread(forget_unused, catalog, KEPT_S * 1_000_000)


def stored(hr: headrace.Headrace) -> tuple[int, int]:
    """How many lines are stored, and how many spans."""

    def look(tx: Tx) -> tuple[int, int]:
        lines = [row.line for row in spark_readers.lines_of_group(tx, "report")]
        return len(lines), sum(len(spark_readers.spans(tx, line)) for line in lines)

    return hr.host.log.catalog.read(look)


def test_a_checkpoint_is_forgotten_when_nobody_used_it_for_long_and_can_still_be_started(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        directory = Directory()
        query = Query(hr, directory)
        while len(query.written) < 100:
            await next_batch(query)
        await asyncio.sleep(KEPT_S + 1)
        assert await forget(hr) == 0  # it is idle, and alive
        assert stored(hr)[0] == 1
        await query.reader.leave()
        assert await forget(hr) == 1
        assert stored(hr) == (0, 0)
        await send(hr, *range(100, 150))
        again = Query(hr, directory)
        while len(query.written) + len(again.written) < 150:
            await next_batch(again)
        assert sorted(query.written + again.written) == everything(hr)
        await again.reader.leave()
        assert await forget(hr) == 0  # it was used just now

    run(catalog_url, work)


def test_who_wakes_after_its_checkpoint_was_forgotten_counts_for_nothing(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        query = Query(hr, Directory())
        opening = await query.reader.open(await next_plan(query))
        await query.bind(opening)
        query.freeze()
        await asyncio.sleep(KEPT_S + 1)
        assert await forget(hr) == 1
        with pytest.raises(BatchFenced):
            await query.count(opening)
        assert query.written == []

    run(catalog_url, work)
