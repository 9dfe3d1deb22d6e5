"""Gathering: reports that wait for the next group commit, while ``pace`` spaces commits out."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.groups.shared.core.messages import UpdateProgress
from headrace.groups.shared.core.pace import GATHER_MS, Pace
from headrace.groups.shared.core.records import Gather


class Gathering:
    """Whether the next commit is delayed, and the reports kept for it unprocessed."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.on = False
        """Whether the next commit is delayed."""
        self.kept: list[UpdateProgress] = []
        """Reports that came meanwhile, in order of arrival."""

    def begin(self) -> Gather:
        """A commit is made, and the next one waits for more reports."""
        self.on = True
        self._pace.keep_distance()
        return Gather(GATHER_MS, self._pace.judging)

    def begin_if_busy(self) -> list[Gather]:
        """A commit is made; delay the next one only if there is much to store."""
        if self._pace.busy:
            return [self.begin()]
        self._pace.keep_none()
        return []

    def keep(self, report: UpdateProgress, now_ms: int) -> bool:
        """Keep a report for the delayed commit; False if none is delayed."""
        if not self.on:
            return False
        if self._pace.judging:
            self._pace.judge(report.borrower, now_ms)
        self.kept.append(report)
        return True

    def take(self, now_ms: int) -> list[UpdateProgress]:
        """Hand over what was kept, to be processed now."""
        kept, self.kept = self.kept, []
        if kept:
            self._pace.reported(len(kept), now_ms)
        return kept

    def reported(self, report: UpdateProgress, now_ms: int) -> None:
        """A report is processed as it comes, without being kept."""
        self._pace.reported(1, now_ms)
        if self._pace.judging:
            self._pace.judge(report.borrower, now_ms)

    def confirmed(self, reports: Sequence[tuple[str, int]], now_ms: int) -> None:
        """Reports of these borrowers are confirmed."""
        if self._pace.judging:
            self._pace.confirmed((borrower for borrower, _ in reports), now_ms)
