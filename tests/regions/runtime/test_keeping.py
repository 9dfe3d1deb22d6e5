"""Retention by groups waits for the other regions; by limits it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.catalog import Tx, replicas
from headrace.catalog.streams import Consumed, Groups, Limits, StreamConfig
from headrace.errors import LinkError
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import Progress, store
from headrace.regions.leaving import unlink
from headrace.regions.linking import change_member
from headrace.regions.runtime.agent import RegionAgent
from tests.regions.runtime.world import Place, linked

STREAM = StreamConfig(subjects=("0.>", "orders.>"), retention=Consumed())


@pytest.fixture
def two(tmp_path: Path, catalog_url: str) -> Iterator[tuple[Place, Place]]:
    """Two regions; the first, on the database of the test, has a group that consumed everything."""
    eu = Place("eu", catalog_url.replace("postgres:@", "postgres@"), tmp_path / "eu-store")
    us = Place("us", str(tmp_path / "us"), tmp_path / "us-store")
    linked([eu, us], writers="eu", segments=1, config=STREAM)
    create_static(eu.log, "orders", "billing", max_members=1, members=["m1"])
    yield eu, us
    eu.close()
    us.close()


def consume(region: Place) -> None:
    """All that is there is acked by the group's member."""

    def run(tx: Tx) -> None:
        for segment in region.log.stream("orders").segments:
            store.join(tx, "orders.billing.member.m1", {segment.id: Progress(segment.head)})

    region.log.catalog.write(run)


def tails(region: Place) -> list[int]:
    region.log.trim("orders")
    return [segment.tail for segment in region.log.stream("orders").segments]


def look(region: Place) -> None:
    """The agent looks how far the others have come, as it does every few seconds."""
    RegionAgent(region.log, region.neighbours).step()


def test_what_a_group_has_consumed_is_kept_until_it_has_crossed(two: tuple[Place, Place]) -> None:
    eu, us = two
    eu.publish(5)
    eu.publish(5)
    consume(eu)
    look(eu)
    assert tails(eu) == [0]
    us.pull("eu")
    assert tails(eu) == [0], "it is not known yet"
    look(eu)
    assert tails(eu) == [10]
    eu.publish(5)
    eu.log.split("orders", 0)
    eu.publish(5)
    consume(eu)
    look(eu)
    assert tails(eu) == [10, 0, 0], "and what a split opened as well"
    us.pull("eu")
    look(eu)
    assert sum(tails(eu)) == 20
    assert sum(p.missed for p in us.log.catalog.read(replicas.all_places)) == 0


def test_limits_do_not_wait_and_the_gap_is_told(two: tuple[Place, Place]) -> None:
    eu, us = two
    eu.publish(5)
    us.pull("eu")
    eu.publish(5)
    eu.publish(5)
    eu.log.configure_stream("orders", retention=Groups(cap=Limits(events=5)))
    assert tails(eu) == [10]
    us.pull("eu")
    assert [p.missed for p in us.log.catalog.read(replicas.all_places)] == [5]
    assert [sequence for _, sequence, _ in us.origins()[0]] == [*range(5), *range(10, 15)]


def test_nothing_is_kept_for_a_region_that_is_lost(two: tuple[Place, Place]) -> None:
    eu, _ = two
    eu.publish(5)
    consume(eu)
    assert tails(eu) == [0]
    change_member(eu.log, "orders", "us", lambda m: msgspec.structs.replace(m, state="lost"))
    assert tails(eu) == [5]
    change_member(eu.log, "orders", "us", lambda m: msgspec.structs.replace(m, state="active"))
    eu.publish(5)
    consume(eu)
    assert tails(eu) == [5], "it is back"
    with pytest.raises(LinkError, match="unlink orders"):
        eu.log.delete_stream("orders")
    unlink(eu.log, "orders")
    assert tails(eu) == [10]
    eu.log.delete_stream("orders")
