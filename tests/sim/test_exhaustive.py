"""Every reachable state of small groups, and proof that the interesting ones are there."""

from __future__ import annotations

import pytest

from headrace.sim.exhaustive import SETUPS, Explorer, Searchable, Searched, explore

DEPTH_MAX = 7
"""Less deep than the command goes, to keep the tests short."""


def setup_named(name: str) -> Searchable:
    return next(setup for setup in SETUPS if setup.name == name)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_every_promise_holds_in_every_state(setup: Searchable) -> None:
    explorer = Explorer(setup)
    explored = explorer.run(min(setup.depth - 2, DEPTH_MAX))
    assert explored.violation is None, "\n".join(explored.path)
    assert explored.states > 500


FALSE_CLAIMS = [
    ("hand-over, timeouts", 5, "two believe to own one unit"),
    ("hand-over, timeouts", 6, "stale owner consumed"),
    ("hand-over, timeouts", 6, "unconfirmed ack fenced"),
    ("two leaders", 8, "acked event handed over"),
    ("two leaders", 5, "leader refused StaleTokenError"),
    ("two leaders", 3, "two leaders at once"),
    ("two leaders", 5, "leader fenced"),
    ("leader crash", 3, "leader crashed"),
    ("leader crash", 6, "borrower recreated"),
    ("unsubscribe", 6, "borrower gone"),
    ("gathering", 7, "report kept"),
    ("successor", 6, "successor granted"),
    ("it moves back", 9, "claims freed, and somebody waits"),
    ("a partition moves", 7, "news came before the refusal"),
    ("a pin runs out", 6, "partition moved"),
]


@pytest.mark.parametrize(("name", "depth", "state"), FALSE_CLAIMS)
def test_false_claim_shows_that_the_state_is_reached(name: str, depth: int, state: str) -> None:
    def never(model: Searched) -> bool:
        return state not in model.seen

    explored = Explorer(setup_named(name), claim=never).run(depth)
    assert explored.violation == "the claim does not hold"
    assert explored.path


def test_search_is_the_same_every_time() -> None:
    first = Explorer(setup_named("two leaders")).run(4)
    assert first == Explorer(setup_named("two leaders")).run(4)


def test_progress_is_told_level_by_level() -> None:
    levels: list[int] = []
    results = explore(
        depth=3,
        setups=[setup_named("successor")],
        progress=lambda level, _states: levels.append(level),
    )
    assert levels == [1, 2, 3]
    assert results[0].transitions > results[0].states
