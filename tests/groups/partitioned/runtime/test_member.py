"""Members in one process: what moves and what stays, waiting, standing by, and every answer."""

from __future__ import annotations

import asyncio
import logging
import typing
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import testing
from headrace.catalog import decisions
from headrace.errors import (
    AnsweredError,
    ConsumerClosedError,
    InvalidDeliveryConfigError,
    InvalidGroupConfigError,
    InvalidInputError,
    InvalidNameError,
)
from headrace.groups.decisions import What
from headrace.groups.partitioned.core import config
from headrace.groups.partitioned.core.distribution import moved
from headrace.groups.partitioned.core.messages import Phase
from headrace.groups.partitioned.names import GroupName
from headrace.groups.partitioned.runtime.member import Member
from headrace.log.events import Event
from tests.groups.partitioned.runtime.feeder import fill
from tests.scaling import split_while_empty
from tests.support import until

PATIENCE_S = 30
NAME = GroupName("orders", "billing")


def run(catalog_url: str, work: Callable[[headrace.Headrace], Awaitable[None]]) -> None:
    async def main() -> None:
        async with headrace.open(catalog_url, housekeeping=False) as hr:
            await work(hr)

    testing.run(asyncio.wait_for(main(), PATIENCE_S), autojump=True)


async def make(
    hr: headrace.Headrace, *members: str, partitions: int = 4, distribution: str = "sticky"
) -> None:
    await hr.create_stream("orders", ["orders.>"], segments=2)
    await hr.groups.create_elastic(
        "orders", "billing", max_members=partitions, filter="orders.*.*", wildcards=[2],
        members=members, distribution=distribution,
    )  # fmt: skip


async def send(hr: headrace.Headrace, *numbers: int, keys: int = 10) -> None:
    events = [Event(subject=f"orders.eu.{n % keys}", value=str(n).encode()) for n in numbers]
    await hr.append("orders", events)
    await hr.in_thread(fill, hr.log, NAME)


