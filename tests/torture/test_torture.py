"""The short torture: writers killed on both catalogs, and every event accounted for."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.torture.run import new_folder, torture

KILLS = 6
"""Enough to see each catalog survive some; `make torture` has hundreds."""


@pytest.fixture
def folder() -> Path:
    return new_folder()


@pytest.mark.timeout(600)
def test_every_event_of_killed_writers_is_accounted_for(folder: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    result = torture(("sqlite", "postgres"), KILLS, seed, folder, writers=3)
    where = f"seed {seed}; everything is kept in {folder}"
    assert result.findings == [], where
    assert result.kills >= KILLS, where
    for outcome in result.outcomes:
        assert outcome.report.totals.acked > 0, where
        assert len(outcome.seen) == 2, where
    shutil.rmtree(folder)
