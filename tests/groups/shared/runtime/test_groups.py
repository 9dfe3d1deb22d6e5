"""Shared groups at work in one process, on real catalogs: nothing missing, nothing twice."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace
from headrace.catalog import leases
from headrace.errors import (
    CatalogUnavailableError,
    InvalidInputError,
    SharedGroupBusyError,
    SharedGroupExistsError,
    UnknownSharedGroupError,
)
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.delivery.messages import DeliveryConfig
from headrace.groups.shared import properties
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.core.records import Commit
from headrace.groups.shared.core.settings import Balance, InvalidSharedSettingsError
from headrace.groups.shared.runtime import state
from tests.groups.shared.runtime.support import (
    QUICK_LEADER,
    Worker,
    count,
    more_than,
    open_log,
    publish,
    run,
    total,
)
from tests.support import until

SHARED = "$share/g/orders.>"


def in_order(workers: list[Worker]) -> bool:
    """Whether every worker saw the events of each key in the order they were published."""
    return all(
        numbers == sorted(numbers)
        for worker in workers
        for values in worker.order.values()
        for numbers in [[int(value.rpartition(b"-")[2]) for value in values]]
    )


async def units_of(hr: headrace.Headrace) -> Counter[str]:
    """How many units each member of the group has."""
    info = await hr.shared_groups.get("g")
    return Counter(unit.owner for unit in info.units if unit.owner)


def test_nothing_missing_and_nothing_twice_under_constant_reassignment(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d", quick=False) as hr:
            for stream in ("orders", "refunds"):
                await hr.create_stream(stream, [f"{stream}.>"], segments=4)
            await hr.shared_groups.declare("g", ">")
            text = "$share/g/>"
            workers: list[Worker] = []

            def through(goal: int) -> bool:
                return done.is_set() or count(*workers) > goal

            async def come_and_go(name: str) -> None:
                turn = 0
                while not done.is_set():
                    turn += 1
                    soon = turn % 4 != 0
                    async with Worker(
                        hr, f"{name}-{turn}", text, soon=soon, takes_s=0.0002
                    ) as worker:
                        workers.append(worker)
                        goal = count(*workers) + 1500
                        await until(functools.partial(through, goal), "more events")

            done = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for name in ("a", "b", "c"):
                    tasks.create_task(come_and_go(name))
                values = [
                    *await publish(hr, "orders", 10_000, keys=200),
                    *await publish(hr, "refunds", 10_000, keys=200),
                ]
                await until(lambda: count(*workers) >= 20_000, "all events")
                done.set()
            assert len(workers) > 6
            delivered: Counter[bytes] = Counter()
            for worker in workers:
                assert (worker.ended, worker.fenced) == (None, 0)
                delivered += worker.delivered
            assert delivered == dict.fromkeys(values, 1)
            assert in_order(workers)

    run(test())


def test_two_clients_share_and_the_second_takes_its_part(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=4)
            async with Worker(hr, "a", SHARED) as a:
                await until(lambda: len(a.session.units) == 4, "all units at the first")
                async with Worker(hr, "b", SHARED) as b:
                    await until(lambda: len(b.session.units) == 2, "its share at the second")
                    values = await publish(hr, "orders", 200)
                    await until(lambda: count(a, b) == 200, "all events")
                    assert min(len(a.acked), len(b.acked)) > 0
                    assert total(a, b) == dict.fromkeys(values, 1)
                await until(lambda: len(a.session.units) == 4, "everything back at the first")

    run(test())


def test_acked_events_do_not_come_again_after_a_disconnect(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            values = await publish(hr, "orders", 20, keys=20)
            async with hr.session("a") as session:
                await session.subscribe(SHARED, start="earliest")
                deliveries = aiter(session)
                held = [await anext(deliveries) for _ in range(20)]
                kept = [one for at, one in enumerate(held) if at % 3 == 0]
                for delivery in held:
                    if delivery not in kept:
                        await delivery.ack()
            async with Worker(hr, "b", SHARED) as b:
                await until(lambda: len(b.acked) == len(kept), "what was not acked")
                await hr.publish("orders.0", b"last", key="0")
                await until(lambda: b.acked[b"last"], "the next event")
                assert b.delivered == {b"last": 1, **{one.value: 1 for one in kept}}
            assert {one.value for one in held} == set(values)

    run(test())


def test_fifty_groups_of_twenty_subscribers_are_complete(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d", quick=False) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=4)
            texts = [f"$share/g{n}/orders.>" for n in range(50)]
            for n in range(50):
                await hr.shared_groups.declare(f"g{n}", "orders.>")
            async with AsyncExitStack() as stack:
                workers = await asyncio.gather(
                    *(stack.enter_async_context(Worker(hr, f"w{n}", *texts)) for n in range(20))
                )
                values = await publish(hr, "orders", 40)
                await until(lambda: count(*workers) >= 50 * 40, "all events", 50)
                assert total(*workers) == dict.fromkeys(values, 50)

    run(test())


def test_one_joins_while_another_leaves_in_mid_stream(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=4)
            async with Worker(hr, "a", SHARED) as a:
                publishing = asyncio.create_task(publish(hr, "orders", 2000))
                await until(lambda: len(a.acked) > 100, "the first to be at it")
                async with Worker(hr, "b", SHARED) as b:
                    await a.close()
                    values = await publishing
                    await until(lambda: count(a, b) == 2000, "all events")
                    assert total(a, b) == dict.fromkeys(values, 1)
                    assert a.delivered + b.delivered == total(a, b)

    run(test())


def test_ten_quick_unsubscribes_and_subscribes(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=4)
            async with Worker(hr, "a", SHARED) as a, Worker(hr, "b", SHARED) as b:
                publishing = asyncio.create_task(publish(hr, "orders", 1000))
                for _ in range(10):
                    await a.session.unsubscribe(SHARED)
                    await a.session.subscribe(SHARED)
                values = await publishing
                await until(lambda: count(a, b) >= 1000, "all events")
                assert a.delivered + b.delivered == dict.fromkeys(values, 1)
                await until(lambda: len(a.session.units) == 2, "its share again")
                await until(lambda: len(b.session.units) == 2, "the other's share")

    run(test())


def test_a_group_collects_with_no_member_present(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            await publish(hr, "orders", 5)
            await hr.shared_groups.declare("g", "orders.>", settings=QUICK_LEADER)
            await hr.shared_groups.declare("old", "orders.>", start="earliest")
            await hr.split("orders", 0)
            later = await publish(hr, "orders", 10)
            await hr.create_stream("audit", ["orders-audit.>"])
            await hr.shared_groups.declare("all", ">", settings=QUICK_LEADER)
            await hr.create_stream("new", ["new.>"])
            await hr.publish("new.n", b"new")
            assert (await hr.shared_groups.get("g")).lag_events == 10
            assert (await hr.shared_groups.get("old")).lag_events == 15
            await hr.in_thread(hr.log.append_marker, "orders", 1, b"m")
            assert (await hr.shared_groups.get("old")).lag_events == 15
            async with Worker(hr, "a", SHARED, "$share/all/>") as a:
                await until(lambda: a.count == 11, "what was collected")
                assert a.acked == dict.fromkeys((*later, b"new"), 1)

    run(test())


def test_streams_split_and_merge_under_a_live_group(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(hr, "a", SHARED) as a, Worker(hr, "b", SHARED) as b:
                publishing = asyncio.create_task(publish(hr, "orders", 3000))
                for turn in range(4):
                    await until(functools.partial(more_than, 300 * turn, a, b), "some progress")
                    stream = await hr.stream("orders")
                    opened = stream.open_segments
                    if turn % 2:
                        await hr.merge("orders", [opened[0].number, opened[1].number])
                    else:
                        await hr.split("orders", opened[turn % len(opened)].number, 3)
                values = await publishing
                await until(lambda: count(a, b) >= 3000, "all events")
                assert a.delivered + b.delivered == dict.fromkeys(values, 1)
                groups = Groups(hr.log)
                await until(
                    lambda: sum(unit.finished for unit in groups.get("g").units) >= 4,
                    "the end of the sealed segments",
                )

    run(test())


def test_keys_stay_in_order_through_splits(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            seen: list[int] = []
            async with hr.session("w") as session:
                await session.subscribe(SHARED)

                async def handle(delivery: headrace.Delivery) -> None:
                    seen.append(int(delivery.value))

                task = asyncio.create_task(session.consume(handle))
                for number in range(60):
                    await hr.publish("orders.n", b"%d" % number, key="one")
                    if number % 15 == 7:
                        stream = await hr.stream("orders")
                        await hr.split("orders", stream.open_segments[0].number)
                await until(lambda: len(seen) >= 60, "all events")
                await session.close()
                await task
            assert seen == list(range(60))

    run(test())


def test_members_beyond_the_segments_stand_by_and_are_told_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with AsyncExitStack() as stack:
                workers = [
                    await stack.enter_async_context(Worker(hr, f"w{n}", SHARED)) for n in range(3)
                ]

                async def told() -> bool:
                    found = await hr.shared_groups.explain("g")
                    idle = [why for _, units, why in found.members if not units]
                    return len(found.members) == 3 and len(idle) == 1 and "stands by" in idle[0]

                await until(told)
                busy = next(worker for worker in workers if worker.session.units)
                await busy.close()
                rest = [worker for worker in workers if worker is not busy]
                await until(
                    lambda: all(len(worker.session.units) == 1 for worker in rest),
                    "the one that stood by",
                )

    run(test())


def test_the_hottest_segment_is_split_for_members_without_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            await hr.shared_groups.declare(
                "g", "orders.>", scale_for_members=True, settings=QUICK_LEADER
            )
            async with Worker(hr, "a", SHARED) as a, Worker(hr, "b", SHARED) as b:
                values = await publish(hr, "orders", 100)
                await until(lambda: a.session.units and b.session.units, "a unit for both")
                values += [b"more"]
                await hr.publish("orders.0", b"more", key="0")
                await until(lambda: count(a, b) == 101, "all events")
                assert a.delivered + b.delivered == dict.fromkeys(values, 1)
                assert len((await hr.stream("orders")).open_segments) == 2

    run(test())


def test_balance_by_lag_gives_the_heavy_segment_a_member_of_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=4)
            await publish(hr, "orders", 200, keys=1)
            heavy = next(s.number for s in (await hr.stream("orders")).segments if s.head)
            await hr.shared_groups.declare(
                "g", "orders.>", start="earliest", balance="lag", settings=QUICK_LEADER
            )
            async with hr.session("a") as a, hr.session("b") as b:
                for session in (a, b):
                    await session.subscribe(SHARED)
                name = f"orders/{heavy}@g:orders.>"
                await until(
                    lambda: (
                        sorted((len(s.units), name in s.units) for s in (a, b))
                        == [(1, True), (3, False)]
                    ),
                    "the heavy one alone",
                )
            info = await hr.shared_groups.get("g")
            assert info.properties.balance is Balance.LAG

    run(test())


def test_destroying_a_group_with_live_clients_delivers_nothing_afterwards(
    catalog_url: str,
) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(hr, "a", SHARED, soon=False) as a:
                await publish(hr, "orders", 10)
                await until(lambda: a.count == 10, "all events")

                with pytest.raises(SharedGroupBusyError, match="1 live member"):
                    await hr.shared_groups.delete("g")
                await hr.shared_groups.delete("g", force=True)
                await until(lambda: not a.session.units, "the units to go")
                await publish(hr, "orders", 10)
                assert await hr.shared_groups.list() == ()
                with pytest.raises(UnknownSharedGroupError, match="none yet"):
                    await hr.shared_groups.get("g")
                # Declared again, it begins anew, and the client that stayed takes part.
                await hr.shared_groups.declare("g", "orders.>", settings=QUICK_LEADER)
                await hr.publish("orders.0", b"again")
                await until(lambda: a.acked[b"again"], "the new group's first event")
                assert sum(a.delivered.values()) == 11

    run(test())


def test_a_commit_that_failed_does_not_wait_for_the_next_tick(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=1)
            slow = msgspec.structs.replace(QUICK_LEADER, tick_ms=300_000, lease_ttl_ms=600_000)
            await hr.shared_groups.declare("g", "orders.>", settings=slow)
            async with hr.session("a") as session:
                await session.subscribe(SHARED)
                await until(lambda: session.units, "the unit")
                (leading,) = (await hr._shared.peer()).leaders.values()
                store, failures = leading._store, iter(range(3))

                def fail(commit: Commit) -> None:
                    if next(failures, None) is None:
                        store(commit)
                    else:
                        error = CatalogUnavailableError("gone for a moment")
                        asyncio.get_running_loop().call_soon(leading._stored, commit, [], error)

                leading._store = fail  # type: ignore[method-assign]
                await publish(hr, "orders", 1)
                await (await anext(aiter(session))).ack()
                assert next(failures, None) is None

    run(test())


def test_a_leader_that_was_replaced_is_refused_by_the_catalog(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(hr, "a", SHARED, soon=False) as a:
                await publish(hr, "orders", 10)
                await until(lambda: a.count == 10, "all events")
                peer = await hr._shared.peer()
                before = peer.leaders["g:orders.>"]
                # Somebody else takes the lease, as if this process had been frozen for long.
                name = state.lease_name("g:orders.>")
                taken = hr.log.catalog.write(
                    lambda tx: leases.seize(tx, name, "elsewhere", 200), locks=(leases.lock(name),)
                )
                assert taken.token > before.token
                await until(lambda: before.core.deposed, "the old leader to step down")
                await publish(hr, "orders", 10)
                await until(lambda: a.count == 20, "a new leader, and its events")
                after = peer.leaders["g:orders.>"]
                assert after.token > taken.token
                assert a.delivered == a.acked

    run(test())


def test_a_member_that_pings_but_never_acks_is_evicted(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            settings = msgspec.structs.replace(QUICK_LEADER, stall_timeout_ms=400)
            await hr.shared_groups.declare("g", "orders.>", settings=settings)
            async with hr.session("lazy") as lazy:
                await lazy.subscribe(SHARED)
                await publish(hr, "orders", 10)
                held = await anext(aiter(lazy))
                async with Worker(hr, "busy", SHARED) as busy:
                    await until(lambda: len(busy.acked) == 10, "all events at the other")
                    with pytest.raises(headrace.Fenced):
                        await held.ack()

                    async def reason() -> bool:
                        found = await hr.shared_groups.explain("g")
                        return any("acks nothing" in each.reason for each in found.decisions)

                    await until(reason)

    run(test())


async def never_answer(session: headrace.Session) -> None:
    async for _ in session:
        pass


async def refuse(session: headrace.Session) -> None:
    async for delivery in session:
        await delivery.nack(delay_ms=50)


@pytest.mark.parametrize(("answer", "evicted"), [(never_answer, True), (refuse, False)])
def test_who_answers_nothing_is_evicted_though_its_events_time_out_but_who_refuses_is_not(
    tmp_path: Path, answer: Callable[[headrace.Session], Coroutine[Any, Any, None]], evicted: bool
) -> None:
    """Events whose time is over come again and count as attempts: that is no answer."""

    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"])
            settings = msgspec.structs.replace(QUICK_LEADER, stall_timeout_ms=1000)
            await hr.shared_groups.declare("g", "orders.>", settings=settings)
            patience = ConsumerOptions(delivery=DeliveryConfig(ack_wait_ms=150))
            async with hr.session("slow", options=patience) as session:
                await session.subscribe(SHARED)
                await publish(hr, "orders", 3)
                answering = asyncio.create_task(answer(session))
                await asyncio.sleep(3)
                decided = (await hr.shared_groups.explain("g")).decisions
                assert any("acks nothing" in each.reason for each in decided) == evicted
                answering.cancel()

    run(test())


def test_a_stream_that_is_deleted_and_made_again_begins_anew(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            async with Worker(hr, "a", SHARED) as a:
                await publish(hr, "orders", 10)
                await until(lambda: a.count == 10, "all events")
                await hr.delete_stream("orders", force=True)
                await hr.create_stream("orders", ["orders.>"], segments=2)
                await a.stop()
                await publish(hr, "orders", 10)
            async with Worker(hr, "a", SHARED) as a:
                await until(lambda: a.count == 10, "the events of the new stream")

    run(test())


def test_a_group_is_declared_once_and_found_by_name(catalog_url: str) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"])
            first = await hr.shared_groups.declare("g", "orders/+", start="earliest")
            assert first.filter == "orders.*"
            assert await hr.shared_groups.declare("g", "orders.*", start="earliest") == first
            with pytest.raises(SharedGroupExistsError):
                await hr.shared_groups.declare("g", "orders.*", balance="lag")
            await hr.shared_groups.declare("g", "orders.>")
            with pytest.raises(InvalidInputError, match="several filters"):
                await hr.shared_groups.get("g")
            assert (await hr.shared_groups.get("g", "orders.>")).properties.start == "now"
            with pytest.raises(UnknownSharedGroupError, match="g:orders"):
                await hr.shared_groups.get("h")
            for wrong in ("a b", ""):
                with pytest.raises(InvalidInputError):
                    await hr.shared_groups.declare(wrong, "orders.>")
            with pytest.raises(InvalidInputError):
                await hr.shared_groups.declare("g", "orders..>")
            with pytest.raises(ValueError):
                await hr.shared_groups.declare("x", "orders.>", balance="luck")
            await hr.shared_groups.delete("g", "orders.*")
            assert [info.properties.key for info in await hr.shared_groups.list()] == ["g:orders.>"]

    run(test())


def test_a_group_with_a_setting_that_is_no_more_is_still_found(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            declared = await hr.shared_groups.declare("g", "orders.>")

            def as_before(value: bytes | None) -> bytes:
                assert value is not None
                found = msgspec.json.decode(value)
                found["settings"]["commit_records_max"] = 2000
                return msgspec.json.encode(found)

            hr.log.catalog.entries.update(properties.BUCKET, declared.key, as_before)
            assert (await hr.shared_groups.get("g")).properties == declared

    run(test())


def test_a_group_starts_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_log(tmp_path / "d") as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
            for minutes in range(20):
                when = noon + timedelta(minutes=minutes)
                await hr.publish(f"orders.{minutes}", b"%d" % minutes, timestamp=when)
            await hr.shared_groups.declare("g", "orders.>", start=noon + timedelta(minutes=15))
            async with Worker(hr, "a", SHARED) as a:
                await until(lambda: len(a.acked) == 5, "the last five")
                assert set(a.acked) == {b"15", b"16", b"17", b"18", b"19"}

    run(test())


def test_timers_and_balance_of_a_running_group_are_changed_without_an_election(
    catalog_url: str,
) -> None:
    async def test() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=4)
            async with Worker(hr, "a", SHARED, start="earliest") as worker:
                await until(lambda: len(worker.session.units) == 4, "all units")
                (leading,) = (await hr._shared.peer()).leaders.values()
                wanted = msgspec.structs.replace(QUICK_LEADER, lease_ttl_ms=4000, tick_ms=50)
                await hr.shared_groups.configure("g", settings=wanted)
                await hr.shared_groups.configure("g", balance="lag", stall_timeout_ms=90_000)
                told = msgspec.structs.replace(wanted, balance=Balance.LAG, stall_timeout_ms=90_000)
                await until(lambda: leading.core.settings == told, "the leader to hear of it")
                assert (await hr.shared_groups.get("g")).properties.settings == told
                values = await publish(hr, "orders", 100)
                await until(lambda: total(worker).total() == len(values), "every event")
                info = await hr.shared_groups.get("g")
                assert (info.leader_token, leading.core.deposed) == (leading.token, False)
            with pytest.raises(UnknownSharedGroupError):
                await hr.shared_groups.configure("nope", balance="lag")
            with pytest.raises(InvalidSharedSettingsError, match="stall_timeout_ms"):
                await hr.shared_groups.configure("g", stall_ms=1)

    run(test())
