"""Checks files of cases and prints what holds.

Exit status: 0 when every case of every file holds, 1 when one does not, 2 when a file cannot
be run at all (then nothing of any file is run).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from tests.conformance.files import CaseFile, CaseFileError, load
from tests.conformance.registry import Adapter, find_adapters

USAGE = "usage: python -m tests.conformance FILE..."


def main(arguments: Sequence[str]) -> int:
    """Run the files named and return the exit status."""
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    adapters = find_adapters()
    try:
        files = [load(Path(argument), adapters) for argument in arguments]
    except CaseFileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    outcomes = [run(file) for file in files]
    return 0 if all(outcomes) else 1


def run(file: CaseFile) -> bool:
    """Print a line per case of a file; whether all of them hold."""
    held = 0
    for number, case in enumerate(file.cases, 1):
        faults = check(file.adapter, case)
        held += not faults
        print(f"{'FAIL' if faults else 'ok  '} {number:4} {file.adapter.label(case)}")
        for fault in faults:
            print(f"          {fault}")
    print(f"{file.path.name}: {held} of {len(file.cases)} cases hold")
    return held == len(file.cases)


def check(adapter: Adapter, case: Any) -> list[str]:
    """What does not hold in a case; an error raised by the core is one such thing."""
    try:
        return adapter.check(case)
    except HeadraceError as error:
        return [f"raised {type(error).__name__}: {error}"]
