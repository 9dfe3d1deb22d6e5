"""Pacing a leader's group commits: at once, or spaced out so that each serves many reports.

While commits are spaced out, reports are *gathered*: kept unprocessed until the next one is due.

While there is little to do, a report is stored at once.  From ``GATHER_RATE`` reports per second on
commits are spaced ``GATHER_MS`` apart, unless most borrowers are *eager*: such a one waits for each
confirmation before it reports again (a closed loop), so a delay would only slow it down.  Who is
eager shows in how soon a report follows the last confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.groups.shared.core.messages import UpdateProgress
from headrace.groups.shared.core.records import Gather

GATHER_MS = 25
"""Time between commits while they are spaced out; adds to what may be lost with a leader."""
GATHER_RATE = 200
"""Reports per second from which on commits are spaced out."""
EAGER_MS = 15
"""A report within this time of the borrower's last confirmation is eager.

More than half of ``GATHER_MS``, since reports are read at the middle of a judged interval.
"""
JUDGED = 4
"""While commits are spaced out, reports are judged after one commit in this many."""
EAGER_REPORTS = 20
"""The share of eager reports is a moving average over about this many."""
PACE_MS = 100
CONFIRMED_MAX = 10_000


class Pace:
    """Whether the next commit is delayed, what is kept for it, and what decides that: the rate of
    reports, and the share of them that is eager."""

    def __init__(self) -> None:
        self.gathering = False
        """Whether the next commit is delayed."""
        self.kept: list[UpdateProgress] = []
        """Reports that came meanwhile, in order of arrival."""
        self.judging = True
        """Whether reports and confirmations are timed now, to tell who is eager."""
        self._count = 0
        self._window_ms = 0
        self._rate = 0.0
        self._eager = 0.0
        self._commits = 0
        self._confirmed_ms: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether commits should be spaced out: many reports, and most of them not eager."""
        return self._rate >= GATHER_RATE and self._eager < 0.5

    def gather(self) -> Gather:
        """A commit is made, and the next one waits for more reports."""
        self.gathering = True
        self._commits += 1
        self.judging = self._commits % JUDGED == 0
        return Gather(GATHER_MS, self.judging)

    def gather_if_busy(self) -> Gather | None:
        """A commit is made; delay the next one only if there is much to store."""
        if self.busy:
            return self.gather()
        self.judging = True
        return None

    def keep(self, report: UpdateProgress, now_ms: int) -> bool:
        """Keep a report for the delayed commit; False if none is delayed."""
        if not self.gathering:
            return False
        if self.judging:
            self._judge(report.borrower, now_ms)
        self.kept.append(report)
        return True

    def take(self, now_ms: int) -> list[UpdateProgress]:
        """Hand over what was kept, to be processed now."""
        kept, self.kept = self.kept, []
        if kept:
            if now_ms - self._window_ms >= PACE_MS:
                self._measure(now_ms)
            self._count += len(kept)
        return kept

    def reported(self, borrower: str, now_ms: int) -> None:
        """A report is processed as it comes, without being kept."""
        if now_ms - self._window_ms >= PACE_MS:
            self._measure(now_ms)
        self._count += 1
        if self.judging:
            self._judge(borrower, now_ms)

    def confirmed(self, reports: Sequence[tuple[str, int]], now_ms: int) -> None:
        """Remember when these reports, each of a borrower, were confirmed."""
        if not self.judging:
            return
        if len(self._confirmed_ms) >= CONFIRMED_MAX:
            self._confirmed_ms.clear()
        for borrower, _ in reports:
            self._confirmed_ms[borrower] = now_ms

    def _measure(self, now_ms: int) -> None:
        """An interval is over: the rate of its reports, and count anew."""
        self._rate = self._count * 1000 / (now_ms - self._window_ms)
        self._count, self._window_ms = 0, now_ms

    def _judge(self, borrower: str, now_ms: int) -> None:
        """A report of this borrower has come: take into the average whether it is eager."""
        eager = now_ms - self._confirmed_ms.get(borrower, -EAGER_MS - 1) <= EAGER_MS
        self._eager += (eager - self._eager) / EAGER_REPORTS
