"""Poison events: back-off, then the dead-letter stream, and the key continues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CatalogUnavailableError, Fenced
from headrace.groups import decisions
from headrace.groups.consumer import dead_letters
from headrace.groups.progress import Progress
from tests.groups.consumer.rig import Heard, rig, run, take, values


def headers_of(row: dict[str, Any]) -> dict[str, str]:
    return {pair["key"]: pair["value"].decode() for pair in row["headers"]}


def test_an_event_refused_too_often_becomes_a_dead_letter(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer(max_deliveries=3, backoff_min_ms=1, member="m1")
            consumer.open(await r.claim())
            await r.fill("aab")
            (first, b) = await take(consumer, 2)
            await b.ack()
            await first.nack(reason="cannot divide")
            for attempt in (2, 3):
                (first,) = await take(consumer, 1)
                assert first.attempt == attempt
                await first.nack(reason="cannot divide")
            (second,) = await take(consumer, 1)
            assert second.value == b"1"
            await second.ack()
            assert await r.stored() == Progress(3)
            (letter,) = await r.dead()
            assert (letter["subject"], letter["value"], letter["key"]) == ("orders.a", b"0", "a")
            about = headers_of(letter)
            assert int(about.pop("headrace-died")) > 10**15
            assert about == {
                "headrace-lives": "1",
                "headrace-reason": "nacked",
                "headrace-detail": "cannot divide",
                "headrace-stream": "orders",
                "headrace-segment": "0",
                "headrace-offset": "0",
                "headrace-attempts": "3",
                "headrace-group": "orders.billing",
                "headrace-member": "m1",
            }
            (told,) = r.hr.log.catalog.read(lambda tx: decisions.read(tx, "orders/billing"))
            assert (told.what, told.member) == (decisions.What.DEAD_LETTER, "m1")
            assert told.units == decisions.ranges([0])
            assert told.reason == "orders.a at offset 0: nacked after 3 deliveries: cannot divide"

    run(work())


def test_a_rejected_event_is_stored_when_reject_returns(catalog_url: str) -> None:
    async def work() -> None:
        async with rig(catalog_url) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            one, two = await take(consumer, 2)
            await one.reject("no such customer")
            (letter,) = await r.dead()
            assert headers_of(letter)["headrace-reason"] == "rejected"
            assert await r.stored() == Progress(1)
            await two.reject()
            assert len(await r.dead()) == 2

    run(work())


def test_attempts_count_across_owners(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(max_deliveries=2, backoff_min_ms=0)
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("ab")
            one, two = await take(consumer, 2)
            await two.ack()
            consumer.drain({"0": unit.token})
            await one.nack()
            await r.heard.until(lambda: r.heard.drained_units)
            assert await r.stored() == Progress(0, ((1, 2),), ((0, 1),))

            other = r.consumer(heard=Heard(), max_deliveries=2)
            other.open(await r.claim(owner="m2"))
            (again,) = await take(other, 1)
            assert again.attempt == 2
            await again.nack()
            await other.flush()
            await r.fill("c", start=2)
            assert values(await take(other, 1)) == ["2"]
            (letter,) = await r.dead()
            assert headers_of(letter)["headrace-attempts"] == "2"

    run(work())


def test_a_fenced_owner_writes_no_dead_letter(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            consumer.open(await r.claim())
            await r.fill("ab")
            one, two = await take(consumer, 2)
            await one.reject()
            await r.claim(owner="m2")
            with pytest.raises(Fenced):
                await two.reject()
            assert len(await r.dead()) == 1
            assert await r.stored() == Progress(1)
            assert len(r.heard.fenced_units) == 1

    run(work())


def test_a_drain_waits_for_the_dead_letter(tmp_path: Path) -> None:
    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer()
            unit = await r.claim()
            consumer.open(unit)
            await r.fill("a")
            (one,) = await take(consumer, 1)
            consumer.drain({"0": unit.token})
            await one.reject()
            await r.heard.until(lambda: r.heard.drained_units)
            assert r.heard.drained_units[0][2] == Progress(1)
            assert len(await r.dead()) == 1

    run(work())


def test_a_dead_letter_whose_commit_is_unsure_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit happened and its answer was lost: the second try finds it done."""

    async def work() -> None:
        async with rig(str(tmp_path)) as r:
            consumer = r.consumer(max_deliveries=1)
            consumer.open(await r.claim())
            await r.fill("ab")
            one, two = await take(consumer, 2)
            plain = r.hr.host.commit
            calls = 0

            async def unsure(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                outcome = await plain(*args)
                if calls == 2:  # after the one that finds that there is no stream yet
                    raise CatalogUnavailableError("cut off")
                return outcome

            monkeypatch.setattr(r.hr.host, "commit", unsure)
            monkeypatch.setattr(dead_letters, "RETRY_S", 0.01)
            await asyncio.gather(one.nack(), two.nack())
            assert calls > 2
            with pytest.raises(CatalogUnavailableError):
                await anext(consumer)
            assert sorted(row["value"] for row in await r.dead()) == [b"0", b"1"]
            assert await r.stored() == Progress(2)

    run(work())
