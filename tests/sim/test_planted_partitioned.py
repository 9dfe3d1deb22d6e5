"""Every planted bug of delivery and of partitioned groups is found."""

from __future__ import annotations

import pytest

from headrace.sim.planted import PlantedBug, delivery, hunt_planted, partitioned

BUGS = (*delivery.PLANTED, *partitioned.PLANTED)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    (hunted,) = hunt_planted((bug,))
    assert hunted.finding is not None


def test_golden_hunts_find_nothing_when_nothing_is_planted() -> None:
    golden = [bug for bug in partitioned.PLANTED if bug.hunt.__name__.startswith("_hunt")]
    assert len(golden) >= 5
    assert [bug.hunt() for bug in golden] == [None] * len(golden)


def test_every_planted_bug_has_a_name_of_its_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
