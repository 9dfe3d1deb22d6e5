"""Every planted bug of shared groups is found, and leaves no trace behind."""

from __future__ import annotations

import pytest

from headrace.groups.shared.core.leader import Leader
from headrace.sim.planted import (
    PlantedBug,
    hunt_planted,
    patched,
    planted_bugs,
    shared_runtime,
)

SHARED = tuple(bug for bug in planted_bugs() if bug.name.startswith("shared/"))


@pytest.mark.parametrize("bug", SHARED, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None


def test_a_commit_that_thaws_under_another_leader_changes_nothing() -> None:
    assert shared_runtime._by_a_frozen_commit() is None


def test_there_are_enough_and_all_have_names_of_their_own() -> None:
    bugs = planted_bugs()
    assert len(SHARED) >= 8
    assert len(bugs) >= 12
    assert len({bug.name for bug in bugs}) == len(bugs)


def test_patch_is_taken_back_whatever_happens() -> None:
    original = vars(Leader)["_settle"]

    def plant_and_fail() -> None:
        with patched(Leader, "_settle", lambda _: None):
            assert vars(Leader)["_settle"] is None
            raise KeyError

    with pytest.raises(KeyError):
        plant_and_fail()
    assert vars(Leader)["_settle"] is original
