"""A Spark query in a reader group keeps its promises, and the hard states are reached."""

from __future__ import annotations

from collections import Counter

from headrace.sim.runner import run_seed
from headrace.sim.scenarios import scenario_named

SEEDS = (*range(12), 560)
"""560: a batch was finished, the group reset, and the batch opened again by a frozen driver."""


def test_every_promise_holds_and_the_interesting_states_are_reached() -> None:
    reached: Counter[str] = Counter()
    for seed in SEEDS:
        result = run_seed(scenario_named("spark-reader"), seed)
        assert result.ok, f"seed {seed}: {result.invariant}: {result.detail}"
        reached.update(result.reached)
    for state in (
        "driver.replays",
        "driver.BatchFenced",
        "driver.CheckpointPutBackError",
        "driver.wrote nothing",
        "checkpoint.put back",
        "group.reset",
        "python.read",
    ):
        assert reached[state], state
