"""The lives of segments and checkpoints in a reader group, drawn from their tables.

``python -m headrace.sim.reader_diagrams`` writes them into ``docs/``; a test fails when they are
older than the tables, and another when the rules do what a table does not show.
"""

from __future__ import annotations

from headrace.groups.readers.core.checkpoints import CHECKPOINT_TRANSITIONS, CheckpointStatus
from headrace.groups.readers.core.segments import SEGMENT_TRANSITIONS, SegmentStatus
from headrace.sim.diagrams import mermaid, write_page

FILE_NAME = "reader-groups-states.md"

_INTRODUCTION = """\
# Reader groups: states

Drawn by `python -m headrace.sim.reader_diagrams` from the transition tables in
`headrace.groups.readers.core.segments` and `headrace.groups.readers.core.checkpoints`. Do not edit.
"""

_ABOUT_SEGMENTS = """\
A segment as a group sees it. A segment with several predecessors is `future` until the last of
them is over; only what is `unassigned` can be claimed. A reset begins again at a cut: what lies
within the cut can be claimed, and what lies ahead of it is not known yet.
"""

_ABOUT_CHECKPOINTS = """\
A checkpoint waits for every reader that was online when it was made, idle ones too. A reader that
goes offline has answered with what it leaves behind.
"""


def render() -> str:
    """The whole page."""
    unknown, absent = SegmentStatus.UNKNOWN, CheckpointStatus.ABSENT
    sections = (
        _INTRODUCTION,
        "## Segments\n",
        _ABOUT_SEGMENTS,
        mermaid(SEGMENT_TRANSITIONS, start=unknown, end=unknown),
        "## Checkpoints\n",
        _ABOUT_CHECKPOINTS,
        mermaid(CHECKPOINT_TRANSITIONS, start=absent, end=absent),
    )
    return "\n".join(sections)


def main() -> None:
    """Write the page."""
    write_page("Draw the state diagrams of reader groups.", FILE_NAME, render())


if __name__ == "__main__":
    main()
