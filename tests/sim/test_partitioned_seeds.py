"""Seeds of the delivery and partitioned scenarios: every invariant holds, and enough is seen."""

from __future__ import annotations

import pytest

from headrace.sim import Summary, replay, run_seeds, scenario_named

SEEDS = (*range(30), 49, 63)
"""Enough to reach every state below; `make soak` runs others by the thousand."""

REACHED = {
    "delivery": [
        "answer.StaleDeliveryError",
        "answer.batch refused",
        "answer.fenced",
        "application.forgets",
        "commit.fenced",
        "dead letter.EXHAUSTED",
        "dead letter.NACKED",
        "dead letter.REJECTED",
        "dead letter.TIMED_OUT",
        "delivery.Stalled",
        "oracle.stale delivery",
        "unit.handed over",
        "unit.lost by a stall",
        "unit.taken over with acked ranges",
        "unit.taken over with attempts",
    ],
    "partitioned": [
        "answer.fenced",
        "claim.NOT_ASSIGNED",
        "claim.NOT_PINNED",
        "claim.STILL_OWNED",
        "claim.unheard of",
        "commit.fenced",
        "decision.assigned",
        "decision.left",
        "decision.evicted",
        "decision.fenced",
        "decision.moves",
        "decision.stands by",
        "decision.unpinned",
        "decision.waits",
        "group.deleted",
        "instance.closing",
        "partition.abandoned",
        "partition.taken from a lost pin",
        "round.committed",
        "round.overtaken",
        "unit.taken over with acked ranges",
        "unit.taken over with attempts",
    ],
}


@pytest.mark.parametrize("name", ["delivery", "partitioned"])
def test_every_invariant_holds_and_the_interesting_states_are_reached(name: str) -> None:
    summary = Summary(name)
    for result in run_seeds(scenario_named(name), SEEDS):
        summary.add(result)
        assert result.ok, f"seed {result.seed}: {result.invariant}: {result.detail}"
    assert summary.seeds == len(SEEDS)
    missing = [state for state in REACHED[name] if not summary.reached[state]]
    assert not missing, f"never reached: {missing}"


@pytest.mark.parametrize("name", ["delivery", "partitioned"])
def test_a_seed_is_a_story_told_the_same_twice(name: str) -> None:
    first = replay(scenario_named(name), 3, steps=400)
    assert replay(scenario_named(name), 3, steps=400) == first
    assert len(first[1].splitlines()) > 100


def test_a_partition_that_was_taken_from_a_frozen_member_is_noticed_by_it() -> None:
    """Seed 742: it renewed the pin that had run out, and kept what others had taken meanwhile."""
    for result in run_seeds(scenario_named("partitioned"), [742]):
        assert result.ok, f"{result.invariant}: {result.detail}"
