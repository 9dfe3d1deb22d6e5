"""The registry: finding a leader, or becoming one."""

from __future__ import annotations

from headrace.groups.shared.core.messages import Disconnect, Invalidate, LeaderWanted, Ping
from headrace.groups.shared.core.registry import (
    Forward,
    LookUp,
    Registry,
    Reply,
    StartLeader,
    ToLocalLeader,
)

WANTED = LeaderWanted("g", "s:1:1", 0, "s")
ALSO = LeaderWanted("g", "t:1:1", 0, "t")


def test_first_request_looks_the_leader_up_and_others_wait() -> None:
    registry = Registry("n1")
    assert registry.wanted(WANTED, 0) == [LookUp("g")]
    assert registry.wanted(ALSO, 1) == []
    assert registry.found("g", "n2", 2) == [Forward("n2", WANTED), Forward("n2", ALSO)]


def test_answer_is_remembered_for_a_short_while_only() -> None:
    registry = Registry("n1", remember_ms=100)
    registry.wanted(WANTED, 0)
    registry.found("g", "n2", 0)
    assert registry.wanted(WANTED, 99) == [Forward("n2", WANTED)]
    assert registry.wanted(WANTED, 100) == [LookUp("g")]


def test_node_that_wins_the_lease_starts_a_leader_and_serves_who_waited() -> None:
    registry = Registry("n1")
    registry.wanted(WANTED, 0)
    assert registry.won("g", 7, 0) == [StartLeader("g", 7, 0)]
    assert registry.started("g", 7) == [ToLocalLeader(WANTED)]
    assert registry.wanted(ALSO, 5) == [ToLocalLeader(ALSO)]
    assert registry.local == {"g": 7}


def test_failed_look_up_is_tried_again_at_the_next_request() -> None:
    registry = Registry("n1")
    registry.wanted(WANTED, 0)
    registry.failed("g")
    assert registry.wanted(WANTED, 1) == [LookUp("g")]


def test_look_up_without_an_answer_is_repeated_after_a_while() -> None:
    registry = Registry("n1", retry_ms=1000)
    registry.wanted(WANTED, 0)
    assert registry.wanted(WANTED, 999) == []
    assert registry.wanted(WANTED, 1000) == [LookUp("g")]


def test_request_is_forwarded_once_and_does_not_go_in_circles() -> None:
    registry = Registry("n1")
    registry.wanted(WANTED, 0)
    registry.found("g", "n2", 0)
    assert registry.received(WANTED, 1) == []


def test_lease_of_an_earlier_life_of_the_node_has_to_run_out() -> None:
    registry = Registry("n1")
    registry.wanted(WANTED, 0)
    assert registry.found("g", "n1", 1) == []
    assert registry.wanted(WANTED, 2) == [LookUp("g")]


def test_message_to_a_leader_that_is_gone_sends_the_borrower_away() -> None:
    registry = Registry("n1")
    registry.started("g", 7)
    assert registry.received(Ping("g", "s:1:1", 7, 1), 0) == [
        ToLocalLeader(Ping("g", "s:1:1", 7, 1))
    ]
    registry.stopped("g", 7)
    (reply,) = registry.received(Ping("g", "s:1:1", 7, 1), 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Invalidate)
    assert reply.message.token == 7


def test_end_of_an_earlier_leadership_does_not_stop_the_present_one() -> None:
    registry = Registry("n1")
    registry.started("g", 8)
    registry.stopped("g", 7)
    assert registry.local == {"g": 8}


def test_goodbye_to_nobody_is_dropped() -> None:
    registry = Registry("n1")
    assert registry.wanted(Disconnect("g", "s:1:1", 0, 0, ()), 0) == []
