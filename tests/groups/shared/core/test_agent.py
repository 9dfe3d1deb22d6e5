"""The agent: many borrowers, none of which knows of the others."""

from __future__ import annotations

import pytest

from headrace.errors import StaleTokenError
from headrace.groups.progress import Progress
from headrace.groups.shared.core import agent as agent_module
from headrace.groups.shared.core.agent import Agent
from headrace.groups.shared.core.borrower import Borrower
from headrace.groups.shared.core.borrower_states import Status
from headrace.groups.shared.core.effects import Beat, Effect, Gone, Install, ToLeader, ToRegistry
from headrace.groups.shared.core.messages import (
    Disconnect,
    Grant,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    Ping,
    PingResponse,
    Revoked,
)
from headrace.groups.shared.core.settings import BorrowerSettings


def agent() -> Agent:
    return Agent("s", 4, BorrowerSettings())


def connect(made: Agent, borrower: str) -> None:
    made.receive(LeaderConnectResponse("g", borrower, 5, "n1"), 0)


def wanted(effects: list[Effect]) -> list[str]:
    return [
        effect.message.borrower
        for effect in effects
        if isinstance(effect, ToRegistry) and isinstance(effect.message, LeaderWanted)
    ]


def test_every_borrower_gets_an_identifier_of_its_own() -> None:
    made = agent()
    assert wanted(made.subscribe("one", "g", 0)) == ["s:4:1"]
    assert wanted(made.subscribe("two", "g", 0)) == ["s:4:2"]


def test_invalidated_borrower_is_replaced_by_a_new_one() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    connect(made, "s:4:1")
    effects = made.receive(Invalidate("g", "s:4:1", 5, "unknown"), 10)
    assert wanted(effects) == ["s:4:2"]
    assert list(made.borrowers) == ["s:4:2"]


def test_borrower_that_meets_the_unexpected_is_replaced() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    connect(made, "s:4:1")
    effects = made.receive(Revoked("g", "s:4:1", 5, "orders/0", 3), 10)
    gone = next(effect for effect in effects if isinstance(effect, Gone))
    assert "Revoked" in gone.reason
    assert wanted(effects) == ["s:4:2"]


def test_stale_message_changes_nothing() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    connect(made, "s:4:1")
    before = made.snapshot()
    assert made.receive(Invalidate("g", "s:4:1", 4, "old"), 10) == []
    assert made.snapshot() == before


def test_quick_resubscribe_leaves_the_old_one_finishing_while_the_new_one_connects() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    connect(made, "s:4:1")
    made.receive(Grant("g", "s:4:1", 5, "orders/0", 1, Progress()), 0)
    made.unsubscribe("one", 0)
    assert wanted(made.subscribe("one", "g", 0)) == ["s:4:2"]
    statuses = {name: borrower.status for name, borrower in made.borrowers.items()}
    assert statuses == {"s:4:1": Status.UNSUBSCRIBING, "s:4:2": Status.CONNECTING}
    connect(made, "s:4:2")
    made.receive(Grant("g", "s:4:2", 5, "orders/1", 1, Progress()), 0)
    made.tick(1000)
    assert list(made.borrowers) == ["s:4:2"]


def test_old_borrower_that_ends_badly_is_not_replaced_after_a_resubscribe() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    connect(made, "s:4:1")
    made.receive(Grant("g", "s:4:1", 5, "orders/0", 1, Progress()), 0)
    made.unsubscribe("one", 0)
    made.subscribe("one", "g", 0)
    assert wanted(made.receive(Invalidate("g", "s:4:1", 5, "x"), 0)) == []


def test_agent_answers_for_a_borrower_that_is_gone() -> None:
    made = agent()
    for message in (
        Grant("g", "s:3:9", 5, "orders/0", 1, Progress()),
        LeaderConnectResponse("g", "s:3:9", 5, "n1"),
    ):
        (answer,) = made.receive(message, 0)
        assert answer == ToRegistry(Disconnect("g", "s:3:9", 5, 0, ()))
    assert made.receive(PingResponse("g", "s:3:9", 5, 1), 0) == []


def test_progress_through_a_borrower_that_is_gone_is_refused() -> None:
    made = agent()
    with pytest.raises(StaleTokenError, match="s:4:7"):
        made.on_progress("s:4:7", "orders/0", 1, acked=((0, 1),), now_ms=0)


def test_closing_says_goodbye_for_everyone() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    made.subscribe("two", "h", 0)
    connect(made, "s:4:1")
    effects = made.disconnect(0)
    goodbyes = [e for e in effects if isinstance(e, ToLeader | ToRegistry)]
    assert len(goodbyes) == 2
    assert made.borrowers == {}
    assert made.due_ms > 10**15


def test_install_names_the_borrower() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    connect(made, "s:4:1")
    effects = made.receive(Grant("g", "s:4:1", 5, "orders/0", 1, Progress()), 0)
    assert isinstance(effects[0], Install)
    assert made.subscription_of(effects[0].borrower) == "one"


