"""Replication in rounds: every region holds every event once, in order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.catalog import replicas
from headrace.errors import RegionWentBackError, RoundOvertakenError
from headrace.regions.linking import link
from headrace.regions.runtime import copying, rounds
from headrace.regions.runtime.replicator import Replicator
from tests.regions.runtime.world import ORDERS, Place, assert_same, linked, making

Make = Callable[[str], Place]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes regions, each on SQLite."""
    with making(tmp_path) as make:
        yield make


def test_events_of_both_regions_are_in_both_once_and_in_order(make: Make) -> None:
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 2)
    eu.publish(30)
    linked_again(eu, us)
    us.publish(20)
    eu.publish(5)
    us.pull("eu")
    eu.pull("us")
    us.pull("eu")
    assert us.pull("eu") == eu.pull("us") == 0
    assert_same([eu, us])
    assert sum(len(rows) for rows in us.origins().values()) == 55


def test_three_regions_take_from_each_only_what_it_published(make: Make) -> None:
    regions = [make("a"), make("b"), make("c")]
    linked(regions)
    for turn in range(3):
        for region in regions:
            region.publish(4 + turn)
        for region in regions:
            region.pull(*(other.name for other in regions if other is not region))
    for region in regions:
        region.pull(*(other.name for other in regions if other is not region))
    assert_same(regions)
    assert sum(len(rows) for rows in regions[0].origins().values()) == 3 * (4 + 5 + 6)


def test_a_round_that_another_one_overtook_changes_nothing(make: Make) -> None:
    eu, us = make("eu"), make("us")
    linked([eu, us])
    eu.publish(10)
    replicator = Replicator(us.log, us.neighbours, "eu")
    member = replicator.member()
    assert member is not None
    source = us.neighbours.log(member)
    planned = replicator.plan(source)
    done = copying.carry_out(us.log, source, planned.copies)
    assert us.pull("eu")
    with pytest.raises(RoundOvertakenError):
        rounds.commit(us.log, "eu", done)
    assert_same([eu, us])


def test_files_of_one_lane_are_copied_as_they_stand(make: Make) -> None:
    eu, us = make("eu"), make("us")
    linked([eu, us], segments=1)
    eu.publish(3000, value=b"x" * 1000)
    eu.publish(5)
    us.pull("eu")
    files = [file.bytes for file in us.log.store.list(us.log.prefix)]  # type: ignore[union-attr]
    assert files == [file.bytes for file in eu.log.store.list(eu.log.prefix)]  # type: ignore[union-attr]
    assert files
    assert_same([eu, us])


def test_what_the_source_trimmed_too_early_is_a_gap_that_is_told(make: Make) -> None:
    eu, us = make("eu"), make("us")
    linked([eu, us], segments=1)
    eu.publish(10)
    us.pull("eu")
    eu.publish(10)
    eu.publish(10)
    eu.log.trim("orders", {0: 20})
    us.pull("eu")
    sequences = [sequence for _, sequence, _ in us.origins()[0]]
    assert sequences == [*range(10), *range(20, 30)]
    places = us.log.catalog.read(replicas.all_places)
    assert [place.missed for place in places if place.source == "eu"] == [10]


def test_a_link_without_history_begins_in_the_middle(make: Make) -> None:
    eu, us = make("eu"), make("us")
    eu.log.create_stream("orders", ORDERS, 1)
    eu.publish(10)
    linked_again(eu, us, backfill="none")
    us.pull("eu")
    eu.publish(5)
    us.pull("eu")
    assert [sequence for _, sequence, _ in us.origins()[0]] == list(range(10, 15))
    places = us.log.catalog.read(replicas.all_places)
    assert [place.missed for place in places] == [0]


def test_a_region_restored_from_a_copy_is_refused(make: Make, tmp_path: Path) -> None:
    eu, us = make("eu"), make("us")
    linked([eu, us], segments=1)
    eu.publish(10)
    eu.log.catalog.close()
    shutil.copytree(tmp_path / "eu", tmp_path / "copy")
    eu = Place("eu", str(tmp_path / "eu"))
    eu.publish(5)
    us.pull("eu")
    eu.close()
    us.neighbours.close()
    shutil.rmtree(tmp_path / "eu")
    shutil.copytree(tmp_path / "copy", tmp_path / "eu")
    eu = Place("eu", str(tmp_path / "eu"))
    with pytest.raises(RegionWentBackError, match="renew"):
        us.pull("eu")
    eu.publish(7)
    with pytest.raises(RegionWentBackError, match="renew"):
        us.pull("eu")
    eu.close()


def linked_again(eu: Place, us: Place, backfill: str = "all") -> None:
    link(eu.log, "orders", "us", here=eu.url, catalog=us.url, backfill=backfill)


def test_regions_on_different_databases_hold_the_same(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_POSTGRES_FSYNC", "off")
    eu = Place("eu", str(tmp_path / "eu"))
    us = Place("us", postgres_url.replace("postgres:@", "postgres@"), tmp_path / "us-store")
    try:
        linked([eu, us])
        for turn in range(3):
            eu.publish(20 + turn)
            us.publish(10 + turn)
            us.pull("eu")
            eu.pull("us")
        eu.publish(3000, value=b"x" * 1000)
        us.pull("eu")
        assert_same([eu, us])
    finally:
        eu.close()
        us.close()
