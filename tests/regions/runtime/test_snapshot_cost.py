"""What snapshots cost a region of many groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog import Tx
from headrace.groups.homes import GroupRecord
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import Progress, store
from headrace.regions import enabling, records
from headrace.regions.core.index import SnapshotIndex
from headrace.regions.core.markers import SnapshotMarker, UpdateMarker
from tests.regions.runtime.test_snapshots import ONE, SnapshotPlace, exchange
from tests.regions.runtime.world import linked


def ack_all(tx: Tx, names: list[str], segment_id: int, head: int) -> None:
    for name in names:
        store.join(tx, f"orders.{name}", {segment_id: Progress(head)})


def test_what_updates_cost_grows_with_the_groups_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates that came together were told one after the other, each to every group."""
    asked = 0
    newest_at = SnapshotIndex.newest_at

    def counted(self: SnapshotIndex, mark_delete: int, *, after: int = -1) -> SnapshotMarker | None:
        nonlocal asked
        asked += 1
        return newest_at(self, mark_delete, after=after)

    monkeypatch.setattr(SnapshotIndex, "newest_at", counted)
    costs = []
    for count in (10, 40):
        places = [SnapshotPlace(name, str(tmp_path / f"{name}-{count}")) for name in ("eu", "us")]
        linked(places, config=ONE, segments=1)
        eu, us = places
        names = [f"g{number}" for number in range(count)]
        for name in names:
            create_static(eu.log, "orders", name, max_members=1, members=["m"])
            enabling.enable(eu.log, f"orders.{name}", eu.neighbours, mode="snapshot")
        eu.publish(5)
        exchange(*places)
        at = eu.log.stream("orders").segments[0]
        eu.log.catalog.write(partial(ack_all, names=names, segment_id=at.id, head=at.head))
        asked = 0
        exchange(*places)
        costs.append(asked)
        told = [each for each in us.markers().values() if isinstance(each, UpdateMarker)]
        assert {each.group for each in told} == {f"orders.{name}" for name in names}
        for place in places:
            place.close()
    assert costs[1] <= 6 * costs[0], costs


def test_a_tick_reads_no_record_of_a_neighbours_groups_that_are_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at who can be asked for a snapshot decoded all groups of all neighbours."""
    decoded = 0
    decode = records.decode_group

    def counted(name: str, data: bytes) -> GroupRecord:
        nonlocal decoded
        decoded += 1
        return decode(name, data)

    places = [SnapshotPlace(name, str(tmp_path / name)) for name in ("eu", "us")]
    linked(places, config=ONE, segments=1)
    eu, _ = places
    for number in range(20):
        create_static(eu.log, "orders", f"g{number}", max_members=1, members=["m"])
        enabling.enable(eu.log, f"orders.g{number}", eu.neighbours, mode="snapshot")
    eu.publish(5)
    exchange(*places)
    monkeypatch.setattr(records, "decode_group", counted)
    before = len(eu.markers())
    for _ in range(3):
        eu.publish(5)
        exchange(*places)
    assert len(eu.markers()) > before
    assert decoded == 0
    for place in places:
        place.close()


def test_updates_of_all_groups_are_joined_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of each group was read, and written, by statements of its own."""
    told = []
    for count in (5, 25):
        places = [SnapshotPlace(name, str(tmp_path / f"{name}-{count}")) for name in ("eu", "us")]
        linked(places, config=ONE, segments=1)
        eu, us = places
        names = [f"g{number}" for number in range(count)]
        for name in names:
            create_static(eu.log, "orders", name, max_members=1, members=["m"])
            enabling.enable(eu.log, f"orders.{name}", eu.neighbours, mode="snapshot")
        eu.publish(5)
        exchange(*places)
        at = eu.log.stream("orders").segments[0]
        eu.log.catalog.write(partial(ack_all, names=names, segment_id=at.id, head=at.head))
        with monkeypatch.context() as patch:
            made = count_statements(us, patch)
            exchange(*places)
        told.append(len(made))
        here = us.log.stream("orders").segments[0]
        for name in names:
            found = us.log.catalog.read(
                partial(store.load, group=f"orders.{name}", segment_id=here.id)
            )
            assert found is not None
            assert found.floor >= 5
        for place in places:
            place.close()
    assert told[0] == told[1]


def count_statements(place: SnapshotPlace, patch: pytest.MonkeyPatch) -> list[str]:
    """The statements on rows of progress that are made from now on."""
    made: list[str] = []
    kind = type(place.log.catalog.read(lambda tx: tx))
    for name in ("rows", "row", "execute", "executemany", "later"):
        call = getattr(kind, name)

        def counted(self: Tx, sql: str, *given: Any, call: Any = call) -> Any:
            if "progress" in sql:
                made.append(sql)
            return call(self, sql, *given)

        patch.setattr(kind, name, counted)
    return made
