"""Shared groups as they run, under everything that can go wrong, seed by seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.sim import ALL_FAULTS, Fault, Summary, replay, run_seed, scenario_named
from headrace.sim.fleet import run_fleet
from headrace.sim.planted import PlantedBug, hunt_planted, planted_bugs

NAME = "shared-runtime"
SEEDS = range(16)
STEPS = 1500
IMPOSSIBLE = {Fault.REPEAT, Fault.REORDER}
"""A connection delivers in order and once, or ends."""
BUGS = tuple(bug for bug in planted_bugs() if bug.name.startswith(f"{NAME}/"))


@pytest.fixture(scope="module")
def summary() -> Summary:
    total = Summary(NAME)
    for result in run_fleet(NAME, SEEDS, steps=STEPS, faults=ALL_FAULTS, jobs=2):
        total.add(result)
    return total


def test_every_promise_holds(summary: Summary) -> None:
    assert [(f.seed, f.invariant, f.detail) for f in summary.failures] == []
    assert summary.seeds == len(SEEDS)


def test_every_kind_of_fault_strikes(summary: Summary) -> None:
    assert set(summary.faults) == {kind.value for kind in ALL_FAULTS - IMPOSSIBLE}


def test_interesting_states_are_reached(summary: Summary) -> None:
    expected = {
        "answer.CatalogUnavailableError",
        "answer.Fenced",
        "answer.transaction",
        "connection.cut",
        "group.configured",
        "leader.gathers",
        "program.closed",
    }
    assert expected - set(summary.reached) == set()


def test_nobody_loses_a_unit_while_nothing_goes_wrong() -> None:
    for seed in range(3):
        faults = {Fault.SCALE, Fault.FAIL}
        result = run_seed(scenario_named(NAME), seed, steps=800, faults=faults)
        assert result.ok, result.detail


def test_story_is_the_same_to_the_byte_and_in_every_interpreter() -> None:
    told = replay(scenario_named(NAME), 1, steps=800)[1]
    assert told == replay(scenario_named(NAME), 1, steps=800)[1]
    again = subprocess.run(
        [sys.executable, "-m", "headrace.cli.sim", NAME, "--replay", "1", "--steps", "800"],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        cwd=Path(__file__).parents[2], capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    assert again.stdout.decode() == told


def test_nothing_is_left_behind() -> None:
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    run_seed(scenario_named(NAME), 0, steps=100)
    after = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    assert {path for path in after - before if path.name.startswith("tmp")} == set()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None
