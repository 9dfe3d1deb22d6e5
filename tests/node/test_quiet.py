"""A node where nobody watches and nothing happens: it looks no more, and misses nothing."""

from __future__ import annotations

import pytest

from headrace.api import housekeeping
from headrace.node import observer as observers
from headrace.node.history import GROUP
from headrace.node.observer import Observer
from tests.node.support import RunningNode
from tests.support import wait_until

GROUP_NAME = "$share/audit/orders.>"


@pytest.fixture
def quiet(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> RunningNode:
    """A group that is behind; ten seconds last a tenth of one, and nobody watches for long."""
    monkeypatch.setattr(observers, "QUIET_S", 0.1)
    monkeypatch.setattr(observers, "TOUCHED_S", 0.0)

    async def fill() -> None:
        await node.hr.create_stream("orders", ["orders.>"])
        await node.hr.shared_groups.declare("audit", "orders.>", start="earliest")
        await node.hr.publish("orders.a", b"1")

    node.do(fill())
    observer = node.served.node.observer
    wait_until(lambda: _lag(observer) == 1, "the node to see it")
    return node


def _lag(observer: Observer) -> int | None:
    group = None if observer.look is None else observer.look.groups.get(GROUP_NAME)
    return None if group is None else group.lag.events


def _settled(observer: Observer) -> int:
    """The number of the last look, once nothing has led to another for half a second."""
    wait_until(lambda: observer.checked_s - observer.looked_s > 0.5, "no further look")
    assert observer.look is not None
    return observer.look.number


def test_nothing_is_looked_at_where_nothing_has_changed(quiet: RunningNode) -> None:
    node = quiet.served.node
    observer = node.observer
    number = _settled(observer)
    assert observer.age_s < 0.5, "it knows that nothing is newer"
    assert node.is_ready
    quiet.do(quiet.hr.in_thread(housekeeping.tidy, quiet.hr.log, "me", 60_000))
    checked_s = observer.checked_s
    wait_until(lambda: observer.checked_s > checked_s + 0.3, "further checks")
    assert observer.look is not None
    assert observer.look.number == number, "housekeeping in which nothing went is no news"


def test_the_history_goes_on_with_what_was_seen_only_older(quiet: RunningNode) -> None:
    observer = quiet.served.node.observer
    _settled(observer)
    look = observer.look
    assert look is not None
    seen = look.groups[GROUP_NAME].lag.seconds

    def last() -> tuple[float, ...]:
        now_s = look.seen_us / 1e6 + 60
        return observer.history.points(GROUP, GROUP_NAME, now_s - 120, now_s)[-1][1]

    wait_until(lambda: last()[1] > seen + 0.4, "an older lag")
    assert last()[0] == 1
    assert last()[2] == 0


def test_what_changes_is_seen_and_who_asks_sees_the_ages_of_now(quiet: RunningNode) -> None:
    observer = quiet.served.node.observer
    number = _settled(observer)
    quiet.do(quiet.hr.publish("orders.a", b"2"))
    wait_until(lambda: _lag(observer) == 2, "the second event")
    assert observer.look is not None
    assert observer.look.number > number
    number = _settled(observer)
    look = quiet.do(observer.recent(older_s=0.2))
    assert look is not None
    assert look.number > number
    assert observer.age_s < 5


def test_metrics_are_of_now_though_nobody_has_looked(
    quiet: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = quiet.served.node.observer
    _settled(observer)
    monkeypatch.setattr(Observer.recent, "__defaults__", (0.2, 2.0))
    number = observer.look.number if observer.look is not None else 0
    assert "headrace_group_lag_seconds" in quiet.ask("GET", "/metrics").body.decode()
    assert observer.look is not None
    assert observer.look.number > number
