"""The lives of an instance and of its partitions, drawn from the tables that they run on.

``python -m headrace.sim.partitioned_diagrams`` writes them into ``docs/``; a test fails when they
are older than the tables.
"""

from __future__ import annotations

from headrace.groups.partitioned.core.messages import Phase
from headrace.groups.partitioned.core.transitions import (
    PHASE_TRANSITIONS,
    STAGE_TRANSITIONS,
    Stage,
)
from headrace.sim.diagrams import mermaid, write_page

FILE_NAME = "partitioned-groups-states.md"

_INTRODUCTION = """\
# Partitioned groups: states

Drawn by `python -m headrace.sim.partitioned_diagrams` from the transition tables in
`headrace.groups.partitioned.core.transitions`. Do not edit.
"""

_ABOUT_INSTANCES = """\
An instance is a running process of a member. One instance of a member holds its pin; the others
stand by. One that steps down finishes its partitions before it gives up the pin.
"""

_ABOUT_PARTITIONS = """\
A partition as a pinned instance sees it. What is on its way out goes all the way out, and is
claimed again if it is wanted by then. With the pin everything is lost at once.
"""


def render() -> str:
    """The whole page."""
    sections = (
        _INTRODUCTION,
        "## Instances\n",
        _ABOUT_INSTANCES,
        mermaid(PHASE_TRANSITIONS, start=Phase.WAITING, end=Phase.CLOSED),
        "## An instance's partitions\n",
        _ABOUT_PARTITIONS,
        mermaid(STAGE_TRANSITIONS, start=Stage.ABSENT, end=Stage.ABSENT),
    )
    return "\n".join(sections)


def main() -> None:
    """Write the page."""
    write_page("Draw the state diagrams of partitioned groups.", FILE_NAME, render())


if __name__ == "__main__":
    main()
