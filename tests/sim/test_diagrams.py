"""The state diagrams in the docs are those of the code."""

from __future__ import annotations

from pathlib import Path

from headrace.groups.shared.core import assignment
from headrace.groups.shared.core import borrower_states as borrower
from headrace.sim.diagrams import FILE_NAME, mermaid, render

DOCS = Path(__file__).parents[2] / "docs"


def test_diagrams_in_the_docs_are_fresh() -> None:
    written = (DOCS / FILE_NAME).read_text(encoding="utf-8")
    assert written == render(), "run: python -m headrace.sim.diagrams"


def test_every_state_and_every_cause_is_drawn() -> None:
    page = render()
    for table in (
        borrower.TRANSITIONS,
        borrower.UNIT_TRANSITIONS,
        assignment.ASSIGNMENT_TRANSITIONS,
    ):
        for _, cause in table:
            assert cause in page


def test_changed_table_changes_the_diagram() -> None:
    table = dict(borrower.UNIT_TRANSITIONS)
    start = borrower.UnitStatus.ABSENT
    before = mermaid(table, start=start, end=start)
    table[borrower.UnitStatus.REVOKING, "regret"] = borrower.UnitStatus.GRANTED
    assert "revoking --> granted: regret" in mermaid(table, start=start, end=start)
    assert "regret" not in before
