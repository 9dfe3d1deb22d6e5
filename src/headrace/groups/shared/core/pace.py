"""Pacing a leader's group commits: at once, or spaced out so that each serves many reports.

While there is little to do, a report is stored at once.  From ``GATHER_RATE`` reports per second on
commits are spaced ``GATHER_MS`` apart, unless most borrowers are *eager*: such a one waits for each
confirmation before it reports again (a closed loop), so a delay would only slow it down.  Who is
eager shows in how soon a report follows the last confirmation.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    """The rate of reports, and the share of them that is eager."""

    def __init__(self, gather_rate: int | None = None) -> None:
        """`gather_rate` takes the place of ``GATHER_RATE``."""
        self._gather_rate = GATHER_RATE if gather_rate is None else gather_rate
        self._count = 0
        self._window_ms = 0
        self._rate = 0.0
        self._eager = 0.0
        self._commits = 0
        self.judging = True
        """Whether reports and confirmations are timed now, to tell who is eager."""
        self._confirmed_ms: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether commits should be spaced out: many reports, and most of them not eager."""
        return self._rate >= self._gather_rate and self._eager < 0.5

    def keep_distance(self) -> None:
        """A commit is made, and the next one is delayed."""
        self._commits += 1
        self.judging = self._commits % JUDGED == 0

    def keep_none(self) -> None:
        """The next commit is made as soon as there is something to store."""
        self.judging = True

    def reported(self, reports: int, now_ms: int) -> None:
        """Count reports that have come, and measure the rate."""
        past_ms = now_ms - self._window_ms
        if past_ms >= PACE_MS:
            self._rate = self._count * 1000 / past_ms
            self._count, self._window_ms = 0, now_ms
        self._count += reports

    def judge(self, borrower: str, now_ms: int) -> None:
        """A report of this borrower has come: take into the average whether it is eager."""
        eager = now_ms - self._confirmed_ms.get(borrower, -EAGER_MS - 1) <= EAGER_MS
        self._eager += (eager - self._eager) / EAGER_REPORTS

    def confirmed(self, borrowers: Iterable[str], now_ms: int) -> None:
        """Remember when reports of these borrowers were confirmed."""
        if len(self._confirmed_ms) >= CONFIRMED_MAX:
            self._confirmed_ms.clear()
        self._confirmed_ms.update(dict.fromkeys(borrowers, now_ms))
