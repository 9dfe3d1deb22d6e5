"""State diagrams of the protocols, drawn from the tables that the code itself runs on.

``python -m headrace.sim.diagrams`` writes them into ``docs/``; a test fails when they are older
than the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from headrace.groups.shared.core import assignment, private
from headrace.groups.shared.core import borrower_states as borrower

FILE_NAME = "shared-groups-states.md"

S = TypeVar("S", bound=Enum)
C = TypeVar("C", bound=str)

_INTRODUCTION = """\
# Shared groups: states

Drawn by `python -m headrace.sim.diagrams` from the transition tables in
`headrace.groups.shared.core`: `borrower_states`, `assignment` and `private`. Do not edit.
"""

_ABOUT_BORROWERS = """\
A borrower serves one shared subscription of one session. It never goes back: one that is out of
step with its leader ends, and its agent makes a new one with a new identifier.
"""

_ABOUT_UNITS = """\
A unit as the borrower sees it. While it is `revoking` nothing more is handed out; what is in
flight is finished and reported.
"""

_ABOUT_ASSIGNMENTS = """\
A unit as the leader sees it. A grant is sent when its claim is durable; `revoked` is sent when the
final progress is durable. No report makes a unit that is being revoked `granted` again.
"""


_ABOUT_PRIVATE = """\
A segment in a private subscription of a session. What follows from it is ready once its end is
recorded.
"""


def mermaid(table: Mapping[tuple[S, C], S], *, start: S, end: S) -> str:
    """One diagram; causes that lead from one state to the same other share an arrow."""
    causes: dict[tuple[S, S], list[str]] = {}
    for (source, cause), target in table.items():
        causes.setdefault((source, target), []).append(cause)
    lines = ["```mermaid", "stateDiagram-v2"]
    if start != end:
        lines.append(f"    [*] --> {_name(start)}")
    for (source, target), names in causes.items():
        left = "[*]" if source == start == end else _name(source)
        right = "[*]" if target == end else _name(target)
        lines.append(f"    {left} --> {right}: {', '.join(names)}")
    return "\n".join([*lines, "```", ""])


def _name(state: Enum) -> str:
    return str(state.value).replace(" ", "_")


def render() -> str:
    """The whole page."""
    gone = borrower.Status.GONE
    absent = borrower.UnitStatus.ABSENT
    free = assignment.AssignmentStatus.FREE
    unclaimed = private.PrivateStatus.ABSENT
    sections = (
        _INTRODUCTION,
        "## Borrower\n",
        _ABOUT_BORROWERS,
        mermaid(borrower.TRANSITIONS, start=borrower.Status.CONNECTING, end=gone),
        "## A borrower's units\n",
        _ABOUT_UNITS,
        mermaid(borrower.UNIT_TRANSITIONS, start=absent, end=absent),
        "## The leader's assignments\n",
        _ABOUT_ASSIGNMENTS,
        mermaid(assignment.ASSIGNMENT_TRANSITIONS, start=free, end=free),
        "## A private subscription's segments\n",
        _ABOUT_PRIVATE,
        mermaid(private.PRIVATE_TRANSITIONS, start=unclaimed, end=unclaimed),
    )
    return "\n".join(sections)


def write_page(about: str, file_name: str, page: str) -> None:
    """Write a page into a folder, ``docs`` unless told otherwise: what such a module does."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("folder", nargs="?", default="docs", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file_name).write_text(page, encoding="utf-8")
    print(f"wrote {folder / file_name}")


def main() -> None:
    """Write the page."""
    write_page("Draw the state diagrams of shared groups.", FILE_NAME, render())


if __name__ == "__main__":
    main()
