"""The tour with Spark, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(700)
TOUR = """
from headrace.cli import demo, main

demo.ACTS = tuple(
    act for act in demo.ACTS if "group" not in act[0] or "reader group" in act[0]
)
main(["demo", "--flights", "3000"])
"""


def test_the_tour_goes_through_spark_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, "-c", TOUR],
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": temporary},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3,000 events through Spark's sink" in done.stdout
        assert "no event came twice by a restart" in done.stdout
        assert "18 of 18 checks held" in done.stdout
        assert "spark " in done.stdout, "the query is a reader of the group"
        assert "✗" not in done.stdout
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []
        assert list(Path(temporary).iterdir()) == []
