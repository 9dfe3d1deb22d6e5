"""The tests' bytecode, made once before several processes read it.

pytest rewrites each test file's assertions and keeps the result beside it.  In a fresh clone every
process of `make test` would do that for every file at the same time: 17 s of CPU each.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

PROCESSES = 2


def make() -> None:
    """Rewrite what is not up to date, in a few processes that have different files each."""
    stale = [str(each) for each in sorted((ROOT / "tests").rglob("test_*.py")) if _is_stale(each)]
    if sys.dont_write_bytecode or len(stale) < PROCESSES:
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    running = [
        subprocess.Popen(
            [*command, *stale[n::PROCESSES]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for n in range(PROCESSES)
    ]
    for process in running:
        process.wait()  # what fails here fails in the tests as well, with its reason


def _is_stale(path: Path) -> bool:
    kept = (path.parent / "__pycache__").glob(f"{path.stem}.*-pytest-*.pyc")
    changed_s = path.stat().st_mtime
    return not any(each.stat().st_mtime >= changed_s for each in kept)
