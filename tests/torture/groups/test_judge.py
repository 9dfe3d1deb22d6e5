"""The judge of groups finds what is wrong, and nothing where all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.torture.groups.journal import (
    Acking,
    Delivered,
    Event,
    Hold,
    Outcome,
    Record,
    Settled,
    Way,
)
from tests.torture.groups.judge import Totals, judge

FIRST, SECOND = Event(1, 1), Event(1, 2)


def delivered(
    at: int,
    event: Event,
    token: int,
    outcome: Outcome | None = "acked",
    *,
    ack_at: int | None = None,
    way: Way = "ack",
) -> list[Record]:
    """A delivery at ``at``; its ack is asked for one later and answered another one later."""
    hold = Hold("g", "0", token, event, 1)
    asked = at + 1 if ack_at is None else ack_at
    records: list[Record] = [Delivered(at, hold), Acking(asked, hold, way)]
    if outcome is not None:
        records.append(Settled(asked + 1, hold, outcome))
    return records


def kinds(
    published: Sequence[Event],
    journals: Mapping[str, Sequence[Record]],
    outputs: Sequence[Event] | None = None,
) -> list[str]:
    made = None if outputs is None else {"g": Counter(outputs)}
    findings, _ = judge(published, journals, ["g"], made)
    return [finding.kind for finding in findings]


def test_a_hand_over_between_two_instances_is_fine() -> None:
    journals = {
        "a": [*delivered(10, FIRST, 1), *delivered(20, SECOND, 1, None)],
        "b": delivered(40, SECOND, 2),
    }
    assert kinds([FIRST, SECOND], journals) == []


def test_an_event_that_nobody_got_is_lost() -> None:
    assert kinds([FIRST, SECOND], {"a": delivered(10, FIRST, 1)}) == ["never delivered"]


def test_a_fenced_ack_alone_leaves_the_event_lost() -> None:
    assert kinds([FIRST], {"a": delivered(10, FIRST, 1, "fenced")}) == ["delivered, never acked"]


def test_a_delivery_after_a_confirmed_ack_is_found() -> None:
    journals = {"a": delivered(10, FIRST, 1), "b": delivered(20, FIRST, 2, "fenced")}
    assert kinds([FIRST], journals) == ["delivered after a confirmed ack"]


def test_a_second_delivery_of_the_same_owner_after_a_confirmed_ack_is_found() -> None:
    again = Hold("g", "0", 1, FIRST, 2)
    journals = {"a": [*delivered(10, FIRST, 1), Delivered(30, again)]}
    assert kinds([FIRST], journals) == ["delivered after a confirmed ack"]


def test_a_stale_delivery_that_is_fenced_is_fine() -> None:
    journals = {"a": delivered(30, FIRST, 1, "fenced"), "b": delivered(20, FIRST, 2)}
    findings, totals = judge([FIRST], journals, ["g"])
    assert findings == []
    assert totals == Totals(events=1, deliveries=2, acked=1, fenced=1, stale_deliveries=1, tokens=2)


def test_a_stale_ack_that_counts_is_found() -> None:
    journals = {
        "a": delivered(10, FIRST, 1, ack_at=50),
        "b": delivered(20, Event(2, 1), 2),
    }
    assert kinds([FIRST, Event(2, 1)], journals) == ["stale ack counted"]


def test_two_confirmed_acks_of_an_event_are_found() -> None:
    journals = {"a": delivered(10, FIRST, 2), "b": delivered(10, FIRST, 1)}
    assert "acked twice" in kinds([FIRST], journals)


def test_two_owners_under_one_token_are_found() -> None:
    journals = {"a": delivered(10, FIRST, 1), "b": delivered(20, Event(2, 1), 1)}
    assert kinds([FIRST, Event(2, 1)], journals) == ["two instances with one token"]


def test_an_event_before_the_one_before_it_was_acked_is_found() -> None:
    journals = {"a": [*delivered(10, SECOND, 1), *delivered(20, FIRST, 1)]}
    assert kinds([FIRST, SECOND], journals) == ["delivered before its turn", "out of order"]


def test_an_event_that_nobody_published_is_found() -> None:
    assert kinds([], {"a": delivered(10, FIRST, 1)}) == ["never published"]


def test_output_of_a_transaction_is_there_once() -> None:
    journals = {"a": delivered(10, FIRST, 1, way="transaction")}
    assert kinds([FIRST], journals, [FIRST]) == []
    assert kinds([FIRST], journals, []) == ["output missing"]
    assert kinds([FIRST], journals, [FIRST, FIRST]) == ["output twice"]


def test_output_of_a_fenced_transaction_is_found() -> None:
    journals = {
        "a": delivered(30, FIRST, 1, "fenced", way="transaction"),
        "b": delivered(20, FIRST, 2),
    }
    assert kinds([FIRST], journals, []) == []
    assert kinds([FIRST], journals, [FIRST]) == ["output of an ack that did not count"]


def test_output_committed_by_a_dying_worker_and_acked_by_another_is_found() -> None:
    journals = {
        "a": delivered(10, FIRST, 1, None, way="transaction"),
        "b": delivered(20, FIRST, 2),
    }
    assert kinds([FIRST], journals, []) == []
    assert kinds([FIRST], journals, [FIRST]) == ["output of an ack that did not count"]
