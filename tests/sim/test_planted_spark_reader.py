"""Planted bugs of a Spark query in a reader group are found."""

from __future__ import annotations

import pytest

from headrace.sim.planted import PlantedBug, hunt_planted
from headrace.sim.planted.spark_reader import PLANTED

SLOW = (
    "counted batch opened again",
    "counted batch repeated",
    "any opening is settled",
    "any token",
    "tasks of anybody",
)
"""``headrace sim --planted`` finds these, too; it takes minutes."""
QUICK = [bug for bug in PLANTED if not bug.name.endswith(SLOW)]


@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None
