"""Replicated groups go through the splits of a stream, exactly where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.catalog import Tx, streams
from headrace.catalog.streams import StreamConfig
from headrace.groups.partitioned.lifecycle import create_static
from headrace.groups.progress import Progress, store
from headrace.log.events import Event
from headrace.regions import enabling, kinds
from headrace.regions.records import get_group
from tests.regions.runtime.world import Stepped, linked, settle

KEY = "orders.billing"


class Side(Stepped):
    """A region whose agent is stepped by hand, with a group of one member."""

    def spread(self, count: int) -> None:
        """Publish events whose keys fall into both halves of the key range."""
        given = [Event(subject=f"orders.{at}", key=str(at), value=b"x") for at in range(count)]
        self.log.append("orders", given)

    def reader(self, tx: Tx) -> str:
        found = get_group(tx, KEY)
        assert found is not None
        (reader,) = kinds.readers(tx, found)
        return reader

    def ack(self, number: int, lo: int, hi: int) -> None:
        """As the owner of the unit would."""

        def run(tx: Tx) -> None:
            segment = streams.require(tx, "orders").segment(number)
            assert segment is not None
            reader = self.reader(tx)
            before = store.load(tx, reader, segment.id) or Progress()
            store.ack_spans(tx, reader, {segment.id: before}, {segment.id: [(lo, hi)]})

        self.log.catalog.write(run)

    def acked(self) -> dict[int, set[int]]:
        """The sequences that are acked, by segment; there is one lane."""

        def look(tx: Tx) -> dict[int, Progress]:
            reader = self.reader(tx)
            return {
                s.number: store.load(tx, reader, s.id) or Progress()
                for s in streams.require(tx, "orders").segments
            }

        known = self.log.catalog.read(look, snapshot=True)
        return {
            number: {
                sequence for at, (_, sequence, _) in enumerate(rows) if at in known[number].acked()
            }
            for number, rows in self.origins().items()
        }


@pytest.fixture
def two(tmp_path: Path, catalog_url: str) -> Iterator[tuple[Side, Side]]:
    """Two regions with a replicated group on a stream that a writes; b is on the database."""
    a = Side("a", str(tmp_path / "a"), tmp_path / "a-store")
    b = Side("b", catalog_url.replace("postgres:@", "postgres@"), tmp_path / "b-store")
    linked([a, b], writers="a", segments=1, config=StreamConfig(subjects=(">",)))
    create_static(a.log, "orders", "billing", max_members=1, members=["m1"])
    enabling.enable(a.log, KEY, a.neighbours)
    settle(a, b)
    yield a, b
    a.close()
    b.close()


def test_progress_goes_through_a_split_in_both_directions(two: tuple[Side, Side]) -> None:
    a, b = two
    a.spread(40)
    a.ack(0, 0, 40)
    a.log.split("orders", 0)
    a.spread(40)
    first = len(a.origins()[1])
    a.ack(1, 0, first - 2)
    settle(a, b)
    assert b.acked() == a.acked()
    assert b.acked()[1] == set(range(first - 2))
    b.ack(1, first - 1, first)  # not the next one
    b.ack(2, 0, 3)
    settle(a, b)
    assert a.acked() == b.acked()
    assert a.acked()[1] == {*range(first - 2), first - 1}
    assert a.acked()[2] == {0, 1, 2}


def test_acks_behind_a_split_wait_until_it_was_made(two: tuple[Side, Side]) -> None:
    a, b = two
    a.spread(7)
    settle(a, b)
    a.log.split("orders", 0)
    a.spread(40)
    count = len(a.origins()[1])
    a.ack(0, 0, 7)
    a.ack(1, 0, count)
    a.agent.step()
    b.agent.step()
    assert not any(b.acked().values()), "what was published before the ack has not come"
    b.pull("a")
    assert b.acked()[1] == set()
    b.agent.step()
    assert b.acked() == a.acked()
    assert b.acked()[1] == set(range(count))


def test_what_is_trimmed_unconsumed_behind_a_split_stays_to_be_consumed(
    two: tuple[Side, Side],
) -> None:
    a, b = two
    a.spread(7)
    a.ack(0, 0, 7)
    settle(a, b)
    a.log.split("orders", 0)
    a.spread(40)
    b.pull("a")
    count = len(a.origins()[1])
    a.log.trim("orders", {1: count})
    a.spread(40)
    a.ack(1, 0, count + 1)  # its member went over what is gone, and acked the next one
    settle(a, b)
    assert b.acked()[1] == {count}


def test_a_seek_counts_in_the_segments_that_a_split_opened(two: tuple[Side, Side]) -> None:
    from headrace.groups.operations.seek import seek

    a, b = two
    a.spread(7)
    a.log.split("orders", 0)
    a.spread(40)
    settle(a, b)
    for number, rows in a.origins().items():
        a.ack(number, 0, len(rows))
    settle(a, b)
    assert all(b.acked().values())
    seek(b.log, "orders/billing", "earliest")
    settle(a, b)
    assert not any(a.acked().values())
    seek(a.log, "orders/billing", "latest")
    settle(a, b)
    assert b.acked() == a.acked()
    assert all(b.acked().values())


def test_a_group_that_is_new_begins_everywhere_in_all_segments(two: tuple[Side, Side]) -> None:
    a, b = two
    a.spread(7)
    a.log.split("orders", 0)
    a.spread(40)
    create_static(a.log, "orders", "late", max_members=1, members=["m1"], start="latest")
    enabling.enable(a.log, "orders.late", a.neighbours)
    b.agent.step()
    assert not _is_ready(b, "orders.late"), "its place is behind a split that was not made yet"
    settle(a, b)
    assert _is_ready(b, "orders.late")

    def floors(side: Side) -> dict[int, int]:
        def look(tx: Tx) -> dict[int, int]:
            record = get_group(tx, "orders.late")
            assert record is not None
            (reader,) = kinds.readers(tx, record)
            found = streams.require(tx, "orders").segments
            return {s.number: (store.load(tx, reader, s.id) or Progress()).floor for s in found}

        return side.log.catalog.read(look)

    assert floors(a) == floors(b)
    assert min(floors(b).values()) > 0


def _is_ready(side: Side, key: str) -> bool:
    found = side.log.catalog.read(lambda tx: get_group(tx, key))
    return found is not None and found.ready
