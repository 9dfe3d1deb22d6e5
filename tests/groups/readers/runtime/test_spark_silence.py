"""A Spark query whose driver hangs while the process that plans for it lives on."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.errors import BatchFenced
from tests.groups.readers.runtime.spark_query import Directory, Query, everything
from tests.groups.readers.runtime.support import run, send
from tests.groups.readers.runtime.test_spark_reader import begin, next_batch, next_plan, read_alone

SILENT_MS = 15_000


def test_a_query_that_hangs_with_a_batch_open_is_put_offline_and_joins_when_it_asks(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        group = await hr.reader_groups.get("report")
        query = Query(hr, Directory(), stall_after_ms=SILENT_MS)
        await query.reader.plan(None, None)
        plan = await next_plan(query)
        opening = await query.reader.open(plan)
        await query.bind(opening)
        await asyncio.sleep(SILENT_MS / 1000 - 5)
        info = await group.info()
        assert [each.reader for each in info.readers] == ["spark-1"]
        began_s = asyncio.get_running_loop().time()
        got = await read_alone(hr, until_read=100)
        assert sorted(got) == list(range(100))
        assert asyncio.get_running_loop().time() - began_s < 10
        why = str(await group.explain())
        assert "holds a batch and asks for nothing" in why
        with pytest.raises(BatchFenced):
            await query.count(opening)
        assert await query.reader.open(plan) == opening  # what its tasks read counts for nothing
        query.commit()
        assert await query.plan() is None  # it asks again, and is a reader again
        info = await group.info()
        assert [each.reader for each in info.readers] == ["spark-1"]
        await query.reader.leave()

    run(catalog_url, work)


def test_a_query_that_asks_for_nothing_though_there_is_something_to_read_is_put_offline(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await begin(hr)
        group = await hr.reader_groups.get("report")
        query = Query(hr, Directory(), stall_after_ms=SILENT_MS)
        while len(query.written) < 100:
            await next_batch(query)
        await query.plan()
        await asyncio.sleep(3 * SILENT_MS / 1000)  # rare triggers, and nothing to do
        info = await group.info()
        assert [each.reader for each in info.readers] == ["spark-1"]
        await send(hr, *range(100, 120))
        await asyncio.sleep(2 * SILENT_MS / 1000)
        info = await group.info()
        assert info.readers == ()
        while len(query.written) < 120:
            await next_batch(query)
        assert sorted(query.written) == everything(hr)
        await query.reader.leave()

    run(catalog_url, work)
