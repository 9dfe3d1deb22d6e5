"""Looking again and again: what is as it was is not made anew, and what was changed is seen."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec import structs

from headrace.catalog import Tx, claims, entries, leases
from headrace.catalog.memory import Memory
from headrace.catalog.streams import StreamConfig
from headrace.groups import lag, names, view
from headrace.groups.partitioned import admin, lifecycle
from headrace.groups.partitioned.filling import PIPELINE
from headrace.groups.partitioned.names import GroupName
from headrace.groups.picture import REMEMBERED_US, Memories
from headrace.groups.progress import Progress
from headrace.groups.progress.store import join
from headrace.groups.readers import admin as readers
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.shapes import GroupView
from headrace.groups.shared.admin import Groups
from headrace.groups.shared.keys import FINISHED, SESSIONS_BUCKET, leader_lease, session_lease
from headrace.log.events import Event
from headrace.log.log import Log

SHARED = "audit:orders.>"
STEPS = 40


class Looker:
    """Somebody who looks again and again, beside one who looks for the first time."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.now_us = 1_700_000_000_000_000
        self.memories = Memories()
        log.catalog.drive(lambda: self.now_us)

    def look(self) -> dict[str, GroupView]:
        """All groups; both see the same."""
        again, first = self.log.catalog.read(self._both, snapshot=True)
        assert again == first
        return {each.group: each for each in again}

    def _both(self, tx: Tx) -> tuple[list[GroupView], list[GroupView]]:
        every = names.all_names(tx)
        seen, made_us = view.views_again(view.picture_of_all(tx, every, self.memories), every)
        again = [
            structs.replace(each, units=lag.aged(each.units, tx.now_us() - made_us[each.group]))
            if each.group in made_us
            else each
            for each in seen
        ]
        return again, view.views(view.picture_of_all(tx, every), every)


@pytest.fixture
def looker(log: Log) -> Looker:
    """Groups of every kind, and some events."""
    found = Looker(log)
    log.create_stream("orders", StreamConfig(subjects=("orders.*",), partitions=3))
    log.create_stream("plain", StreamConfig(subjects=("0.>", "1.>", "plain.>")))
    for stream in ("orders", "plain"):
        lifecycle.create_static(log, stream, "static", max_members=3, members=["m1", "m2"])
    lifecycle.create_elastic(
        log, "orders", "elastic", max_members=2, filter="orders.*", wildcards=[1], members=["m1"]
    )
    Groups(log).declare("audit", "orders.>", start="earliest")
    readers.create(
        log,
        "report",
        given=["orders"],
        start="earliest",
        end=None,
        filter=None,
        config=GroupConfig(),
    )
    for number in range(5):
        append(log, number)
    return found


def append(log: Log, number: int) -> None:
    log.append("orders", [Event(subject=f"orders.{number}", value=b"x" * 50)])
    log.append("plain", [Event(subject="0.a.b", value=b"y")])


def change(looker: Looker, dice: random.Random) -> None:
    """Something happens."""
    log, write = looker.log, looker.log.catalog.write
    group = GroupName(*dice.choice([("orders", "static"), ("orders", "elastic")]))
    member = dice.choice(["m1", "m2", "m3"])

    def ack(tx: Tx) -> None:
        reader = dice.choice(
            [
                group.key,
                group.partition_job,
                SHARED,
                "reader/report",
                GroupName("plain", "static").share("m1"),
            ]
        )
        stream = log.stream("plain" if reader.startswith("plain") else "orders")
        segment = dice.choice(stream.segments)
        floor = dice.randint(0, segment.head)
        acked = ((floor + 1, floor + 2),) if floor + 2 <= segment.head else ()
        join(tx, reader, {segment.id: Progress(floor, acked)})

    def own(tx: Tx) -> None:
        pin = leases.acquire(tx, group.pin(member), f"host-{member}", dice.choice([900, 60_000]))
        if pin is not None:
            claims.take(tx, group.key, "0", f"{member}.{pin.owner}.{pin.token}")

    def lead(tx: Tx) -> None:
        leases.acquire(tx, dice.choice([leader_lease(SHARED), PIPELINE]), "host", 2_000)
        leases.acquire(tx, session_lease("s1"), "host", dice.choice([900, 60_000]))
        subscribed = b'{"name": "s1", "subscriptions": [["$share/audit/orders.>", true]]}'
        entries.put(tx, SESSIONS_BUCKET, "s1", subscribed)

    def finish(tx: Tx) -> None:
        segment = dice.choice(log.stream("orders").segments)
        entries.put(tx, f"{FINISHED}{SHARED}", f"orders/{segment.number}", str(segment.id).encode())

    steps: list[Callable[[], object]] = [
        *[lambda: write(ack)] * 3,
        *[lambda: write(own)] * 2,
        lambda: write(lead),
        lambda: write(finish),
        lambda: append(log, dice.randrange(9)),
        lambda: log.trim("orders", {0: max(0, log.stream("orders").segments[0].head - 1)}),
        lambda: admin.add_members(log, "orders", "elastic", [member]),
        lambda: admin.drop_members(log, "orders", "elastic", [member]),
        lambda: None,
    ]
    dice.choice(steps)()


