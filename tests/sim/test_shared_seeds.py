"""Shared groups as they run, under everything that can go wrong, seed by seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.groups.progress import Progress
from headrace.sim import ALL_FAULTS, Fault, Summary, replay, run_seed, scenario_named
from headrace.sim.fleet import run_fleet
from headrace.sim.log import ModelLog
from headrace.sim.oracle import GroupOracle
from headrace.sim.scenarios import shared
from headrace.sim.world import InvariantViolation, World

NAME = "shared"
SEEDS = (*range(95, 108), 142, 203)
IMPOSSIBLE = {Fault.REPEAT, Fault.REORDER}
"""A connection delivers in order and once, or ends; the exhaustive check covers the cores."""


@pytest.fixture(scope="module")
def summary() -> Summary:
    total = Summary(NAME)
    for result in run_fleet(NAME, SEEDS, steps=None, faults=ALL_FAULTS, jobs=2):
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
        "assignment.granted",
        "assignment.granting",
        "assignment.revoked",
        "assignment.revoking",
        "connection.cut",
        "decision.left (disconnected)",
        "decision.evicted (evicted)",
        "decision.lost (silent)",
        "decision.finished (consumed to its end)",
        "decision.moves (others have less)",
        "delivery.of unknown outcome",
        "group.configured",
        "leader.gathers",
        "oracle.stale delivery",
        "program.closed",
    }
    assert expected - set(summary.reached) == set()


def test_nobody_loses_a_unit_while_nothing_goes_wrong() -> None:
    for seed in range(3):
        faults = {Fault.SCALE, Fault.FAIL}
        result = run_seed(scenario_named(NAME), seed, faults=faults)
        assert result.ok, result.detail
        assert "oracle.stale delivery" not in result.reached


@pytest.mark.parametrize("kind", sorted(ALL_FAULTS - IMPOSSIBLE))
def test_each_fault_alone_is_survived(kind: Fault) -> None:
    result = run_seed(scenario_named(NAME), 1, faults={kind}, steps=600)
    assert result.ok, result.detail
    assert set(result.faults) <= {kind.value}


def test_story_is_the_same_to_the_byte_and_in_every_interpreter() -> None:
    told = replay(scenario_named(NAME), 1, steps=800)[1]
    assert told == replay(scenario_named(NAME), 1, steps=800)[1]
    for hash_seed in ("0", "4242"):
        again = subprocess.run(
            [sys.executable, "-m", "headrace.cli.sim", NAME, "--replay", "1", "--steps", "800"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2], capture_output=True, check=True, timeout=120,
        )  # fmt: skip
        assert again.stdout.decode() == told


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MEMORY", tmp_path)
    made: list[Path] = []

    class Watched(shared.SharedScenario):
        def build(self) -> None:
            super().build()
            made.extend(tmp_path.iterdir())

    run_seed(Watched, 0, steps=100)
    assert made
    assert list(tmp_path.iterdir()) == []


# --- acks whose outcome nobody knows -----------------------------------------------------------


class Watched:
    """An oracle over one segment with two events of one key, owned under token 1."""

    def __init__(self) -> None:
        world = World(1, faults=())
        world.log = ModelLog()
        world.log.create(1)
        self.events = [world.log.append("k") for _ in range(2)]
        self.token = 1
        self.oracle = GroupOracle(world, "g", lambda _: self.token)
        self.oracle.given("a", 0, 1, Progress())
        self.oracle.stored(0, Progress())
        self.oracle.delivered("a", 0, 1, self.events[0])
        self.oracle.acked(0, 1, 0)
        self.oracle.outcome_unknown(0, 1, 0)


def test_an_ack_of_unknown_outcome_may_come_again_whether_it_counted_or_not() -> None:
    watched = Watched()
    watched.oracle.delivered("a", 0, 1, watched.events[0])
    watched.oracle.stored(0, Progress(1))
    watched.oracle.delivered("a", 0, 1, watched.events[0])
    watched.oracle.acked(0, 1, 0)
    watched.oracle.confirmed("a", 0, 0, 1)
    with pytest.raises(InvariantViolation, match="nothing acked is delivered again"):
        watched.oracle.delivered("a", 0, 1, watched.events[0])


def test_an_ack_of_unknown_outcome_that_counted_is_not_delivered_to_another_owner() -> None:
    watched = Watched()
    watched.oracle.stored(0, Progress(1))
    watched.token = 2
    with pytest.raises(InvariantViolation, match="a hand-over is exact"):
        watched.oracle.given("b", 0, 2, Progress())
    with pytest.raises(InvariantViolation, match="nothing acked is delivered again"):
        watched.oracle.delivered("b", 0, 2, watched.events[0])


def test_the_next_of_its_key_waits_until_the_ack_of_unknown_outcome_has_counted() -> None:
    watched = Watched()
    with pytest.raises(InvariantViolation, match="key order"):
        watched.oracle.delivered("a", 0, 1, watched.events[1])
    watched.oracle.stored(0, Progress(1))
    watched.oracle.delivered("a", 0, 1, watched.events[1])


def test_an_ack_that_was_refused_must_not_have_counted() -> None:
    watched = Watched()
    watched.oracle.acked(0, 1, 1)
    watched.oracle.refused(0, 1, 1)
    watched.oracle.stored(0, Progress(2))
    watched.oracle.refused(0, 1, 0)
    with pytest.raises(InvariantViolation, match="what is refused is not stored"):
        watched.oracle.refused(0, 1, 1)
