"""Every planted bug of reader groups is found."""

from __future__ import annotations

import pytest

from headrace.sim.planted import PlantedBug, hunt_planted
from headrace.sim.planted.reader_scripts import lags, moves, releases, shares, silence
from headrace.sim.planted.readers import PLANTED


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None


def test_golden_scripts_find_nothing_when_nothing_is_planted() -> None:
    assert [script() for script in (shares, releases, silence, moves, lags)] == [None] * 5


def test_every_planted_bug_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in PLANTED}) == len(PLANTED) >= 7
