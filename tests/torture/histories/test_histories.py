"""A short round for each kind of group; ``python -m tests.torture.histories`` runs many."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.torture.histories.round import Kind
from tests.torture.histories.run import KINDS, run_round

SECONDS = 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_what_everybody_was_told_is_true(kind: Kind) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    outcome, folder = run_round(kind, seed, SECONDS)
    assert outcome.findings == [], f"seed {seed}; everything is kept in {folder}"
    assert outcome.figures.acknowledged > 0
    assert outcome.figures.acks > 0
    assert sum(outcome.faults.values()) > 0
    if folder is not None:
        shutil.rmtree(folder)
