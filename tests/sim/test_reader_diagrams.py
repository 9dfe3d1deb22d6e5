"""The state diagrams of reader groups in the docs are those of the code."""

from __future__ import annotations

from pathlib import Path

from headrace.groups.readers.core.checkpoints import CHECKPOINT_TRANSITIONS
from headrace.groups.readers.core.segments import SEGMENT_TRANSITIONS
from headrace.sim.reader_diagrams import FILE_NAME, render

DOCS = Path(__file__).parents[2] / "docs"


def test_diagrams_in_the_docs_are_fresh() -> None:
    written = (DOCS / FILE_NAME).read_text(encoding="utf-8")
    assert written == render(), "run: python -m headrace.sim.reader_diagrams"


def test_every_cause_is_drawn() -> None:
    page = render()
    causes = {
        cause for table in (SEGMENT_TRANSITIONS, CHECKPOINT_TRANSITIONS) for _, cause in table
    }
    assert [cause for cause in sorted(causes) if cause not in page] == []
