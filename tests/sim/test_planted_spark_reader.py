"""Planted bugs of a Spark query in a reader group are found."""

from __future__ import annotations

import pytest

from headrace.sim.planted import PlantedBug, hunt_planted
from headrace.sim.planted.spark_reader import PLANTED


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None
