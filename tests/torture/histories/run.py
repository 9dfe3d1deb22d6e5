"""Rounds after one another, each in a process and a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tests.support import ROOT, SOURCES
from tests.torture.account import Finding
from tests.torture.histories.round import Kind, Outcome

ROUND_S = 300.0
KINDS: tuple[Kind, ...] = ("shared", "static")


def run_round(kind: Kind, seed: int, seconds: float) -> tuple[Outcome, Path | None]:
    """What came of it, and the folder with everything if something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="histories-"))
    arguments = [str(folder), kind, str(seed), str(seconds)]
    # In a session of its own, so that nothing of it outlives it.
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.torture.histories.round", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": SOURCES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said, complained = process.communicate(timeout=ROUND_S)
        if process.returncode == 0:
            outcome = msgspec.json.decode(said, type=Outcome)
        else:
            outcome = _failed(kind, seed, complained.decode()[-2000:])
    except subprocess.TimeoutExpired:
        outcome = _failed(kind, seed, f"it did not end within {ROUND_S:.0f} s")
    finally:
        _end(process)
    if outcome.findings:
        return outcome, folder
    shutil.rmtree(folder, ignore_errors=True)
    return outcome, None


def _failed(kind: Kind, seed: int, why: str) -> Outcome:
    return Outcome(kind, seed, [Finding("round failed", why)])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.communicate()


class Totals(msgspec.Struct):
    """Sums over rounds."""

    rounds: int = 0
    seconds: float = 0.0
    figures: dict[str, int] = msgspec.field(default_factory=dict)
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    violations: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.rounds += 1
        self.seconds += outcome.seconds
        figures = Counter(self.figures)
        figures.update(msgspec.structs.asdict(outcome.figures))
        self.figures = dict(figures)
        self.faults = dict(Counter(self.faults) + Counter(outcome.faults))
        kinds = Counter(finding.kind for finding in outcome.findings)
        self.violations = dict(Counter(self.violations) + kinds)


def run_rounds(
    rounds: int,
    seed: int,
    seconds: float,
    kinds: Sequence[Kind] = KINDS,
    tell: Callable[[Outcome, Path | None], None] = lambda outcome, folder: None,
) -> Totals:
    """Rounds of all ``kinds`` in turn, with the seeds ``seed``, ``seed + 1`` and so on."""
    totals = Totals()
    for number in range(rounds):
        outcome, folder = run_round(kinds[number % len(kinds)], seed + number, seconds)
        totals.add(outcome)
        tell(outcome, folder)
    return totals
