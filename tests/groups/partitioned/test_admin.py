"""Groups in the catalog: made, changed, looked at and deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog import Tx, claims, entries, leases, open_catalog
from headrace.catalog import progress as stored
from headrace.catalog.streams import Consumed, StreamConfig
from headrace.errors import (
    BufferSizeError,
    GroupExistsError,
    GroupFilterError,
    GroupMembersError,
    GroupUpdateError,
    HeadraceError,
    InvalidGroupConfigError,
    InvalidNameError,
    InvalidPositionError,
    MaxMembersError,
    MemberMappingsError,
    NoActiveInstanceError,
    PartitioningWildcardsError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownStreamError,
)
from headrace.groups.consumer import OwnedUnit
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.core.pins import ClaimOwner, ClaimRefused, Refusal
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.runtime.ownership import (
    Moment,
    acquire_pin,
    claim,
    follow,
    release,
)
from headrace.groups.partitioned.runtime.units import GroupKind
from headrace.log.events import Event
from headrace.log.log import Log
from tests.groups.partitioned.runtime.feeder import commit, fill, gather, plan

BILLING = GroupName("orders", "billing")


@pytest.fixture
def orders(log: Log) -> Log:
    # Plain subjects for elastic groups, and such as carry their partition for static ones.
    log.create_stream("orders", StreamConfig(subjects=("orders.>", "0.>", "1.>")), segments=2)
    return log


def elastic(log: Log, group: str = "billing", **changed: Any) -> admin.GroupInfo:
    given: dict[str, Any] = {
        "max_members": 4,
        "filter": "orders.*.*",
        "wildcards": [2],
        "members": ["m1", "m2"],
    }
    return admin.create_elastic(log, "orders", group, **(given | changed))


def publish(log: Log, count: int, *, first: int = 0) -> None:
    log.append(
        "orders",
        [Event(subject=f"orders.eu.{n % 10}", value=str(n).encode()) for n in range(first, count)],
    )


def test_an_elastic_group_is_an_entry_and_a_work_queue(orders: Log) -> None:
    info = elastic(orders, max_buffered=100)
    assert info.kind is GroupKind.ELASTIC
    assert admin.get(orders, "orders", "billing") == info
    entry = orders.catalog.entries.get(ELASTIC_BUCKET, "orders.billing")
    assert entry is not None
    assert entry.value == (
        b'{"max_members":4,"filter":"orders.*.*","partitioning-wildcards":[2],'
        b'"msg-buffer-size":100,"members":["m1","m2"]}'
    )
    queue = orders.stream("orders.billing")
    assert [s.number for s in queue.segments] == [0, 1, 2, 3]
    assert queue.config.retention == Consumed()
    subscribed = orders.catalog.read(lambda tx: stored.subscribed(tx, queue.id))
    assert subscribed == ["orders.billing"]
    assert elastic(orders, max_buffered=100) == info  # once more changes nothing
    with pytest.raises(GroupExistsError, match="another config"):
        elastic(orders, max_members=8)
    with pytest.raises(GroupExistsError, match="is elastic"):
        admin.create_static(orders, "orders", "billing", max_members=4, members=["m1"])


def test_a_static_group_is_an_entry(orders: Log) -> None:
    info = admin.create_static(
        orders, "orders", "audit", max_members=3, mappings={"a": [0, 2], "b": [1]}
    )
    assert info.kind is GroupKind.STATIC
    entry = orders.catalog.entries.get(STATIC_BUCKET, "orders.audit")
    assert entry is not None
    assert entry.value == (
        b'{"max_members":3,"filter":"","member-mappings":[{"member":"a","partitions":[0,2]},'
        b'{"member":"b","partitions":[1]}]}'
    )
    refused: list[Callable[[], object]] = [
        lambda: admin.add_members(orders, "orders", "audit", ["c"]),
        lambda: admin.drop_members(orders, "orders", "audit", ["a"]),
        lambda: admin.set_mappings(orders, "orders", "audit", {"a": [0, 1, 2]}),
        lambda: admin.delete_mappings(orders, "orders", "audit"),
    ]
    for change in refused:
        with pytest.raises(GroupUpdateError, match="static and cannot change"):
            change()
    assert admin.get(orders, "orders", "audit") == info


def test_groups_are_listed_by_stream_and_kind(orders: Log) -> None:
    orders.create_stream("other", StreamConfig(subjects=("other.>",), partitions=2))
    elastic(orders)
    admin.create_static(orders, "orders", "audit", max_members=2, members=["a"])
    admin.create_static(orders, "other", "audit", max_members=2, members=["a"])
    names = [info.name.key for info in admin.list_groups(orders)]
    assert names == ["orders.audit", "orders.billing", "other.audit"]
    assert [i.name.group for i in admin.list_groups(orders, "orders", GroupKind.ELASTIC)] == [
        "billing"
    ]
    with pytest.raises(UnknownStreamError):
        admin.list_groups(orders, "nowhere")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"max_members": 0}, MaxMembersError, "at least 1 partition"),
        ({"max_members": 5000}, MaxMembersError, "4096 is the most"),
        ({"filter": ""}, GroupFilterError, "needs a filter"),
        ({"filter": "orders.>"}, GroupFilterError, "has no"),
        ({"filter": "orders..*"}, GroupFilterError, "empty"),
        ({"filter": "shoes.*.*"}, GroupFilterError, "matches nothing that stream 'orders'"),
        ({"wildcards": [1, 2, 1]}, PartitioningWildcardsError, "3 partitioning wildcards"),
        ({"wildcards": [1, 1]}, PartitioningWildcardsError, "given twice"),
        ({"wildcards": [3]}, PartitioningWildcardsError, "does not exist"),
        ({"wildcards": [0]}, PartitioningWildcardsError, "numbered from 1"),
        ({"max_buffered": -1}, BufferSizeError, "msg-buffer-size"),
        ({"mappings": {"m1": range(4)}}, GroupMembersError, "both given"),
        ({"members": ["a b"]}, GroupMembersError, "member name"),
        ({"members": [], "mappings": {"a": [0, 1, 2]}}, MemberMappingsError, "not mapped"),
        ({"members": [], "mappings": {"a": [0, 1, 2, 4]}}, MemberMappingsError, "does not exist"),
        (
            {"members": [], "mappings": {"a": [0, 1], "b": [1, 2, 3]}},
            MemberMappingsError,
            "mapped twice",
        ),
        ({"distribution": "fair"}, InvalidGroupConfigError, "no distribution"),
        ({"start": 7}, InvalidPositionError, "not a place"),
        ({"start": "soon"}, InvalidPositionError, "not a place"),
    ],
)
def test_bad_configs_are_refused_and_leave_nothing(
    tmp_path: Path, changed: dict[str, Any], error: type[HeadraceError], message: str
) -> None:
    orders = Log(open_catalog(tmp_path / "catalog"), None)
    orders.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    with pytest.raises(error, match=message):
        elastic(orders, **changed)
    assert admin.list_groups(orders) == ()
    assert [s.name for s in orders.streams(internal=True)] == ["orders"]
    orders.catalog.close()


def test_a_static_group_that_could_never_get_anything_is_refused(tmp_path: Path) -> None:
    log = Log(open_catalog(tmp_path / "catalog"), None)
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    log.create_stream("parts", StreamConfig(subjects=("parts.>",), partitions=2))
    create = partial(admin.create_static, log, group="g", max_members=2)
    with pytest.raises(GroupFilterError, match="do not begin with the number of one"):
        create("orders", members=["a"])
    with pytest.raises(GroupFilterError, match=r"matches nothing that stream 'parts'"):
        create("parts", members=["a"], filter="orders.>")
    with pytest.raises(GroupMembersError, match="no members for ever"):
        create("parts")
    assert admin.list_groups(log) == ()
    assert create("parts", members=["a"], filter="parts.*")
    log.catalog.close()


def test_unknown_names_are_errors(orders: Log) -> None:
    with pytest.raises(UnknownStreamError):
        admin.create_elastic(orders, "no", "g", max_members=1, filter="*", wildcards=[1])
    with pytest.raises(InvalidNameError):
        elastic(orders, group="a.b")
    with pytest.raises(UnknownGroupError, match="no groups yet"):
        admin.delete(orders, "orders", "billing")
    elastic(orders)
    with pytest.raises(UnknownGroupError, match="its groups are: billing"):
        admin.delete(orders, "orders", "bill")
    with pytest.raises(UnknownGroupError, match="no static group"):
        admin.delete(orders, "orders", "billing", GroupKind.STATIC)
    with pytest.raises(UnknownMemberError, match="members are: m1, m2"):
        admin.partitions(orders, "orders", "billing", "m9")
    with pytest.raises(NoActiveInstanceError):
        admin.step_down(orders, "orders", "billing", "m1")
    with pytest.raises(UnknownMemberError):
        admin.step_down(orders, "orders", "billing", "m9")


def test_members_and_mappings_of_an_elastic_group_change(orders: Log) -> None:
    before = elastic(orders)
    added = admin.add_members(orders, "orders", "billing", ["m3", "m1"])
    assert added.config.members == ("m1", "m2", "m3")
    assert added.revision > before.revision
    assert admin.add_members(orders, "orders", "billing", ["m1"]) == added
    assert admin.partitions(orders, "orders", "billing", "m3") == (2,)
    admin.drop_members(orders, "orders", "billing", ["m3", "m9"])
    assert admin.get(orders, "orders", "billing").config == before.config
    mapped = admin.set_mappings(orders, "orders", "billing", {"x": [0, 1, 3], "y": [2]})
    assert mapped.config.assignment() == {"x": (0, 1, 3), "y": (2,)}
    with pytest.raises(GroupUpdateError, match="partitions are mapped"):
        admin.add_members(orders, "orders", "billing", ["m3"])
    with pytest.raises(GroupUpdateError, match="partitions are mapped"):
        admin.drop_members(orders, "orders", "billing", ["x"])
    with pytest.raises(MemberMappingsError, match="not mapped"):
        admin.set_mappings(orders, "orders", "billing", {"x": [0]})
    assert admin.get(orders, "orders", "billing") == mapped
    admin.delete_mappings(orders, "orders", "billing")
    assert admin.get(orders, "orders", "billing").config.members == ("x", "y")
    with pytest.raises(GroupUpdateError, match="no mapping"):
        admin.delete_mappings(orders, "orders", "billing")


def pinned(
    log: Log, name: GroupName, member: str, instance: str, ttl_ms: int = 60_000
) -> ClaimOwner:
    answer = log.catalog.write(lambda tx: acquire_pin(tx, name.pin(member), instance, ttl_ms))
    assert answer.token is not None
    return ClaimOwner(member, instance, answer.token)


def claimed(log: Log, name: GroupName, owner: ClaimOwner, *partitions: int) -> list[Any]:
    segments = range(10)
    return log.catalog.write(lambda tx: claim(Moment(tx), name, owner, partitions, segments))


def test_status_tells_who_is_missing_and_what_nobody_consumes(orders: Log) -> None:
    elastic(orders)
    one = pinned(orders, BILLING, "m1", "i1")
    claimed(orders, BILLING, one, 0)
    status = admin.status(orders, "orders", "billing")
    assert status.active == ("m1",)
    assert [m.member for m in status.missing] == ["m2"]
    assert status.unconsumed == (1, 2, 3)
    admin.set_mappings(orders, "orders", "billing", {"m2": range(4)})
    assert admin.status(orders, "orders", "billing").moving == (0,)
    admin.delete_mappings(orders, "orders", "billing", ["m1"])
    assert admin.step_down(orders, "orders", "billing", "m1") == "i1"


def test_a_partition_is_claimed_by_one_at_a_time_with_its_progress(orders: Log) -> None:
    elastic(orders)
    one, two = pinned(orders, BILLING, "m1", "i1"), pinned(orders, BILLING, "m2", "i2")
    taken, refused = claimed(orders, BILLING, one, 0, 2)
    assert (taken.token, taken.units[0].segment, taken.units[0].strip) == (1, 0, 1)
    assert taken.units[0].order_by == (4,)
    assert refused == ClaimRefused(Refusal.NOT_ASSIGNED)
    admin.set_mappings(orders, "orders", "billing", {"m2": range(4)})
    assert claimed(orders, BILLING, two, 0) == [ClaimRefused(Refusal.STILL_OWNED, one)]
    unit = taken.units[0]
    orders.catalog.write(lambda tx: stored.put(tx, stored.Progress(unit.group, unit.segment_id, 7)))
    assert orders.catalog.write(lambda tx: release(tx, BILLING, one, 0, 1))
    (again,) = claimed(orders, BILLING, two, 0)
    assert (again.token, again.units[0].progress.floor) == (2, 7)
    assert not orders.catalog.write(lambda tx: release(tx, BILLING, one, 0, 1))


def test_deletion_takes_what_is_its_own_and_nothing_else(orders: Log) -> None:
    publish(orders, 50)
    elastic(orders)
    elastic(orders, "bill")
    elastic(orders, "billing-2")
    fill(orders, BILLING)
    fill(orders, GroupName("orders", "bill"))
    owner = pinned(orders, BILLING, "m1", "i1")
    claimed(orders, BILLING, owner, 0)
    other = GroupName("orders", "billing-2")
    rival = pinned(orders, other, "m1", "i1")
    claimed(orders, other, rival, 0)
    admin.step_down(orders, "orders", "billing", "m1")
    source = orders.stream("orders")
    admin.delete(orders, "orders", "billing")

    names = [stream.name for stream in orders.streams(internal=True)]
    assert names == ["orders", "orders.bill", "orders.billing-2"]
    assert sum(s.events for s in orders.stream("orders.bill").segments) == 50
    assert orders.catalog.read(lambda tx: stored.subscribed(tx, source.id)) == [
        "orders.bill.partition",
        "orders.billing-2.partition",
    ]

    def left(tx: Tx) -> tuple[Any, ...]:
        return (
            leases.get(tx, BILLING.pin("m1")),
            claims.get(tx, BILLING.key, "0"),
            leases.get(tx, other.pin("m1")),
            claims.get(tx, other.key, "0"),
            entries.get(tx, "group-step-downs", "orders.billing.m1"),
        )

    pin, own, other_pin, other_claim, asked = orders.catalog.read(left)
    assert pin is None
    assert own is None
    assert other_pin.owner == "i1"
    assert other_claim.owner == rival.encode()
    assert asked is None


def test_tokens_go_on_growing_after_a_group_was_deleted_and_made_again(orders: Log) -> None:
    elastic(orders)
    before = pinned(orders, BILLING, "m1", "i1")
    (old,) = claimed(orders, BILLING, before, 0)
    admin.delete(orders, "orders", "billing")
    with pytest.raises(HeadraceError):
        orders.catalog.read(lambda tx: claims.check(tx, BILLING.key, "0", old.token))
    elastic(orders)
    assert claimed(orders, BILLING, before, 0) == [ClaimRefused(Refusal.NOT_PINNED)]
    after = pinned(orders, BILLING, "m1", "i1")
    (new,) = claimed(orders, BILLING, after, 0)
    assert after.pin_token > before.pin_token
    assert new.token > old.token


@pytest.mark.parametrize("place", ["earliest", "latest", "time"])
def test_groups_start_where_they_are_told(orders: Log, place: str) -> None:
    day = [datetime(2026, 1, n, tzinfo=UTC) for n in range(1, 11)]
    orders.append(
        "orders",
        [Event(subject=f"orders.eu.{n}", value=b"", timestamp=t) for n, t in enumerate(day)],
    )
    start: Any = day[6] if place == "time" else place
    expected = {"earliest": 10, "latest": 0, "time": 4}[place]
    elastic(orders, start=start)
    assert plan(orders, BILLING).behind == expected
    assert fill(orders, BILLING) == expected

    def gone(tx: Tx) -> int:
        name = GroupName("orders", "audit")
        found = claim(Moment(tx), name, owner, [0], range(10))[0]
        assert not isinstance(found, ClaimRefused)
        return sum(unit.progress.floor for unit in found.units)

    admin.create_static(orders, "orders", "audit", max_members=2, members=["a"], start=start)
    owner = pinned(orders, GroupName("orders", "audit"), "a", "i1")
    assert orders.catalog.write(gone) == 10 - expected


def test_a_static_group_on_partitions_needs_all_of_them(log: Log) -> None:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",), partitions=4))
    with pytest.raises(MaxMembersError, match="has 4 partitions"):
        admin.create_static(log, "orders", "audit", max_members=3, members=["a"])
    name = GroupName("orders", "audit")
    admin.create_static(log, "orders", "audit", max_members=4, members=["a"], filter="orders.eu.>")
    (taken,) = claimed(log, name, pinned(log, name, "a", "i1"), 3)
    assert (taken.units[0].segment, taken.units[0].filter, taken.units[0].strip) == (
        3,
        "orders.eu.>",
        0,
    )


def test_a_share_is_read_from_every_segment_and_follows_a_split(orders: Log) -> None:
    name = GroupName("orders", "audit")
    orders.append("orders", [Event(subject=f"orders.{n}", value=b"") for n in range(20)])
    admin.create_static(orders, "orders", "audit", max_members=4, members=["a", "b"], filter="x.>")
    owner = pinned(orders, name, "a", "i1")
    (taken,) = claimed(orders, name, owner, 0)
    assert [u.segment for u in taken.units] == [0, 1]
    assert taken.units[0].filter == ("0.x.>", "1.x.>")
    orders.split("orders", 0)
    head = orders.stream("orders").segments[0].head

    def finish(tx: Tx) -> None:
        unit = taken.units[0]
        stored.put(tx, stored.Progress(unit.group, unit.segment_id, head))

    orders.catalog.write(finish)
    second = pinned(orders, name, "a", "i1")
    (again,) = claimed(orders, name, second, 0)
    assert [u.segment for u in again.units] == [1, 2, 3]
    assert again.token > taken.token
    status = admin.status(orders, "orders", "audit")
    assert status.members[0].consumed == (0, 1)
    assert status.unconsumed == (2, 3)


def test_trimming_does_not_end_a_segment_that_its_owner_has_in_hand(orders: Log) -> None:
    name = GroupName("orders", "audit")
    orders.append("orders", [Event(subject=f"orders.{n}", value=b"") for n in range(20)])
    admin.create_static(orders, "orders", "audit", max_members=1, members=["a"])
    owner = pinned(orders, name, "a", "i1")
    (taken,) = claimed(orders, name, owner, 0)
    orders.split("orders", 0)
    orders.trim("orders", {0: orders.stream("orders").segments[0].head})
    held = {unit.segment: unit.token for unit in taken.units}

    def followed(held: dict[int, int]) -> list[int]:
        def run(tx: Tx) -> list[OwnedUnit]:
            return follow(tx, name, owner, 0, taken.token, held, range(10))

        return [unit.segment for unit in orders.catalog.write(run)]

    assert followed(held) == []
    assert followed({1: held[1]}) == [2, 3]


# --- filling the work queue -------------------------------------------------------------------


def queued(log: Log) -> list[tuple[int, str, bytes]]:
    return [
        (row["segment"], row["subject"], row["value"])
        for batch in log.read("orders.billing")
        for row in batch.to_pylist()
    ]


def test_the_queue_holds_each_event_once_in_its_partition(orders: Log) -> None:
    elastic(orders)
    publish(orders, 100)
    orders.append("orders", Event(subject="orders.short", value=b"not in the filter"))
    assert fill(orders, BILLING, events_max=7) == 100
    found = queued(orders)
    assert sorted(int(value) for _, _, value in found) == list(range(100))
    assert all(subject.startswith(f"{segment}.orders.eu.") for segment, subject, _ in found)
    for key in range(10):
        own = [int(value) for _, subject, value in found if subject.endswith(f".{key}")]
        assert own == sorted(own)
    assert plan(orders, BILLING).reads == ()


def test_a_round_that_was_overtaken_appends_nothing(orders: Log) -> None:
    elastic(orders)
    publish(orders, 20)
    late = plan(orders, BILLING)
    rows = gather(orders, late)
    assert fill(orders, BILLING) == 20
    with pytest.raises(HeadraceError, match="by another round"):
        commit(orders, late, rows)
    assert len(queued(orders)) == 20


def test_a_round_for_a_group_that_was_made_anew_appends_nothing(orders: Log) -> None:
    elastic(orders)
    publish(orders, 20)
    late = plan(orders, BILLING)
    rows = gather(orders, late)
    admin.delete(orders, "orders", "billing")
    with pytest.raises(HeadraceError, match="the group has changed"):
        commit(orders, late, rows)
    elastic(orders)
    with pytest.raises(HeadraceError, match="made anew"):
        commit(orders, late, rows)
    assert queued(orders) == []


def test_the_queue_takes_no_more_than_its_limit(orders: Log) -> None:
    elastic(orders, max_buffered=10)
    publish(orders, 25)
    assert fill(orders, BILLING) == 10
    planned = plan(orders, BILLING)
    assert (planned.room, planned.behind, planned.waits_for_room) == (0, 15, True)
    queue = orders.stream("orders.billing")
    busiest = max(queue.segments, key=lambda s: s.head)
    orders.catalog.write(
        lambda tx: stored.put(tx, stored.Progress(BILLING.key, busiest.id, busiest.head))
    )
    assert fill(orders, BILLING) == busiest.head


def test_keys_stay_in_order_over_a_split_of_the_source(orders: Log) -> None:
    elastic(orders)
    publish(orders, 100)
    for segment in orders.stream("orders").open_segments:
        orders.split("orders", segment.number)
    publish(orders, 200, first=100)
    assert fill(orders, BILLING, events_max=13) == 200
    for key in range(10):
        own = [int(v) for _, subject, v in queued(orders) if subject.endswith(f".{key}")]
        assert own == sorted(own)


def test_a_round_of_what_was_trimmed_meanwhile_does_not_come_after_its_successors(
    orders: Log,
) -> None:
    elastic(orders)
    publish(orders, 100)
    for segment in orders.stream("orders").open_segments:
        orders.split("orders", segment.number)
    late = plan(orders, BILLING)
    rows = gather(orders, late)
    orders.trim("orders", {s.number: s.head for s in orders.stream("orders").segments})
    publish(orders, 200, first=100)
    assert fill(orders, BILLING) == 100
    with pytest.raises(HeadraceError, match="by another round"):
        commit(orders, late, rows)
    assert len(queued(orders)) == 100


def test_deleted_groups_leave_room_for_another_kind(orders: Log, reopen: Callable[[], Any]) -> None:
    elastic(orders)
    admin.delete(orders, "orders", "billing")
    admin.create_static(Log(reopen(), None), "orders", "billing", max_members=2, members=["a"])
    assert admin.get(orders, "orders", "billing").kind is GroupKind.STATIC
