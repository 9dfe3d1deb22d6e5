"""Sessions: private and shared subscriptions, resuming, taking over, running out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headrace
import headrace.sync
from headrace.catalog.records import Records
from headrace.errors import (
    Fenced,
    InvalidFilterError,
    InvalidInputError,
    InvalidNameError,
    InvalidPositionError,
    SessionBusyError,
    SessionClosedError,
    SessionTakenOverError,
    StartBeforeHistoryError,
    SubscriptionExistsError,
    UnknownSessionError,
    UnknownStreamError,
    UnknownSubscriptionError,
)
from headrace.groups.consumer import OwnedUnit
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.runtime.borrowing import Borrowing
from headrace.groups.shared.runtime.session import Session
from tests.groups.shared.runtime.support import Worker, count, open_log, publish, run, total
from tests.scaling import split_while_empty
from tests.support import until

SHARED = "$share/g/orders.>"


async def take(session: Session, count: int) -> list[bytes]:
    """The next events, acked."""
    found = []
    deliveries = aiter(session)
    for _ in range(count):
        delivery = await anext(deliveries)
        await delivery.ack()
        found.append(delivery.value)
    return found


async def drained(deliveries: AsyncIterator[headrace.Delivery]) -> None:
    """Take what comes, until it ends."""
    async for _ in deliveries:
        pass


def test_shared_and_private_subscriptions_stand_side_by_side(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=3)
            async with Worker(hr, "w1", SHARED, "orders.>") as w1, Worker(hr, "w2", SHARED) as w2:
                values = await publish(hr, "orders", 60)
                await until(lambda: count(w1, w2) == 120, "all events for group and session")
                assert total(w1, w2) == dict.fromkeys(values, 2)
                assert set(w1.acked) == set(values)

    run(test())


def test_a_unit_that_comes_while_a_session_closes_does_not_hold_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Borrowing.look
    may_open = asyncio.Event()
    may_open.set()

    async def slowly(self: Borrowing) -> list[OwnedUnit]:
        await may_open.wait()
        return await opening(self)

    monkeypatch.setattr(Borrowing, "look", slowly)

    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            await hr.create_stream("refunds", ["refunds.>"])
            session = hr.session("w")
            await session.__aenter__()
            await session.subscribe(SHARED)
            await until(lambda: session.units, "its unit")
            await publish(hr, "orders", 1)
            delivery = await anext(aiter(session))
            may_open.clear()
            await session.subscribe("$share/g/refunds.>")
            await until(lambda: session._borrowing._opening, "another unit")
            closing = asyncio.create_task(session.close(grace_s=600))
            await until(lambda: session._borrowing.over, "its closing")
            may_open.set()
            await until(lambda: not session._borrowing._opening, "a look at the unit")
            assert not closing.done()
            await delivery.ack()
            await closing

    run(test())


def test_a_private_subscription_goes_on_where_it_was(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            values = await publish(hr, "orders", 20)
            async with hr.session("w") as session:
                await session.subscribe("orders/#", start="earliest")
                first = await take(session, 12)
            async with hr.session("w") as session:
                assert session.subscriptions == ("orders/#",)
                rest = await take(session, 8)
            assert sorted(first + rest) == sorted(values)

    run(test())


@pytest.mark.parametrize("held", [0, 1], ids=["all answered", "one in hand"])
def test_a_clean_close_stores_acks_that_nobody_waited_for_and_complains_of_nothing(
    catalog_url: str, caplog: pytest.LogCaptureFixture, held: int
) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"])
            await hr.append("orders", [headrace.Event(subject="orders.n", value=b"old", key="a")])
            async with hr.session("w") as session:
                await session.subscribe("orders.>", start="earliest")
                first = await anext(aiter(session))
                in_hand = []
                if held:
                    await hr.publish("orders.n", b"held", key="b")
                    in_hand.append(await anext(aiter(session)))
                first.ack_soon()
            for delivery in in_hand:
                with pytest.raises(Fenced):
                    await delivery.ack()
            await hr.publish("orders.n", b"new", key="c")
            async with hr.session("w") as session:
                expected = [b"held", b"new"] if held else [b"new"]
                assert await take(session, len(expected)) == expected

    run(test())
    assert [record.message for record in caplog.records] == []


def test_a_private_subscription_replays_from_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
            for minutes in range(10):
                when = noon + timedelta(minutes=minutes)
                await hr.publish("orders.n", b"%d" % minutes, timestamp=when)
            async with hr.session() as session:
                await session.subscribe("orders.>", start=noon + timedelta(minutes=7))
                assert await take(session, 3) == [b"7", b"8", b"9"]

    run(test())


def test_unsubscribing_forgets_private_progress_and_keeps_that_of_a_group(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            await publish(hr, "orders", 4)
            async with hr.session("w") as session:
                for text in ("orders.>", SHARED):
                    await session.subscribe(text, start="earliest")
                await take(session, 8)
                for text in ("orders.>", SHARED):
                    await session.unsubscribe(text)
                assert session.subscriptions == ()
                await session.subscribe("orders.>", start="earliest")
                assert len(await take(session, 4)) == 4
                assert (await hr.shared_groups.get("g")).lag_events == 0

    run(test())


def test_a_segment_opens_for_a_private_subscription_after_its_predecessors(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            await hr.publish("orders.n", b"1", key="k")
            await hr.split("orders", 0, 3)
            await hr.publish("orders.n", b"2", key="k")
            async with hr.session("w") as session:
                await session.subscribe("orders.>", start="earliest")
                first = await anext(aiter(session))
                assert first.value == b"1"
                await first.ack()
                assert await take(session, 1) == [b"2"]
                await hr.create_stream("late", ["orders-late.>"])
                await session.subscribe("*.x", start="earliest")
                await hr.publish("orders-late.x", b"3")
                assert await take(session, 1) == [b"3"]

    run(test())


@pytest.mark.parametrize("text", [SHARED, "orders.>"], ids=["shared", "private"])
def test_keys_stay_in_order_over_a_split_of_an_empty_segment(tmp_path: Path, text: str) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            expected = await hr.in_thread(split_while_empty, hr.log, "orders", "orders.n")
            async with Worker(hr, "w", text, start="earliest") as worker:
                await until(lambda: worker.count >= len(expected), "all events")
            assert list(map(int, worker.order["orders.n"])) == expected

    run(test())


def test_a_session_is_taken_over_by_a_new_process_of_its_name(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as here, open_log(catalog_url) as there:
            await here.create_stream("orders", ["orders.>"])
            await publish(here, "orders", 4)
            async with here.session("w") as old:
                for text in (SHARED, "orders.>"):
                    await old.subscribe(text, start="earliest")
                deliveries = aiter(old)
                held = [await anext(deliveries) for _ in range(2)]
                async with there.session("w") as new:
                    assert set(new.subscriptions) == {SHARED, "orders.>"}
                    with pytest.raises(SessionTakenOverError):
                        await drained(deliveries)
                    for delivery in held:
                        with pytest.raises((Fenced, headrace.HeadraceError)):
                            await delivery.ack()
                    with pytest.raises(SessionTakenOverError):
                        await old.subscribe("other.>")
                    assert len(await take(new, 8)) == 8

    run(test())


def test_sessions_without_a_name_leave_no_leases_and_claims(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)

            def rows() -> tuple[object, ...] | None:
                count = "SELECT (SELECT count(*) FROM leases), (SELECT count(*) FROM claims)"
                return hr.log.catalog.read(lambda tx: tx.row(count))

            async def one() -> None:
                async with hr.session() as session:
                    await session.subscribe("orders.>", start="earliest")
                    await publish(hr, "orders", 2)
                    await take(session, 2)

            await one()
            before = rows()
            for _ in range(5):
                await one()
            assert rows() == before

    run(test())


def test_opening_a_session_reads_no_other_session_in_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others would wait for that transaction."""
    read: list[str] = []
    decode = Records.decode

    def watched(self: Records[object], name: str, data: bytes) -> object:
        read.append(name)
        return decode(self, name, data)

    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            for number in range(20):
                async with hr.session(f"s{number}"):
                    pass
            monkeypatch.setattr(Records, "decode", watched)
            async with hr.session("another"):
                pass
            assert set(read) == {"another"}

    run(test())


