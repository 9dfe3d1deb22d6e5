"""Tests that drive the clock."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError


class ClockStoodStillError(HeadraceError):
    """A test waits for something that only time can bring, and nobody moves the clock."""

    def __init__(self, patience_s: float, due_s: float | None) -> None:
        due = "no timer is set" if due_s is None else f"the next timer is due in {due_s:g} s"
        super().__init__(
            f"nothing can run, and for {patience_s:g} s no socket and no thread had anything to "
            f"say; {due}: move the clock with `await driven_clock().advance(…)`, or let it jump by "
            "itself with autojump=True"
        )
