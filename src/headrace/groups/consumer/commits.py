"""Group commits of acks: at once when none is under way, else with the next.

Each commit stores everything that its units know at that moment, so a commit that failed is made
good by any later one.  Acks that nobody waits for gather for a moment; one that somebody waits for
takes all of them along.

The steps are callbacks, not a task: an application that acks one event at a time waits for every
turn of the event loop that a commit takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from headrace.errors import CatalogUnavailableError, Fenced, HeadraceError
from headrace.groups.consumer.run import Run
from headrace.groups.consumer.types import AckStore, Done, UnitAck
from headrace.host import Host

RETRY_MS = 500

Waiters = dict[Run, list[asyncio.Future[None]]]
Results = list[Fenced | None]


class Commits:
    """What is to be stored, and who waits for it."""

    def __init__(
        self,
        host: Host,
        store: AckStore,
        *,
        sync: bool,
        settle: Callable[[], None],
        stored: Callable[[Run, Fenced | None], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._sync = sync
        self._settle = settle
        self._stored = stored
        self._failed = failed
        self._loop = host.loop
        self._host = host
        self._now_s = host.now_s
        self._due: Waiters = {}
        self._urgent = False
        self._under_way: asyncio.Future[None] | None = None
        self._timer = host.timer(self._time)
        self.commits = 0

    def later(self, run: Run, delay_ms: int) -> None:
        """Store what the run knows within ``delay_ms``."""
        run.dirty = True
        self._due.setdefault(run, [])
        self._timer.bring_forward(self._now_s() + delay_ms / 1000)

    def now(self, run: Run) -> asyncio.Future[None]:
        """Store what the run knows; done once that has happened."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if run.gone is not None:
            _raise_in(waiter, run.gone)
            return waiter
        self._due.setdefault(run, []).append(waiter)
        self._urgent = True
        if self._under_way is None:
            self._commit()
        return waiter

    async def flush(self) -> None:
        """Wait until everything that is known now is stored."""
        self._settle()
        under_way = self._under_way
        waiters = [self.now(run) for run in list(self._due)]
        if under_way is not None:
            # Some of it may be in the commit under way, which does not know of this waiter.
            await asyncio.wait([under_way])
            if under_way.cancelled() or under_way.exception() is not None:
                waiters += [self.now(run) for run in list(self._due)]
        if waiters:
            await asyncio.wait(waiters)
        for waiter in waiters:
            waiter.result()

    def forget(self, run: Run, why: HeadraceError) -> None:
        """The run is gone: whoever waits for it gets ``why`` raised."""
        for waiter in self._due.pop(run, ()):
            _raise_in(waiter, why)

    def stop(self) -> None:
        """No commit starts by itself any more."""
        self._timer.clear()

    def _time(self) -> None:
        self._urgent = True
        if self._under_way is None:
            self._commit()

    def _commit(self) -> None:
        self._settle()
        if self._under_way is not None:
            return  # settling the last acks of a paused unit has begun a commit
        self.stop()
        due, self._due = self._due, {}
        self._urgent = False
        runs = [run for run in due if run.gone is None]
        turns = self._host.turns
        if any(run.turns != turns for run in runs):
            self._forget_turned(due, [run for run in runs if run.turns != turns])
            runs = [run for run in runs if run.turns == turns]
        if not runs:
            return
        acks = []
        for run in runs:
            run.dirty, run.storing = False, True
            acks.append(UnitAck(run.owned, run.dispatcher.progress(), run.refused))
            run.refused = False
        self._under_way = self._loop.create_future()
        self._begin(acks, partial(self._done, due, runs))

    def _forget_turned(self, due: Waiters, runs: list[Run]) -> None:
        """The catalog went back: what these know of it may never have been, so it is not stored."""
        for run in runs:
            fenced = Fenced(run.owned.group, run.owned.unit, run.owned.token)
            for waiter in due[run]:
                _raise_in(waiter, fenced)
            self._stored(run, fenced)

    def _begin(self, acks: Sequence[UnitAck], done: Done) -> None:
        try:
            self._store.begin(acks, done, sync=self._sync)
        except HeadraceError as error:  # the log is closed
            self._loop.call_soon(done, [], error)

    def _done(
        self, due: Waiters, runs: list[Run], results: Results, error: BaseException | None
    ) -> None:
        ended, self._under_way = self._under_way, None
        for run in runs:
            run.storing = False
        if error is not None:
            self._broken(due, _stopped(error))
            if ended is not None:
                _raise_in(ended, _stopped(error))
            return
        if ended is not None:
            ended.set_result(None)
        self.commits += 1
        for run, fenced in zip(runs, results, strict=True):
            for waiter in due[run]:
                if fenced is not None:
                    _raise_in(waiter, fenced)
                elif not waiter.done():
                    waiter.set_result(None)
            self._stored(run, fenced)
        if self._urgent and self._under_way is None:
            self._commit()

    def _broken(self, due: Waiters, error: Exception) -> None:
        """A commit failed: raise that in whoever waits, and try again later."""
        told = False
        for run, waiters in due.items():
            for waiter in waiters:
                told = _raise_in(waiter, error) or told
            if run.gone is None:
                self.later(run, RETRY_MS)
        if not told:
            self._failed(error)


def _stopped(error: BaseException) -> Exception:
    """A cancelled commit counts as a failed one, so that it does not cancel whoever waits."""
    if isinstance(error, Exception):
        return error
    return CatalogUnavailableError(f"the commit of acks was stopped: {error!r}")


def _raise_in(waiter: asyncio.Future[None], error: Exception) -> bool:
    """Raise the error in whoever waits; false if nobody does."""
    if waiter.done():
        return False
    if isinstance(error, Fenced):  # each needs a traceback of its own
        error = Fenced(error.group, error.unit, error.token, error.current)
    waiter.set_exception(error)
    waiter.exception()  # a waiter that went away is not worth a warning
    return True
