"""Fail-over: to a standby that has everything, and to one that misses the last commits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

import headrace
from headrace.catalog import lineage, open_catalog
from headrace.catalog.postgres import PostgresCatalog
from headrace.catalog.postgres_connections import PgConnection
from headrace.catalog.postgres_pool import PostgresPool
from headrace.epochs.runtime.subscription import EpochSubscription
from headrace.errors import (
    CatalogError,
    CatalogUnavailableError,
    CatalogWentBackError,
    Fenced,
    HeadraceError,
)
from headrace.groups.partitioned.names import GroupName
from tests.groups.partitioned.runtime import feeder
from tests.postgres_server import PostgresMachine, caught_up, gone_back, primary_and_standby
from tests.support import until

PATIENCE_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[PostgresMachine, PostgresMachine, str]]:
    """A primary, its standby, and an address that names both."""
    with primary_and_standby() as made:
        yield made


class Seen:
    """What a consumer was given, and acked."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.fenced = 0

    async def take(self, deliveries: AsyncIterator[headrace.Delivery]) -> None:
        async for delivery in deliveries:
            try:
                await delivery.ack()
            except (Fenced, CatalogUnavailableError):
                self.fenced += 1
            else:
                self.acked.append(int(delivery.value))


async def publish(hr: headrace.Headrace, numbers: range) -> None:
    """Publish; what fails is published again, as it was not stored."""
    for number in numbers:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                await hr.publish(f"s.{number}", str(number).encode(), key=str(number % 3))
                break
            except HeadraceError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)


async def feed(hr: headrace.Headrace) -> None:
    """Fill the work queue of the elastic group, whatever happens to the server."""
    while True:
        with contextlib.suppress(HeadraceError):
            await hr.in_thread(feeder.fill, hr.log, GroupName("s", "elastic"))
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def consumers(hr: headrace.Headrace) -> AsyncIterator[dict[str, Seen]]:
    """One of each kind, all in this program."""
    await hr.create_stream("s", subjects=["s.>"], partitions=2)
    await hr.groups.create_static("s", "static", max_members=2, members=["m"])
    await hr.groups.create_elastic(
        "s", "elastic", max_members=2, filter="s.*", wildcards=[1], members=["m"]
    )
    group = await hr.reader_groups.create("readers", streams=["s"])
    seen = {name: Seen() for name in ("static", "elastic", "shared", "private", "readers")}
    async with (
        hr.join("s", "static", member="m") as member,
        hr.join("s", "elastic", member="m") as elastic,
        hr.session("w1") as shared,
        hr.session("w2") as private,
        group.reader("r1") as reader,
    ):
        await shared.subscribe("$share/audit/s.>", start="earliest")
        await private.subscribe("s.>", start="earliest")
        sources: dict[str, Any] = {
            "static": member,
            "elastic": elastic,
            "shared": shared,
            "private": private,
            "readers": reader,
        }
        tasks = [
            asyncio.create_task(seen[name].take(aiter(source))) for name, source in sources.items()
        ]
        tasks.append(asyncio.create_task(feed(hr)))
        try:
            yield seen
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def test_after_a_promotion_that_lost_commits_no_group_skips_what_is_in_the_log(
    pair: tuple[PostgresMachine, PostgresMachine, str], caplog: pytest.LogCaptureFixture
) -> None:
    primary, standby, url = pair

    async def work() -> None:
        async with headrace.open(url, housekeeping=False) as hr:
            async with consumers(hr) as seen:
                await publish(hr, range(10))
                await until(lambda: all(len(s.acked) >= 10 for s in seen.values()), "the first ten")
                await until(lambda: caught_up(primary), "the standby")
                standby.stop()
                await publish(hr, range(10, 20))  # of these the standby knows nothing
                await until(lambda: all(len(s.acked) >= 20 for s in seen.values()), "ten more")
                await asyncio.to_thread(gone_back, primary, standby)
                await publish(hr, range(20, 32))
                due = set(range(20, 32))
                try:
                    await until(lambda: all(due <= set(s.acked) for s in seen.values()), "all")
                except AssertionError:
                    missing = {name: sorted(due - set(s.acked)) for name, s in seen.items()}
                    raise AssertionError(f"never delivered: {missing}") from None
            stored = [int(v) async for b in hr.read("s") for v in b.column("value").to_pylist()]
            assert set(stored) >= due
            assert not set(stored) & set(range(10, 20))

    asyncio.run(work())
    assert any("went back" in record.getMessage() for record in caplog.records)
    (row,) = standby.execute("SELECT value FROM headrace.meta WHERE key = 'lineage_turns'")
    assert "another server or timeline" in str(row[0])


