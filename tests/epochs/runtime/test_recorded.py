"""What is recorded and found about epoch streams: publishers and subscriptions that come and go."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.api import housekeeping
from headrace.catalog import Tx, epoch_subscriptions, epochs, leases
from headrace.epochs.runtime import subscriptions
from headrace.errors import InvalidConfigError, StreamInUseError, UnknownStreamError
from headrace.groups import status
from headrace.groups.shapes import Finding
from tests.epochs.runtime.test_publisher import run, table


async def told(hr: headrace.Headrace) -> list[tuple[str, str]]:
    """What was decided, and about whom."""
    return [(one.what.value, one.member) for one in await hr.epoch_decisions("a")]


async def run_out(hr: headrace.Headrace, name: str) -> None:
    """A lease runs out, as if its program had been killed a while ago."""

    def change(tx: Tx) -> None:
        leases.set_expiry(tx, [(tx.now_us() - 1_000_000, name)])

    await hr.in_thread(hr.log.catalog.write, change)


async def findings(hr: headrace.Headrace, behind_s: float = 900) -> list[Finding]:
    def look(tx: Tx) -> list[Finding]:
        return list(status.status(tx, behind_s).findings)

    found: list[Finding] = await hr.in_thread(hr.log.catalog.read, look)
    return found


def test_publishers_that_come_and_go_are_recorded(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        assert await told(hr) == []
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(3))
        async with hr.epoch_publisher("a", "eu") as pub:
            await run_out(hr, epochs.lease_name(pub.where.stream.id, "eu"))
            async with hr.epoch_publisher("a", "eu") as successor:
                assert successor.recovered.total == 3
        async with hr.epoch_publisher("a", "us") as us:
            await hr.release_publisher("a", "eu")
            await us.close()
        assert await told(hr) == [
            ("joined", "eu"),
            ("left", "eu"),
            ("assigned", "eu"),
            ("lost", "eu"),
            ("moved", "eu"),
            ("left", "eu"),
            ("joined", "us"),
            ("fenced", "eu"),
            ("finished", "us"),
        ]
        decided = await hr.epoch_decisions("a")
        lost = next(one for one in decided if one.what.value == "lost")
        moved = next(one for one in decided if one.what.value == "moved")
        assert moved.cause == lost.number
        assert "takes back its rows" in moved.reason
        assert "released by an operator" in decided[-2].reason
        await hr.delete_stream("a")
        with pytest.raises(UnknownStreamError):
            await hr.epoch_decisions("a")
        await hr.create_stream("a", ["a.>"], epochs=headrace.Epochs())
        assert await told(hr) == []

    run(catalog_url, work)


def test_a_lost_publisher_that_holds_the_frontier_back_is_a_finding(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as eu:
            await eu.append(0, table(3), advance_to=5)
            lease = epochs.lease_name(eu.where.stream.id, "eu")
            assert await findings(hr) == []
            # us was declared, never came, and holds the first time.
            (found,) = await findings(hr, behind_s=-1)
            assert (found.finding, found.about) == ("publisher_awaited", "a")
            assert "release a us" in found.next
            await hr.release_publisher("a", "us")
            await run_out(hr, lease)
            (found,) = await findings(hr)
            assert (found.finding, found.needs_person) == ("publisher_lost", True)
            assert "held back by publisher eu" in found.sentence
            assert "headrace epoch rollback a eu" in found.next
            await hr.abort_epochs("a", "eu", "the source is broken")
            (found,) = await findings(hr)
            assert (found.finding, found.needs_person) == ("epochs_aborted", False)
            assert "the source is broken" in found.sentence

    run(catalog_url, work, publishers=("eu", "us"))


def test_a_subscription_that_nobody_holds_is_found_and_forgotten(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epoch_publisher("a", "eu") as pub:
            await pub.append(0, table(3), advance_to=5)
        options = {"name": "report", "start": "earliest", "expiry_ms": 50}
        async with hr.epochs("a", **options) as found:
            await (await anext(aiter(found))).ack()
            await asyncio.sleep(0.1)
            housekeeping._retain(hr.log, {})
            assert [one.expiry_ms for one in await hr.epoch_subscriptions()] == [50]
        async with hr.epochs("a", name="daily", start="earliest"):
            pass
        unread = [one for one in await findings(hr, behind_s=0) if "unread" in one.finding]
        assert [one.sentence.split()[1] for one in unread] == ["daily"]  # report has acked all
        await asyncio.sleep(0.1)
        housekeeping._retain(hr.log, {})
        assert [one.name for one in await hr.epoch_subscriptions()] == ["daily"]
        decided = await hr.epoch_decisions("a")
        assert ("evicted", "report") in {(one.what.value, one.member) for one in decided}
        for bad in ({"expiry_ms": 5}, {"name": "x", "expiry_ms": 0}):
            with pytest.raises(InvalidConfigError, match="expiry_ms"):
                hr.epochs("a", **bad)

    run(catalog_url, work)


def test_one_whose_start_was_never_chosen_holds_nothing_back_for_ever(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        form = hr.epochs("a", name="x")._named
        assert form is not None
        await form.take(["a"], "whole", None, None)  # and then the program is killed
        await run_out(hr, epoch_subscriptions.lease_name("x"))
        housekeeping._retain(hr.log, {})
        assert len(await hr.epoch_subscriptions()) == 1
        monkeypatch.setattr(subscriptions, "UNCHOSEN_US", 1000)
        housekeeping._retain(hr.log, {})
        assert await hr.epoch_subscriptions() == ()

    run(catalog_url, work)


def test_a_stream_is_not_taken_away_from_its_subscriptions_but_by_force(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.epochs("a", name="report"):
            pass
        with pytest.raises(StreamInUseError, match="epoch subscription 'report'"):
            await hr.delete_stream("a")
        await hr.delete_stream("a", force=True)
        assert await hr.epoch_subscriptions() == ()
        await hr.create_stream("a", ["a.>"], epochs=headrace.Epochs())
        async with hr.epochs("a", name="report") as found:
            assert found.frontier == (0,)

    run(catalog_url, work)
