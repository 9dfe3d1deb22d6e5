"""A group of any kind is put elsewhere by its name; members that run go on from there."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace
import headrace.sync
from headrace.catalog.streams import StreamConfig
from headrace.errors import (
    Fenced,
    GroupMadeAnewError,
    InvalidPositionError,
    SeekOutsideError,
    UnknownGroupNameError,
    UnknownUnitNameError,
)
from headrace.groups import decisions
from headrace.groups.decisions import What
from headrace.groups.operations import seek as seeking
from headrace.groups.operations import seek_places, targets
from headrace.groups.operations import trim as trimming
from headrace.groups.partitioned import admin
from headrace.groups.shared.admin import Groups
from headrace.log.events import Event
from headrace.log.log import Log
from tests.groups.partitioned.runtime import feeder
from tests.groups.shared.runtime.support import open_log, run
from tests.groups.test_seek import (
    KINDS,
    NAME,
    Consuming,
    Elastic,
    Kind,
    Private,
    Readers,
    Shared,
    Static,
    nothing_comes_again,
)
from tests.support import until

every_kind = pytest.mark.parametrize(
    "kind", [*KINDS, Readers()], ids=lambda kind: type(kind).__name__.lower()
)


def name_of(kind: Kind) -> str:
    match kind:
        case Shared():
            return "$share/g/orders.>"
        case Private():
            return "session/w/orders.>"
        case Readers():
            return "reader/billing"
    return "orders/billing"


async def refill(hr: headrace.Headrace, kind: Kind) -> None:
    if isinstance(kind, Elastic):
        await hr.in_thread(feeder.fill, hr.log, NAME)


@every_kind
def test_a_running_member_goes_on_at_the_place_it_was_put_to(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 40)
            async with kind.member(hr) as deliveries:
                consuming = Consuming(deliveries)
                await until(lambda: len(consuming.counted) == 40, "all events")
                tried = await hr.seek(name_of(kind), "earliest", dry_run=True)
                assert (tried.again_events, tried.skipped_events, tried.dry_run) == (40, 0, True)
                await asyncio.sleep(0)
                assert len(consuming.counted) == 40
                done = await hr.seek(name_of(kind), "earliest")
                assert (done.again_events, done.skipped_events, done.dry_run) == (40, 0, False)
                await refill(hr, kind)
                await until(lambda: len(consuming.counted) >= 80, "all events again")
                assert sorted(map(int, consuming.counted[40:])) == list(range(40))
                await kind.send(hr, 40, 5)
                await until(lambda: len(consuming.counted) >= 85, "what is new")
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


@every_kind
def test_what_is_skipped_is_counted_and_does_not_come(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            async with kind.member(hr) as deliveries:  # a session has to have been there
                await kind.send(hr, 0, 30)
                held = [await anext(deliveries) for _ in range(3)]
                await held[0].ack()
                done = await hr.seek(name_of(kind), "latest")
                assert (done.again_events, done.skipped_events) == (0, 29)
                for delivery in held[1:]:
                    with pytest.raises(Fenced):
                        await delivery.ack()
                await kind.send(hr, 100, 4)
                consuming = Consuming(deliveries)
                await until(lambda: len(consuming.counted) >= 4, "what is new")
                assert sorted(map(int, consuming.counted)) == [100, 101, 102, 103]
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


@every_kind
def test_a_time_and_positions_are_places_too(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 20)
            async with kind.member(hr) as deliveries:
                consuming = Consuming(deliveries)
                await until(lambda: len(consuming.counted) == 20, "all events")
                between = datetime.now(UTC) + timedelta(milliseconds=1)
                await until(lambda: datetime.now(UTC) > between)
                await kind.send(hr, 20, 10)
                await until(lambda: len(consuming.counted) == 30, "the others")
                consuming.counted.clear()
                by_time = await hr.seek(name_of(kind), between)
                assert by_time.again_events == 10
                await refill(hr, kind)
                await until(lambda: len(consuming.counted) >= 10, "what came after the time")
                assert sorted(map(int, consuming.counted)) == list(range(20, 30))
                consuming.counted.clear()
                heads = {s.number: s.head for s in (await hr.stream("orders")).segments}
                places: dict[str | int, int] = {n: max(0, head - 2) for n, head in heads.items()}
                positioned = await hr.seek(name_of(kind), places)
                await refill(hr, kind)
                wanted = sum(min(2, head) for head in heads.values())
                assert positioned.again_events == wanted
                await until(lambda: len(consuming.counted) >= wanted, "the last two of each")
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


@pytest.mark.parametrize("kind", [Shared(), Readers()], ids=["shared", "readers"])
def test_successors_of_a_segment_that_goes_back_wait_again(catalog_url: str, kind: Kind) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 30)
            await hr.split("orders", 0)
            await kind.send(hr, 30, 30)
            async with kind.member(hr) as deliveries:
                consuming = Consuming(deliveries)
                await until(lambda: len(consuming.counted) == 60, "all events")
                consuming.counted.clear()
                done = await hr.seek(name_of(kind), "earliest", units=[0])
                assert {unit.unit for unit in done.units} == {"orders/0", "orders/2", "orders/3"}
                await until(lambda: len(consuming.counted) >= done.again_events, "them again")
                for key in range(16):
                    own = [int(v) for v in consuming.counted if int(v) % 16 == key]
                    assert own == sorted(own)
                await consuming.stop()
            await nothing_comes_again(hr, kind)

    run(work())


def test_segments_of_a_reader_group_that_are_not_sought_stay_exactly_where_they_are(
    catalog_url: str,
) -> None:
    async def work() -> None:
        kind = Readers()
        async with open_log(catalog_url) as hr:
            await kind.make(hr)
            await kind.send(hr, 0, 40)
            async with kind.member(hr) as deliveries:
                held = [await anext(deliveries) for _ in range(16)]  # one of each key
                for delivery in held[1:]:
                    await delivery.ack()
                again = [d for d in held[1:] if d.segment == held[0].segment]
                done = await hr.seek("billing", {held[0].segment: 0})
                assert (done.again_events, done.skipped_events) == (len(again), 0)
                with pytest.raises(Fenced):
                    await held[0].ack()
                consuming = Consuming(deliveries)
                wanted = 40 - 15 + len(again)
                await until(lambda: len(consuming.counted) >= wanted, "the rest")
                assert len(set(consuming.counted)) == wanted
                acked = {d.value for d in held[1:]} - {d.value for d in again}
                assert not acked & set(consuming.counted)
                await consuming.stop()
            found = hr.log.catalog.read(lambda tx: decisions.read(tx, "reader/billing"))
            [sought] = [each for each in found if each.what is What.SOUGHT]
            assert f"{len(again)} events come again, 0 are skipped" in sought.reason
            await nothing_comes_again(hr, kind)

    run(work())


def test_a_reader_group_is_put_to_its_end_and_back(catalog_url: str) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], segments=2)
            kind = Readers()
            await kind.send(hr, 0, 20)
            await hr.reader_groups.create("billing", ["orders"], end="latest")
            await kind.send(hr, 20, 20)
            done = await hr.seek("billing", "latest")
            assert (done.again_events, done.skipped_events) == (0, 20)
            done = await hr.seek("billing", "earliest")
            assert (done.again_events, done.skipped_events) == (20, 0)
            async with kind.member(hr) as deliveries:
                came = []
                async for delivery in deliveries:
                    await delivery.ack()
                    came.append(int(delivery.value))
            assert sorted(came) == list(range(20))

    run(work())


def test_a_seek_is_recorded(catalog_url: str) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await Static().make(hr)
            await Static().send(hr, 0, 4)
            await hr.seek("billing", "latest")
            found = hr.log.catalog.read(lambda tx: decisions.read(tx, "orders/billing"))
            [sought] = [each for each in found if each.what is What.SOUGHT]
            assert (
                "put to latest by an administrator: 0 events come again, 4 are skip"
                in sought.reason
            )
            assert sought.unit_count == 2

    run(work())


def test_what_a_wider_filter_lets_pass_is_counted_exactly(log: Log) -> None:
    log.create_stream("orders", StreamConfig(("orders.eu.>", "orders.us.*")))
    log.append("orders", [Event(subject="orders.us.1", value=b"x")])
    Groups(log).declare("all", "orders.>", start="earliest")
    Groups(log).declare("some", "orders.us.*", start="earliest")
    for name, exact in (("all", True), ("some", False)):
        assert seeking.seek(log, name, "latest", dry_run=True).exact is exact
    losses = trimming.plan(log, "orders", {0: 1}).losses
    assert {loss.group: loss.exact for loss in losses} == {
        "$share/all/orders.>": True,
        "$share/some/orders.us.*": False,
    }


BAD: list[tuple[str, Any, dict[str, Any], type[Exception], str]] = [
    ("orders/nobody", "latest", {}, UnknownGroupNameError, "billing"),
    ("orders/billing", "yesterday", {}, InvalidPositionError, "'earliest', 'latest'"),
    ("orders/billing", {}, {}, InvalidPositionError, "not a place"),
    ("orders/billing", {0: -1}, {}, InvalidPositionError, "not a place"),
    ("orders/billing", {0: 99}, {}, SeekOutsideError, r"by segment it has 0: 2 to 5, 1: 0 to 5"),
    ("orders/billing", {0: 1}, {}, SeekOutsideError, r"0: 2 to 5"),
    ("orders/billing", datetime(9000, 1, 1, tzinfo=UTC), {}, InvalidPositionError, "the future"),
    ("orders/billing", {7: 0}, {}, UnknownUnitNameError, "no 7; its units are orders/0, orders/1"),
    ("orders/billing", "latest", {"units": ["orders/9"]}, UnknownUnitNameError, "has no orders/9"),
    ("orders/billing", "latest", {"units": []}, UnknownUnitNameError, "was given no units"),
]  # fmt: skip


def test_bad_places_change_nothing(catalog_url: str) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await hr.create_stream("orders", ["orders.>"], partitions=2)
            for n in range(10):
                await hr.publish(f"orders.{n}.x", b"x", key=str(n % 4))
            await hr.groups.create_static("orders", "billing", max_members=2, members=["a"])
            await hr.trim("orders", {0: 2})
            heads = {s.number: (s.tail, s.head) for s in (await hr.stream("orders")).segments}
            assert heads == {0: (2, 5), 1: (0, 5)}, heads

            def rows() -> list[Any]:
                return hr.log.catalog.read(
                    lambda tx: [s.progress for s in targets.spots(tx, targets.find(tx, "billing"))]
                )

            before = rows()
            for name, to, options, error, match in BAD:
                with pytest.raises(error, match=match):
                    await hr.seek(name, to, **options)
            assert rows() == before

    run(work())


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "static"])
def test_a_group_that_was_made_anew_meanwhile_is_left_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    log.create_stream("orders", StreamConfig(("orders.>",), partitions=2))

    def make() -> None:
        if shared:
            Groups(log).declare("g", "orders.>")
        else:
            admin.create_static(log, "orders", "g", max_members=2, members=["a"])

    def meanwhile(*args: Any) -> Any:
        Groups(log).delete("g", force=True) if shared else admin.delete(log, "orders", "g")
        make()
        return real(*args)

    make()
    real = seek_places.look_up
    monkeypatch.setattr(seeking, "look_up", meanwhile)
    with pytest.raises(GroupMadeAnewError):
        seeking.seek(log, "g", "latest")


def test_an_elastic_group_is_not_put_back_in_a_part_while_its_queue_holds_events(
    catalog_url: str,
) -> None:
    async def work() -> None:
        async with open_log(catalog_url) as hr:
            await Elastic().make(hr)
            await Elastic().send(hr, 0, 20)
            with pytest.raises(InvalidPositionError, match="holds 20 events of all segments"):
                await hr.seek("billing", "earliest", units=[0])

    run(work())


def test_it_is_there_without_asyncio(tmp_path: Any) -> None:
    with headrace.sync.open(tmp_path / "data") as hr:
        hr.create_stream("orders", ["orders.>"], partitions=2)
        hr.groups.create_static("orders", "billing", max_members=2, members=["a"])
        hr.publish("orders.1", b"x")
        assert hr.seek("billing", "latest").skipped_events == 1