def test_sessions_that_are_over_are_forgotten_when_others_are_opened(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            async with hr.session("brief", expiry_ms=1) as session:
                await session.subscribe("orders.>")
        await asyncio.sleep(0.01)
        async with open_log(tmp_path / "d") as hr, hr.session("another"):
            stored = hr.log.catalog.entries
            await until(lambda: stored.get("sessions", "brief") is None, "its end")

    run(test())


def test_a_session_that_ran_out_begins_anew(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            await publish(hr, "orders", 2)
            async with hr.session("w", expiry_ms=1) as session:
                await session.subscribe("orders.>", start="earliest")
                await take(session, 2)
            groups = Groups(hr.log)
            await until(lambda: not groups.sessions(), "the session's end")
            with pytest.raises(UnknownSessionError):
                groups.session("w")
            async with hr.session("w") as session:
                assert session.subscriptions == ()
                await session.subscribe("orders.>", start="earliest")
                assert len(await take(session, 2)) == 2

    run(test())


def test_a_session_in_memory_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            async with hr.session() as session:
                await session.subscribe("orders.>")
                assert [each.record.name for each in await hr.sessions()] == [session.name]
            assert await hr.sessions() == ()
            async with hr.session("named", persistent=False) as session:
                await session.subscribe("orders.>")
            assert await hr.sessions() == ()

    run(test())


def test_a_session_is_removed_with_force_while_it_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            async with hr.session("w") as session:
                await session.subscribe("orders.>")
                with pytest.raises(SessionBusyError, match="force"):
                    await hr.remove_session("w")
                await hr.remove_session("w", force=True)
                with pytest.raises(SessionTakenOverError):
                    await anext(aiter(session))
            assert await hr.sessions() == ()
            with pytest.raises(UnknownSessionError):
                await hr.remove_session("w")

    run(test())


def test_a_script_lists_sessions_and_removes_one(tmp_path: Path) -> None:
    with headrace.sync.open(tmp_path / "d", housekeeping=False) as hr:
        hr.create_stream("orders", subjects=["orders.>"])
        with hr.session("w") as session:
            session.subscribe("orders.>")
        assert [each.record.name for each in hr.sessions()] == ["w"]
        assert hr.remove_session("w") == 0
        assert hr.sessions() == ()


def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            for name in ("a b", "x" * 65):
                with pytest.raises(InvalidNameError):
                    hr.session(name)
            with pytest.raises(InvalidInputError, match="needs a name"):
                hr.session(persistent=True)
            with pytest.raises(InvalidInputError, match="expiry_ms"):
                hr.session("w", expiry_ms=-1)
            closed = hr.session("w")
            with pytest.raises(SessionClosedError):
                await closed.subscribe("orders.>")
            async with hr.session("w") as session:
                bad: list[tuple[str, type[Exception]]] = [
                    ("$share/g", InvalidFilterError),
                    ("$share/g/", InvalidFilterError),
                    ("$share//orders.>", InvalidNameError),
                    ("$share/a b/orders.>", InvalidNameError),
                    ("$shared/g/orders.>.x", InvalidFilterError),
                    ("$queue/g/#/x", InvalidFilterError),
                    ("orders..x", InvalidFilterError),
                    ("", InvalidFilterError),
                ]
                for text, error in bad:
                    with pytest.raises(error):
                        await session.subscribe(text)
                with pytest.raises(InvalidPositionError, match="earliest"):
                    await session.subscribe("orders.>", start="yesterday")
                with pytest.raises(UnknownSubscriptionError):
                    await session.unsubscribe("orders.>")
                assert session.subscriptions == ()
                await session.subscribe(SHARED, start="earliest")
                await session.subscribe(SHARED)
                with pytest.raises(SubscriptionExistsError, match="'earliest', not at 'now'"):
                    await session.subscribe(SHARED, start="now")
            assert [each.properties.key for each in await hr.shared_groups.list()] == ["g:orders.>"]

    run(test())


def test_a_start_before_history_says_where_history_starts(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
            for minutes in range(4):
                when = noon + timedelta(minutes=minutes)
                await hr.publish("orders.n", b"%d" % minutes, timestamp=when)
            await hr.trim("orders", before={0: 2})
            async with hr.session() as session:
                for text in (SHARED, "orders.>"):
                    with pytest.raises(StartBeforeHistoryError, match="12:02:00") as refused:
                        await session.subscribe(text, start=noon)
                    assert refused.value.history_start == "2026-01-01T12:02:00+00:00"
                assert session.subscriptions == ()
                assert await hr.shared_groups.list() == ()
                await session.subscribe(SHARED, start=noon + timedelta(minutes=2))
                assert await take(session, 2) == [b"2", b"3"]

    run(test())


def test_ack_and_publish_join_in_a_transaction_that_the_leader_learns_of(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"])
            await hr.create_stream("bills", ["bills.>"])
            await publish(hr, "orders", 5)
            async with hr.session("w") as session:
                await session.subscribe(SHARED, start="earliest")
                deliveries = aiter(session)
                for _ in range(5):
                    delivery = await anext(deliveries)
                    async with delivery.transaction() as tx:
                        tx.publish("bills.n", b"for " + delivery.value)
                await session.flush()
            assert (await hr.shared_groups.get("g")).lag_events == 0
            found = [v async for b in hr.read("bills") for v in b.column("value").to_pylist()]
            assert len(found) == 5
            async with Worker(hr, "w", SHARED) as again:
                await hr.publish("orders.n", b"last")
                await until(lambda: again.acked, "the next event")
                assert list(again.delivered) == [b"last"]

    run(test())


def test_batches_and_handlers_work_over_sessions(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            await publish(hr, "orders", 100)
            async with hr.session("b") as session:
                await session.subscribe(SHARED, start="earliest")
                seen = 0
                async for batch in session.batches():
                    seen += batch.data.num_rows
                    await batch.ack()
                    if seen == 100:
                        break
            assert (await hr.shared_groups.get("g")).lag_events == 0
            handled: list[bytes] = []

            async def handle(delivery: headrace.Delivery) -> None:
                handled.append(delivery.value)

            async with hr.session("h") as session:
                await session.subscribe("$share/h/orders.>", start="earliest")
                task = asyncio.create_task(session.consume(handle, concurrency=4))
                await until(lambda: len(handled) == 100, "everything to be handled")
                await session.close()
                await task
            assert (await hr.shared_groups.get("h")).lag_events == 0

    run(test())


@pytest.mark.parametrize("text", ["orders.>", SHARED])
def test_a_clean_close_stores_the_last_acks_and_complains_of_nothing(
    catalog_url: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"])
            values = await publish(hr, "orders", 8)
            async with hr.session("w") as session:
                await session.subscribe(text, start="earliest")
                deliveries = aiter(session)
                held = [await anext(deliveries) for _ in range(6)]
                for delivery in held[:4]:
                    delivery.ack_soon()
            assert not caplog.messages
            async with hr.session("w") as session:
                rest = await take(session, 4)
            acked = [delivery.value for delivery in held[:4]]
            assert sorted(acked + rest) == sorted(values)

    caplog.set_level("WARNING", logger="headrace")
    run(test())


def test_an_idle_private_subscription_looks_at_the_log_only_after_news_of_a_stream(
    catalog_url: str,
) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr, open_log(catalog_url) as other:
            await hr.create_stream("orders", ["orders.>"])
            async with hr.session("w") as session:
                await session.subscribe("*.>")
                private = session._private["*.>"]
                await until(lambda: not private.may_have_changed(), "all it heard of was looked at")
                assert len(private.units) == 1
                await other.create_stream("bills", ["bills.>"])
                await until(lambda: len(private.units) == 2, "a stream that is new")

    asyncio.run(test())  # by the real clock: nothing receives news while one is driven


def test_a_private_subscription_goes_over_to_a_stream_that_was_made_anew(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            async with hr.session("w") as session:
                await session.subscribe("orders.>", start="earliest")
                await hr.publish("orders.n", b"old")
                assert await take(session, 1) == [b"old"]
                await hr.delete_stream("orders")
                await hr.create_stream("orders", ["orders.>"])
                await hr.publish("orders.n", b"new")
                deliveries = aiter(session)
                while True:
                    try:
                        delivery = await anext(deliveries)
                    except UnknownStreamError:
                        continue  # it hears of that as well
                    break
                assert delivery.value == b"new"
                await delivery.ack()

    run(test())
