"""Seeds of the readers scenario: every invariant holds, and enough is seen."""

from __future__ import annotations

from headrace.sim import Summary, replay, run_seeds, scenario_named

SEEDS = (*range(30), 51)
"""Enough to reach every state below; `make soak` runs others by the thousand."""

REACHED = (
    "checkpoint.normal complete",
    "checkpoint.silent complete",
    "group.reset",
    "group.restored",
    "oracle.stale delivery",
    "reader.begins with acked ranges",
    "reader.closed",
    "reader.died for good",
    "reader.fenced",
    "reader.lag",
    "reader.lease lost",
    "reader.put offline",
    "reader.started again",
    "refused.checkpoint_pending",
    "refused.not_member",
    "refused.not_overloaded",
    "refused.not_owner",
    "refused.too_many_checkpoints",
    "segment.opened",
    "segment.over",
    "segment.waits",
)


def test_every_invariant_holds_and_the_interesting_states_are_reached() -> None:
    summary = Summary("readers")
    for result in run_seeds(scenario_named("readers"), SEEDS):
        summary.add(result)
        assert result.ok, f"seed {result.seed}: {result.invariant}: {result.detail}"
    assert summary.seeds == len(SEEDS)
    missing = [state for state in REACHED if not summary.reached[state]]
    assert not missing, f"never reached: {missing}"


def test_a_checkpoint_forgets_what_it_had_of_a_stream_that_was_dropped() -> None:
    """Seeds 591 and 875: the stream was read again, and the checkpoint gone back to."""
    for result in run_seeds(scenario_named("readers"), [591, 875]):
        assert result.ok, f"{result.invariant}: {result.detail}"


def test_a_seed_is_a_story_told_the_same_twice() -> None:
    first = replay(scenario_named("readers"), 3, steps=400)
    assert replay(scenario_named("readers"), 3, steps=400) == first
    assert len(first[1].splitlines()) > 100
