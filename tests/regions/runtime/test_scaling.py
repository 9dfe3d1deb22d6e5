"""Splits and merges of a stream that one region writes happen in every region alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.catalog import Tx, replicas
from headrace.catalog.streams import ByEvents
from headrace.errors import LinkError, RegionsDifferError, RoundOvertakenError
from headrace.groups.shared import properties
from headrace.groups.shared.properties import GroupProperties
from headrace.log.compact_policy import CompactionPolicy
from headrace.regions import status
from headrace.regions.checking import check
from headrace.regions.leaving import unlink
from headrace.regions.linking import link
from headrace.regions.promoting import promote
from headrace.regions.runtime import scaling
from headrace.regions.runtime.agent import RegionAgent
from headrace.regions.runtime.replicator import Replicator
from tests.regions.runtime.world import ORDERS, Place, assert_same, graph, linked, making

Make = Callable[..., Place]


@pytest.fixture
def make(tmp_path: Path, catalog_url: str) -> Iterator[Make]:
    """Makes regions; one of them is on the database of the test."""
    made: list[Place] = []

    def region(name: str, *, here: bool = False) -> Place:
        url = catalog_url.replace("postgres:@", "postgres@") if here else str(tmp_path / name)
        made.append(Place(name, url, tmp_path / f"{name}-store"))
        return made[-1]

    yield region
    for each in made:
        each.close()


@pytest.fixture
def make_local(tmp_path: Path) -> Iterator[Make]:
    """Makes regions, each on SQLite."""
    with making(tmp_path) as make:
        yield make


def by_key(region: Place) -> dict[str, list[bytes]]:
    """The events of each key, in the order in which they are read."""
    found: dict[str, list[bytes]] = {}
    for batch in region.log.read("orders"):
        for row in batch.to_pylist():
            found.setdefault(row["key"], []).append(row["value"])
    return found


def assert_alike(*regions: Place) -> None:
    """The same segments with the same events, and keys in the same order."""
    assert_same(regions)
    first, *others = regions
    for other in others:
        assert graph(other) == graph(first)
        assert by_key(other) == by_key(first)


def numbered(region: Place, first: int, count: int) -> None:
    """Publish events that tell their order."""
    for at in range(first, first + count):
        region.publish(7, value=b"%d" % at)


def steps(region: Place, source: str, events_max: int) -> Iterator[None]:
    """Copy a little at a time, each time as a process that was just started."""
    while Replicator(region.log, region.neighbours, source, events_max=events_max).step():
        yield


def test_splits_and_merges_happen_elsewhere_at_the_same_place(make: Make) -> None:
    eu, us = make("eu"), make("us", here=True)
    linked([eu, us], writers="eu")
    numbered(eu, 0, 3)
    us.pull("eu")
    numbered(eu, 3, 3)
    assert eu.log.split("orders", 0).opened == (2, 3)
    numbered(eu, 6, 3)
    assert eu.log.split("orders", 2).opened == (4, 5)
    assert eu.log.split("orders", 4, into=3).opened == (6, 7, 8)  # of which nothing was written
    numbered(eu, 9, 3)
    assert eu.log.merge("orders", [3, 1]).opened == (9,)
    numbered(eu, 12, 3)
    known: dict[int, list[tuple[str, int, bytes]]] = {n: [] for n in range(10)}
    for _ in steps(us, "eu", events_max=12):
        theirs, mine = graph(eu), graph(us)
        assert {m[:3] for m in mine} <= {t[:3] for t in theirs}
        open_ranges = sorted((lo, hi) for _, lo, hi, sealed, *_ in mine if not sealed)
        assert [lo for lo, _ in open_ranges] == [0, *(hi for _, hi in open_ranges[:-1])]
        for number, rows in us.origins().items():
            assert rows[: len(known[number])] == known[number]
            known[number] = rows
    assert_alike(eu, us)
    assert us.log.stream("orders").segment(9) is not None
    assert not us.pull("eu")


def test_a_merge_waits_for_all_that_it_ends(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us], writers="eu")
    numbered(eu, 0, 10)
    eu.log.merge("orders", [0, 1])
    seen = set()
    for _ in steps(us, "eu", events_max=20):
        stream = us.log.stream("orders")
        held = [len(us.origins()[n]) for n in (0, 1)]
        seen.add((sum(held), len(stream.segments)))
        assert len(stream.segments) == 2 or sum(held) == 70
    assert (70, 3) in seen
    assert len(seen) > 2
    assert_alike(eu, us)


def test_a_split_that_another_round_made_is_made_once(make: Make) -> None:
    eu, us = make("eu"), make("us", here=True)
    linked([eu, us], writers="eu")
    numbered(eu, 0, 2)
    us.pull("eu")
    eu.log.split("orders", 0)
    replicator = Replicator(us.log, us.neighbours, "eu")
    member = replicator.member()
    assert member is not None
    (planned,) = replicator.plan(us.neighbours.log(member)).scalings
    assert us.pull("eu")
    before = graph(us)
    with pytest.raises(RoundOvertakenError, match="another round"):
        scaling.commit(us.log, "eu", planned)
    assert graph(us) == before
    numbered(eu, 2, 2)
    us.pull("eu")
    assert_alike(eu, us)


def test_a_region_that_is_behind_tells_how_far(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us], writers="eu")
    numbered(eu, 0, 2)
    eu.log.split("orders", 0)
    numbered(eu, 2, 2)
    replicator = Replicator(us.log, us.neighbours, "eu", events_max=1)
    assert replicator.step()
    assert replicator.standing.behind is not None
    assert replicator.standing.behind > 14
    assert not check(us.log, "orders", us.neighbours).agrees
    (found,) = status.status(us.log, us.neighbours).links
    assert found.lag_events is not None
    assert found.lag_events + sum(map(len, us.origins().values())) == 28


def test_compaction_and_trimming_on_either_side_change_nothing(make: Make) -> None:
    eu, us = make("eu", here=True), make("us")
    linked([eu, us], writers="eu")
    numbered(eu, 0, 6)
    us.pull("eu")
    eu.log.split("orders", 0)
    numbered(eu, 6, 6)
    small = CompactionPolicy(min_batches=2, min_age_s=0)
    assert eu.log.compact("orders", small).files
    for _ in steps(us, "eu", events_max=30):
        us.log.compact("orders", small)
    assert_alike(eu, us)
    eu.log.trim("orders", {0: eu.log.stream("orders").segments[0].head})
    us.log.trim("orders", {1: 4})
    eu.log.merge("orders", [2, 3])
    numbered(eu, 12, 3)
    us.pull("eu")
    assert graph(eu) == graph(us)
    assert eu.origins()[4] == us.origins()[4]
    assert [place.missed for place in us.log.catalog.read(replicas.all_places)] == [0] * 5


def test_what_was_trimmed_before_a_split_crossed_is_a_gap_that_is_told(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us], writers="eu", segments=1)
    numbered(eu, 0, 2)
    us.pull("eu")
    eu.log.split("orders", 0)
    numbered(eu, 2, 2)
    numbered(eu, 4, 2)
    heads = {s.number: s.head for s in eu.log.stream("orders").segments}
    eu.log.trim("orders", {1: heads[1] // 2})
    us.pull("eu")
    assert graph(eu) == graph(us)
    assert len(us.origins()[1]) == heads[1] // 2
    assert us.origins()[2] == eu.origins()[2]
    places = us.log.catalog.read(lambda tx: replicas.places(tx, "eu")).values()
    assert sum(place.missed for place in places) == heads[1] // 2


def test_a_stream_that_several_regions_write_is_not_split(make: Make) -> None:
    eu, us = make("eu", here=True), make("us")
    linked([eu, us])
    for attempt in (
        lambda: eu.log.split("orders", 0),
        lambda: us.log.merge("orders", [0, 1]),
        lambda: eu.log.retile("orders", [0, 1], [(0, 1 << 32)]),
        lambda: eu.log.configure_stream("orders", scaling=ByEvents(target_per_s=10)),
    ):
        with pytest.raises(LinkError, match=r"several regions.*--writers"):
            attempt()
    assert len(graph(eu)) == len(graph(us)) == 2
    assert eu.log.stream("orders").config == ORDERS


def test_a_stream_is_split_where_it_is_written(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us], writers="eu")
    with pytest.raises(LinkError, match="written in eu; split or merge it there"):
        us.log.split("orders", 0)
    for region in (eu, us):
        region.log.configure_stream("orders", scaling=ByEvents(target_per_s=10))
        assert region.log.autoscale("orders") == []
    assert len(graph(us)) == 2


def test_a_policy_that_splits_is_no_policy_for_several_writers(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    eu.log.create_stream("orders", ORDERS, 2)
    eu.log.configure_stream("orders", scaling=ByEvents(target_per_s=10))
    with pytest.raises(LinkError, match="scales by itself"):
        link(eu.log, "orders", "us", here=eu.url, catalog=us.url)
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url, writers="eu")
    assert graph(eu) == graph(us)


def test_history_of_splits_comes_with_the_link_and_to_a_third_region(make: Make) -> None:
    eu, us, asia = make("eu"), make("us", here=True), make("asia")
    eu.log.create_stream("orders", ORDERS, 2)
    numbered(eu, 0, 3)
    eu.log.split("orders", 1)
    numbered(eu, 3, 3)
    with pytest.raises(LinkError, match="history can be linked if one region writes it"):
        link(eu.log, "orders", "us", here=eu.url, catalog=us.url)
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url, store=us.store, writers="eu")
    assert [number for number, *_ in graph(us)] == [0, 1]
    us.pull("eu")
    assert_alike(eu, us)
    eu.log.merge("orders", [2, 0])
    numbered(eu, 6, 3)
    link(eu.log, "orders", "asia", here=eu.url, catalog=asia.url, store=asia.store, writers="eu")
    asia.pull("us", "eu", "us")
    us.pull("eu")
    assert_alike(eu, us, asia)
    assert check(us.log, "orders", us.neighbours, deep=True).agrees


def test_without_history_a_split_since_then_is_copied_whole(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    eu.log.create_stream("orders", ORDERS, 1)
    numbered(eu, 0, 2)
    eu.log.split("orders", 0)
    numbered(eu, 2, 2)
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url, writers="eu", backfill="none")
    us.pull("eu")
    assert not any(us.origins().values())
    eu.log.split("orders", 1)
    numbered(eu, 4, 2)  # before us has heard of it
    us.pull("eu")
    assert graph(us) == graph(eu)
    assert sum(map(len, us.origins().values())) == 14
    assert by_key(us)["3"] == [b"4", b"5"]


def test_a_stream_that_was_split_while_it_was_unlinked_goes_on(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us], writers="eu", segments=1)
    numbered(eu, 0, 2)
    us.pull("eu")
    unlink(eu.log, "orders")
    numbered(eu, 2, 2)
    eu.log.split("orders", 0)
    numbered(eu, 4, 2)
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url, writers="eu")
    us.pull("eu")
    assert_alike(eu, us)


def test_another_region_that_becomes_the_writer_splits_on(make: Make) -> None:
    eu, us, asia = make("eu"), make("us", here=True), make("asia")
    linked([eu, us, asia], writers="eu")
    numbered(eu, 0, 2)
    eu.log.split("orders", 0)
    numbered(eu, 2, 2)
    agents = [RegionAgent(each.log, each.neighbours) for each in (eu, us, asia)]
    everywhere = (eu, us, asia)

    def settle() -> None:
        for _ in range(4):
            for each in everywhere:
                each.pull(*(other.name for other in everywhere if other is not each))
            for agent in agents:
                agent.step()

    promote(us.log, "orders", us.neighbours, force=True)
    settle()
    with pytest.raises(LinkError, match="written in us"):
        eu.log.split("orders", 1)
    numbered(us, 4, 2)
    us.log.split("orders", 1)
    us.log.merge("orders", [2, 3])
    numbered(us, 6, 2)
    settle()
    assert_same(everywhere)
    assert graph(eu) == graph(us) == graph(asia)
    assert by_key(asia)["2"] == [b"%d" % at for at in range(8)]


def test_two_regions_that_split_in_their_own_way_are_told_apart(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us], writers="eu")
    linked([eu, us], "other", writers="eu", config=type(ORDERS)(subjects=("other.>",)))
    promote(us.log, "orders", us.neighbours, force=True)
    us.log.split("orders", 0)
    eu.log.split("orders", 0, into=3)  # it has not heard of it
    eu.publish(3, stream="other")
    before = graph(us)
    with pytest.raises(RegionsDifferError, match=r"unlink orders"):
        us.pull("eu")
    assert graph(us) == before
    assert sum(map(len, us.origins("other").values())) == 3, "and the other stream goes on"


def test_events_for_a_segment_that_has_ended_are_told_and_not_dropped(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us], writers="eu", segments=1)
    eu.log.split("orders", 0)
    numbered(eu, 0, 2)
    promote(us.log, "orders", us.neighbours, force=True)
    us.publish(3)  # to segment 0, which it takes to be open
    us.pull("eu")
    assert graph(us) == graph(eu), "the survivor has everything"
    assert sum(map(len, us.origins().values())) == 17
    with pytest.raises(RegionsDifferError, match="segment 0, which has ended here"):
        eu.pull("us")


def test_no_group_splits_a_stream_that_several_regions_write(make_local: Make) -> None:
    eu, us = make_local("eu"), make_local("us")
    linked([eu, us])
    group = GroupProperties(
        group="audit", filter="orders.>", start="earliest", scale_for_members=True
    )

    def declare(tx: Tx) -> None:
        properties.declare(tx, group, "earliest", {}, exist_ok=False)

    locks = properties.declare_locks(group.key)
    with pytest.raises(LinkError, match="for the members of a group"):
        eu.log.catalog.write(declare, locks=locks)
    assert eu.log.catalog.read(lambda tx: properties.get(tx, group.key)) is None
    eu.log.create_stream("others", type(ORDERS)(subjects=("others.>",)))
    others = msgspec.structs.replace(group, filter="others.>")
    eu.log.catalog.write(
        lambda tx: properties.declare(tx, others, "earliest", {}, exist_ok=False),
        locks=properties.declare_locks(others.key),
    )
    with pytest.raises(LinkError, match="--no-scale-for-members"):
        link(eu.log, "others", "us", here=eu.url, catalog=us.url)
    link(eu.log, "others", "us", here=eu.url, catalog=us.url, writers="eu")
