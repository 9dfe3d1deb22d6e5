"""Regions under everything that can go wrong, seed by seed, in both cursor modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.regions.core.controller import TRANSITIONS
from headrace.sim import ALL_FAULTS, Fault, Summary, replay, run_seed, scenario_named
from headrace.sim.fleet import run_fleet
from headrace.sim.planted import PlantedBug, hunt_planted, region_homes, regions
from headrace.sim.region_diagrams import FILE_NAME, render

SCENARIOS = ("regions", "regions-members", "region-homes")
SEEDS = range(40)
"""Enough to reach every state below; `make soak` runs others by the thousand."""


@pytest.fixture(scope="module")
def summaries() -> dict[str, Summary]:
    found = {name: Summary(name) for name in SCENARIOS}
    for name, total in found.items():
        for result in run_fleet(name, SEEDS, steps=None, faults=ALL_FAULTS, jobs=2):
            total.add(result)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_holds(summaries: dict[str, Summary], name: str) -> None:
    summary = summaries[name]
    assert [(f.seed, f.invariant, f.detail) for f in summary.failures] == []
    assert summary.seeds == len(SEEDS)


def test_clean_switch_repeats_nothing_by_origin_and_something_by_snapshot(
    summaries: dict[str, Summary],
) -> None:
    reached = summaries["regions"].reached
    assert reached["switch.clean"] > 2.5 * len(SEEDS)
    assert reached["repeats.origin cursors, clean switch"] == 0
    assert reached["repeats.snapshots, clean switch"] > 0
    sudden = reached["repeats.origin cursors, sudden switch"]
    assert 0 < sudden < reached["repeats.snapshots, sudden switch"]


def test_interesting_states_are_reached(summaries: dict[str, Summary]) -> None:
    expected = {
        "create",
        "cursor.rewound by another region",
        "delete",
        "gap in a lane",
        "linked without history",
        "marker.refused StaleResponseError",
        "marker.refused StaleUpdateError",
        "marker.refused UnknownRegionError",
        "members.changed mid-snapshot",
        "published.for some regions only",
        "regions.2",
        "regions.3",
        "regions.4",
        "replication.link stopped",
        "replication.repeat left out",
        "replication.resent",
        "seek",
        "snapshot.aborted, members",
        "snapshot.aborted, timeout",
        "snapshot.complete",
        "snapshot.forced",
        "snapshot.skipped, disconnected",
        "snapshot.skipped, no_traffic",
        "switch.clean",
        "switch.given up",
        "switch.sudden",
        "trimmed in flight",
        "trimmed unconsumed",
        "update.sent",
    }
    assert expected - set(summaries["regions"].reached) == set()


def test_homes_are_lost_given_up_and_return(summaries: dict[str, Summary]) -> None:
    reached = summaries["region-homes"].reached
    for state in (
        "home.follows after its return",
        "home.given up",
        "home.given up, cut off",
        "home.goes on, cut off",
        "home.lost",
        "home.waits for who is silent",
        "member.begins",
    ):
        assert reached[state] > 0, state


def test_world_without_faults_switches_without_repeats_by_origin() -> None:
    for seed in range(5):
        result = run_seed(scenario_named("regions"), seed, faults=set())
        assert result.ok, result.detail
        assert result.reached["repeats.origin cursors, sudden switch"] == 0


@pytest.mark.parametrize(
    "kind", [Fault.CRASH, Fault.DROP, Fault.PARTITION, Fault.PAUSE, Fault.REORDER, Fault.REPEAT]
)
def test_each_fault_alone_is_survived(kind: Fault) -> None:
    result = run_seed(scenario_named("regions"), 3, faults={kind})
    assert result.ok, result.detail


def test_story_is_the_same_to_the_byte() -> None:
    told = replay(scenario_named("regions"), 17, steps=600)[1]
    assert told == replay(scenario_named("regions"), 17, steps=600)[1]


@pytest.mark.parametrize("bug", [*regions.PLANTED, *region_homes.PLANTED], ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None


def test_diagram_in_the_docs_is_fresh_and_whole() -> None:
    page = render()
    written = (Path(__file__).parents[2] / "docs" / FILE_NAME).read_text(encoding="utf-8")
    assert written == page, "run: python -m headrace.sim.region_diagrams"
    for (_, event), phase in TRANSITIONS.items():
        assert event.value in page
        assert phase.value in page