class Consumed:
    """What members got, in their order, each acked at once."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int, str]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *members: Member) -> None:
        self._tasks += [asyncio.create_task(self._consume(member)) for member in members]

    async def _consume(self, member: Member) -> None:
        async for delivery in member:
            await delivery.ack()
            self.got.append((member.member, int(delivery.value), delivery.subject))

    @property
    def numbers(self) -> list[int]:
        return [n for _, n, _ in self.got]


def test_members_share_the_events_and_see_subjects_without_the_partition(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1", "m2")
        await send(hr, *range(40))
        consumed = Consumed()
        async with (
            hr.join("orders", "billing", "m1") as m1,
            hr.join("orders", "billing", "m2") as m2,
        ):
            consumed.start(m1, m2)
            await until(lambda: len(consumed.got) == 40)
            assert sorted(consumed.numbers) == list(range(40))
            assert {subject for _, _, subject in consumed.got} == {
                f"orders.eu.{n}" for n in range(10)
            }
            for key in range(10):
                own = [n for n in consumed.numbers if n % 10 == key]
                assert own == sorted(own)
            assert (m1.status.partitions, m2.status.partitions) == ((0, 1), (2, 3))
            assert (await hr.groups.lag("orders", "billing")).events == 0
            active = await hr.groups.active("orders", "billing")
            assert (active.active, active.unconsumed) == (("m1", "m2"), ())

    run(catalog_url, work)


def test_a_membership_change_disturbs_only_the_partitions_that_move(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        names = ["m1", "m2", "m3"]
        await make(hr, *names, partitions=16)
        before = (await hr.groups.get("orders", "billing")).config.assignment()
        members = [hr.join("orders", "billing", name) for name in [*names, "m4"]]
        for member in members:
            await member.open()
        for member in members[:3]:
            await member.settled()
        tokens = {p: m.running.core.owned[p] for m in members[:3] for p in m.running.core.owned}
        asked = testing.driven_clock().now_s()
        after = (await hr.groups.add_members("orders", "billing", ["m4"])).config.assignment()
        for member in members:
            await member.settled()
        took_ms = (testing.driven_clock().now_s() - asked) * 1000
        moving = moved(before, after)
        assert len(moving) == 4
        for member in members:
            for partition, token in member.running.core.owned.items():
                assert token == tokens[partition] + (partition in moving)
        assert took_ms < 2_000
        explained = await hr.groups.explain("orders", "billing")
        assert explained.findings == ()
        await until_decided(hr, What.MOVED, moving)

    run(catalog_url, work)


async def until_decided(hr: headrace.Headrace, what: What, partitions: list[int]) -> None:
    while True:
        decisions = (await hr.groups.explain("orders", "billing")).decisions
        if sorted(p for p in range(16) for d in decisions if d.what is what and d.concerns(p)) == (
            partitions
        ):
            return
        await asyncio.sleep(0.01)


def test_a_partition_moves_only_after_its_owner_has_finished(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        await send(hr, *range(4), keys=1)
        async with (
            hr.join("orders", "billing", "m1") as m1,
            hr.join("orders", "billing", "m2") as m2,
        ):
            await m1.settled()
            held = await anext(aiter(m1))
            await hr.groups.set_mappings("orders", "billing", {"m2": range(4)})
            await m2.wait_until(lambda: m2.running.core.waits_for_claims)
            (partition,) = m1.running.core.owned
            assert partition not in m2.running.core.owned
            consumed = Consumed()
            consumed.start(m2)
            acked = testing.driven_clock().now_s()
            await held.ack()
            await m2.settled()
            assert testing.driven_clock().now_s() - acked < 1.0
            await until(lambda: len(consumed.got) == 3)
            assert consumed.numbers == [1, 2, 3]
            assert m1.running.core.phase is Phase.WAITING

    run(catalog_url, work)


def test_a_name_that_is_no_member_waits_and_says_so_until_it_is_one(
    catalog_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async with hr.join("orders", "billing", "m9") as member:
            assert member.status.phase is Phase.WAITING
            assert member.status.explanation[1] == "there is no such group"
            await make(hr, "m1")
            wanted = "m9 is not a member of the group; members are: m1"
            await member.wait_until(lambda: wanted in member.status.explanation)
            with caplog.at_level(logging.WARNING):
                await hr.groups.add_members("orders", "billing", ["m9"])
                await member.settled()
            await hr.groups.drop_members("orders", "billing", ["m9"])
            await member.wait_for(Phase.WAITING)
        assert wanted in caplog.text

    run(catalog_url, work)


def test_an_instance_stands_by_until_the_active_one_closes(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        first = hr.join("orders", "billing", "m1", pin_ttl_ms=60_000)
        await first.open()
        await first.settled()
        async with hr.join("orders", "billing", "m1", pin_ttl_ms=60_000) as second:
            await second.wait_until(
                lambda: "holds the pin" in second.running.core.decisions[-1].reason
            )
            closed = testing.driven_clock().now_s()
            await first.close()
            await second.settled()
            assert testing.driven_clock().now_s() - closed < 1.0
            assert first.running.core.phase is Phase.CLOSED
            await first.close()  # once more does no harm

    run(catalog_url, work)


def test_a_group_that_is_deleted_and_made_again_is_consumed_from_its_new_start(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        await send(hr, 1, 2, 3)
        async with hr.join("orders", "billing", "m1") as member:
            consumed = Consumed()
            consumed.start(member)
            await until(lambda: len(consumed.got) == 3)
            token = member.running.core.pin_token
            await hr.groups.delete("orders", "billing")
            await member.wait_for(Phase.WAITING)
            await hr.groups.create_elastic(
                "orders", "billing", max_members=2, filter="orders.*.*", wildcards=[2],
                members=["m1"],
            )  # fmt: skip
            await member.settled()
            assert member.running.core.pin_token is not None
            assert token is not None
            assert member.running.core.pin_token > token
            await send(hr, 4)
            await until(lambda: len(consumed.got) == 7)
            assert sorted(consumed.numbers) == [1, 1, 2, 2, 3, 3, 4]

    run(catalog_url, work)


def test_a_stream_that_is_deleted_and_made_again_is_consumed_again(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        async def make_stream(*numbers: int) -> None:
            await hr.create_stream("orders", ["orders.>"], partitions=2)
            for n in numbers:
                await hr.publish(f"orders.{n}", str(n).encode())

        await make_stream(0, 1, 2)
        await hr.groups.create_static("orders", "audit", max_members=2, members=["a"])
        async with hr.join("orders", "audit", "a") as member:
            consumed = Consumed()
            consumed.start(member)
            await until(lambda: len(consumed.got) == 3)
            await hr.delete_stream("orders", force=True)
            await member.wait_for(Phase.WAITING)
            await make_stream(3, 4)
            await hr.groups.create_static("orders", "audit", max_members=2, members=["a"])
            await until(lambda: len(consumed.got) == 5)
            assert sorted(consumed.numbers) == [0, 1, 2, 3, 4]

    run(catalog_url, work)


def test_a_static_group_on_a_stream_with_partitions(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"], partitions=3)
        await hr.append(
            "orders",
            [Event(subject=f"orders.{n % 2}.{n}", value=str(n).encode()) for n in range(20)],
        )
        await hr.groups.create_static(
            "orders", "audit", max_members=3, members=["a", "b"], filter="orders.1.*"
        )
        consumed = Consumed()
        async with hr.join("orders", "audit", "a") as a, hr.join("orders", "audit", "b") as b:
            consumed.start(a, b)
            await until(lambda: len(consumed.got) == 10)
            assert sorted(consumed.numbers) == list(range(1, 20, 2))
            assert (a.status.partitions, b.status.partitions) == ((0, 2), (1,))

            async def all_acked() -> bool:
                return (await hr.groups.lag("orders", "audit")).events == 0

            await until(all_acked)

    run(catalog_url, work)


def test_a_static_group_on_subjects_that_carry_the_partition_follows_a_split(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", [">"], segments=2)

        async def send_to(partitions: int, start: int, end: int) -> None:
            events = [
                Event(subject=f"{n % partitions}.orders.{n % 7}", value=str(n).encode())
                for n in range(start, end)
            ]
            await hr.append("orders", [*events, Event(subject="no.partition", value=b"-1")])

        await send_to(4, 0, 50)
        await hr.groups.create_static(
            "orders", "audit", max_members=4, mappings={"a": [0, 3], "b": [1, 2]}
        )
        consumed = Consumed()
        async with hr.join("orders", "audit", "a") as a, hr.join("orders", "audit", "b") as b:
            consumed.start(a, b)
            await until(lambda: len(consumed.got) == 50)
            for segment in (await hr.stream("orders")).open_segments:
                await hr.split("orders", segment.number)
            await send_to(4, 50, 100)
            await until(lambda: len(consumed.got) == 100)
            assert sorted(consumed.numbers) == list(range(100))
            assert {n % 4 for name, n, _ in consumed.got if name == "a"} == {0, 3}
            assert {subject for _, _, subject in consumed.got} == {f"orders.{n}" for n in range(7)}
            assert (a.status.partitions, b.status.partitions) == ((0, 3), (1, 2))
            for key in range(28):
                own = [n for n in consumed.numbers if n % 28 == key]
                assert own == sorted(own)
            token = a.running.core.pin_token
            await hr.groups.step_down("orders", "audit", "a")
            await a.wait_until(lambda: a.running.core.pin_token != token)

    run(catalog_url, work)


def test_a_static_group_keeps_keys_in_order_over_a_split_of_an_empty_segment(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", [">"])
        await hr.groups.create_static("orders", "audit", max_members=1, members=["a"])
        expected = await hr.in_thread(split_while_empty, hr.log, "orders", "0.orders")
        consumed = Consumed()
        async with hr.join("orders", "audit", "a") as member:
            consumed.start(member)
            await until(lambda: len(consumed.got) >= len(expected))
        assert consumed.numbers == expected

    run(catalog_url, work)


def test_an_elastic_group_keeps_keys_in_order_over_a_split_of_an_empty_segment(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", ["orders.>"])
        await hr.groups.create_elastic(
            "orders", "billing", max_members=2, filter="orders.*.*", wildcards=[2],
            members=["m1"], max_buffered=50,
        )  # fmt: skip
        expected = await hr.in_thread(split_while_empty, hr.log, "orders", "orders.eu.1")
        consumed = Consumed()
        async with hr.join("orders", "billing", "m1") as member:
            consumed.start(member)
            while len(consumed.got) < len(expected):
                await hr.in_thread(fill, hr.log, NAME)
                await testing.driven_clock().settle()
        assert consumed.numbers == expected

    run(catalog_url, work)


def test_a_share_goes_on_where_the_instance_before_it_stopped(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await hr.create_stream("orders", [">"], segments=3)
        await hr.groups.create_static("orders", "audit", max_members=2, members=["a"])
        seen: list[int] = []
        for start in range(0, 60, 20):
            await hr.append(
                "orders",
                [
                    Event(subject=f"{n % 2}.k{n}", value=str(n).encode())
                    for n in range(start, start + 20)
                ],
            )
            if start:
                await hr.split("orders", (await hr.stream("orders")).open_segments[0].number)
            async with hr.join("orders", "audit", "a") as member:
                async for delivery in member:
                    seen.append(int(delivery.value))
                    delivery.ack_soon()
                    if len(seen) == start + 15:
                        break
        async with hr.join("orders", "audit", "a") as member:
            async for batch in member.batches():
                seen += [int(value) for value in batch.data.column("value").to_pylist()]
                await batch.ack()
                if len(seen) >= 60:
                    break
        assert sorted(seen) == list(range(60))

    run(catalog_url, work)


def test_answers_that_come_twice_or_too_late_are_errors(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        await send(hr, 0, 1)
        async with hr.join("orders", "billing", "m1") as member:
            deliveries = aiter(member)
            first, second = await anext(deliveries), await anext(deliveries)
            await first.ack()
            with pytest.raises(AnsweredError, match="acked already"):
                await first.ack()
        with pytest.raises(ConsumerClosedError, match="does not count"):
            await second.ack()
        with pytest.raises(StopAsyncIteration):
            await anext(deliveries)
        async with hr.join("orders", "billing", "m1") as member:
            assert (await anext(aiter(member))).value == second.value

    run(catalog_url, work)


def test_a_member_that_closes_while_it_hands_over_does_not_wait_for_answers(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        await send(hr, 0)
        member = hr.join("orders", "billing", "m1", pin_ttl_ms=60_000)
        await member.open()
        held = await anext(aiter(member))
        await hr.groups.set_mappings("orders", "billing", {"m2": range(4)})
        await member.wait_for(Phase.STEPPING_DOWN)
        await member.close()
        assert member.running.core.phase is Phase.CLOSED
        with pytest.raises(ConsumerClosedError):
            await held.ack()
        async with hr.join("orders", "billing", "m2") as other:
            assert (await anext(aiter(other))).value == b"0"

    run(catalog_url, work)


def test_a_damaged_config_is_refused_and_running_members_go_on(
    catalog_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        async with hr.join("orders", "billing", "m1") as member:
            await member.settled()
            before = hr.log.catalog.entries.get("elastic-consumer-groups", "orders.billing")
            assert before is not None
            assert before.value is not None
            hr.log.catalog.entries.put("elastic-consumer-groups", "orders.billing", b"{}")
            await until(lambda: "stays as it was" in caplog.text)
            with pytest.raises(InvalidGroupConfigError, match="not a config"):
                await hr.groups.get("orders", "billing")
            await send_raw(hr, before.value)
            await send(hr, 5)
            delivery = await anext(aiter(member))
            await delivery.ack()
            assert delivery.value == b"5"

    run(catalog_url, work)


async def send_raw(hr: headrace.Headrace, value: bytes) -> None:
    """Put a config back as it was."""
    await hr.in_thread(
        hr.log.catalog.entries.put, "elastic-consumer-groups", "orders.billing", value
    )


def test_a_handler_that_raises_gets_the_event_again_and_the_member_lives(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        await send(hr, *range(6))
        attempts: dict[int, int] = {}
        done = asyncio.Event()

        async def handler(delivery: headrace.Delivery) -> None:
            number = int(delivery.value)
            attempts[number] = delivery.attempt
            if number == 3 and delivery.attempt == 1:
                raise RuntimeError("a bad day")
            if len(attempts) == 6 and attempts[3] == 2:
                done.set()

        async with hr.join("orders", "billing", "m1", backoff_min_ms=1) as member:
            consuming = asyncio.create_task(member.consume(handler, concurrency=3))
            await done.wait()
            assert member.running.core.phase is Phase.PINNED
        await consuming
        assert attempts == {n: 2 if n == 3 else 1 for n in range(6)}

    run(catalog_url, work)


def test_a_member_that_holds_events_and_answers_none_loses_its_partitions(
    catalog_url: str,
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        await make(hr, "m1")
        await send(hr, 0)
        async with hr.join("orders", "billing", "m1", stall_after_ms=100) as idle:
            held = await anext(aiter(idle))
            async with hr.join("orders", "billing", "m1") as other:
                consumed = Consumed()
                consumed.start(other)
                await until(lambda: consumed.numbers == [0])
                with pytest.raises(headrace.Fenced):
                    await held.ack()
                evicted = [
                    d.reason for d in idle.running.core.decisions if d.what.value == "evicted"
                ]
                assert evicted == [f"its consumer answers nothing on partition {held.segment}"]

    run(catalog_url, work)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_pendign": 1}, InvalidInputError, "unknown option 'max_pendign'; options are: ack_"),
        ({"pin_ttl_ms": 1}, InvalidInputError, "pin_ttl_ms is 1; it must be 10 or more"),
        ({"pin_ttl_ms": "soon"}, InvalidInputError, "pin_ttl_ms is 'soon'"),
        ({"max_pending": 0}, InvalidDeliveryConfigError, "max_pending is 0"),
        ({"max_pending": "many"}, InvalidInputError, "max_pending"),
        ({"prefetch_bytes": 0}, InvalidDeliveryConfigError, "prefetch_bytes is 0"),
    ],
)
def test_bad_options_of_a_join_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    async def work(hr: headrace.Headrace) -> None:
        with pytest.raises(error, match=message):
            hr.join("orders", "billing", "m1", **options)
        for names in (("or.ders", "g", "m"), ("orders", "g g", "m"), ("orders", "g", "m.1")):
            with pytest.raises((InvalidNameError, InvalidGroupConfigError)):
                hr.join(*names)

    run(str(tmp_path), work)


def test_many_members_of_one_group_in_one_process(catalog_url: str) -> None:
    async def work(hr: headrace.Headrace) -> None:
        names = [f"m{n}" for n in range(100)]
        await make(hr, *names, partitions=256)
        members = [hr.join("orders", "billing", name) for name in [*names, *names[:20]]]
        await asyncio.gather(*(member.open() for member in members))
        await until(
            lambda: (
                sum(bool(m.running.core.owned) and m.running.core.settled for m in members) == 100
            )
        )
        active = await hr.groups.active("orders", "billing")
        assert (len(active.active), active.unconsumed) == (100, ())
        commits = hr.log.catalog.statistics()["operations"]
        renewed = {
            m: m.running.core._pin_until_ms for m in members if m.running.core.phase is Phase.PINNED
        }
        assert len(renewed) == 100
        await asyncio.gather(
            *(m.wait_until(lambda m=m: m.running.core._pin_until_ms > renewed[m]) for m in renewed)  # type: ignore[misc]
        )
        # All renewals of a moment share one transaction.
        assert hr.log.catalog.statistics()["operations"] - commits < 20

    run(catalog_url, work)


def test_scripts_join_and_administer_without_await(catalog_url: str) -> None:
    import headrace.sync

    with headrace.sync.open(catalog_url, housekeeping=False) as hr:
        hr.create_stream("orders", ["orders.>"])
        made = hr.groups.create_elastic(
            "orders", "billing", max_members=2, filter="orders.*", wildcards=[1], members=["m1"]
        )
        assert hr.groups.get("orders", "billing") == made
        for n in range(4):
            hr.publish(f"orders.{n}", str(n).encode())
        fill(hr.client.log, NAME)
        seen = []
        with hr.join("orders", "billing", "m1") as member:
            for delivery in member:
                seen.append(int(delivery.value))
                delivery.ack()
                if len(seen) == 2:
                    break
            assert member.status.phase is Phase.PINNED
        with hr.join("orders", "billing", "m1") as member:
            for batch in member.batches():
                seen += [int(value) for value in batch.data.column("value").to_pylist()]
                batch.ack()
                if len(seen) == 4:
                    break
        assert sorted(seen) == [0, 1, 2, 3]
        assert hr.groups.lag("orders", "billing").events == 0
        assert hr.groups.add_members("orders", "billing", ["m2"]).config.members == ("m1", "m2")
        assert [info.name.group for info in hr.groups.list("orders")] == ["billing"]
        hr.groups.delete("orders", "billing")
        assert hr.groups.list() == ()


def test_many_that_join_together_share_the_work(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a group is worked out for all of them, and not for each."""
    counts = Counter[str]()

    def count(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: object, **options: object) -> object:
            counts[name] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    async def work(hr: headrace.Headrace) -> None:
        names = [f"m{number}" for number in range(30)]
        await hr.create_stream("orders", ["orders.>"], partitions=30)
        await hr.groups.create_static("orders", "billing", max_members=30, members=names)
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(hr.join("orders", "billing", names[0]))
            await first.settled()
            count(config, "blocks")
            count(decisions, "last")
            count(typing, "get_type_hints")
            joining = (hr.join("orders", "billing", name) for name in names[1:])
            joined = await asyncio.gather(*map(stack.enter_async_context, joining))
            await asyncio.gather(*(member.settled() for member in joined))
            assert counts["blocks"] < 10, "the assignment"
            assert counts["last"] < 10, "what their decisions follow from"
            assert not counts["get_type_hints"], "what options have to be"

    run(catalog_url, work)
