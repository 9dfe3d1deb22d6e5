"""On a cluster of processes: an executor is killed in mid-batch, and every event is there once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.log.open import open_log
from tests.log.helpers import create, table
from tests.support import ROOT

EVENTS = 10_000


@pytest.mark.timeout(600)
def test_a_killed_executor_loses_and_repeats_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "catalog")
    create(log, segments=3)
    for _ in range(10):
        log.append("s", table(EVENTS // 10, keys=100))
    words = ["tests.spark.cluster", str(tmp_path / "catalog"), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
        capture_output=True,
        text=True,
        timeout=580,
    )
    log.catalog.close()
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr[-3000:]
    assert told["killed"] == "True"
    assert (told["rows"], told["distinct"]) == (str(EVENTS), str(EVENTS))
