"""Seek and putting back under fire, in short; the long run is by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.torture.steering import Kind, letters_put_back, seeks_under_load


@pytest.mark.parametrize("kind", ["static", "shared", "reader"])
def test_every_event_is_accounted_for_over_seeks(tmp_path: Path, kind: Kind) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    verdict = seeks_under_load(str(tmp_path / "data"), tmp_path, kind, 3, seed)
    assert verdict.findings == [], f"seed {seed}"
    assert verdict.acked > 0


@pytest.mark.parametrize("kind", ["static", "elastic"])
def test_letters_come_back_once_from_a_process_that_dies(tmp_path: Path, kind: Kind) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    verdict = letters_put_back(str(tmp_path / "data"), kind, 40, seed)
    assert verdict.findings == [], f"seed {seed}"
