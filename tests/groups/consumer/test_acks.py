"""Ack stores: what is committed, when, and what a failed commit leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog import Tx, open_catalog
from headrace.catalog.postgres_writer import PostgresWriter
from headrace.errors import CatalogUnavailableError, Fenced
from headrace.groups.consumer import (
    CatalogAcks,
    Consumer,
    ConsumerOptions,
    OwnedUnit,
    UnitAck,
)
from headrace.groups.consumer.acks import tell_after
from headrace.groups.consumer.types import Done
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from tests.groups.consumer.rig import Rig, rig, run, run_with_threads, take
from tests.support import until


class Elsewhere:
    """A store that keeps what it is given, as one that reports to a leader would."""

    repeats_transactions = True

    def __init__(self, r: Rig) -> None:
        self.host = r.hr.host
        self.catalog = CatalogAcks(r.hr.host)
        self.commits: list[tuple[list[Progress], bool]] = []
        self.errors: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def begin(self, acks: Sequence[UnitAck], done: Done, *, sync: bool) -> None:
        tell_after(self.host, self.commit(acks, sync), done)

    async def commit(self, acks: Sequence[UnitAck], sync: bool) -> list[Fenced | None]:
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.commits.append(([ack.progress for ack in acks], sync))
        return [None] * len(acks)

    def stage(self, tx: Tx, ack: UnitAck) -> None:
        self.catalog.stage(tx, ack)

    def locks(self, unit: OwnedUnit) -> list[str]:
        return self.catalog.locks(unit)


async def elsewhere(r: Rig, **options: object) -> tuple[Consumer, Elsewhere]:
    store = Elsewhere(r)
    consumer = Consumer(r.hr.host, ConsumerOptions(**options), store)  # type: ignore[arg-type]
    r.consumers.append(consumer)
    consumer.open(await r.claim(), r.heard)
    return consumer, store


def test_an_ack_commits_at_once_and_what_gathers_meanwhile_shares_the_next(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, store = await elsewhere(r)
            await r.fill("abcdef")
            held = await take(consumer, 6)
            store.gate.clear()
            first = asyncio.create_task(held[0].ack())
            await asyncio.sleep(0)
            others = [asyncio.create_task(one.ack()) for one in held[1:5]]
            held[5].ack_soon()
            await asyncio.sleep(0)
            assert not first.done()
            store.gate.set()
            await asyncio.gather(first, *others)
            assert [commit for commit, _ in store.commits] == [[Progress(1)], [Progress(6)]]

    run(work())


def test_durable_acks_wait_for_the_disk(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            for durable in (False, True):
                consumer, store = await elsewhere(r, durable_acks=durable)
                if not durable:
                    await r.fill("a")
                (one,) = await take(consumer, 1)
                await one.ack()
                assert [sync for _, sync in store.commits] == [durable]
                await consumer.close()

    run(work())


def test_durable_acks_on_a_real_catalog(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer(durable_acks=True)
            consumer.open(await r.claim())
            await r.fill("ab")
            one, two = await take(consumer, 2)
            await one.ack()
            two.ack_soon()
            await consumer.flush()
            assert await r.stored() == Progress(2)

    run(work())


def test_a_transaction_is_reported_where_that_is_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            await r.hr.create_stream("out", subjects=["out.>"])
            consumer, store = await elsewhere(r)
            await r.fill("a")
            (one,) = await take(consumer, 1)
            async with one.transaction() as tx:
                tx.publish("out.x", b"")
            assert [commit for commit, _ in store.commits] == [[Progress(1)]]
            assert await r.stored() == Progress(1)

    run(work())


def test_a_commit_that_failed_is_told_and_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr("headrace.groups.consumer.commits.RETRY_MS", 5)
        async with rig(str(tmp_path)) as r:
            consumer, store = await elsewhere(r)
            await r.fill("abc")
            one, two, three = await take(consumer, 3)
            store.errors = [CatalogUnavailableError("cut off")]
            with pytest.raises(CatalogUnavailableError):
                await one.ack()
            await two.ack()
            assert store.commits[-1][0] == [Progress(2)]
            store.errors = [CatalogUnavailableError("cut off")]
            three.ack_soon()  # whoever waits for no answer rides it out

            async def made_good() -> bool:
                return store.commits[-1][0] == [Progress(3)]

            await until(made_good)

    run(work())


def test_a_waiter_that_goes_away_disturbs_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer, store = await elsewhere(r)
            await r.fill("ab")
            one, two = await take(consumer, 2)
            store.gate.clear()
            gone = asyncio.create_task(one.ack())
            await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            store.gate.set()
            await two.ack()
            assert store.commits[-1][0] == [Progress(2)]

    run(work())


def test_progress_is_joined_and_never_lost(catalog_url: str) -> None:
    """Two ways to write the same row: neither takes back what the other stored."""

    async def work() -> None:
        async with rig(catalog_url) as r:
            unit = await r.claim()
            acks = CatalogAcks(r.hr.host)
            await acks.commit([UnitAck(unit, Progress(2))], sync=False)

            def other(tx: Tx) -> None:
                join(tx, unit.group, {unit.segment_id: Progress(0, ((5, 6),))})

            await r.hr.host.in_transaction(other)
            assert await r.stored() == Progress(2, ((5, 6),))
            await acks.commit([UnitAck(unit, Progress(4))], sync=False)
            assert await r.stored() == Progress(4, ((5, 6),))
            await acks.commit([UnitAck(unit, Progress(4, ((7, 8),)))], sync=False)
            assert await r.stored() == Progress(4, ((5, 6), (7, 8)))

    run(work())


def test_one_commit_tells_for_each_unit_whether_it_counted(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url, segments=2) as r:
            units = [await r.claim(segment) for segment in (0, 1)]
            await r.claim(0, owner="m2")
            acks = CatalogAcks(r.hr.host)
            given = [UnitAck(unit, Progress(1)) for unit in units]
            fenced, counted = await acks.commit(given, sync=False)
            assert isinstance(fenced, Fenced)
            assert counted is None
            assert await r.stored(0) is None
            assert await r.stored(1) == Progress(1)

    run(work())


def test_what_a_server_has_stored_counts_whoever_has_the_unit_when_the_answer_is_heard(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two units is lost, so the rest is done in a second step; in between all are."""
    call = PostgresWriter.call

    def then_frozen(writer: PostgresWriter, *arguments: Any) -> Any:
        answer = call(writer, *arguments)
        with closing(open_catalog(postgres_url)) as others:
            others.claims.take("orders.billing", "1", "m3")
        return answer

    async def work() -> None:
        async with rig(postgres_url, segments=2) as r:
            units = [await r.claim(segment) for segment in (0, 1)]
            await r.claim(0, owner="m2")
            acks = CatalogAcks(r.hr.host)
            monkeypatch.setattr(PostgresWriter, "call", then_frozen)
            acked = Progress(0, ((5, 6),))
            given = [UnitAck(unit, acked) for unit in units]
            fenced, counted = await acks.commit(given, sync=False)
            assert await r.stored(1) == acked
            assert isinstance(fenced, Fenced)
            assert counted is None

    run_with_threads(work())
