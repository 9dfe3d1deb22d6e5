"""Decisions of a leader that its runtime has not recorded yet: one for a step, not for a unit.

Units that go the same way for the same reason are one decision.  Unlike the latest decisions, of
which a step over many units pushes the first out, nothing is lost between two looks of the runtime.
"""

from __future__ import annotations

from headrace.groups.decisions.core.record import Decision, What, ranges
from headrace.groups.shared.core.messages import Unit
from headrace.groups.shared.core.records import LeaderDecision

_ENDS = frozenset({What.MOVES, What.LOST, What.LEFT, What.EVICTED, What.FINISHED})
"""What is told of the one who had it."""


class Unrecorded:
    """What was decided since the last look; times are of the leader's own clock."""

    def __init__(self, steps_max: int) -> None:
        self._steps: dict[tuple[object, ...], tuple[LeaderDecision, list[Unit]]] = {}
        self._steps_max = steps_max
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, decision: LeaderDecision) -> None:
        """A decision was made."""
        self._count += 1
        about = (decision.what, decision.borrower, decision.other, decision.reason)
        key = about if decision.unit is not None else (self._count,)
        found = self._steps.get(key)
        if found is not None:
            found[1].append(decision.unit or "")
            return
        if len(self._steps) >= self._steps_max:
            del self._steps[next(iter(self._steps))]
        self._steps[key] = decision, [] if decision.unit is None else [decision.unit]

    def take(self) -> list[Decision]:
        """Everything, as it is to be recorded."""
        steps, self._steps = self._steps, {}
        return [_recorded(decision, units) for decision, units in steps.values()]


def _recorded(decision: LeaderDecision, units: list[Unit]) -> Decision:
    member, other = session_of(decision.borrower or ""), session_of(decision.other)
    ends = decision.what in _ENDS
    return Decision(
        what=decision.what,
        reason=decision.reason,
        units=ranges(units),
        source=member if ends else "",
        target=other if ends else member,
        instance=decision.borrower or "",
        at_us=decision.at_ms * 1000,
    )


def session_of(borrower: str) -> str:
    """The session that a borrower belongs to: agents name them by it."""
    return borrower.partition(":")[0]