def test_a_tick_finds_out_what_is_next_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of idle subscriptions are looked at once a tick, and not once more afterwards."""
    asked = 0

    class Counted(Borrower):
        @property
        def due_ms(self) -> int:
            nonlocal asked
            asked += 1
            return super().due_ms

    monkeypatch.setattr(agent_module, "Borrower", Counted)
    made = agent()
    for number in range(100):
        made.subscribe(f"s{number}", f"g{number}", number * 10)
    now_ms = made.due_ms
    asked = 0
    for _ in range(5):
        made.tick(now_ms)
        assert made.due_ms > now_ms
        now_ms = made.due_ms
    assert asked <= 5 * 110
    assert now_ms == min(each.due_ms for each in made.borrowers.values())


# --- one heartbeat for many ---


def beating(count: int) -> Agent:
    """Subscriptions to as many groups, all led by the same program."""
    made = agent()
    for number in range(1, count + 1):
        made.subscribe(f"sub{number}", f"g{number}", 0)
        made.receive(LeaderConnectResponse(f"g{number}", f"s:4:{number}", 5, "n1"), 0)
    return made


def test_pings_that_are_due_together_are_one_heartbeat_for_each_program() -> None:
    made = beating(3)
    made.subscribe("far", "g9", 0)
    made.receive(LeaderConnectResponse("g9", "s:4:4", 7, "n2"), 0)
    near, far = made.tick(1000)
    pings = tuple(Ping(f"g{number}", f"s:4:{number}", 5, 2) for number in (1, 2, 3))
    assert near == Beat("n1", pings)
    assert far == Beat("n2", (Ping("g9", "s:4:4", 7, 2),))
    assert made.due_ms == 2000


def test_who_is_not_answered_in_a_heartbeat_loses_its_leader_and_the_others_do_not() -> None:
    made = beating(3)
    for now_ms in (1000, 2000, 3000):
        (beat,) = made.tick(now_ms)
        assert isinstance(beat, Beat)
        made.answered(ping for ping in beat.pings if ping.group != "g2")
    effects = made.tick(4000)
    assert [effect.borrower for effect in effects if isinstance(effect, Gone)] == ["s:4:2"]
    assert wanted(effects) == ["s:4:4"]
    assert sorted(made.borrowers) == ["s:4:1", "s:4:3", "s:4:4"]


def test_a_late_answer_to_a_heartbeat_counts_from_when_it_was_sent() -> None:
    made = beating(1)
    (first,) = made.tick(1000)
    made.tick(2000)
    made.tick(3000)
    made.tick(4000 - 1)
    assert isinstance(first, Beat)
    made.answered(first.pings)
    assert not any(isinstance(effect, Gone) for effect in made.tick(4999))
    assert any(isinstance(effect, Gone) for effect in made.tick(5000))


def test_a_borrower_with_something_to_send_again_does_so_beside_the_heartbeat() -> None:
    made = beating(2)
    made.receive(Grant("g1", "s:4:1", 5, "orders/0", 1, Progress()), 0)
    made.on_progress("s:4:1", "orders/0", 1, acked=((0, 3),), now_ms=10)
    told = made.tick(1000)
    assert [type(e) for e in told] == [ToLeader, ToLeader, Beat]
    assert told[-1] == Beat("n1", (Ping("g2", "s:4:2", 5, 2),))


def test_an_answer_for_a_borrower_that_is_gone_changes_nothing() -> None:
    made = beating(1)
    before = made.snapshot()
    made.answered([Ping("g1", "s:4:9", 5, 1)])
    assert made.snapshot() == before


def test_borrowers_that_came_at_different_times_ping_together() -> None:
    made = agent()
    for number, now_ms in enumerate((0, 700, 900), start=1):
        made.subscribe(f"sub{number}", f"g{number}", now_ms)
        made.receive(LeaderConnectResponse(f"g{number}", f"s:4:{number}", 5, "n1"), now_ms)
    for now_ms in (1000, 2000, 3000):
        assert made.due_ms == now_ms
        (beat,) = made.tick(now_ms)
        assert isinstance(beat, Beat)
        assert len(beat.pings) == 3
        made.answered(beat.pings)


def test_only_who_looks_for_the_leader_of_that_group_asks_at_once() -> None:
    made = agent()
    made.subscribe("one", "g", 0)
    made.subscribe("two", "g", 0)
    made.subscribe("three", "h", 0)
    connect(made, "s:4:1")
    assert wanted(made.seek("g", 300)) == ["s:4:2"]
    # And from then on at its usual pace.
    find_ms = made.settings.find_leader_ms
    assert wanted(made.tick(299 + find_ms)) == ["s:4:3"]
    assert wanted(made.tick(300 + find_ms)) == ["s:4:2"]
