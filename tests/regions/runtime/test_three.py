"""Three regions: one is lost, the others even out; one is restored from a copy and begins anew."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.groups.partitioned.lifecycle import create_static
from headrace.log.events import Event
from headrace.log.given import to_batch
from headrace.regions import enabling, losing
from headrace.regions.linking import link, step_for
from headrace.regions.renewing import renew_region
from tests.regions.runtime.test_progress import KEY, ONE, Side, settle
from tests.regions.runtime.world import assert_same


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Side]]:
    """Three linked regions, with a replicated group."""
    made = [Side(name, str(tmp_path / name)) for name in ("a", "b", "c")]
    a = made[0]
    a.log.create_stream("orders", ONE)
    for other in made[1:]:
        link(a.log, "orders", other.name, here=a.url, catalog=other.url)
    create_static(a.log, "orders", "billing", max_members=1, members=["m1"])
    enabling.enable(a.log, KEY, a.neighbours)
    settle(*made)
    yield made
    for side in made:
        side.close()


def lose(side: Side, *survivors: Side) -> None:
    for each in survivors:
        losing.fail_over(each.log, side.name, each.neighbours, force=True)


def test_survivors_take_from_each_other_what_one_has_more(three: list[Side]) -> None:
    a, b, c = three
    a.publish(3)
    settle(*three)
    a.publish(4)
    b.pull("a")
    a.publish(2)  # nobody has it when the region is lost
    lose(a, b)  # the other one is not even told
    b.publish(2)
    settle(b, c)
    assert_same([b, c])
    assert len(c.origins()[0]) == 9
    for each in (b, c):
        losing.set_state(each.log, "a", "active")
    settle(a, b, c)
    assert_same(three)
    assert len(c.origins()[0]) == 11


def test_what_is_kept_from_the_lost_region_comes_when_it_returns(three: list[Side]) -> None:
    """Events for one region alone lie among those that came from the other survivor."""
    a, b, c = three
    a.publish(2)
    settle(*three)
    a.publish(2)
    write = a.log.write_of()
    write.add("orders", to_batch([only("c-alone")]), step=step_for(a.log, "orders", ["c"]))
    a.log.commit(write)
    a.publish(3)
    b.pull("a")
    lose(a, b, c)
    settle(b, c)
    assert len(c.origins()[0]) == 7
    losing.set_state(c.log, "a", "active")
    c.pull("a")
    assert sorted(value for _, _, value in c.origins()[0]).count(b"c-alone") == 1
    assert len(c.origins()[0]) == 8


def test_acks_that_came_by_way_of_another_region_wait_behind_the_data_too(
    three: list[Side],
) -> None:
    a, b, c = three
    a.publish(3)
    settle(*three)
    a.ack(0, 2)
    a.publish(2)  # the output
    settle(a, b)
    while c.agent.step():  # hears of the acks from b, and has not copied the output from a
        pass
    assert c.unacked() == [0, 1, 2]
    c.pull("a", "b")
    while c.agent.step():
        pass
    assert c.unacked() == [2, 3, 4]


def test_acks_go_on_between_survivors(three: list[Side]) -> None:
    a, b, c = three
    a.publish(5)
    b.pull("a")
    b.agent.step()
    lose(a, b)
    b.ack(0, 3)
    settle(b, c)
    assert c.left() == [("a", 3), ("a", 4)]


def test_a_region_that_was_restored_and_renewed_is_in_step_again(
    tmp_path: Path, three: list[Side]
) -> None:
    a, b, c = three
    a.publish(3)
    settle(*three)
    a.log.catalog.close()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    again = Side("a", a.url)
    again.publish(4)
    b.pull("a")
    again.log.catalog.close()
    for each in (b, c):
        each.neighbours.close()
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "copy", tmp_path / "a")
    a = Side("a", a.url)
    assert renew_region(a.log, a.neighbours).incarnation == 2
    a.publish(2)
    for _ in range(2):
        settle(a, b, c)
    assert_same([a, b, c])
    assert len(a.origins()[0]) == 9
    a.close()


def only(value: str) -> Event:
    return Event(subject="orders.1", key="1", value=value.encode())
