"""The work queue of a replicated elastic group, step by step and on both databases."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.catalog import Tx, claims, queue_places, streams
from headrace.catalog.streams import StreamConfig
from headrace.errors import GroupUpdateError, LinkError, RoundOvertakenError
from headrace.groups import looks
from headrace.groups.operations.seek import seek
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.explain import filling_finding
from headrace.groups.partitioned.names import GroupName
from headrace.groups.progress import AckedRanges, Progress, store
from headrace.log.events import Event
from headrace.regions import enabling, losing, moving
from headrace.regions.creating import create_replicated
from headrace.regions.linking import link
from headrace.regions.records import get_group, require_group
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.status import status
from headrace.spark.partition import PartitionJob
from headrace.spark.partition_task import in_task
from tests.regions.runtime.world import Place, linked

NAME = GroupName("orders", "billing")
PARTITIONS = 3


class Desk(Place):
    """A region with its agent, its partition job, and whoever acks."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name, url)
        self.agent = RegionAgent(self.log, self.neighbours)
        self.job = PartitionJob(url, None, NAME)

    def fill(self) -> None:
        while self.job.step():
            pass

    def queued(self) -> list[bytes]:
        """What members would be given."""
        return [value for _, _, value in self._queued()]

    def _queued(self) -> list[tuple[int, int, bytes]]:
        acked = self._acked(NAME.key, NAME.work_queue)
        return [
            (row["segment"], row["offset"], row["value"])
            for batch in self.log.read(NAME.work_queue)
            for row in batch.to_pylist()
            if row["offset"] not in acked[row["segment"]]
        ]

    def _acked(self, reader: str, stream: str) -> dict[int, AckedRanges]:
        def look(tx: Tx) -> dict[int, AckedRanges]:
            return {
                s.number: (store.load(tx, reader, s.id) or Progress()).acked()
                for s in streams.require(tx, stream).segments
            }

        return self.log.catalog.read(look)

    def ack(self, wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Ack some of what waits in the queue, as its members do."""
        chosen = [each for each in self._queued() if wanted(each[2])]
        ids = {s.number: s.id for s in self.log.stream(NAME.work_queue).segments}
        acked: dict[int, AckedRanges] = {at: AckedRanges() for at in ids.values()}
        for number, offset, _ in chosen:
            acked[ids[number]].ack_range(offset, offset + 1)
        self.log.catalog.write(
            lambda tx: store.join(
                tx, NAME.key, {at: Progress.of(each, {}) for at, each in acked.items()}
            ),
            locks=[claims.lock(NAME.key, str(number)) for number in ids],
        )
        return [value for _, _, value in chosen]

    def is_home(self) -> bool:
        found = self.log.catalog.read(lambda tx: get_group(tx, NAME.key))
        return found is not None and not found.waits(self.name)


Desks = Callable[..., tuple[Desk, Desk]]


def sync(*desks: Desk) -> None:
    """Until nothing moves: events, groups and progress."""
    for _ in range(20):
        moved = False
        for each in desks:
            others = [other.name for other in desks if other is not each]
            moved |= bool(each.pull(*others))
            moved |= each.agent.step()
        if not moved:
            return
    raise AssertionError("it never comes to rest")


def create(desk: Desk, home: str | None = "eu", filter: str = "orders.*") -> None:
    create_replicated(
        desk.log,
        NAME,
        home,
        lambda log: admin.create_elastic(
            log,
            *("orders", "billing"),
            max_members=PARTITIONS,
            filter=filter,
            wildcards=[1],
            members=["m1"],
        ),
        elastic=True,
    )


def move(source: Desk, target: Desk, *others: Desk) -> None:
    moving._begin_switch(source.log, NAME.key, source.name, target.name)
    sync(source, target, *others)
    assert target.is_home()
    assert not source.is_home()


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Desks]:
    with ExitStack() as closing:

        def opened(there: str | None = None) -> tuple[Desk, Desk]:
            made = Desk("eu", str(tmp_path / "eu")), Desk("us", there or str(tmp_path / "us"))
            for each in made:
                closing.callback(each.close)
            linked(made)
            return made

        yield opened


@pytest.fixture
def pair(regions: Desks) -> tuple[Desk, Desk]:
    """Two regions with a group at home in eu."""
    eu, us = regions()
    create(eu)
    sync(eu, us)
    return eu, us


@pytest.fixture
def both(regions: Desks, catalog_url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Desk, Desk]:
    """The same, with each database in us."""
    monkeypatch.setenv("PGPASSWORD", "")
    eu, us = regions(catalog_url.replace("postgres:@", "postgres@"))
    create(eu)
    sync(eu, us)
    return eu, us


def test_a_new_home_fills_its_queue_with_exactly_what_is_not_acked(both: tuple[Desk, Desk]) -> None:
    eu, us = both
    rng = random.Random(5)
    everything: list[bytes] = []
    acked: list[bytes] = []
    home, other = eu, us
    for turn in range(4):
        for each in (eu, us):
            given = [b"%s-%d-%d" % (each.name.encode(), turn, n) for n in range(20)]
            each.log.append(
                "orders", [Event(subject=f"orders.{n % 7}", value=v) for n, v in enumerate(given)]
            )
            everything += given
        sync(eu, us)
        home.fill()
        other.fill()
        assert sorted(home.queued()) == sorted(set(everything) - set(acked))
        assert other.queued() == []
        acked += home.ack(lambda _: rng.random() < 0.5)
        move(home, other)
        assert home.queued() == []
        home, other = other, home
    home.fill()
    acked += home.ack(lambda _: True)
    assert sorted(acked) == sorted(everything)  # each of them once
    sync(eu, us)
    for each in (eu, us):
        heads = {s.number: s.head for s in each.log.stream("orders").segments}
        assert {n: a.floor for n, a in each._acked(NAME.consumed, "orders").items()} == heads
        assert each.log.catalog.read(_places) == 0


def _places(tx: Tx) -> int:
    row = tx.row("SELECT COUNT(*) FROM queue_places")
    assert row is not None
    return int(row[0])


def test_after_a_loss_only_acks_that_had_not_crossed_come_again(both: tuple[Desk, Desk]) -> None:
    eu, us = both
    eu.publish(30)
    sync(eu, us)
    eu.fill()
    known = set(eu.ack(lambda value: int(value[3:]) % 3 == 0))
    sync(eu, us)
    unknown = set(eu.ack(lambda value: int(value[3:]) % 3 == 1))
    losing.fail_over(us.log, "eu", us.neighbours, force=True)
    us.fill()
    given = us.queued()
    assert len(given) == len(set(given))
    everything = {b"eu-%d" % n for n in range(30)}
    assert set(given) == everything - known
    again = us.ack(lambda value: int(value[3:]) % 3 == 2)
    losing.set_state(us.log, "eu", "active")
    sync(us, eu)  # eu is back: what was acked there counts after all, and its queue is empty
    assert eu.queued() == []
    eu.fill()
    assert eu.queued() == []
    move(us, eu)
    eu.fill()
    assert set(eu.queued()) == everything - known - unknown - set(again)


def test_what_no_filter_passes_is_not_waited_for(regions: Desks) -> None:
    eu, us = regions()
    create(eu, filter="orders.1.*")
    eu.log.append("orders", [Event(subject=f"orders.{n % 2}.x", value=b"%d" % n) for n in range(8)])
    sync(eu, us)
    eu.fill()
    assert eu.queued() == [b"1", b"3", b"5", b"7"]
    eu.ack(lambda value: value != b"3")
    sync(eu, us)
    assert sum(len(each) for each in us._acked(NAME.consumed, "orders").values()) <= 1
    move(eu, us)
    us.fill()
    assert us.queued() == [b"3"]


def test_a_queue_that_is_trimmed_first_is_translated_all_the_same(pair: tuple[Desk, Desk]) -> None:
    eu, us = pair
    eu.publish(12)
    eu.fill()
    eu.publish(5, value=b"later")
    eu.fill()
    eu.ack(lambda value: value != b"later")
    tails = eu.log.trim(NAME.work_queue)  # a batch that is acked goes at once
    assert any(tails.values())
    sync(eu, us)
    move(eu, us)
    us.fill()
    assert us.queued() == [b"later"] * 5


def test_an_ack_counts_of_an_event_that_was_trimmed_while_it_was_in_the_queue(
    pair: tuple[Desk, Desk],
) -> None:
    eu, us = pair
    eu.publish(20)
    sync(eu, us)
    eu.fill()
    for segment in eu.log.stream("orders").segments:
        eu.log.trim("orders", {segment.number: segment.head})
    eu.ack(lambda value: int(value[3:]) % 2 == 0)
    eu.agent._forget_due_s = 0.0
    sync(eu, us)
    eu.ack(lambda value: int(value[3:]) % 4 == 1)
    sync(eu, us)
    move(eu, us)
    us.fill()
    assert set(us.queued()) == {b"eu-%d" % n for n in range(20) if n % 4 == 3}


@pytest.mark.parametrize("at", ["home", "elsewhere"])
def test_a_seek_counts_in_every_region(pair: tuple[Desk, Desk], at: str) -> None:
    eu, us = pair
    eu.publish(12)
    sync(eu, us)
    eu.fill()
    eu.ack(lambda value: int(value[3:]) < 6)
    sync(eu, us)
    seek((eu if at == "home" else us).log, "orders/billing", "earliest")
    sync(eu, us)
    eu.fill()
    everything = {b"eu-%d" % n for n in range(12)}
    assert set(eu.queued()) == everything
    eu.ack(lambda value: int(value[3:]) >= 10)
    move(eu, us)
    us.fill()
    assert set(us.queued()) == everything - {b"eu-10", b"eu-11"}


def test_a_round_that_was_planned_before_a_move_or_a_seek_does_not_count(
    pair: tuple[Desk, Desk],
) -> None:
    eu, us = pair
    eu.publish(10)
    sync(eu, us)
    eu.fill()
    eu.ack(lambda _: True)
    sync(eu, us)
    move(eu, us)
    us.publish(4)
    sync(eu, us)
    planned = us.job._plan(us.log)
    assert [read.acked for read in planned.reads] == [() for _ in planned.reads]
    seek(us.log, "orders/billing", "earliest")  # the round would leave out what is not acked now
    with pytest.raises(RoundOvertakenError):
        us.job._carry_out(us.log, planned, [])
    planned = us.job._plan(us.log)
    move(us, eu)
    with pytest.raises(RoundOvertakenError, match="at home in eu"):
        us.job._carry_out(us.log, planned, [])
    eu.fill()
    assert len(eu.queued()) == 14


def test_members_that_are_changed_at_home_are_known_everywhere(pair: tuple[Desk, Desk]) -> None:
    eu, us = pair
    with pytest.raises(GroupUpdateError, match="at home in eu"):
        admin.add_members(us.log, "orders", "billing", ["m2"])
    admin.add_members(eu.log, "orders", "billing", ["m2"])
    sync(eu, us)
    assert admin.get(us.log, "orders", "billing").config.members == ("m1", "m2")
    move(eu, us)
    admin.drop_members(us.log, "orders", "billing", ["m1"])
    sync(eu, us)
    assert admin.get(eu.log, "orders", "billing").config.members == ("m2",)


def test_without_a_home_or_by_snapshot_it_is_refused_and_nothing_changes(regions: Desks) -> None:
    eu, _ = regions()
    with pytest.raises(LinkError, match="say which, with home="):
        create(eu, home=None)
    assert admin.list_groups(eu.log) == ()
    admin.create_elastic(
        eu.log, "orders", "billing", max_members=2, filter="orders.*", wildcards=[1]
    )
    for options in ({}, {"home": "eu", "mode": "snapshot"}):
        with pytest.raises(LinkError, match="is elastic"):
            enabling.enable(eu.log, NAME.key, eu.neighbours, **options)  # type: ignore[arg-type]
    assert eu.log.catalog.read(lambda tx: get_group(tx, NAME.key)) is None


def plain(desk: Desk) -> None:
    """A group that is in this region alone."""
    admin.create_elastic(
        desk.log, "orders", "billing", max_members=PARTITIONS, filter="orders.*", wildcards=[1]
    )


def test_a_queue_that_was_filled_before_the_link_is_emptied_first(tmp_path: Path) -> None:
    eu, us = Desk("eu", str(tmp_path / "eu")), Desk("us", str(tmp_path / "us"))
    eu.log.create_stream("orders", StreamConfig(subjects=("orders.>",)), 2)
    plain(eu)
    eu.publish(4)
    eu.fill()
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url)
    eu.publish(3)
    eu.fill()
    with pytest.raises(LinkError, match="holds 4 events that are not acked"):
        enabling.enable(eu.log, NAME.key, eu.neighbours, home="eu")
    assert eu.log.catalog.read(lambda tx: get_group(tx, NAME.key)) is None
    eu.ack(lambda _: True)
    enabling.enable(eu.log, NAME.key, eu.neighbours, home="eu")
    eu.close()
    us.close()


def test_a_group_whose_queue_is_not_empty_goes_elsewhere_at_its_exact_place(
    regions: Desks, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "")
    random.seed(5)
    eu, us = regions(catalog_url.replace("postgres:@", "postgres@"))
    plain(eu)
    for turn in range(3):  # rounds of several batches, some of them acked out of order
        eu.publish(20, value=b"eu-%d" % turn)
        us.publish(10, value=b"us-%d" % turn)
        sync(eu, us)
        eu.fill()
        eu.ack(lambda _: random.random() < 0.5)
    waits = sorted(eu.queued())
    assert waits
    enabling.enable(eu.log, NAME.key, eu.neighbours, home="eu")
    assert sorted(eu.queued()) == waits, "its members go on with what they have"
    done = eu.ack(lambda _: random.random() < 0.3)
    eu.publish(5, value=b"then")
    sync(eu, us)
    move(eu, us)
    us.fill()
    left = Counter(waits)
    left.subtract(done)
    left[b"then"] += 5
    assert Counter(us.queued()) == +left
    us.ack(lambda _: True)
    sync(eu, us)
    move(us, eu)
    eu.fill()
    assert eu.queued() == []


def test_places_of_a_group_in_one_region_are_forgotten_when_their_rows_are_acked(
    regions: Desks,
) -> None:
    eu, _ = regions()
    plain(eu)
    for _ in range(5):
        eu.publish(6)
        eu.fill()
        eu.ack(lambda _: True)
    eu.publish(6)
    eu.fill()
    segments = eu.log.stream(NAME.work_queue).segments

    def spans(tx: Tx) -> int:
        return sum(len(queue_places.between(tx, s.id, 0, s.head)) for s in segments)

    assert 0 < eu.log.catalog.read(spans) <= 2 * len(segments)


def test_a_group_that_was_here_before_is_at_its_exact_place_elsewhere(regions: Desks) -> None:
    eu, us = regions()
    admin.create_elastic(
        eu.log, "orders", "billing", max_members=2, filter="orders.*", wildcards=[1]
    )
    eu.publish(6)
    eu.fill()
    eu.ack(lambda _: True)
    enabling.enable(eu.log, NAME.key, eu.neighbours, home="eu")
    eu.log.append("orders", [Event(subject="orders.1", value=b"new")])
    sync(eu, us)
    move(eu, us)
    us.fill()
    assert us.queued() == [b"new"]
    enabling.disable(us.log, NAME.key)  # it is consumed here alone, and goes on where it was
    us.log.append("orders", [Event(subject="orders.1", value=b"newer")])
    us.fill()
    assert us.queued() == [b"new", b"newer"]


def test_what_people_see_of_it(pair: tuple[Desk, Desk]) -> None:
    """Where it is not at home nobody has to fill its queue, and its lag is that of the group."""
    eu, us = pair
    eu.publish(10)
    sync(eu, us)
    assert "start one with: headrace pipeline" in filling_finding(eu.log, NAME)
    eu.fill()
    eu.ack(lambda value: int(value[3:]) < 8)
    assert filling_finding(us.log, NAME) == ""
    sync(eu, us)
    for each in (eu, us):
        (seen,) = looks.of_all(each.log.catalog)
        assert seen.lag.events == 2
        assert not [f for f in seen.findings if f.finding == "no_pipeline"]
    shown = {group.key: group for group in status(us.log, us.neighbours).groups}
    assert shown[NAME.key].family == "elastic"
    assert shown[NAME.key].waits == "the group is at home in eu"
    assert us.job.round().waits == "the group is at home in eu"
    assert moving.unsynced(eu.log, NAME.key, eu.neighbours) == {}
    eu.ack(lambda _: True)
    assert moving.unsynced(eu.log, NAME.key, eu.neighbours)


def test_a_deletion_reaches_the_other_region_with_all_that_it_had(pair: tuple[Desk, Desk]) -> None:
    eu, us = pair
    eu.publish(6)
    sync(eu, us)
    eu.fill()
    admin.delete(eu.log, "orders", "billing")
    sync(eu, us)
    for each in (eu, us):
        assert admin.list_groups(each.log) == ()
        assert each.log.catalog.read(_places) == 0
        rows = each.log.catalog.read(lambda tx: store.load_all(tx, NAME.consumed))
        assert rows == {}


def test_of_three_regions_each_may_be_the_home(tmp_path: Path) -> None:
    desks = [Desk(name, str(tmp_path / name)) for name in ("eu", "us", "ap")]
    try:
        eu, us, ap = desks
        linked(desks)
        create(eu)
        for each in desks:
            each.publish(9)
        sync(*desks)
        eu.fill()
        first = eu.ack(lambda value: int(value[3:]) < 4)
        move(eu, us, ap)
        us.fill()
        second = us.ack(lambda value: int(value[3:]) >= 7)
        losing_home = set(us.queued())
        sync(*desks)
        losing.fail_over(ap.log, "us", ap.neighbours, force=True)
        ap.fill()
        assert set(ap.queued()) == losing_home
        assert len(first) + len(second) + len(losing_home) == 27
        assert ap.log.catalog.read(lambda tx: require_group(tx, NAME.key)).home == "ap"
    finally:
        for each in desks:
            each.close()


def test_rows_that_go_to_files_by_tasks_have_places_as_well(pair: tuple[Desk, Desk]) -> None:
    eu, us = pair
    eu.log.append("orders", [Event(subject="orders.1", value=bytes(4096)) for _ in range(700)])
    planned = eu.job._plan(eu.log)
    work = eu.job._work(eu.log, planned)
    tasks = [pickle.loads(pickle.dumps((work, read))) for read in planned.reads]
    made = [pickle.loads(pickle.dumps(in_task([work], read))) for work, read in tasks]
    found = [batch for each in made for _, batch in each]
    assert any(batch.path is not None for batch in found)
    assert sum(span.rows for batch in found for span in batch.places) == 700
    eu.job._commit(eu.log, planned, found)
    chosen = iter(range(700))
    eu.ack(lambda _: next(chosen) < 300)
    sync(eu, us)
    move(eu, us)
    us.fill()
    assert len(us.queued()) == 400


def test_places_are_packed_and_come_back() -> None:
    import numpy as np

    from headrace.groups.partitioned.runtime.places import CHUNK_ROWS, decode, left_out, spans

    offsets = np.concatenate([np.arange(5, CHUNK_ROWS + 50, 2), [0, 3], [1]]).astype(np.int64)
    source_ids = np.array([1] * (len(offsets) - 1) + [2], dtype=np.int64)
    found = spans(source_ids, offsets)
    assert [each.source_id for each in found] == [1, 1, 2]
    assert np.concatenate([decode(each.places) for each in found]).tolist() == offsets.tolist()
    assert all(each.first == decode(each.places)[0] for each in found)
    assert sum(len(each.places) for each in found) < len(offsets)
    held = queue_places.SourceSpan(2, 2, 4, spans(source_ids[-1:], offsets[-1:])[0].places)
    assert left_out([held], 2, 0, 4).to_tuples() == ((2, 4),)
