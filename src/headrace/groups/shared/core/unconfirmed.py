"""What a borrower has reported of its units and its leader has not confirmed."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.groups.shared.core.borrower_states import UnitStatus
from headrace.groups.shared.core.messages import Ranges, Unit

REPORTS_KEPT = 1000


class HeldUnit:
    """A unit this borrower has."""

    __slots__ = ("attempts", "final", "reports", "status", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.status = UnitStatus.GRANTED
        self.final = False
        self.reports: dict[int, Ranges | None] = {}
        """What each unconfirmed report added; None: it repeated everything before it."""
        self.attempts: dict[int, int] = {}

    def unconfirmed(self) -> Ranges:
        """Everything that was acked and is not confirmed."""
        return tuple(pair for ranges in self.reports.values() if ranges for pair in ranges)

    def confirm(self, report: int) -> Ranges:
        """Take out what a confirmed report covers."""
        if report not in self.reports:
            return ()
        if (ranges := self.reports[report]) is not None:
            del self.reports[report]
            return ranges
        covered = [number for number in self.reports if number <= report]
        parts = [self.reports.pop(number) for number in covered]
        return tuple(pair for part in parts if part for pair in part)


class ReportIndex:
    """An index of unconfirmed reports: the units of each; derived from the held units."""

    def __init__(self) -> None:
        self.units_in: dict[int, list[Unit]] = {}
        """The units in each unconfirmed report, by its number."""
        self.units_in_max = REPORTS_KEPT

    def note(self, number: int, unit: Unit, held: Mapping[Unit, HeldUnit]) -> None:
        """Note that a unit is in a report (of a member that may have thousands of units)."""
        if len(self.units_in) > self.units_in_max:
            # Reports that were lost are covered by later ones, and never confirmed themselves.
            live = {n for each in held.values() for n in each.reports}
            self.units_in = {n: units for n, units in self.units_in.items() if n in live}
            # Nearly all may be left: clean up again when it has doubled (amortized cost).
            self.units_in_max = max(REPORTS_KEPT, 2 * len(self.units_in))
        self.units_in.setdefault(number, []).append(unit)

    def confirmed(self, number: int) -> list[Unit]:
        """Remove a report from the index; returns its units."""
        return self.units_in.pop(number, [])
