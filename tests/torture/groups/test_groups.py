"""The short torture of groups: members killed and frozen on both catalogs, every event judged."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.torture.groups.run import torture_groups
from tests.torture.run import new_folder

FAULTS = 5
"""Enough to see each catalog survive some; `make torture` has hundreds."""


@pytest.fixture
def folder() -> Path:
    return new_folder()


@pytest.mark.timeout(600)
def test_every_event_of_killed_and_frozen_members_is_accounted_for(folder: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    result = torture_groups(("sqlite", "postgres"), FAULTS, seed, folder, workers=4)
    where = f"seed {seed}; everything is kept in {folder}"
    assert result.findings == [], where
    assert result.faults >= FAULTS, where
    for outcome in result.outcomes:
        assert outcome.totals.events > 0, where
        assert outcome.totals.acked > 0, where
    shutil.rmtree(folder)
