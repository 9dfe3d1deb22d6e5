"""The soak: every run gets its line, a failure is told, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.errors import InvalidInputError
from tests.soak import Run, Soak, duration_s
from tests.support import wait_until

ROOT = Path(__file__).parents[1]


def soak(file: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.soak", "--file", str(file), "--seed", "7"]
    return subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def lines(file: Path) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.timeout(120)
def test_each_run_is_a_line_and_the_time_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "soak.tsv"
    began = time.monotonic()
    child = soak(file, "--for", "1s", "--only", "sim delivery", "--jobs", "1")
    out, _ = child.communicate(timeout=100)
    assert child.returncode == 0, out
    assert time.monotonic() - began < 90
    told = lines(file)
    assert [row[1:3] for row in told[:3]] == [
        ["sim delivery", f"seed {seed}"] for seed in range(7, 7 + min(3, len(told)))
    ]
    assert len(told) > 1
    assert all(row[3].endswith(" steps") and row[5] == "ok" for row in told)
    assert f"{len(told)} runs" in out


@pytest.mark.timeout(180)
def test_an_interrupted_torture_leaves_no_line_and_no_process(tmp_path: Path) -> None:
    file = tmp_path / "soak.tsv"
    child = soak(file, "--for", "1h", "--only", "torture log sqlite", "--faults", "1000")
    wait_until(lambda: len(_family(child.pid)) > 3, "the torture's processes", 90)
    family = _family(child.pid)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    assert "stopped" in out
    assert "0 runs" in out
    assert lines(file) == []
    wait_until(lambda: not any(map(_runs, family)), "their end", 10)


def test_a_failed_run_is_told_and_counted(tmp_path: Path) -> None:
    told: list[str] = []
    made = Soak(tmp_path / "soak.tsv", 0.0, told.append)
    made._note(Run("sim shared", 3, 1200, "steps", 0.4, "VIOLATION key order:\n\tevent 7"))
    made._note(Run("torture log sqlite", 3, 40, "faults", 9.0, "ok"))
    assert made.failed == 1
    assert made.counts == {"steps": 1200, "faults": 40}
    assert [row[5] for row in lines(tmp_path / "soak.tsv")] == [
        "VIOLATION key order: event 7",
        "ok",
    ]
    assert len(told) == 2


def test_times_are_read() -> None:
    assert [duration_s(text) for text in ("90s", "1.5m", "8h")] == [90, 90, 28_800]
    with pytest.raises(InvalidInputError, match="90s, 30m or 8h"):
        duration_s("soon")


def _family(pid: int) -> list[int]:
    """The processes below one."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = {int(a): int(b) for a, b in (row.split() for row in found.stdout.splitlines())}
    below = [pid]
    for each in below:
        below += [child for child, parent in parents.items() if parent == each]
    return below[1:]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
