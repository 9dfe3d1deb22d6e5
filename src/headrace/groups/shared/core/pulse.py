"""A borrower's pulse: when it pings, and until when its leader counts as alive.

*Liveness is counted from the ping that was sent, not from the answer that came.*  An answer may
have been under way for seconds; the leader has heard nothing newer than that ping.  A report that
is confirmed is as good as a ping, so a borrower that reports need not ping.

Pings are due at common moments, multiples of the time between them, whenever a borrower came: so
those of all idle borrowers of a program go together.
"""

from __future__ import annotations

from headrace.groups.shared.core.settings import BorrowerSettings


class Pulse:
    """The pings of one borrower."""

    __slots__ = ("_every_ms", "_number", "_timeout_ms", "_unanswered", "due_ms", "lost_ms")

    def __init__(self, settings: BorrowerSettings, now_ms: int) -> None:
        self._every_ms = settings.ping_ms
        self._timeout_ms = settings.ping_timeout_ms
        self._number = 0
        self._unanswered: dict[int, int] = {}
        """When each unanswered ping was sent."""
        self.due_ms = now_ms
        """When to ping."""
        self.lost_ms = now_ms + self._timeout_ms
        """When the leader counts as lost."""

    def snapshot(self) -> tuple[object, ...]:
        """Everything that decides what it will do, as comparable values."""
        return tuple(self._unanswered.items()), self.lost_ms, self.due_ms

    def begin(self, now_ms: int) -> None:
        """A leader has answered for the first time."""
        self.lost_ms = now_ms + self._timeout_ms

    def ping(self, now_ms: int) -> int:
        """A ping is sent: its number."""
        self.due_ms = (now_ms // self._every_ms + 1) * self._every_ms
        self._number += 1
        self._unanswered[self._number] = now_ms
        return self._number

    def answered(self, number: int) -> None:
        """A ping was answered, and with it all before it."""
        sent_ms = self._unanswered.get(number)
        if sent_ms is not None:
            self.lost_ms = max(self.lost_ms, sent_ms + self._timeout_ms)
            if len(self._unanswered) == 1:
                self._unanswered.clear()
            else:
                self._unanswered = {n: ms for n, ms in self._unanswered.items() if n > number}

    def confirmed(self, sent_ms: int) -> None:
        """A report that was not sent before that time was confirmed."""
        self.lost_ms = max(self.lost_ms, sent_ms + self._timeout_ms)
        self.due_ms = max(self.due_ms, sent_ms + self._every_ms)
