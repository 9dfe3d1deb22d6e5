"""``headrace bench``: figures of this machine, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import run
from headrace.log.log import Log
from tests.support import wait_until


def test_every_figure_is_there_and_nothing_is_left(
    log: Log, catalog_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(catalog_url) if "://" not in catalog_url else None
    before = sorted(os.listdir(folder.parent)) if folder else None
    code = run(["--catalog", catalog_url, "--json", "bench", "--seconds", "0.05s"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert len(found) == (7 if folder else 6)
    for each in found:
        figures = [each[name] for name in ("events_per_s", "p50_ms") if each[name] is not None]
        assert len(figures) == 1, each
        assert figures[0] > 0, each
    assert log.streams(internal=True) == ()
    if folder is not None:
        assert sorted(os.listdir(folder.parent)) == before


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "bench", "--seconds", "2s"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(tmp_path.glob(".headrace-bench-*/catalog/headrace.db")), "a catalog")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", [("--size", "3GB"), ("--size", "x"), ("--seconds", "0")])
def test_bad_input_is_refused(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *option]) == 2
    assert capsys.readouterr().err.startswith("headrace: ")
