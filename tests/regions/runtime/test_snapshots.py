"""Groups in the mode of snapshots, on real logs: markers in line with the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.catalog.streams import StreamConfig
from headrace.groups.homes import GroupRecord
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import Progress, store
from headrace.regions import moving
from headrace.regions.core.effects import SnapshotSettings
from headrace.regions.core.markers import (
    Marker,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
)
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.following import read_markers
from headrace.regions.snapshots import SnapshotState, get_state
from tests.regions.runtime.world import Place, linked

GROUP = "orders.billing"
ONE = StreamConfig(subjects=("orders.>",), partitions=1)


class SnapshotPlace(Place):
    """A region with its agent, which is stepped by hand."""

    def __init__(self, name: str, url: str, timeout_ms: int = 30_000) -> None:
        super().__init__(name, url)
        self.timeout_ms = timeout_ms
        self.restart()

    def restart(self) -> None:
        """An agent that was not here before."""
        self.agent = RegionAgent(self.log, self.neighbours)
        self.agent.snapshots.settings = SnapshotSettings(interval_ms=0, timeout_ms=self.timeout_ms)

    def ack(self, *offsets: int, floor: int = 0) -> None:
        """What a member has consumed."""
        ranges = tuple((at, at + 1) for at in offsets)
        at = self.log.stream("orders").segments[0].id
        self.log.catalog.write(
            lambda tx: store.join(tx, GROUP, {at: Progress(floor, ranges)}),
        )

    def acked(self) -> Progress:
        at = self.log.stream("orders").segments[0].id
        return self.log.catalog.read(lambda tx: store.load(tx, GROUP, at)) or Progress()

    def markers(self) -> dict[int, Marker | None]:
        segment = self.log.stream("orders").segments[0]
        return read_markers(self.log, "orders", segment, segment.tail, segment.head)

    def kinds(self) -> list[str]:
        """The markers of the log in their order, each with who wrote it."""
        return [shown(marker) for marker in self.markers().values()]

    def unacked(self) -> list[bytes]:
        """The values of events that a member here would be given."""
        known = self.acked().acked()
        return [
            row["value"]
            for batch in self.log.read("orders")
            for row in batch.to_pylist()
            if row["offset"] not in known
        ]

    def state(self) -> SnapshotState:
        found = self.log.catalog.read(lambda tx: get_state(tx, "orders", 0))
        assert found is not None
        return found


def shown(marker: Marker | None) -> str:
    match marker:
        case RequestMarker(source=source, round=at):
            return f"request {at} of {source}"
        case ResponseMarker(source=source, region=region, round=at):
            return f"response {at} of {region} to {source}"
        case SnapshotMarker():
            return "snapshot"
        case UpdateMarker(source=source):
            return f"update of {source}"
        case _:
            return "other"


def exchange(*places: SnapshotPlace, steps: int = 40) -> None:
    """Agents and rounds of replication take turns until nothing moves."""
    for _ in range(steps):
        moved = False
        for place in places:
            moved |= place.agent.step()
            moved |= bool(place.pull(*(each.name for each in places if each is not place)))
        if not moved:
            return
    raise AssertionError("it never comes to rest")


@contextmanager
def regions(
    tmp_path: Path, *names: str, writers: str = "all", timeout_ms: int = 30_000
) -> Iterator[list[SnapshotPlace]]:
    places = [SnapshotPlace(name, str(tmp_path / name), timeout_ms) for name in names]
    linked(places, segments=1, config=ONE, writers=writers)
    first = places[0]
    create_static(first.log, "orders", "billing", max_members=1, members=["m1"])
    try:
        yield places
    finally:
        for place in places:
            place.close()


def enable(place: SnapshotPlace, mode: str = "snapshot") -> GroupRecord:
    return moving.enable(place.log, GROUP, place.neighbours, mode=mode)


def told_of(region: str, markers: list[str]) -> list[str]:
    """What of a log's markers belongs to one region's snapshot, but for its own snapshot."""
    return [each for each in markers if each.endswith(f" of {region}") or f" to {region}" in each]


def head_of(place: SnapshotPlace) -> int:
    return place.log.stream("orders").segments[0].head


def test_progress_arrives_by_update_and_the_markers_stand_in_the_documents_order(
    tmp_path: Path,
) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        us.publish(2)
        exchange(eu, us)
        assert len(us.unacked()) == 5
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert us.unacked() == eu.unacked() == []
        round_trip = ["request 1 of eu", "response 1 of us to eu", "update of eu"]
        assert told_of("eu", eu.kinds()) == told_of("eu", us.kinds()) == round_trip
        of_eu = eu.kinds()
        taken = of_eu.index("snapshot")
        assert of_eu.index(round_trip[1]) < taken < of_eu.index(round_trip[2])
        answered = [at for at, marker in eu.markers().items() if shown(marker) == round_trip[1]]
        asked = [at for at, marker in us.markers().items() if shown(marker) == round_trip[0]]
        (snapshot,) = [m for m in eu.markers().values() if isinstance(m, SnapshotMarker)]
        assert [snapshot.local] == answered
        assert [each.position for each in snapshot.positions] == asked


def test_three_regions_take_two_rounds(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us", "ap") as (eu, us, ap):
        enable(eu)
        for place in (eu, us, ap):
            place.publish(2)
        exchange(eu, us, ap)
        eu.ack(floor=head_of(eu))
        exchange(eu, us, ap)
        assert us.unacked() == ap.unacked() == []
        rounds = [each for each in told_of("eu", eu.kinds()) if not each.startswith("update")]
        assert rounds[0] == "request 1 of eu"
        assert set(rounds[1:3]) == {"response 1 of us to eu", "response 1 of ap to eu"}
        assert rounds[3] == "request 2 of eu"
        assert set(rounds[4:]) == {"response 2 of us to eu", "response 2 of ap to eu"}
        of_us = [each for each in told_of("eu", us.kinds()) if not each.startswith("update")]
        assert of_us == [
            f"{what} {at} of {where}"
            for at in (1, 2)
            for what, where in (("request", "eu"), ("response", "us to eu"))
        ]
