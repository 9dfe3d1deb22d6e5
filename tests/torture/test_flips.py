"""Bits that flip in what holds events are noticed; ``python -m tests.torture.flips`` flips many."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.support import ROOT
from tests.torture.flips import Result


def noticed(target: str, flips: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    found = tmp_path / "found.json"
    arguments = ["--flips", str(flips), "--seed", str(seed), "--json", str(found)]
    arguments += ["--only", target]
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.flips", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout} {done.stderr}"
    result = msgspec.convert(json.loads(found.read_bytes()), Result)
    assert len(result.flips) == flips
    assert result.of("silent events", "silent rest", "raw") == [], f"seed {seed}"
    assert result.of("detected"), f"seed {seed}"


def test_a_bit_that_flips_in_a_file_is_noticed(tmp_path: Path) -> None:
    noticed("files", 6, tmp_path)


def test_a_bit_that_flips_in_a_batch_of_the_catalog_is_noticed(tmp_path: Path) -> None:
    noticed("batches", 12, tmp_path)
