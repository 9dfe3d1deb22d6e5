"""Many seeds: read, dealt out, and the same in one process as in two."""

from __future__ import annotations

import pytest

from headrace.sim import ALL_FAULTS
from headrace.sim.fleet import InvalidSeedsError, parse_seeds, run_fleet


def test_seeds_are_read_with_both_ends() -> None:
    assert parse_seeds("0..9") == range(10)
    assert parse_seeds("7") == range(7, 8)


@pytest.mark.parametrize("text", ["", "a", "1..", "..3", "5..2", "-1..3", "0..99999999"])
def test_seeds_that_cannot_be_read_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidSeedsError, match="seeds"):
        parse_seeds(text)


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    def results(jobs: int) -> list[object]:
        return list(run_fleet("shared", range(12), steps=200, faults=ALL_FAULTS, jobs=jobs))

    assert results(1) == results(2)
