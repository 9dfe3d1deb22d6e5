"""Seeds of the epochs scenario, its planted bugs, its diagrams, and its golden cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.epochs.core.lifecycle import (
    EPOCH_TRANSITIONS,
    SUBSCRIPTION_TRANSITIONS,
    EpochState,
)
from headrace.sim import Summary, replay, run_seeds, scenario_named
from headrace.sim.epoch_diagrams import FILE_NAME, mermaid, render
from headrace.sim.planted import PlantedBug, hunt_planted
from headrace.sim.planted.epochs import PLANTED
from headrace.sim.planted.epochs_stored import PLANTED as PLANTED_STORED
from tests.conformance.runner import main

SEEDS = (*range(30), 82)
"""Enough to reach every state below (82: a batch is lost); `make soak` runs others by the
thousand."""
DOCS = Path(__file__).parents[2] / "docs"
CASES = Path(__file__).parents[1] / "conformance" / "cases" / "epoch.json"

REACHED = [
    "batch.after end",
    "batch.before start",
    "batch.filtered",
    "batch.given up",
    "batch.lost",
    "end.aborted",
    "end.closed",
    "end.reached",
    "end.full",
    "epoch.given up",
    "epoch.taken back",
    "epoch.whole",
    "epochs whole",
    "ledger.fenced",
    "ledger.refused",
    "ledger.released",
    "ledger.rolled back",
    "ledger.taken over",
    "link.heartbeat",
    "link.left",
    "link.silent",
    "link.timed out",
    "publisher.aborted",
    "publisher.began anew",
    "publisher.blocked",
    "publisher.closed",
    "publisher.recovered",
    "publisher.refused",
    "publisher.took back",
    "queue.disconnected",
    "queue.skipped",
    "replay.resumed",
    "replay.whole",
    "subscriber.history gone",
    "subscriber.joined",
    "subscriber.partition added",
    "subscriber.partition refused",
    "subscriber.resume refused",
    "subscriber.resumes",
    "subscriber.rows trimmed",
    "subscriber.stopped between epochs",
    "subscriber.trimmed away",
    "subscriber.waits for room",
]


def test_every_invariant_holds_and_the_interesting_states_are_reached() -> None:
    summary = Summary("epochs")
    for result in run_seeds(scenario_named("epochs"), SEEDS):
        summary.add(result)
        assert result.ok, f"seed {result.seed}: {result.invariant}: {result.detail}"
    assert summary.seeds == len(SEEDS)
    missing = [state for state in REACHED if not summary.reached[state]]
    assert not missing, f"never reached: {missing}"


def test_a_seed_is_a_story_told_the_same_twice() -> None:
    first = replay(scenario_named("epochs"), 5, steps=500)
    assert replay(scenario_named("epochs"), 5, steps=500) == first
    assert len(first[1].splitlines()) > 300


@pytest.mark.parametrize("bug", [*PLANTED, *PLANTED_STORED], ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None


def test_diagrams_in_the_docs_are_fresh() -> None:
    written = (DOCS / FILE_NAME).read_text(encoding="utf-8")
    assert written == render(), "run: python -m headrace.sim.epoch_diagrams"


def test_every_cause_is_drawn_and_a_changed_table_changes_the_diagram() -> None:
    page = render()
    tables = (EPOCH_TRANSITIONS, SUBSCRIPTION_TRANSITIONS)
    assert all(cause in page for table in tables for _, cause in table)
    changed = {**EPOCH_TRANSITIONS, (EpochState.COMPLETED, "regret"): EpochState.ACTIVE}
    assert "completed --> active: regret" in mermaid(changed, EpochState.LATENT)


@pytest.mark.parametrize(
    ("case", "path", "value", "told"),
    [
        ("E01", ["delivered"], [[6, "x6"]], "S: delivered"),
        ("E01", ["dropped"], [], "S: dropped"),
        ("E01", ["filter_after_event", "11"], [], "S after event 11: filter"),
        ("E01", ["initial", "upper"], [4], "S: initial upper"),
        ("E01", ["frontier"], [7], "S: frontier"),
        ("E01", ["filter"], [5], "S: filter"),
        ("E14", ["end"], "closed", "S: end"),
        ("E14", ["completed"], [[4, True]], "S: completed(4)"),
        ("E15", ["frontier_after_event", "5"], [2], "S after event 5: frontier"),
    ],
)
def test_a_golden_case_that_does_not_hold_is_told(
    case: str,
    path: list[str],
    value: object,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = json.loads(CASES.read_text())
    (chosen,) = [one for one in content["cases"] if one["id"] == case]
    place = chosen["expect"]["S"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    changed = tmp_path / "epoch.json"
    changed.write_text(json.dumps(content | {"cases": [chosen]}))
    assert main([str(changed)]) == 1
    assert told in capsys.readouterr().out


def case_of(*events: dict[str, object], expect: dict[str, object]) -> dict[str, object]:
    return {"id": "X", "order": "int", "partitions": 2, "events": events, "expect": {"S": expect}}


@pytest.mark.parametrize(
    ("case", "status"),
    [
        (
            case_of(
                {"op": "connect", "s": "S"},
                {"op": "data", "p": 1, "t": 1, "d": ["a", "b"]},
                {"op": "disconnect", "s": "S"},
                {"op": "data", "p": 1, "t": 1, "d": ["c"]},
                {"op": "connect", "s": "S"},
                {"op": "data", "p": 0, "t": 1, "d": ["d"]},
                {"op": "close", "p": 0},
                {"op": "close", "p": 1},
                expect={
                    "delivered": [[1, "a"], [1, "b"]],
                    "dropped": [[1, "d"]],
                    "end": "closed",
                    "end_after_event": {"7": "open"},
                    "completed_after_event": {"7": [[1, False]], "8": [[1, True]]},
                    "filter_after_event": {"5": [1]},
                },
            ),
            0,
        ),
        (
            case_of(
                {"op": "connect", "s": "S", "p": 0},
                {"op": "abort", "p": 0},
                {"op": "data", "p": 0, "t": 1, "d": ["a"], "violation": True},
                {"op": "connect", "s": "S", "p": 1},
                {"op": "data", "p": 7, "t": 1, "d": ["a"], "violation": True},
                {"op": "connect", "s": "S", "p": 1, "violation": True},
                expect={"end": "aborted", "frontier_after_event": {"1": None}},
            ),
            0,
        ),
        (
            case_of(
                {"op": "connect", "s": "S"},
                {"op": "data", "p": 0, "t": 1, "d": ["a"]},
                {"op": "eof", "p": 0, "s": "S"},
                {"op": "data", "p": 1, "t": 2, "d": ["b"]},
                expect={"end": "aborted", "delivered": [[1, "a"], [2, ["b"]]]},
            ),
            0,
        ),
        (case_of({"op": "data", "p": 0, "t": 1, "violation": True}, expect={}), 1),
        (case_of({"op": "progress", "p": 0, "u": [[5, -1]]}, expect={}), 1),
        (case_of({"op": "jump", "p": 0}, expect={}), 2),
    ],
)
def test_every_operation_of_a_case_is_played(
    case: dict[str, object], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "epoch.json"
    path.write_text(json.dumps({"format": "epoch-cases/1", "cases": [case]}))
    assert main([str(path)]) == status, capsys.readouterr().out
