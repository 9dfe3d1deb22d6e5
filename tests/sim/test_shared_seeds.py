"""Shared groups under everything that can go wrong, seed by seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.groups.shared.core.registry import StartLeader
from headrace.sim import ALL_FAULTS, Fault, Summary, replay, run_seed, scenario_named
from headrace.sim.fleet import run_fleet
from headrace.sim.scenarios.shared import SharedScenario
from headrace.sim.scenarios.shared_peer import LEADER_SETTINGS
from headrace.sim.store import Done
from headrace.sim.world import World

SEEDS = range(200, 400)
"""Among them are the few in which everything rare comes up."""


@pytest.fixture(scope="module")
def summary() -> Summary:
    total = Summary("shared")
    for result in run_fleet("shared", SEEDS, steps=None, faults=ALL_FAULTS, jobs=2):
        total.add(result)
    return total


def test_every_promise_holds(summary: Summary) -> None:
    assert [(f.seed, f.invariant, f.detail) for f in summary.failures] == []
    assert summary.seeds == len(SEEDS)


def test_every_kind_of_fault_strikes(summary: Summary) -> None:
    assert set(summary.faults) == {kind.value for kind in ALL_FAULTS}


def test_interesting_states_are_reached(summary: Summary) -> None:
    expected = {
        "assignment.granting",
        "assignment.granted",
        "assignment.revoking",
        "assignment.revoked",
        "borrower.confirmed",
        "borrower.granted with acked ranges",
        "borrower.recreated",
        "decision.drop (disconnected)",
        "decision.drop (evicted)",
        "decision.drop (silent)",
        "decision.finish (consumed to its end)",
        "decision.move (lag)",
        "decision.move (others have less)",
        "leader.configured",
        "leader.elected",
        "leader.fenced",
        "leader.gathers",
        "leader.keeps a report",
        "leader.refused StaleTokenError",
        "leader.refused UnexpectedMessageError",
        "leader.restored",
        "leader.stepped down",
        "oracle.stale delivery",
        "session.closed",
        "session.quick resubscribe",
        "session.transaction",
        "session.transaction fenced",
        "session.transaction looked up",
    }
    assert expected - set(summary.reached) == set()


def test_nobody_begins_again_when_nothing_goes_wrong() -> None:
    for seed in range(5):
        result = run_seed(scenario_named("shared"), seed, faults={Fault.SCALE})
        assert result.ok
        assert "borrower.recreated" not in result.reached
        assert "oracle.stale delivery" not in result.reached
        assert result.reached["leader.elected"] <= 2


@pytest.mark.parametrize("kind", sorted(ALL_FAULTS))
def test_each_fault_alone_is_survived(kind: Fault) -> None:
    result = run_seed(scenario_named("shared"), 1, faults={kind}, steps=1000)
    assert result.ok, result.detail
    assert set(result.faults) <= {kind.value}


def test_peer_that_loads_a_group_after_its_lease_ran_out_does_not_lead_it() -> None:
    scenario = SharedScenario(World(1, faults=()))
    scenario.build()
    peer = scenario.peers[0]
    start = StartLeader("late", token=1, sent_ms=-LEADER_SETTINGS.lease_ttl_ms)
    peer.loading["late"] = start
    peer.stored(("load", start), Done([]))
    assert "late" not in peer.leaders
    assert "late" not in peer.registry.local


def test_story_is_the_same_to_the_byte_and_in_every_interpreter() -> None:
    told = replay(scenario_named("shared"), 17, steps=800)[1]
    assert told == replay(scenario_named("shared"), 17, steps=800)[1]
    root = Path(__file__).parents[2]
    for hash_seed in ("0", "4242"):
        again = subprocess.run(
            [
                sys.executable, "-m", "headrace.cli.sim",
                "shared", "--replay", "17", "--steps", "800",
            ],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=root, capture_output=True, check=True, timeout=120,
        )  # fmt: skip
        assert again.stdout.decode() == told
