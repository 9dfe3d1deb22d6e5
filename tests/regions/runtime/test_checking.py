"""Whether regions hold the same events: what both retain is compared, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.catalog.lanes import LaneStep
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.regions import digests
from headrace.regions.checking import check
from tests.regions.runtime.world import Place, linked


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    eu, us = Place("eu", str(tmp_path / "eu")), Place("us", str(tmp_path / "us"))
    linked([eu, us], segments=2)
    yield eu, us
    eu.close()
    us.close()


def pretend(place: Place, lane: str, given: list[Event]) -> None:
    """Append events as if they had come from another region."""
    write = place.log.write_of()
    write.add("orders", to_batch(given), step=LaneStep(lane=lane, sequence=0))
    place.log.commit(write)


def test_what_one_region_has_trimmed_is_not_compared(
    both: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "TASK_EVENTS", 70)
    eu, us = both
    for _ in range(9):
        eu.publish(100)
    us.publish(300)
    us.pull("eu")
    eu.pull("us")
    assert check(us.log, "orders", us.neighbours, deep=True).agrees
    eu.log.trim("orders", {0: 111, 1: 107})
    assert any(segment.tail for segment in eu.log.stream("orders").segments)
    for place in both:
        found = check(place.log, "orders", place.neighbours, deep=True)
        assert found.agrees, found
        assert {(line.lane, line.same) for line in found.lanes} == {("eu", True), ("us", True)}


def test_what_has_not_come_yet_differs_and_the_rest_is_the_same(both: tuple[Place, Place]) -> None:
    eu, us = both
    eu.publish(50)
    us.pull("eu")
    eu.publish(50)
    found = check(us.log, "orders", us.neighbours, deep=True)
    assert not found.agrees
    assert all(line.same for line in found.lanes)
    assert check(us.log, "orders", us.neighbours).lanes[0].same is None


@pytest.mark.parametrize("what", ["value", "key", "headers", "order"])
def test_events_that_differ_are_found(both: tuple[Place, Place], what: str) -> None:
    eu, us = both
    when = to_batch([Event(subject="orders.1", value=b"x")]).column("timestamp")[0].as_py()
    given = [
        Event(subject="orders.1", value=b"%d" % at, key="k", timestamp=when) for at in range(3)
    ]
    other = list(given)
    if what == "order":
        other[1:] = other[:0:-1]
    else:
        more = {"value": b"else", "headers": [("a", b"b")], "key": None}[what]
        one = {"value": b"1", "key": "k", "headers": None} | {what: more}
        other[1] = Event(subject="orders.1", timestamp=when, **one)  # type: ignore[arg-type]
    if what == "key":  # in the same segment
        given = [Event(subject="orders.1", value=each.value, timestamp=when) for each in given]
        other = list(given)
        other[1] = Event(subject="orders.1", value=b"1", key="orders.1", timestamp=when)
    eu.log.append("orders", given)
    pretend(us, "eu", other)
    found = check(us.log, "orders", us.neighbours, deep=True)
    assert not found.agrees
    assert [line.same for line in found.lanes if line.here] == [False]
    assert all(line.here == line.there for line in found.lanes)
