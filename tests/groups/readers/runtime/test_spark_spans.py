"""Counting a batch of many spans: what was prepared is compared and copied, or else looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import headrace
from headrace.catalog import Tx, spark_readers
from headrace.catalog import progress as stored
from headrace.catalog.postgres_tx import PostgresTx
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load_all
from headrace.groups.readers.core.spark_batches import SparkLine, SparkOpening
from headrace.groups.readers.runtime import spark_lines, spark_records
from tests.groups.readers.runtime.spark_query import Directory, Query, everything
from tests.groups.readers.runtime.support import run, send

GROUP = "reader/report"


async def opened(hr: headrace.Headrace, segments: int) -> tuple[Query, SparkOpening]:
    """A batch of all segments that is bound, and not counted."""
    await hr.create_stream("orders", ["orders.>"], segments=segments)
    await hr.reader_groups.create("report", streams=["orders"])
    await send(hr, *range(40 * segments), keys=40 * segments)
    query = Query(hr, Directory())
    while (plan := await query.reader.plan(None, None)) is None or len(plan.spans) < segments:
        query.reader._planned = None
        await hr.host.sleep(0.05)
    query.directory.offsets.append(plan)
    opening = await query.reader.open(plan)
    await query.bind(opening)
    return query, opening


def counted_rows(tx: Tx, moved: list[int]) -> None:
    """Let a transaction note how many rows it is handed and hands over."""

    def noted(call: Callable[..., Any], rows: Callable[[Any, tuple[Any, ...]], int]) -> Any:
        def run(*given: Any) -> Any:
            found = call(*given)
            moved.append(rows(found, given))
            return found

        return run

    tx.rows = noted(tx.rows, lambda found, _: len(found))  # type: ignore[method-assign]
    tx.executemany = noted(tx.executemany, lambda _, given: len(given[1]))  # type: ignore[method-assign]
    tx.later = noted(tx.later, lambda _, given: len(given) - 1)  # type: ignore[method-assign]


def test_counting_moves_no_rows_for_each_of_many_spans(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        query, opening = await opened(hr, 40)
        moved: list[int] = []

        def count(tx: Tx) -> bool | None:
            counted_rows(tx, moved)
            return spark_lines.count(tx, "query", 0, query.run, written=False)

        assert await hr.host.in_transaction(count)
        assert len(opening.spans) == 40
        assert sum(moved) < 20
        group = await hr.reader_groups.get("report")
        lag = await group.lag()
        assert lag.events == 0
        await query.reader.leave()

    run(catalog_url, work)


def test_new_tables_are_not_compared_row_by_row_with_each_other(catalog_url: str) -> None:
    """PostgreSQL takes a table for small until it is analysed; SQLite has no such plans."""

    async def work(hr: headrace.Headrace) -> None:
        query, _ = await opened(hr, 40)
        plans: list[str] = []

        def count(tx: Tx) -> bool | None:
            def planned(call: Callable[..., Any]) -> Any:
                def run(sql: str, params: tuple[Any, ...] = ()) -> Any:
                    if "spark_spans" in sql and isinstance(tx, PostgresTx):
                        found = PostgresTx.rows(tx, f"EXPLAIN {sql}", params)
                        plans.extend(str(row[0]) for row in found)
                    return call(sql, params)

                return run

            tx.row, tx.execute = planned(tx.row), planned(tx.execute)  # type: ignore[method-assign]
            counted = spark_lines.count(tx, "query", 0, query.run, written=False)
            if isinstance(tx, PostgresTx):
                assert tx.rows("SHOW enable_nestloop") == [("on",)]
            return counted

        assert await hr.host.in_transaction(count)
        assert not [line for line in plans if "Nested Loop" in line]
        assert any("Join" in line for line in plans) is catalog_url.startswith("postgresql")
        await query.reader.leave()

    run(catalog_url, work)


def test_what_changed_beside_a_batch_is_kept_when_it_is_counted(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        query, opening = await opened(hr, 3)

        def refuse(tx: Tx) -> int:
            """Somebody has answered an event far ahead that was never read."""
            segment_id, _ = min(load_all(tx, GROUP).items(), default=(1, None))
            ahead = Progress(0, ((500, 501),), ((600, 2),))
            stored.reset(tx, stored.Progress(GROUP, segment_id, 0, ahead.encode()))
            return segment_id

        segment_id = await hr.host.in_transaction(refuse)
        assert await query.count(opening)
        found = hr.host.log.catalog.read(lambda tx: load_all(tx, GROUP))
        assert found[segment_id].ranges == ((500, 501),)
        assert found[segment_id].attempts == ((600, 2),)
        assert sum(each.floor for each in found.values()) == len(query.written)
        assert sorted(query.written) == everything(hr)
        await query.reader.leave()

    run(catalog_url, work)


def test_a_line_that_holds_its_spans_itself_is_counted_too(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        query, opening = await opened(hr, 3)

        def as_before(tx: Tx) -> None:
            """As lines were stored before their spans were rows."""
            row = spark_readers.lines(tx, [query.reader.line])[query.reader.line]
            data = msgspec.json.encode(SparkLine(opening))
            spark_readers.put_spans(tx, row.line, ())
            spark_readers.put_line(tx, msgspec.structs.replace(row, data=data))

        await hr.host.in_transaction(as_before)
        read = hr.host.log.catalog.read
        assert read(lambda tx: spark_records.unsettled(tx, "report")) == {"spark-1": opening}
        assert await query.count(opening)
        group = await hr.reader_groups.get("report")
        lag = await group.lag()
        assert lag.events == 0
        await query.reader.leave()

    run(catalog_url, work)