@pytest.mark.parametrize("seed", range(2))
def test_who_looks_again_sees_what_a_first_look_sees(looker: Looker, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(STEPS):
        change(looker, dice)
        looker.now_us += dice.choice([1, 400_000, 1_500_000, 20_000_000])
        looker.look()


def test_a_group_far_behind_is_said_to_be_so_when_time_alone_has_passed(looker: Looker) -> None:
    looker.look()
    looker.now_us += REMEMBERED_US - 1
    looker.look()
    looker.now_us += 3_600_000_000
    looker.look()
    looker.now_us += 30_000_000  # made before, and aged now
    found = looker.look()["$share/audit/orders.>"]
    assert "behind" in [each.finding for each in found.findings]
    assert found.lag.seconds > 3_600


def test_what_did_not_change_is_not_made_again(looker: Looker) -> None:
    log = looker.log

    def all_acked(tx: Tx) -> None:
        for reader in (SHARED, "reader/report"):
            segments = log.stream("orders").segments
            join(tx, reader, {each.id: Progress(each.head, ()) for each in segments})

    log.catalog.write(all_acked)
    before = looker.look()
    looker.now_us += 1_000_000
    after = looker.look()
    for name in ("$share/audit/orders.>", "reader/report"):
        assert after[name] is before[name]
    log.append("orders", [Event(subject="orders.1", value=b"")])
    assert looker.look()["reader/report"].lag.events == 1


def test_a_group_whose_members_are_silent_or_lost_is_not_made_again(looker: Looker) -> None:
    log, group = looker.log, GroupName("orders", "static")
    ttl_ms = 100_000

    def own(tx: Tx) -> None:
        segments = log.stream("orders").segments
        join(tx, group.key, {each.id: Progress(each.head, ()) for each in segments})
        join(tx, SHARED, {each.id: Progress(each.head, ()) for each in segments})
        assert leases.acquire(tx, group.pin("m1"), "host", ttl_ms) is not None
        assert leases.acquire(tx, leader_lease(SHARED), "host", ttl_ms) is not None

    log.catalog.write(own)
    for later_s, said in ((70, "silent"), (200, "lost")):
        looker.now_us += later_s * 1_000_000 - 1_000_000
        before = looker.look()
        looker.now_us += 1_000_000
        after = looker.look()
        for name in ("orders/static", "$share/audit/orders.>"):
            assert after[name].units is before[name].units
        assert [one.state for one in after["orders/static"].members] == [said, "missing"]


def test_a_memory_keeps_what_is_equal() -> None:
    memory = Memory()
    first = memory.each("m", [1, 2], lambda basis: {n: [n] for n in basis})
    second = memory.each("m", [2, 3], lambda basis: {n: [n] for n in basis})
    assert second[2] is first[2]
    assert memory.each("m", [2, 3], lambda _: {0: [0]}) is second
    memory.forget()
    assert memory.each("m", [2, 3], lambda basis: {n: [n] for n in basis})[2] is not first[2]


def test_units_that_did_not_change_are_not_made_again_beside_one_that_did(looker: Looker) -> None:
    log = looker.log
    segments = log.stream("orders").segments

    def ack(floors: dict[int, int]) -> None:
        places = {segments[number].id: Progress(floor, ()) for number, floor in floors.items()}
        log.catalog.write(lambda tx: join(tx, SHARED, places))

    for number in range(5, 60):  # until there is something in each
        append(looker.log, number)
    segments = log.stream("orders").segments
    assert all(segment.head > 2 for segment in segments)
    ack({0: 0, 1: segments[1].head, 2: segments[2].head})
    name = "$share/audit/orders.>"
    before = {unit.unit: unit for unit in looker.look()[name].units}
    looker.now_us += 1_000_000
    ack({0: 2})
    after = {unit.unit: unit for unit in looker.look()[name].units}
    assert [unit for unit in before if after[unit] is before[unit]] == ["orders/1", "orders/2"]
    assert after["orders/0"].floor == 2
