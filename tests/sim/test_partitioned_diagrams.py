"""The state diagrams of partitioned groups in the docs are those of the code."""

from __future__ import annotations

from pathlib import Path

from headrace.groups.partitioned.core.transitions import PHASE_TRANSITIONS, STAGE_TRANSITIONS
from headrace.sim.partitioned_diagrams import FILE_NAME, render

DOCS = Path(__file__).parents[2] / "docs"


def test_diagrams_in_the_docs_are_fresh() -> None:
    written = (DOCS / FILE_NAME).read_text(encoding="utf-8")
    assert written == render(), "run: python -m headrace.sim.partitioned_diagrams"


def test_every_cause_is_drawn() -> None:
    page = render()
    causes = {cause.value for table in (PHASE_TRANSITIONS, STAGE_TRANSITIONS) for _, cause in table}
    assert [cause for cause in sorted(causes) if cause not in page] == []
