"""The read-only view of a leader, for use from outside its core."""

from __future__ import annotations

from collections import deque
from collections.abc import KeysView

from headrace.groups.progress import Progress
from headrace.groups.shared.core.assignment import AssignmentStatus, UnitState
from headrace.groups.shared.core.holdings import Holdings, MemberView
from headrace.groups.shared.core.ledger import Ledger
from headrace.groups.shared.core.messages import Unit
from headrace.groups.shared.core.records import LeaderDecision
from headrace.groups.shared.core.unrecorded import Unrecorded


class LeaderView:
    """The reading side of a leader."""

    def __init__(self, holdings: Holdings, ledger: Ledger) -> None:
        self._holdings = holdings
        self._ledger = ledger

    @property
    def decisions(self) -> deque[LeaderDecision]:
        """The latest decisions, with their reasons."""
        return self._holdings.decisions

    @property
    def unrecorded(self) -> Unrecorded:
        """What was decided since the runtime took it, to be recorded."""
        return self._holdings.unrecorded

    @property
    def borrowers(self) -> dict[str, tuple[Unit, ...]]:
        """The borrowers and their units."""
        return {name: tuple(member.units) for name, member in self._holdings.members.items()}

    @property
    def present(self) -> KeysView[str]:
        """The names of the borrowers."""
        return self._holdings.members.keys()

    def shares(self, now_ms: int) -> dict[str, int]:
        """How many units each borrower has or is being granted, of those that may have any."""
        holdings = self._holdings
        return {
            name: member.load
            for name, member in holdings.members.items()
            if holdings.may_own(member, now_ms)
        }

    def members(self, now_ms: int) -> tuple[MemberView, ...]:
        """Every borrower, with what it has and what it should have."""
        return self._holdings.views(now_ms)

    @property
    def unstored(self) -> bool:
        """Whether something was noted that is in no commit yet."""
        return self._ledger.noted

    @property
    def left(self) -> bool:
        """Whether it has given the group up, with all that it was told stored: it may retire."""
        return self._holdings.left and not self.unstored and not self._ledger.busy

    def progress_of(self, unit: Unit) -> Progress:
        """How far the group has come in a unit, as far as this leader knows."""
        return self._holdings.units[unit].progress

    def assignment_of(self, unit: Unit) -> tuple[AssignmentStatus, str]:
        """The status of a unit's assignment, and to whom."""
        state = self._holdings.units[unit]
        return state.status, state.borrower

    @property
    def units(self) -> dict[Unit, UnitState]:
        """Every unit of the group that is known; to be looked at, not changed."""
        return self._holdings.units

    @property
    def unbalanced(self) -> bool:
        """Whether ``balance`` has something to do."""
        return self._holdings.unbalanced
