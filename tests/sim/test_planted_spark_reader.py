"""Planted bugs of a Spark query in a reader group are found."""

from __future__ import annotations

import pytest

from headrace.sim.planted import PlantedBug, hunt_planted
from headrace.sim.planted.spark_reader import (
    PLANTED,
    after_a_reset,
    another_opening,
    another_token,
)

SLOW = ("counted batch opened again", "tasks of anybody")
QUICK = [bug for bug in PLANTED if not bug.name.endswith(SLOW)]


@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None


def test_golden_scripts_find_nothing_when_nothing_is_planted() -> None:
    assert [script() for script in (another_opening, after_a_reset, another_token)] == [None] * 3
