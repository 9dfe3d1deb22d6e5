"""Which region writes a stream that one region writes; and a region that leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import LinkError, NotWrittenHereError, SwitchError, SwitchRefusedError
from headrace.groups.partitioned.lifecycle import create_static
from headrace.regions import enabling, leaving, losing
from headrace.regions.linking import link
from headrace.regions.promoting import promote
from headrace.regions.records import AGENT_LEASE, get_group, links
from headrace.regions.runtime.runner import RegionRunner
from tests.regions.runtime.test_progress import KEY, ONE, Side, settle
from tests.regions.runtime.world import assert_same
from tests.support import wait_until


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Side]]:
    """Three regions of a stream that the first one writes."""
    made = [Side(name, str(tmp_path / name)) for name in ("a", "b", "c")]
    made[0].log.create_stream("orders", ONE)
    for other in made[1:]:
        link(made[0].log, "orders", other.name, here=made[0].url, catalog=other.url, writers="a")
    yield made
    for side in made:
        side.close()


@contextmanager
def running(*sides: Side) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=RegionRunner(side.log).run, args=(stop,)) for side in sides]
    for thread in threads:
        thread.start()
    try:
        held = [side.log.catalog.leases for side in sides]
        wait_until(lambda: all(each.get(AGENT_LEASE) for each in held), "an agent in each")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def writers(*sides: Side) -> set[str]:
    return {side.log.catalog.read(links)["orders"].writers for side in sides}


def test_a_promoted_region_writes_after_everything_has_come(three: list[Side]) -> None:
    a, b, c = three
    a.publish(5)
    with pytest.raises(SwitchRefusedError, match="no agent runs in a"):
        promote(b.log, "orders", b.neighbours)
    with running(a, b):
        assert promote(b.log, "orders", b.neighbours, dry_run=True).source == "a"
        assert writers(a, b, c) == {"a"}
        done = promote(b.log, "orders", b.neighbours)
        assert (done.source, done.target, done.lag_events) == ("a", "b", 0)
        assert len(b.origins()[0]) == 5
        b.publish(3)
        with pytest.raises(NotWrittenHereError):
            a.publish(1)
    settle(*three)
    assert writers(*three) == {"b"}
    assert_same(three)
    with pytest.raises(SwitchRefusedError, match="already"):
        promote(b.log, "orders", b.neighbours)


def test_a_promotion_that_cannot_end_changes_nothing(three: list[Side]) -> None:
    a, b, _ = three
    stand_in = [s.log.catalog.leases.acquire(AGENT_LEASE, "x", 60_000) for s in (a, b)]
    assert all(stand_in)
    times = iter((0.0, 1.0, 99.0))
    with pytest.raises(SwitchError, match="stays written in a"):
        promote(b.log, "orders", b.neighbours, clock=lambda: next(times))
    settle(*three)
    assert writers(*three) == {"a"}
    a.publish(1)


def test_by_force_it_writes_at_once_and_the_old_writer_stops_when_it_returns(
    three: list[Side],
) -> None:
    a, b, c = three
    a.publish(4)
    b.pull("a")
    a.publish(2)
    assert promote(b.log, "orders", b.neighbours, force=True).lag_events == 2
    b.publish(3)
    a.publish(1)  # it has not heard of it
    settle(*three)
    assert writers(*three) == {"b"}
    with pytest.raises(NotWrittenHereError):
        a.publish(1)
    assert_same(three)
    assert len(c.origins()[0]) == 10


def test_a_region_that_is_needed_is_not_removed(three: list[Side]) -> None:
    a, b, c = three
    create_static(a.log, "orders", "billing", max_members=1, members=["m1"])
    enabling.enable(a.log, KEY, a.neighbours, home="a")
    settle(*three)
    a.publish(2)
    with pytest.raises(LinkError, match=r"at home there.*is written there.*2 events"):
        leaving.remove(b.log, "a", b.neighbours)
    assert leaving.remove(b.log, "c", b.neighbours, dry_run=True).streams == ("orders",)
    settle(*three)
    done = leaving.remove(b.log, "c", b.neighbours)
    assert set(done.told) == {"a", "c"}
    assert c.log.catalog.read(links) == {}
    assert c.log.catalog.read(lambda tx: get_group(tx, KEY)) is None
    a.publish(2)
    settle(a, b)
    assert_same([a, b])
    assert c.log.stream("orders").segments[0].head == 2  # what it had stays


def test_progress_that_waits_for_a_region_goes_on_when_that_is_lost(tmp_path: Path) -> None:
    a, b, c = made = [Side(name, str(tmp_path / name)) for name in ("a", "b", "c")]
    a.log.create_stream("orders", ONE)
    for other in (b, c):
        link(a.log, "orders", other.name, here=a.url, catalog=other.url)
    create_static(a.log, "orders", "billing", max_members=1, members=["m1"])
    enabling.enable(a.log, KEY, a.neighbours)
    settle(*made)
    a.publish(3)
    b.pull("a")
    b.ack(0, 2)
    b.agent.step()
    c.pull("b")
    c.agent.step()  # waits for what b has from a
    assert c.agent._pending
    losing.fail_over(b.log, "a", b.neighbours, force=True)
    settle(b, c)
    assert c.left() == [("a", 2)]
    for side in made:
        side.close()
