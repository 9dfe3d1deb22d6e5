"""Lag of groups of every kind, from the catalog alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from headrace.catalog import Tx
from headrace.catalog import progress as stored
from headrace.catalog.streams import StreamConfig
from headrace.groups import lag, looks, view
from headrace.groups.partitioned import admin
from headrace.groups.progress import Progress, glance
from headrace.groups.progress.store import join
from headrace.groups.shapes import GroupLag
from headrace.groups.shared.admin import Groups
from headrace.log.events import Event
from headrace.log.log import Log
from tests.groups.shared.runtime.support import open_log, run
from tests.support import until


def append(log: Log, *subjects: str, stream: str = "orders") -> None:
    log.append(stream, [Event(subject=subject, value=bytes(100)) for subject in subjects])


def acked(log: Log, reader: str, segment: int, progress: Progress, stream: str = "orders") -> None:
    found = log.stream(stream).segment(segment)
    assert found is not None
    key = found.id
    log.catalog.write(lambda tx: join(tx, reader, {key: progress}))


def lag_of(log: Log, name: str) -> GroupLag:
    found = looks.lag_of_one(log.catalog, name)
    (same,) = [each for each in looks.lag_of_all(log.catalog) if each.group == found.group]
    steady = {"seconds": 0.0, "source_seconds": 0.0}
    one, other = (
        msgspec.structs.replace(
            each, **steady, units=tuple(msgspec.structs.replace(u, seconds=0.0) for u in each.units)
        )
        for each in (found, same)
    )
    assert one == other  # of one and of all: the same
    return found


@pytest.fixture
def shared(log: Log) -> Log:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    Groups(log).declare("audit", "orders.>", start="earliest")
    return log


def test_lag_counts_what_is_retained_and_not_acked(shared: Log) -> None:
    log = shared
    assert lag_of(log, "audit").events == 0
    append(log, *["orders.x"] * 10)
    append(log, *["orders.x"] * 10)
    (segment,) = log.stream("orders").segments
    everything = lag_of(log, "audit")
    assert (everything.events, everything.bytes, everything.exact) == (20, segment.bytes, True)
    assert 0 <= everything.seconds < 60
    acked(log, "audit:orders.>", 0, Progress(3, ((5, 6), (12, 13))))
    found = lag_of(log, "audit")
    assert found.events == 15
    assert segment.bytes // 2 < found.bytes < segment.bytes
    log.trim("orders", {0: 10})
    found = lag_of(log, "audit")
    assert (found.events, found.lost_to_trimming) == (9, 6)
    acked(log, "audit:orders.>", 0, Progress(20))
    found = lag_of(log, "audit")
    assert (found.events, found.bytes, found.seconds, found.lost_to_trimming) == (0, 0, 0.0, 0)


def test_markers_do_not_count(shared: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log = shared
    for _ in range(5):
        append(log, "orders.x", "orders.x")
        log.append_marker("orders", 0, b"m")  # at 2, 5, 8, 11 and 14
    assert lag_of(log, "audit").events == 10
    acked(log, "audit:orders.>", 0, Progress(3, ((4, 6), (8, 9))))
    assert lag_of(log, "audit").events == 7
    monkeypatch.setattr("headrace.groups.picture.MARKERS_MAX", 1)
    assert lag_of(log, "audit").events == 7


def test_what_a_filter_may_exclude_makes_it_an_upper_bound(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    Groups(log).declare("eu", "orders.eu.>", start="earliest")
    assert lag_of(log, "eu").exact
    append(log, "orders.eu.1", "orders.us.1")
    found = lag_of(log, "eu")
    assert (found.events, found.exact) == (2, False)
    acked(log, "eu:orders.eu.>", 0, Progress(2))
    assert lag_of(log, "eu").exact  # nothing is left, whatever it was


def test_what_no_pipeline_has_put_into_the_queue_counts_in_events_bytes_and_seconds(
    log: Log,
) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.*",)))
    admin.create_elastic(log, "orders", "billing", max_members=2, filter="orders.*", wildcards=[1])
    append(log, *[f"orders.{n}" for n in range(8)])
    (segment,) = log.stream("orders").segments
    found = lag_of(log, "orders/billing")
    assert (found.events, found.source_events, found.exact) == (8, 8, True)
    assert found.bytes == found.source_bytes == segment.bytes
    assert found.seconds == found.source_seconds > 0
    assert "no pipeline runs" in found.finding


def test_members_that_read_shares_of_the_same_segments_count_an_event_once(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("*.orders.>",)))
    admin.create_static(log, "orders", "audit", max_members=2, members=["m1", "m2"])
    append(log, *[f"{n % 2}.orders.x" for n in range(8)])
    found = lag_of(log, "orders/audit")
    assert found.events == 8
    assert [(unit.member, unit.events) for unit in found.units] == [("m1", 8), ("m2", 8)]
    # One has been through all of it: at most the events of the other are left.
    acked(log, "orders.audit.member.m1", 0, Progress(8))
    found = lag_of(log, "orders/audit")
    assert (found.events, found.exact) == (8, False)
    acked(log, "orders.audit.member.m2", 0, Progress(4, ((5, 6),)))
    assert lag_of(log, "orders/audit").events == 3


def test_units_that_nobody_has_begun_have_an_age_and_a_size(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.*",), partitions=4))
    admin.create_static(log, "orders", "audit", max_members=4, members=["m1"])
    append(log, *[f"orders.{n}" for n in range(40)])
    found = lag_of(log, "orders/audit")
    assert found.events == 40
    assert found.bytes == sum(segment.bytes for segment in log.stream("orders").segments)
    assert all(unit.seconds > 0 for unit in found.units if unit.events)


@pytest.mark.parametrize("seed", range(20))
def test_at_a_glance_it_is_what_the_ranges_say(seed: int) -> None:
    rng = random.Random(seed)
    bounds = sorted(rng.sample(range(60), rng.choice([1, 3, 5, 9])))
    ranges = tuple(zip(bounds[1::2], bounds[2::2], strict=True))
    progress = Progress(bounds[0], ranges)
    head, tail = rng.randrange(60), 0
    tail = rng.randrange(head + 1)
    missing = progress.acked().missing(head)
    kept = sum(max(0, hi - max(lo, tail)) for lo, hi in missing)
    lost = sum(max(0, min(hi, tail) - lo) for lo, hi in missing)
    assert glance.unacked(progress.encode(), progress.floor, tail, head) == (kept, lost)
    assert (
        tuple(glance.missing(progress.floor, glance.deltas_of(progress.encode()), head)) == missing
    )


def test_ranges_together() -> None:
    assert lag.together([]) == (0, 0)
    assert lag.together([[(0, 8)], [(2, 3), (6, 9)]]) == (9, 3)


def test_a_damaged_record_is_an_upper_bound_and_costs_nobody_else(shared: Log) -> None:
    log = shared
    append(log, *["orders.x"] * 10)
    (segment,) = log.stream("orders").segments
    damaged = stored.Progress("audit:orders.>", segment.id, 4, b"no record")
    log.catalog.write(lambda tx: stored.put(tx, damaged))
    found = lag_of(log, "audit")
    assert (found.events, found.exact) == (6, False)


def test_the_number_of_statements_is_the_same_for_any_number_of_groups(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.*",)))

    def statements() -> int:
        count = 0

        def counting(tx: Tx) -> object:
            rows, row = tx.rows, tx.row

            def counted(call: Callable[..., Any]) -> Callable[..., Any]:
                def run(*args: Any) -> Any:
                    nonlocal count
                    count += 1
                    return call(*args)

                return run

            tx.rows, tx.row = counted(rows), counted(row)  # type: ignore[method-assign]
            try:
                return view.all_groups(tx)
            finally:
                tx.rows, tx.row = rows, row  # type: ignore[method-assign]

        log.catalog.read(counting, snapshot=True)
        return count

    made = []
    for number in range(40):
        admin.create_elastic(
            log, "orders", f"g{number}", max_members=4, filter="orders.*", wildcards=[1]
        )
        Groups(log).declare(f"s{number}", "orders.>")
        append(log, "orders.x")
        if number in (19, 29, 39):
            made.append(statements())
    assert len(set(made)) == 1, made


def test_what_a_filter_excludes_does_not_count_once_a_member_has_passed_it(
    catalog_url: str,
) -> None:
    async def take(deliveries: AsyncIterator[Any], count: int) -> None:
        for _ in range(count):
            await (await anext(deliveries)).ack()

    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], partitions=2)
            made = hr.groups.create_static
            await made("orders", "fixed", max_members=2, filter="orders.eu.*", members=["a"])
            readers = await hr.reader_groups.create("read", ["orders"], filter="orders.eu.*")
            async with (
                hr.session("w") as session,
                hr.join("orders", "fixed", "a") as member,
                readers.reader("r") as reader,
            ):
                await session.subscribe("$share/share/orders.eu.*", start="earliest")
                for n in range(6):
                    await hr.publish(f"orders.eu.{n}", b"x", key=str(n))
                    await hr.publish(f"orders.us.{n}", b"x", key=str(n))
                await asyncio.gather(*(take(aiter(each), 6) for each in (session, member, reader)))

                async def nothing_is_left() -> bool:
                    found = [await hr.groups.lag(name) for name in ("share", "fixed", "read")]
                    return all((each.events, each.exact) == (0, True) for each in found)

                await until(nothing_is_left)

    run(asyncio.wait_for(work(), 60))