def test_fail_over_to_a_synchronous_standby_loses_nothing_and_repeats_nothing(
    pair: tuple[PostgresMachine, PostgresMachine, str],
) -> None:
    primary, standby, url = pair
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.execute("SELECT pg_reload_conf()")

    def fail_over() -> None:
        primary.kill()
        standby.promote()

    async def work() -> None:
        async with headrace.open(url, housekeeping=False) as hr:
            async with consumers(hr) as seen:
                await publish(hr, range(10))
                await until(lambda: all(len(s.acked) >= 10 for s in seen.values()), "the first ten")
                begun_s = time.monotonic()
                await asyncio.to_thread(fail_over)
                promoted_s = time.monotonic()
                await publish(hr, range(10, 20))
                paused_s = time.monotonic() - promoted_s
                due = set(range(20))
                try:
                    await until(lambda: all(due <= set(s.acked) for s in seen.values()), "all")
                except AssertionError:
                    missing = {name: sorted(due - set(s.acked)) for name, s in seen.items()}
                    raise AssertionError(f"never delivered: {missing}") from None
                assert paused_s < 10, (paused_s, promoted_s - begun_s)
            for name, found in seen.items():
                assert len(found.acked) == len(set(found.acked)), (name, found.acked)
            stored = [int(v) async for b in hr.read("s") for v in b.column("value").to_pylist()]
            assert sorted(stored) == list(range(20))

    asyncio.run(work())


def test_a_fence_that_failed_is_made_by_the_next_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise psycopg.OperationalError("the server went away")

    with contextlib.closing(open_catalog(postgres_url)) as catalog:
        assert isinstance(catalog, PostgresCatalog)
        catalog._lineage._known = "another"
        with monkeypatch.context() as patch:
            patch.setattr(lineage, "_fence", fail)
            with pytest.raises(CatalogError):
                catalog.entries.get("b", "k")
        assert catalog.turns == 0
        assert catalog.entries.get("b", "k") is None
        assert catalog.turns == 1


async def epochs_until(
    subscription: EpochSubscription, seen: list[tuple[Any, list[bytes]]], last: int
) -> None:
    """Take whole epochs up to a time; a server that is away is waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            async for epoch in subscription:
                table = await epoch.table()
                seen.append((epoch.time, table["value"].to_pylist()))
                if epoch.time == last:
                    return
        except CatalogUnavailableError:
            await asyncio.sleep(0.1)
    raise AssertionError(f"epoch {last} never came: {seen}")


async def advance(url: str, times: range, what: bytes) -> None:
    """Publish one row in each epoch, as a program of its own that begins where it has to."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            async with headrace.open(url, housekeeping=False) as hr:
                async with hr.epoch_publisher("days", "eu") as pub:
                    for day in times:
                        await pub.append(
                            day, [headrace.Event(subject="days", value=what)], advance_to=day + 1
                        )
                return
        except CatalogUnavailableError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("noticed", ["before", "by its own read"])
@pytest.mark.parametrize("lost", ["nothing", "the last epochs", "the publisher, too"])
def test_a_subscription_to_epochs_goes_on_or_says_that_what_it_read_is_gone(
    pair: tuple[PostgresMachine, PostgresMachine, str],
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
    noticed: str,
) -> None:
    primary, standby, url = pair
    deaf, connect = threading.Event(), PostgresPool.connect

    def connected(self: PostgresPool) -> PgConnection:
        if deaf.is_set() and threading.current_thread().name == "headrace-listen":
            raise CatalogUnavailableError("not yet")
        return connect(self)

    monkeypatch.setattr(PostgresPool, "connect", connected)

    async def work() -> None:
        async with headrace.open(url, housekeeping=False) as hr:
            await hr.create_stream("days", subjects=["days"], epochs=headrace.Epochs())
            seen: list[tuple[Any, list[bytes]]] = []
            later: list[tuple[Any, list[bytes]]] = []
            begin = 3 if lost == "the last epochs" else 0
            await advance(url, range(begin), b"first")
            await until(lambda: caught_up(primary), "the standby")
            if lost != "nothing":
                standby.stop()
            # A publisher that is new in both histories has the same token in both.
            await advance(url, range(begin, 6), b"second")
            async with (
                hr.epochs("days", start="earliest") as subscription,
                hr.epochs("days", start="open") as waiting,
            ):
                await epochs_until(subscription, seen, 5)
                assert [time for time, _ in seen] == list(range(6))
                if noticed == "by its own read":
                    deaf.set()
                if lost == "nothing":
                    await until(lambda: caught_up(primary), "the standby")
                    primary.kill()
                    standby.promote()
                    await advance(url, range(6, 8), b"third")
                else:
                    await asyncio.to_thread(gone_back, primary, standby)
                    await advance(url, range(begin, 8), b"other")
                if noticed == "before":
                    await until(lambda: hr.log.catalog.turns, "the other history")
                for each, its in ((subscription, seen), (waiting, later)):
                    if lost == "nothing":
                        await epochs_until(each, its, 7)
                        continue
                    for _ in range(2):
                        with pytest.raises(CatalogWentBackError, match="is not in it"):
                            await epochs_until(each, its, 7)
                ends = 8 if lost == "nothing" else 6
                assert [time for time, _ in seen] == list(range(ends))
                assert [time for time, _ in later] == list(range(6, ends))
            again: list[tuple[Any, list[bytes]]] = []
            async with hr.epochs("days", start="earliest") as subscription:
                await epochs_until(subscription, again, 7)
            assert [time for time, _ in again] == list(range(8))
            assert again[4][1] == [b"second" if lost == "nothing" else b"other"]

    asyncio.run(work())
