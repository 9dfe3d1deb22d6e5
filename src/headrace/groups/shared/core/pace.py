"""How often a leader stores what is reported.

A report is stored at once while there is little to do.  When many borrowers report that do not wait
for each other, commits keep a distance, so that each of them serves many reports.  A borrower that
reports as soon as its last report is confirmed is one that waits for each; while most reports are
of that kind there is no distance.
"""

from __future__ import annotations

from collections.abc import Iterable

GATHER_MS = 25
"""The distance of commits when there is much to store: a part of what may be lost with a leader."""
GATHER_RATE = 200
"""Reports per second from which on commits keep their distance."""
EAGER_MS = 15
"""A report so soon after the confirmation of the last one comes from somebody who waited for it.

More than half the distance of commits: that is when reports are looked at to tell.
"""
JUDGED = 4
"""While commits keep their distance, of so many of them one is followed by such a look."""
EAGER_REPORTS = 20
"""So many reports make an opinion of who reports."""
PACE_MS = 100
CONFIRMED_MAX = 10_000


class Pace:
    """How much there is to store, and whether those who report wait for it."""

    def __init__(self, gather_rate: int | None = None) -> None:
        """`gather_rate` takes the place of ``GATHER_RATE``."""
        self._gather_rate = GATHER_RATE if gather_rate is None else gather_rate
        self._count = 0
        self._window_ms = 0
        self._rate = 0.0
        self._eager = 0.0
        self._commits = 0
        self.judging = True
        """Whether it matters when reports come and are confirmed."""
        self._confirmed_ms: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether many report, and most of them do not wait for the last confirmation."""
        return self._rate >= self._gather_rate and self._eager < 0.5

    def keep_distance(self) -> None:
        """A commit is made, and the next one will keep its distance."""
        self._commits += 1
        self.judging = self._commits % JUDGED == 0

    def keep_none(self) -> None:
        """The next commit is made as soon as there is something to store."""
        self.judging = True

    def reported(self, reports: int, now_ms: int) -> None:
        """So many reports have come."""
        past_ms = now_ms - self._window_ms
        if past_ms >= PACE_MS:
            self._rate = self._count * 1000 / past_ms
            self._count, self._window_ms = 0, now_ms
        self._count += reports

    def judge(self, borrower: str, now_ms: int) -> None:
        """One of them is of this borrower, and has come now."""
        eager = now_ms - self._confirmed_ms.get(borrower, -EAGER_MS - 1) <= EAGER_MS
        self._eager += (eager - self._eager) / EAGER_REPORTS

    def confirmed(self, borrowers: Iterable[str], now_ms: int) -> None:
        """Reports of these were confirmed."""
        if len(self._confirmed_ms) >= CONFIRMED_MAX:
            self._confirmed_ms.clear()
        self._confirmed_ms.update(dict.fromkeys(borrowers, now_ms))
