"""Lanes: every event of a linked stream has an origin, dense in its lane, however it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest

from headrace.catalog import Tx, lanes
from headrace.catalog.lanes import LaneStep
from headrace.catalog.streams import StreamConfig
from headrace.errors import (
    CatalogUnavailableError,
    LaneOrderError,
    LinkError,
    NotLinkedError,
    NotWrittenHereError,
)
from headrace.log import events, limits
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.events import Event
from headrace.log.log import Log
from headrace.log.query import Query


def link(log: Log, name: str = "orders", lane: str = "eu") -> None:
    stream = log.stream(name)

    def begin(tx: Tx) -> None:
        for segment in stream.segments:
            lanes.number_history(tx, segment.id, lane or "xx", segment.tail, segment.head)
            lanes.begin(tx, segment.id, lane)

    log.catalog.write(begin)


def publish(log: Log, count: int, step: LaneStep | None = None) -> None:
    write = log.write_of()
    given = [Event(subject="orders.1", value=b"%d" % at) for at in range(count)]
    write.add("orders", events.batch_of(given, 1), step=step)
    log.commit(write)


def origins(log: Log) -> Iterator[tuple[str, int] | None]:
    for batch in log.read("orders"):
        for origin in batch.column("origin").to_pylist():
            yield None if origin is None else (origin["region"], origin["sequence"])


@pytest.fixture
def orders(log: Log) -> Log:
    log.create_stream("orders", StreamConfig(subjects=("orders.>",)))
    return log


def test_history_and_what_comes_after_a_link_are_one_dense_lane(orders: Log) -> None:
    publish(orders, 3)
    orders.append_marker("orders", 0, b"internal")
    publish(orders, 2)
    assert list(origins(orders)) == [None] * 5
    link(orders)
    orders.append_marker("orders", 0, b"internal")
    publish(orders, 2)
    assert list(origins(orders)) == [("eu", at) for at in range(7)]


def test_lanes_alternate_and_each_stays_dense(orders: Log) -> None:
    link(orders)
    publish(orders, 2)
    publish(orders, 3, LaneStep(lane="us", sequence=0))
    publish(orders, 1)
    publish(orders, 1, LaneStep(audience="!"))
    publish(orders, 2, LaneStep(lane="us", sequence=3))
    assert list(origins(orders)) == [
        *(("eu", 0), ("eu", 1)),
        *(("us", 0), ("us", 1), ("us", 2)),
        *(("eu", 2), ("eu!", 0)),
        *(("us", 3), ("us", 4)),
    ]


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_read_that_lost_the_catalog_on_its_way_gives_everything_all_the_same(
    orders: Log, monkeypatch: pytest.MonkeyPatch, in_a_file: bool
) -> None:
    link(orders)
    if in_a_file:
        monkeypatch.setattr(limits, "INLINE_BYTES", 10)
    publish(orders, 5)
    reader = orders.reader("orders", Query())
    with monkeypatch.context() as context:
        context.setattr(lanes, "runs", _away)
        with pytest.raises(CatalogUnavailableError):
            reader.next()
    found = reader.next()
    assert found is not None
    assert found.column("offset").to_pylist() == [0, 1, 2, 3, 4]


def _away(*_: object) -> NoReturn:
    raise CatalogUnavailableError("away")


def test_a_lane_that_is_not_continued_is_refused_and_nothing_is_written(orders: Log) -> None:
    link(orders)
    publish(orders, 2, LaneStep(lane="us", sequence=0))
    for sequence in (0, 1, 3):
        with pytest.raises(LaneOrderError):
            publish(orders, 1, LaneStep(lane="us", sequence=sequence))
    assert orders.stream("orders").segments[0].head == 2


def test_a_gap_is_gone_over_only_when_it_was_told(orders: Log) -> None:
    link(orders)
    publish(orders, 2, LaneStep(lane="us", sequence=0))
    segment = orders.stream("orders").segments[0]
    orders.catalog.write(lambda tx: lanes.skip_to(tx, segment.id, "us", 5))
    publish(orders, 2, LaneStep(lane="us", sequence=5))
    publish(orders, 1, LaneStep(lane="us", sequence=7))
    assert [found and found[1] for found in origins(orders)] == [0, 1, 5, 6, 7]


def test_regions_of_a_stream_that_is_not_linked_are_refused(orders: Log) -> None:
    with pytest.raises(NotLinkedError, match="orders"):
        publish(orders, 1, LaneStep(audience="!"))
    assert orders.stream("orders").segments[0].head == 0


def test_where_a_stream_is_not_written_only_other_regions_events_come(orders: Log) -> None:
    link(orders, lane="")
    with pytest.raises(NotWrittenHereError, match="publish where it is"):
        publish(orders, 1)
    publish(orders, 1, LaneStep(lane="us", sequence=0))
    orders.append_marker("orders", 0, b"internal")
    assert list(origins(orders)) == [("us", 0)]


def test_compaction_and_trimming_keep_origins(orders: Log) -> None:
    link(orders)
    for _ in range(3):
        publish(orders, 2)
        publish(orders, 2, LaneStep(lane="us", sequence=lane_end(orders, "us")))
    before = list(origins(orders))
    done = orders.compact("orders", CompactionPolicy(min_batches=2, min_age_s=0))
    assert done.files == 1
    assert list(origins(orders)) == before
    publish(orders, 1)
    orders.trim("orders", {0: 12})
    assert list(origins(orders)) == [("eu", 6)]
    segment = orders.stream("orders").segments[0]
    orders.catalog.write(lambda tx: lanes.forget(tx, segment.id, segment.tail))
    assert lane_end(orders, "us") == 6
    publish(orders, 1, LaneStep(lane="us", sequence=6))
    assert list(origins(orders)) == [("eu", 6), ("us", 6)]


def lane_end(log: Log, lane: str) -> int:
    segment = log.stream("orders").segments[0]
    return log.catalog.read(lambda tx: lanes.next_sequence(tx, segment.id, lane))


def test_a_linked_stream_is_neither_deleted_nor_split(orders: Log) -> None:
    link(orders)
    publish(orders, 2)
    with pytest.raises(LinkError, match="unlink orders"):
        orders.delete_stream("orders")
    with pytest.raises(LinkError, match="split or merged"):
        orders.split("orders", 0)
    assert list(origins(orders)) == [("eu", 0), ("eu", 1)]


def test_a_read_that_follows_tells_origins_as_any_other(orders: Log) -> None:
    """Of one segment, what is new is read without a look at its head."""
    link(orders)
    reader = orders.reader("orders", Query(follow=True))
    found: list[tuple[str, int]] = []
    for step in (None, LaneStep(lane="us", sequence=0), None, LaneStep(audience="!"), None):
        publish(orders, 2, step)
        while (batch := reader.next(brief=True)) is not None:
            found += [
                (one["region"], one["sequence"]) for one in batch.column("origin").to_pylist()
            ]
    assert found == list(origins(orders))
    assert [sequence for region, sequence in found if region == "eu"] == list(range(6))
    assert len(found) == 10
