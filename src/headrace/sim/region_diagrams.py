"""The life of a snapshot, drawn from the table that the controller runs on.

``python -m headrace.sim.region_diagrams`` writes it into ``docs/``; a test fails when it is older
than the table.
"""

from __future__ import annotations

from headrace.regions.core.controller import TRANSITIONS, SnapshotPhase
from headrace.sim.diagrams import mermaid, write_page

FILE_NAME = "region-states.md"

_INTRODUCTION = """\
# Regions: states of a snapshot

Drawn by `python -m headrace.sim.region_diagrams` from the transition table in
`headrace.regions.core.controller`. Do not edit.

A snapshot relates a position of one region's log to positions of the others. The members are fixed
when it starts. With one remote region a single round of answers completes it; with more, a second
round makes sure that whatever had passed between the others has come here too. Only a complete
snapshot is ever used; after a timeout the next one starts anew.
"""


def render() -> str:
    """The whole page."""
    table = {(phase, event.value): then for (phase, event), then in TRANSITIONS.items()}
    return "\n".join(
        (_INTRODUCTION, mermaid(table, start=SnapshotPhase.IDLE, end=SnapshotPhase.IDLE))
    )


def main() -> None:
    """Write the page."""
    write_page("Draw the state diagram of snapshots.", FILE_NAME, render())


if __name__ == "__main__":
    main()
