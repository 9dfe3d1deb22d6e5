"""The observer: sees the whole catalog, at a pace that never takes much of a core.

Theory of operation
-------------------
One task looks.  It is woken by news of any channel while somebody watches; it also compares the
catalog's mark (a number that every commit changes) once a second then, since acks notify nobody;
and it looks every ten seconds whatever the mark says, for what changes with time alone: ages, and
members that fall silent.  Without watchers it looks every ten seconds if the mark has moved, for
the history.  Where it has not, the history goes on with what was seen, only older, and whoever asks
next waits for a look.  What this program itself writes now and then (that the history was stored,
that housekeeping was done) is no reason to look.

Two looks are at least 250 ms apart, and at least ten times the CPU time of the last one: a catalog
that takes 160 ms to look at is looked at every 1.6 s, and looking takes a tenth of a core at most.

A look is immutable.  What changed from one to the next is worked out once (``core/changes``), and
handed to the history, the counters and the live streams.

When the catalog is away the last look stays, and ``away`` says why; the observer tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable

from headrace.catalog.notifier import ANY
from headrace.errors import HeadraceError
from headrace.groups.decisions import Decision
from headrace.groups.picture import Memories
from headrace.host import Host, Stage
from headrace.node import history as histories
from headrace.node import looking
from headrace.node.history import History
from headrace.node.shapes import Look

SOONEST_S = 0.25
WATCHED_S = 1.0
QUIET_S = 10.0
SHARE = 10
"""The next look waits this many times the CPU time of the last."""
TOUCHED_S = 15.0
"""How long after a request somebody is taken to be watching."""
RECENT = 1_000
"""How many decisions are kept in memory."""

_log = logging.getLogger(__name__)

Heard = Callable[[Look, Look | None, list[Decision]], None]


class Observer:
    """The one task that looks, and what it saw last."""

    def __init__(self, host: Host, history: History, *, history_s: int, stores: bool) -> None:
        self._host = host
        self._history_s = history_s
        self._stores = stores
        self._owner = host.clock.local_name()
        self._news = asyncio.Event()
        self._asked = asyncio.Event()
        self._looked = asyncio.Condition()
        self._touched_s = float("-inf")
        self._stored_s = host.now_s()
        self._wanted = False
        """Whether somebody waits for the next look."""
        self._ages = False
        """Whether all that is not acked had an age when it was seen; else only a look can tell."""
        self._mark: tuple[int, ...] = ()
        self._quiet_mark: tuple[int, ...] = ()
        """The mark but for what this program writes aside."""
        self._memories = Memories()
        self._tasks = host.tasks("observer")
        self._stop: Callable[[], None] = lambda: None
        self.history = history
        self.look: Look | None = None
        self.looked_s = float("-inf")
        """When the last look was, by this program's clock."""
        self.checked_s = float("-inf")
        """When it was last known that nothing has been written since."""
        self.away: str | None = None
        """Why the catalog cannot be read, if it cannot."""
        self.watchers = 0
        self.decisions: deque[Decision] = deque(maxlen=RECENT)
        self.decided: Counter[tuple[str, str]] = Counter()
        """(group, what) of decisions since this node began."""
        self.heard: list[Heard] = []
        """Called after each look with it, the one before, and what was decided in between."""

    async def start(self) -> None:
        """Look once, and go on looking."""
        self._host.serve(Stage.CHORES, self)
        self._stop = await self._host.listen(ANY, self._news.set)
        try:
            await self._host.in_thread(
                histories.load, self._host.log, self.history, self._history_s
            )
        except HeadraceError as error:
            _log.warning("the history was not read: %s", error)
        await self._once()
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        self._stop()
        await self._tasks.close()

    # -- for those who ask --------------------------------------------------------------

    @property
    def age_s(self) -> float:
        """How old the last look is; one that nothing was written since is young."""
        return max(0.0, self._host.now_s() - self.checked_s)

    def touch(self) -> None:
        """Somebody asks."""
        self._touched_s = self._host.now_s()
        self._asked.set()

    async def fresh(self, *, older_s: float = 15.0, timeout_s: float = 2.0) -> Look | None:
        """The last look, from memory; only if it is very old the next one, if that comes soon."""
        self.touch()
        return await self.recent(older_s, timeout_s)

    async def recent(self, older_s: float = 15.0, timeout_s: float = 2.0) -> Look | None:
        """As :meth:`fresh`, for who comes by now and then: that is nobody who watches."""
        is_old = self.look is None or self._host.now_s() - self.looked_s > older_s
        if self.away is None and is_old:
            await self._next(timeout_s)
        return self.look

    async def next(self, timeout_s: float = 2.0) -> None:
        """Wait for another look: after a change, so that its answer is in it."""
        self.touch()
        await self._next(timeout_s)

    async def _next(self, timeout_s: float) -> None:
        self._wanted = True
        self._asked.set()
        self._news.set()
        try:
            async with self._host.timeout(timeout_s), self._looked:
                await self._looked.wait()
        except TimeoutError:
            pass

    # -- the task -----------------------------------------------------------------------

    @property
    def _watched(self) -> bool:
        return self.watchers > 0 or self._host.now_s() - self._touched_s < TOUCHED_S

    async def _run(self) -> None:
        while True:
            cpu_s = 0.0 if self.look is None else self.look.cpu_s
            await self._host.sleep(max(SOONEST_S, SHARE * cpu_s))
            while not await self._is_due():
                self._still()
                await self._store()
            await self._once()
            await self._store()

    async def _is_due(self) -> bool:
        """Wait until a look is due; false if ten seconds have gone by, and none is."""
        began_s = self._host.now_s()
        while (left_s := QUIET_S - (self._host.now_s() - began_s)) > 0 and not self._wanted:
            if not self._watched:
                # News does not matter, but the first who asks does.
                self._asked.clear()
                await self._host.wait(self._asked, left_s)
            elif await self._host.wait(self._news, WATCHED_S) or await self._moved():
                return True
        return self._wanted or self._watched or not self._ages or await self._moved(aside=False)

    async def _moved(self, *, aside: bool = True) -> bool:
        """Whether anything was written since the last look."""
        catalog = self._host.log.catalog
        try:
            mark = await self._host.in_thread(catalog.mark, aside=aside)
        except HeadraceError:
            return True
        if mark == (self._mark if aside else self._quiet_mark) and self.away is None:
            self.checked_s = self._host.now_s()  # nothing is newer than what was seen
            return False
        return True

    def _still(self) -> None:
        """Nothing has changed since the last look but that it is later."""
        if self.look is not None:
            later_s = self._host.now_s() - self.looked_s
            self.history.still(self.look.seen_us / 1e6 + later_s, later_s)

    async def _once(self) -> None:
        self._news.clear()
        self._wanted = False
        before = self.look
        try:
            catalog = self._host.log.catalog
            self._mark = await self._host.in_thread(catalog.mark)
            self._quiet_mark = await self._host.in_thread(catalog.mark, aside=False)
            found = await self._host.in_thread(looking.look, catalog, before, self._memories)
        except HeadraceError as error:
            if self.away is None:
                _log.warning("the catalog cannot be read: %s", error)
            self.away = str(error)
        else:
            if self.away is not None:
                _log.warning("the catalog can be read again")
            self.away = None
            self._saw(found, before)
        async with self._looked:
            self._looked.notify_all()

    def _saw(self, found: looking.Looked, before: Look | None) -> None:
        self.look = found.look
        self.looked_s = self.checked_s = self._host.now_s()
        behind = [group.lag for group in found.look.groups.values() if group.lag.events]
        self._ages = all(lag.seconds for lag in behind)
        self.decisions.extend(found.decisions)
        if before is not None:
            for one in found.decisions:
                self.decided[one.group, one.what.value] += 1
        for key in [key for key in self.decided if key[0] not in found.look.groups]:
            del self.decided[key]
        self.history.add(found.look)
        for call in self.heard:
            call(found.look, before, list(found.decisions))

    async def _store(self) -> None:
        if not self._stores or self._host.now_s() - self._stored_s < histories.WRITE_EVERY_S:
            return
        self._stored_s = self._host.now_s()
        try:
            await self._host.in_thread(
                histories.store, self._host.log, self.history, self._owner, self._history_s
            )
        except HeadraceError as error:
            _log.warning("the history was not stored: %s", error)
