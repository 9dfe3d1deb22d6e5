"""Groups in the mode of snapshots, on real logs: markers in line with the data."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.streams import StreamConfig
from headrace.cli import run
from headrace.errors import InvalidInputError, LinkError
from headrace.groups.homes import GroupRecord, decode_group
from headrace.groups.operations.seek import seek
from headrace.groups.partitioned.lifecycle import create_static, delete
from headrace.groups.progress import Progress, store
from headrace.log.events import Event, batch_of
from headrace.log.times import now_us
from headrace.regions import enabling, moving
from headrace.regions.core.effects import SnapshotSettings
from headrace.regions.core.markers import (
    Marker,
    RequestMarker,
    ResponseMarker,
    SnapshotMarker,
    UpdateMarker,
)
from headrace.regions.forcing import force_snapshots
from headrace.regions.linking import link, step_for
from headrace.regions.losing import set_state
from headrace.regions.records import AGENT_LEASE, Region, get_group
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.following import read_markers
from headrace.regions.snapshots import SnapshotState, get_state
from headrace.regions.status import status
from tests.regions.runtime.world import Place, linked

GROUP = "orders.billing"
ONE = StreamConfig(subjects=("orders.>",), partitions=1)


class SnapshotPlace(Place):
    """A region with its agent, which is stepped by hand."""

    def __init__(
        self, name: str, url: str, timeout_ms: int = 30_000, store: Path | None = None
    ) -> None:
        super().__init__(name, url, store)
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
    return enabling.enable(place.log, GROUP, place.neighbours, mode=mode)


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


def test_a_group_moves_as_far_as_the_last_snapshot_that_it_has_passed(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        exchange(eu, us)
        (first,) = [m.local for m in eu.markers().values() if isinstance(m, SnapshotMarker)]
        eu.publish(4)
        exchange(eu, us)
        eu.ack(5, 7, floor=2)
        exchange(eu, us)
        assert len(us.unacked()) == 7  # the first snapshot is not passed yet
        eu.ack(floor=first + 1)
        exchange(eu, us)
        assert len(us.unacked()) == 4
        us.restart()
        eu.restart()  # the snapshots are found in the log again
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert us.unacked() == []


def test_what_the_region_of_an_update_had_not_seen_stays_unacked(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        write = us.log.write_of()
        given = [Event(subject="orders.1", key="1", value=b"stays")]
        write.add("orders", batch_of(given, now_us()), step=step_for(us.log, "orders", []))
        us.log.commit(write)
        exchange(eu, us)
        eu.ack(floor=head_of(eu))
        us.publish(1)  # before the update comes, and after its snapshot
        exchange(eu, us)
        assert us.unacked() == [b"stays", b"us-0"]


def test_what_retention_removed_unconsumed_is_acked_nowhere_else(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(4)
        exchange(eu, us)
        eu.ack(floor=1)
        eu.log.trim("orders", {0: 4})
        eu.publish(2)
        eu.ack(floor=head_of(eu))  # members went on behind what was gone
        eu.restart()  # the agent was down meanwhile
        exchange(eu, us)
        assert us.unacked() == [b"eu-1", b"eu-2", b"eu-3"]
        assert eu.unacked() == []


def test_without_traffic_no_marker_is_written(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(2)
        exchange(eu, us)
        heads = head_of(eu), head_of(us)
        for place in (eu, us):
            place.restart()
        exchange(eu, us)
        assert (head_of(eu), head_of(us)) == heads
        assert eu.state().completed == us.state().completed == 1


def test_a_region_that_is_silent_is_named_and_a_snapshot_given_up(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us", timeout_ms=0) as (eu, us):
        enable(eu)
        exchange(eu, us)
        eu.publish(2)
        eu.agent.step()
        assert [each.waiting_for for each in eu.state().pending] == [("us",)]
        eu.agent.step()
        assert eu.state().last_abort == "a member did not answer in time: us"
        assert (eu.state().aborted, eu.state().completed) == (1, 0)
        for place in (eu, us):
            place.timeout_ms = 30_000
            place.restart()
        exchange(eu, us)  # us answers the old request as well, which changes nothing
        assert (eu.state().aborted, eu.state().completed) == (1, 1)
        assert eu.state().pending == ()


def test_no_request_is_written_to_who_cannot_answer(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        exchange(eu, us)
        set_state(us.log, "eu", "paused")  # no way back
        eu.publish(2)
        eu.agent.step()
        assert eu.kinds() == []
        assert eu.state().last_skip == "a member cannot be reached: us"
        set_state(us.log, "eu", "active")
        exchange(eu, us)
        assert eu.state().completed == 1


def test_a_region_that_joins_in_the_middle_ends_a_snapshot(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        exchange(eu, us)
        eu.publish(3)
        eu.agent.step()
        ap = SnapshotPlace("ap", str(tmp_path / "ap"))
        try:
            for place in (eu, us):
                link(place.log, "orders", "ap", here=place.url, catalog=ap.url)
            exchange(eu, us, ap)
            assert eu.state().last_abort.startswith("the members changed")
            eu.ack(floor=head_of(eu))
            exchange(eu, us, ap)
            assert us.unacked() == ap.unacked() == []
        finally:
            ap.close()


def test_markers_of_other_protocols_stay_where_they_are(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        exchange(eu, us)
        eu.publish(1)
        eu.log.append_marker("orders", 0, b"of another protocol")
        eu.publish(1)
        exchange(eu, us)
        eu.ack(floor=head_of(eu))
        exchange(eu, us)
        assert us.unacked() == []
        assert "other" not in us.kinds()
        assert eu.kinds().count("other") == 1


def test_an_update_that_comes_before_its_group_counts_when_the_group_is_there(
    tmp_path: Path,
) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        create_static(eu.log, "orders", "audit", max_members=1, members=["m1"])
        enabling.enable(eu.log, "orders.audit", eu.neighbours, mode="snapshot")
        exchange(eu, us)
        enable(eu)
        eu.publish(3)
        for _ in range(6):
            eu.agent.step()
            us.pull("eu")
            us.agent.snapshots.step(Region("us"), None)
            eu.pull("us")
            eu.ack(floor=head_of(eu))
        assert us.log.catalog.read(lambda tx: get_group(tx, GROUP)) is None
        assert us.state().groups[GROUP].owed
        us.restart()
        exchange(eu, us)
        assert us.unacked() == []
        assert not us.state().groups[GROUP].owed


def test_an_update_of_a_group_that_was_deleted_does_not_count_for_the_next(
    tmp_path: Path,
) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        exchange(eu, us)
        us.ack(floor=head_of(us))
        us.agent.step()
        assert us.kinds()[-1] == "update of us"  # it is not in eu yet
        delete(eu.log, "orders", "billing")
        create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
        enable(eu)
        exchange(eu, us)
        assert "update of us" in eu.kinds()
        assert len(us.unacked()) == len(eu.unacked()) == 3


def test_a_group_that_was_deleted_is_gone_in_every_region(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(3)
        exchange(eu, us)
        delete(us.log, "orders", "billing")
        exchange(eu, us)
        assert eu.log.catalog.read(lambda tx: store.load_all(tx, GROUP)) == {}


def test_a_group_that_is_enabled_again_remembers_nothing(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        for _ in range(2):
            eu.publish(3)
            exchange(eu, us)
        us.ack(floor=head_of(us))
        exchange(eu, us)
        assert eu.unacked() == []
        for place in (eu, us):
            enabling.disable(place.log, GROUP)
        delete(us.log, "orders", "billing")
        seek(eu.log, "orders/billing", "earliest")
        enable(eu)  # before the agent has seen that it was not
        exchange(eu, us)
        assert len(eu.unacked()) == len(us.unacked()) == 6
        first, _ = [m.local for m in us.markers().values() if isinstance(m, SnapshotMarker)]
        us.ack(floor=first + 1)
        exchange(eu, us)
        assert len(eu.unacked()) == len(us.unacked()) == 3


def test_a_group_with_progress_begins_elsewhere_at_its_place(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        eu.publish(4)
        eu.ack(2, floor=1)
        enable(eu)
        exchange(eu, us)
        assert us.unacked() == [b"eu-1", b"eu-3"]


def test_what_cannot_be_in_snapshot_mode_is_refused(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us", writers="eu") as (eu, _):
        with pytest.raises(LinkError, match="need a way back"):
            enable(eu)
        with pytest.raises(InvalidInputError, match="none of origin, snapshot"):
            enable(eu, "guess")
        with pytest.raises(LinkError, match="leave it out"):
            enabling.enable(eu.log, GROUP, eu.neighbours, mode="snapshot", eager=True)
        assert eu.log.catalog.read(lambda tx: get_group(tx, GROUP)) is None


def test_one_name_in_two_modes_is_refused(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        exchange(eu, us)
        for place in (eu, us):
            with pytest.raises(LinkError, match="one mode in all regions"):
                enable(place, "origin")
            assert enable(place).mode == "snapshot"
        with pytest.raises(LinkError, match="region status"):
            moving.unsynced(eu.log, GROUP, eu.neighbours)


def test_a_record_from_before_there_were_modes_is_by_origin() -> None:
    record = GroupRecord(key=GROUP, family="static", streams=("orders",), config=b"{}")
    old = msgspec.to_builtins(record, builtin_types=(bytes,))
    del old["mode"]
    assert decode_group(GROUP, msgspec.msgpack.encode(old)).mode == "origin"


def test_the_status_tells_of_snapshots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with regions(tmp_path, "eu", "us", timeout_ms=0) as (eu, us):
        enable(eu)
        exchange(eu, us)
        eu.publish(2)
        eu.agent.step()
        (asked,) = status(eu.log, eu.neighbours).snapshots
        assert (asked.phase, asked.waiting_for) == ("first_round", ("us",))
        eu.agent.step()
        found = status(eu.log, eu.neighbours)
        (ended,) = found.snapshots
        assert (ended.aborted, ended.completed, ended.age_s) == (1, 0, None)
        assert ended.last_abort == "a member did not answer in time: us"
        assert [(each.mode, each.behind) for each in found.groups] == [("snapshot", {})]
        run(["--catalog", eu.url, "region", "status", "--json"])
        (line,) = msgspec.json.decode(capsys.readouterr().out)["snapshots"]
        assert (line["stream"], line["aborted"], line["waiting_for"]) == ("orders", 1, ["us"])
        run(["--catalog", eu.url, "region", "status"])
        assert "as of a snapshot" in capsys.readouterr().out


def test_an_operator_goes_on_without_a_silent_region_and_is_told_the_risk(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us", "ap") as (eu, us, ap):
        enable(eu)
        exchange(eu, us, ap)
        with pytest.raises(LinkError, match="nothing to force"):
            force_snapshots(eu.log, "orders")
        eu.publish(2)
        ap.publish(1)
        us.pull("ap")  # which eu has not seen
        for _ in range(3):
            eu.agent.step()
            us.pull("eu")
            us.agent.step()
            eu.pull("us")
        assert [s.missing for s in force_snapshots(eu.log, "orders", dry_run=True).snapshots] == [
            ("ap",)
        ]
        with pytest.raises(LinkError, match="no agent runs here"):
            force_snapshots(eu.log, "orders")
        eu.log.catalog.leases.acquire(AGENT_LEASE, "test", 60_000)
        with running_agent(eu):
            (done,) = force_snapshots(eu.log, "orders").snapshots
        assert (done.missing, done.refused) == (("ap",), "")
        assert [each.split(" that ")[0] for each in done.at_risk] == ["events of ap from 0 on"]
        eu.ack(floor=head_of(eu))
        exchange(eu, us, steps=80)
        assert us.unacked() == [b"ap-0"]


@contextmanager
def running_agent(place: SnapshotPlace) -> Iterator[None]:
    """Steps an agent until its work is done."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            place.agent.step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_group_changes_its_mode_by_beginning_anew(tmp_path: Path) -> None:
    with regions(tmp_path, "eu", "us") as (eu, us):
        enable(eu)
        eu.publish(4)
        exchange(eu, us)
        for place in (eu, us):
            enabling.disable(place.log, GROUP)
        eu.ack(2)
        enabling.enable(eu.log, GROUP, eu.neighbours, adopt="eu")
        exchange(eu, us)
        assert us.unacked() == eu.unacked() == [b"eu-0", b"eu-1", b"eu-3"]
        found = us.log.catalog.read(lambda tx: get_group(tx, GROUP))
        assert found is not None
        assert (found.mode, found.ready) == ("origin", True)
