"""Streams that are unlinked and linked again, and groups that were made on their own meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import LinkError
from headrace.groups.partitioned.lifecycle import create_static, delete
from headrace.groups.progress import Progress, store
from headrace.regions import enabling
from headrace.regions.leaving import unlink
from headrace.regions.linking import link
from headrace.regions.records import get_group
from headrace.regions.status import status
from tests.regions.runtime.test_progress import KEY, ONE, Side, settle
from tests.regions.runtime.world import assert_same


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """Two linked regions, without a group."""
    a, b = (Side(name, str(tmp_path / name)) for name in ("a", "b"))
    a.log.create_stream("orders", ONE)
    link(a.log, "orders", "b", here=a.url, catalog=b.url)
    yield a, b
    a.close()
    b.close()


def again(a: Side, b: Side) -> None:
    link(a.log, "orders", "b", here=a.url, catalog=b.url)


def create(side: Side, start: str = "earliest") -> None:
    create_static(side.log, "orders", "billing", max_members=1, members=["m1"], start=start)


@pytest.mark.parametrize("both", [True, False])
def test_linked_again_everything_is_in_both_once(sides: tuple[Side, Side], both: bool) -> None:
    a, b = sides
    a.publish(5)
    b.publish(3)
    settle(a, b)
    a.publish(2)  # has not crossed when the link ends
    for side in sides if both else (a,):
        unlink(side.log, "orders")
    a.publish(4)
    if both:
        b.publish(6)
    again(a, b)
    settle(a, b)
    assert_same(sides)
    assert len(b.origins()[0]) == 14 + (6 if both else 0)


def test_what_was_trimmed_while_a_stream_was_unlinked_is_a_gap(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(5)
    settle(a, b)
    unlink(a.log, "orders")
    a.publish(4)
    a.log.trim("orders", {0: 9})
    a.publish(2)
    again(a, b)
    settle(a, b)
    assert [sequence for _, sequence, _ in b.origins()[0]] == [0, 1, 2, 3, 4, 9, 10]


def test_a_group_of_a_stream_that_is_unlinked_belongs_to_its_region(
    sides: tuple[Side, Side],
) -> None:
    a, b = sides
    create(a)
    enabling.enable(a.log, KEY, a.neighbours, home="a")
    a.publish(4)
    settle(a, b)
    assert b.record().waits("b")
    done = unlink(b.log, "orders")
    assert done.groups == (KEY,)
    assert b.log.catalog.read(lambda tx: get_group(tx, KEY)) is None
    b.ack(0, 2)
    again(a, b)
    with pytest.raises(LinkError, match="--adopt"):
        enabling.enable(b.log, KEY, b.neighbours)


def test_a_group_that_was_made_anew_before_anybody_heard_of_its_end_begins_anew(
    sides: tuple[Side, Side],
) -> None:
    a, b = sides
    create(a)
    enabling.enable(a.log, KEY, a.neighbours)
    a.publish(5)
    settle(a, b)
    a.ack(0, 5)
    settle(a, b)
    assert b.unacked() == []
    delete(a.log, "orders", "billing")
    create(a)
    enabling.enable(a.log, KEY, a.neighbours)
    settle(a, b)
    assert a.unacked() == b.unacked() == [0, 1, 2, 3, 4]


def test_a_group_that_was_made_on_its_own_is_not_joined_unasked(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(5)
    settle(a, b)
    create(a)
    enabling.enable(a.log, KEY, a.neighbours)
    create(b, start="latest")  # before its agent has heard of the other one
    settle(a, b)
    assert a.unacked() == [0, 1, 2, 3, 4]
    assert b.unacked() == []
    assert b.log.catalog.read(lambda tx: get_group(tx, KEY)) is None
    assert "made here on its own, and a replicates" in status(b.log, b.neighbours).findings[0]
    enabling.enable(a.log, KEY, a.neighbours, adopt="a")
    settle(a, b)
    assert a.unacked() == b.unacked() == [0, 1, 2, 3, 4]


def test_adopt_makes_one_regions_progress_that_of_all(sides: tuple[Side, Side]) -> None:
    a, b = sides
    create(a)
    enabling.enable(a.log, KEY, a.neighbours)
    a.publish(5)
    settle(a, b)
    b.ack(1, 4)  # not told to anybody
    a.ack(0, 1)
    enabling.enable(a.log, KEY, a.neighbours, adopt="a")
    settle(a, b)
    assert a.unacked() == b.unacked() == [1, 2, 3, 4]


def test_what_was_trimmed_before_a_group_began_is_not_acked_by_it(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.publish(5)
    settle(a, b)
    b.log.trim("orders", {0: 5})
    create(a)
    enabling.enable(a.log, KEY, a.neighbours)
    settle(a, b)
    b.publish(1)
    b.log.catalog.write(lambda tx: store.join(tx, KEY, {b.segment: Progress(6)}))  # as owners do
    settle(a, b)
    assert a.left() == [("a", at) for at in range(5)]
