"""Who looks for dead readers in a program, and when: once for all readers of a group.

Theory of operation
-------------------
Whoever asks gets the answer of the last look, as long as the lease that it found to run out next
still runs and nobody has joined since.  At that very moment the detector looks by itself.  So its
readers may wake up when it suits them, and the dead are still found as soon as they can be.

A look is a read.  Only a finding makes a transaction, which looks again.  Where all readers of a
group are in this program, their renewals say when the next lease runs out, and nobody looks.

Programs take turns, spread over a moment, in the order in which their first readers joined.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from headrace.catalog import leases
from headrace.errors import CatalogClosedError, HeadraceError
from headrace.groups.readers.core.settings import ReaderSettings
from headrace.groups.readers.core.state import ReaderGroupState
from headrace.groups.readers.names import ReaderGroupName
from headrace.groups.readers.runtime import liveness
from headrace.groups.readers.runtime.transaction import GroupCommit
from headrace.host import Host
from headrace.host.timers import Timer

LOOK_AGAIN_S = 0.02
"""A look for dead readers answers all who ask within this time."""
NEWCOMER_LOOK_MS = 500
"""After somebody has joined, whose lease may be shorter than all that were seen before."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class FollowedGroup(Protocol):
    """A group as it is known here."""

    name: ReaderGroupName
    closed: bool
    joins: int

    @property
    def state(self) -> ReaderGroupState:
        """The state as far as it is known here."""
        ...


class TransactGroup(Protocol):
    """Does something to a group in one transaction."""

    async def __call__(self, name: ReaderGroupName, work: Callable[[GroupCommit], T]) -> T: ...


class _LookedAfter(msgspec.Struct):
    """A group that somebody looks after, and what the last look at its leases found."""

    following: FollowedGroup
    timer: Timer
    looking: asyncio.Task[int | None] | None = None
    joins: int = -1
    """How many had joined when it was looked at; -1: it was not."""
    due_ms: int = 0
    """When the next lease runs out, by this program's clock."""


class Detector:
    """See the module's text."""

    def __init__(self, host: Host, transact: TransactGroup) -> None:
        self._host = host
        self._transact = transact
        self._watch = leases.Watch()
        self._groups: dict[str, _LookedAfter] = {}
        self.ours: set[str] = set()
        """Leases of readers in this program."""
        self._kept: dict[str, tuple[int, int]] = {}
        """Leases that were renewed here: token, and until when, in ms of this program's clock."""

    # -- what it is told --------------------------------------------------------------------

    def renewed(self, kept: Mapping[str, tuple[int, int]], now_ms: int) -> None:
        """Leases were renewed here, under a token and until a time; 0: that is lost."""
        running = {lease: until for lease, until in self._kept.items() if until[1] > now_ms}
        self._kept = running | dict(kept)

    def joined(self, following: FollowedGroup) -> None:
        """Somebody has joined a group: look soon, if anybody here looks after it."""
        found = self._groups.get(following.name.group)
        if found is not None and found.following is following:
            found.timer.bring_forward_ms(self._host.now_ms() + NEWCOMER_LOOK_MS)

    def forget(self, following: FollowedGroup) -> None:
        """Nobody follows a group any more."""
        found = self._groups.get(following.name.group)
        if found is not None and found.following is following:
            found.timer.clear()
            del self._groups[following.name.group]

    # -- what it is asked -------------------------------------------------------------------

    async def detect(self, following: FollowedGroup) -> int | None:
        """Look for dead readers and put them offline; when the next lease runs out, in ms."""
        if (known_ms := self.known_ms(following)) is not None:
            return known_ms
        watched = self._watched(following)
        if watched.looking is None:
            watched.looking = self._host.spawn(self._look(watched), awaited=True)
            watched.looking.add_done_callback(lambda _: self._looked(watched))
        return await asyncio.shield(watched.looking)

    def known_ms(self, following: FollowedGroup) -> int | None:
        """For how long nobody can be dead, as far as that is known without a look."""
        watched = self._watched(following)
        if (kept_ms := self._kept_ms(following)) is not None:
            return kept_ms
        left_ms = watched.due_ms - self._host.now_ms()
        return left_ms if left_ms > 0 and watched.joins == following.joins else None

    def _kept_ms(self, following: FollowedGroup) -> int | None:
        """The same, if all readers of a group are in this program."""
        now_ms, first_ms = self._host.now_ms(), None
        for member in following.state.members.values():
            lease = following.name.lease(member.name)
            token, until_ms = self._kept.get(lease, (0, 0))
            if token != member.lease_token or until_ms <= now_ms:
                self._kept.pop(lease, None)
                return None
            first_ms = until_ms if first_ms is None else min(first_ms, until_ms)
        return None if first_ms is None else first_ms - now_ms

    # -- looking ----------------------------------------------------------------------------

    def _watched(self, following: FollowedGroup) -> _LookedAfter:
        found = self._groups.get(following.name.group)
        if found is None or found.following is not following:
            if found is not None:
                found.timer.clear()
            timer = self._host.timer(lambda: self._due(following))
            found = self._groups[following.name.group] = _LookedAfter(following, timer)
        return found

    def _due(self, following: FollowedGroup) -> None:
        if not following.closed:
            self._host.spawn(self._detect_quietly(following))

    async def _detect_quietly(self, following: FollowedGroup) -> None:
        try:
            await self.detect(following)
        except HeadraceError as error:  # its readers ask as well, and again
            if not isinstance(error, CatalogClosedError):
                _log.info("reader group %s: %s", following.name.group, error)

    def _looked(self, watched: _LookedAfter) -> None:
        """Others who ask soon get the same answer."""

        def again() -> None:
            watched.looking = None

        self._host.after(LOOK_AGAIN_S, again)

    async def _look(self, watched: _LookedAfter) -> int | None:
        following = watched.following
        name, state, joins = following.name, following.state, following.joins
        catalog = self._host.log.catalog
        found = await self._host.in_thread(catalog.read, lambda tx: liveness.look(tx, name, state))
        now_ms = self._host.now_ms()
        over, next_ms = self._watch.unrenewed(found.held, found.now_us, now_ms)
        if found.dead or over:
            await self._bury(name, over)
        expiry_ms = found.next_expiry_in_ms
        if expiry_ms is None or (next_ms is not None and next_ms < expiry_ms):
            expiry_ms = next_ms
        if expiry_ms is not None and not following.closed:
            watched.joins, watched.due_ms = joins, now_ms + expiry_ms + 1
            watched.timer.set_ms(watched.due_ms + self._turn_ms(following))
        return expiry_ms

    async def _bury(self, name: ReaderGroupName, over: Collection[leases.Lease]) -> None:
        for dead, _ in await self._transact(name, partial(liveness.bury, unrenewed=over)):
            _log.warning("reader %s of group %s: %s", dead.reader, name.group, dead.why)

    def _turn_ms(self, following: FollowedGroup) -> int:
        """How long others have before it is this program's turn."""
        members = following.state.members
        ours = (n for n, each in enumerate(members) if following.name.lease(each) in self.ours)
        spread_ms = ReaderSettings().detect_spread_ms
        return spread_ms * next(ours, len(members)) // max(1, len(members))
