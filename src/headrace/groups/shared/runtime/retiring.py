"""How a leader gives its group up while it still has the lease.

*Nobody is subscribed* for a while, or *its process is closing*: there is nothing to wait for, its
borrowers look for the next leader.  *The group is to be consumed elsewhere*: there is no next
leader here, so it first takes back what its borrowers have.  They finish what they have in hand,
and whoever takes the lease for free finds that nobody hands out anything any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.catalog import Tx, leases
from headrace.errors import HeadraceError
from headrace.groups.shared import deciding

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.leading import Leading

IDLE_MS = 10_000
"""A leader without borrowers steps down after this."""

_log = logging.getLogger(__name__)


class Retiring:
    """The end of one leadership."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._home = leading.home
        self.idle_since_ms: int | None = None
        """Since when nobody is subscribed."""
        self.leaving = ""
        """Why the group is given up, until nobody has anything of it."""
        self._released = False

    def tick(self, now_ms: int) -> None:
        """Step down if it is time."""
        leading = self._leading
        if leading.core.present or not leading.idle:
            self.idle_since_ms = None
        elif self.idle_since_ms is None:
            self.idle_since_ms = now_ms
        elif now_ms - self.idle_since_ms >= IDLE_MS:
            self._home.spawn(leading.retire("nobody is subscribed"))
        if self.leaving:
            self.go_if_left()

    def leave(self, reason: str) -> bool:
        """Begin to give the group up; false if that has begun."""
        if self.leaving or self._leading.core.deposed:
            return False
        self.leaving = reason
        return True

    def go_if_left(self) -> None:
        """Retire if nobody has anything of the group any more."""
        if not self._leading.core.deposed and self._leading.core.left:
            reason, self.leaving = self.leaving, ""
            self._home.spawn(self._leading.retire(reason))

    async def release(self, reason: str) -> None:
        """Give the lease back, with the last words of the leader."""
        leading, asked_ms = self._leading, self._home.now_ms
        last_words = [] if self._released else leading.bulletin.last_words(reason)
        self._released = True

        def run(tx: Tx) -> None:
            # Whoever took the lease has told of it; of a deleted group there is nothing to tell.
            if leases.release(tx, leading.lease, leading.token) and last_words:
                deciding.led(tx, leading.group, last_words, asked_ms)

        locks = (leases.lock(leading.lease), *deciding.locks(leading.group))
        try:
            await self._home.host.in_transaction(run, locks, sync=False)
        except HeadraceError as error:
            _log.warning("the lease of %s is left to run out: %s", leading.group, error)
