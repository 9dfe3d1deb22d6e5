"""The units of a consumer: what their owner does with them, and what their runs ask for.

*Unseen.*  Events that stand in ``ready`` are in flight for the dispatcher and unknown to the
application.  Their time is renewed while they wait; when a unit is paused or drained they go back.

*Rest.*  A unit is at rest when nothing of it is in flight and every answer is stored.  ``pause``
hands out nothing more, and tells the owner when the unit has come to rest; what was fetched stays,
so ``resume`` goes on with the very next event of every key.

*The end of a unit.*  ``drain`` is a pause for good: at rest the unit is let go.  ``abandon`` and a
refused commit: every answer raises from then on.  A segment that is sealed, or a unit with an
``end``, is *finished* when everything below its end is acked and stored.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from headrace.catalog import forks
from headrace.errors import (
    ConsumerClosedError,
    ConsumerModeError,
    Fenced,
    ForkedError,
    HeadraceError,
    UnknownSegmentError,
    UnknownStreamError,
    UnknownUnitError,
)
from headrace.groups.consumer.batches import BatchRun
from headrace.groups.consumer.commits import Commits
from headrace.groups.consumer.dead_letters import Burials
from headrace.groups.consumer.elsewhere import Elsewhere
from headrace.groups.consumer.events import HOLES_DELAY_MS, EventRun
from headrace.groups.consumer.in_hand import register
from headrace.groups.consumer.news import Reach
from headrace.groups.consumer.opening import connect
from headrace.groups.consumer.prefetch import Prefetch
from headrace.groups.consumer.ready import AtHand
from headrace.groups.consumer.run import Run
from headrace.groups.consumer.types import (
    AckStore,
    ConsumerOptions,
    OwnedUnit,
    UnitEvents,
    UnitStanding,
)
from headrace.groups.progress import AckedRanges
from headrace.host.host import Host
from headrace.host.outage import Outage

RETRY_S = 0.5
LOOK_MS = 1000
"""The interval of timer ticks while something is due that the application does not take."""


class _Waiting:
    """A unit opened before the application has chosen between events and batches."""

    __slots__ = ("owner", "paused", "unit")

    def __init__(self, unit: OwnedUnit, owner: UnitEvents) -> None:
        self.unit = unit
        self.owner = owner
        self.paused = False

    def give_back(self) -> None:
        """Nothing of it was handed out."""
        self.owner.drained(self.unit, self.unit.progress)


class Units:
    """Opened, paused, drained and dropped by their owner; the runtime of their runs."""

    def __init__(self, host: Host, options: ConsumerOptions, acks: AckStore) -> None:
        self.host = host
        self.options = options
        self.acks = acks
        self._loop = host.loop
        self._now_s = host.now_s
        self.valid_until_s = math.inf
        """For the owner to set: when its lease is over, by the monotonic clock.  Nothing is handed
        out from then on, until it was renewed or the units are dropped."""
        self.answered_late: Callable[[], None] = lambda: None
        """For the owner to set: called when the application answers what was dropped."""
        self.commits = Commits(
            host,
            acks,
            sync=options.durable_acks or host.log.catalog.acks_need_sync,
            settle=self._settle,
            stored=self._stored,
            failed=self._unstored,
        )
        self._outage = Outage(host.now_ms, options.outage_ms)
        self._make: type[EventRun] | type[BatchRun] | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._runs: dict[str, Run] = {}
        self._offered: deque[Run] = deque()
        self.prefetch = Prefetch(host, options, self._fetched, self._trouble)
        self._soon: dict[Run, None] = {}
        self.burials = Burials(self, self._surface)
        self._openings = host.tasks("opening units")
        self.elsewhere = Elsewhere(host, self._acked_elsewhere)
        self._ready = AtHand()
        self._at_hand = self._ready.events
        self._wake = asyncio.Event()
        self._timer = host.timer(self._tick)
        limits = options.delivery
        self._look_ms = min(LOOK_MS, limits.ack_wait_ms, limits.stall_after_ms or LOOK_MS)
        self._closed: ConsumerClosedError | None = None
        register(host, self)
        forks.watch(self)

    def forked(self) -> None:
        """In a forked child: drop what stands ready, the parent hands it out."""
        self._ready.clear()
        for run in self._runs.values():
            run.gone = ForkedError()

    # -- for the owner of the units -----------------------------------------------------

    def open(self, unit: OwnedUnit, owner: UnitEvents) -> None:
        """Begin to consume a unit; one of the same name has to be gone."""
        if self._closed is not None:
            raise ConsumerClosedError("the consumer is closed: it takes no more units")
        if unit.unit in self._runs or unit.unit in self._waiting:
            raise UnknownUnitError(f"unit {unit.unit!r} is open already; drain or abandon it first")
        if self._make is None:
            self._waiting[unit.unit] = _Waiting(unit, owner)
        else:
            self._begin(self._make(self, unit, owner))
        if unit.at_end:  # no news of the segment will tell it
            self._loop.call_soon(self._tell_finished, unit, owner)

    def pause(self, units: Mapping[str, int]) -> None:
        """Hand out nothing more of units, by name and token, and take back what is unseen.

        ``rested`` is told of each when nothing of it is in flight and every answer is stored.
        """
        self._halt(units, for_good=False)

    def resume(self, units: Mapping[str, int]) -> None:
        """Go on where the units were paused."""
        waiting, runs = self._find_all(units)
        for one in waiting:
            one.paused = False
        for run in runs:
            if run.paused and not run.draining:
                run.resume()
                self.elsewhere.again(run)
                self.offer(run)
                self.wake_at(run.dispatcher.wake_at_ms)

    def drain(self, units: Mapping[str, int]) -> None:
        """Hand out nothing more of units; ``drained`` is told of each at rest, and it is gone."""
        self._halt(units, for_good=True)

    def abandon(self, unit: str, token: int, why: Fenced) -> None:
        """The unit belongs to somebody else: from now on every answer raises ``why``."""
        waiting = self._waiting.get(unit)
        if waiting is not None and waiting.unit.token == token:
            del self._waiting[unit]
        else:
            self._give_up(self._find(unit, token), why)

    def fail(self, error: HeadraceError) -> None:
        """The application hears of this at its next delivery, or when it flushes."""
        self._surface(error)

    @property
    def units(self) -> dict[str, int]:
        """The units that are open, with their tokens."""
        waiting = {name: one.unit.token for name, one in self._waiting.items()}
        return waiting | {name: run.owned.token for name, run in self._runs.items()}

    def standings(self, units: Iterable[str]) -> dict[str, UnitStanding]:
        """Where units stand; those that are not open are left out."""
        self._settle()
        found = {}
        for name in units:
            if (run := self._runs.get(name)) is not None:
                found[name] = UnitStanding(run.dispatcher.floor, run.at_rest)
            elif (waiting := self._waiting.get(name)) is not None:
                found[name] = UnitStanding(waiting.unit.progress.floor, at_rest=True)
        return found

    @property
    def held_bytes(self) -> int:
        """Bytes of events that are fetched ahead or in the application's hands."""
        return int(self.prefetch.held_bytes)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed is not None

    async def settled(self) -> None:
        """Wait until every answer so far is stored; raises why one cannot be."""
        await self.commits.flush()

    async def close(self) -> None:
        """Store every answer that was given, and let go of all units.

        What is not answered will be delivered again, by whoever owns the units next.
        """
        if self._closed is not None or self.host.is_forked:
            return
        self._closed = ConsumerClosedError("the consumer is closed: the answer does not count")
        self.prefetch.stop()
        try:
            await self.burials.close(RETRY_S)
            await self.settled()
        finally:
            self.commits.stop()
            self._ready.clear()
            for run in list(self._runs.values()):
                self._let_go(run, self._closed)
            while self._waiting:
                self._waiting.popitem()[1].give_back()
            self._timer.clear()
            self.elsewhere.close()
            await self.prefetch.close()
            await self._openings.rest()
            self._wake.set()

    # -- units come and go --------------------------------------------------------------

    def _use(self, kind: type[EventRun] | type[BatchRun]) -> None:
        if self._make is kind:
            return
        if self._make is not None:
            raise ConsumerModeError(
                "this consumer is in use already, event by event or in batches: it cannot be both"
            )
        self._make = kind
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            run = kind(self, one.unit, one.owner)
            if one.paused:
                run.pause([])
                self._loop.call_soon(self.check_end, run)
            self._begin(run)

    def _begin(self, run: Run) -> None:
        self._runs[run.owned.unit] = run
        opening = connect(
            self.host,
            run,
            partial(self._reach, run),
            partial(self._trouble, run),
            self.elsewhere.follow,
            with_keys=isinstance(run, EventRun),
        )
        self._openings.spawn(opening)

    def _reach(self, run: Run, reach: Reach | HeadraceError) -> None:
        if isinstance(reach, HeadraceError):
            self._trouble(run, reach)
            return
        run.reach(reach)
        self.prefetch.want(run)
        self.prefetch.pump()
        self.check_end(run)

    def _trouble(self, run: Run, error: HeadraceError) -> None:
        """A unit cannot be read: for its owner if the stream is gone, else for the application."""
        if isinstance(error, UnknownStreamError | UnknownSegmentError):
            run.owner.stream_gone(run.owned, error)
        elif not self._outage.rides_out(error):
            self._surface(error)

    def _unstored(self, error: Exception) -> None:
        """Acks that nobody waits for could not be stored; they are tried again."""
        if not self._outage.rides_out(error):
            self._surface(error)

    def _halt(self, units: Mapping[str, int], *, for_good: bool) -> None:
        """Hand out nothing more of many units, in one pass over what stands ready."""
        waiting, runs = self._find_all(units)
        self._settle()
        unseen = self._ready.take_back(runs)
        for run in runs:
            if run.gone is None and not run.draining:
                run.pause(unseen.get(run, []))
                if for_good:
                    run.drain()
                self._loop.call_soon(self.check_end, run)
        for one in waiting:
            if for_good:
                del self._waiting[one.unit.unit]
                self._loop.call_soon(one.give_back)
            elif not one.paused:
                one.paused = True
                self._loop.call_soon(self._tell_rested, one)

    def _tell_finished(self, unit: OwnedUnit, owner: UnitEvents) -> None:
        if self.units.get(unit.unit) == unit.token:
            owner.finished(unit)

    def _tell_rested(self, one: _Waiting) -> None:
        if one.paused and self._waiting.get(one.unit.unit) is one:
            one.owner.rested(one.unit, one.unit.progress)

    def _find_all(self, units: Mapping[str, int]) -> tuple[list[_Waiting], list[Run]]:
        """Units that wait to be used, and the runs of the others; all of them have to be open."""
        waiting = {
            name: self._waiting[name]
            for name, token in units.items()
            if name in self._waiting and self._waiting[name].unit.token == token
        }
        runs = [self._find(name, token) for name, token in units.items() if name not in waiting]
        return list(waiting.values()), runs

    def _find(self, unit: str, token: int) -> Run:
        run = self._runs.get(unit)
        if run is None or run.owned.token != token:
            raise UnknownUnitError(f"the consumer does not hold unit {unit!r} with token {token}")
        return run

    def _drop(self, run: Run, why: HeadraceError) -> None:
        self._ready.take_back([run])
        self._soon.pop(run, None)
        self.prefetch.forget(run)
        self.elsewhere.leave(run)
        if self._runs.get(run.owned.unit) is run:
            del self._runs[run.owned.unit]
        run.end(why)
        self.commits.forget(run, why)

    def _give_up(self, run: Run, why: Fenced) -> None:
        if run.gone is not None:
            return
        if run.soon_unstored or run in self._soon:
            self._surface(why)
        run.dispatcher.fence(why)
        self._drop(run, why)

    def lost(self, run: Run, fenced: Fenced) -> None:
        """A commit was refused: the unit is somebody else's."""
        if run.gone is None:
            self._give_up(run, fenced)
            run.owner.fenced(run.owned)

    def check_end(self, run: Run) -> None:
        """Tell the owner when a unit has come to rest, or to its end."""
        if run.gone is not None:
            return
        if run.paused and run.idle and run.dirty and not run.storing:
            self.commits.now(run)
        elif run.draining and run.at_rest:
            given_back = f"unit {run.owned.unit!r} was given back: the answer does not count"
            self._let_go(run, ConsumerClosedError(given_back))
        else:
            if run.paused and run.at_rest and not run.rest_told:
                run.rest_told = True
                run.owner.rested(run.owned, run.dispatcher.progress())
            if run.through and not (run.dirty or run.storing or run.finished_told):
                run.finished_told = True
                run.owner.finished(run.owned)

    def _let_go(self, run: Run, why: ConsumerClosedError) -> None:
        """The run ends, and its owner may pass the unit on."""
        progress = run.dispatcher.progress()
        self._drop(run, why)
        run.owner.drained(run.owned, progress)

    # -- what runs ask for --------------------------------------------------------------

    def in_hand(self) -> Iterator[tuple[OwnedUnit, set[int]]]:
        """Every unit, with the offsets that the application has and has not answered."""
        for waiting in self._waiting.values():
            yield waiting.unit, set()
        unseen = self._ready.unseen()
        for run in self._runs.values():
            yield run.owned, run.dispatcher.in_hand(unseen.get(run, ()))

    def ack_soon(self, run: Run) -> None:
        """Acks are gathering."""
        self._soon[run] = None
        self.commits.later(run, self.options.ack_delay_ms)

    def offer(self, run: Run) -> None:
        """The run may have something to hand out."""
        if not run.offered:
            run.offered = True
            self._offered.append(run)
            self._wake.set()

    def _fetched(self, run: Run) -> None:
        self._outage.over()
        if run.may_take():
            self.offer(run)
        self.check_end(run)

    def _acked_elsewhere(self, run: Run, acked: AckedRanges) -> None:
        """Others have acked this of the run's unit."""
        unseen = self._ready.unseen().get(run, [])
        back = run.pass_over(acked, unseen)
        if back is None:
            return
        if back:
            self._ready.drop(run, back)
        # The row has it already; a leader, who keeps a record of its own, does not.
        self.commits.later(run, HOLES_DELAY_MS)
        self.wake_at(run.dispatcher.wake_at_ms)

    def _settle(self) -> None:
        """Pass the acks that were gathered on to their dispatchers."""
        if not self._soon:
            return
        runs, self._soon = self._soon, {}
        for run in runs:
            run.soon_unstored = True
            try:
                run.settle()
            except HeadraceError as error:
                self._surface(error)
            if run.paused:
                self.check_end(run)

    def _stored(self, run: Run, fenced: Fenced | None) -> None:
        if fenced is not None:
            self.lost(run, fenced)
            return
        self._outage.over()
        if not run.dirty:
            run.soon_unstored = False
        self.check_end(run)

    def _surface(self, error: Exception) -> None:
        """The application hears of it at its next delivery, or when it flushes."""
        self._ready.fail(error)
        self._wake.set()

    # -- time ---------------------------------------------------------------------------

    def wake_at(self, at_ms: int | None) -> None:
        """A tick is needed at this time, if not before."""
        if at_ms is not None and self._closed is None:
            self._timer.bring_forward_ms(at_ms)

    def _tick(self) -> None:
        self._settle()
        now = self.host.now_ms()
        unseen = self._ready.unseen()
        soonest: int | None = None
        for run in list(self._runs.values()):
            at_ms = run.dispatcher.wake_at_ms
            if at_ms is not None and at_ms <= now:
                for stall in run.tick(now, unseen.get(run, [])):
                    run.owner.stalled(run.owned, stall)
                if run.paused:
                    self.check_end(run)
                at_ms = run.dispatcher.wake_at_ms
                if at_ms is not None and at_ms <= now:
                    # What is due stays due until it is taken: tick on, for the other deadlines.
                    at_ms = now + self._look_ms
            if at_ms is not None and (soonest is None or at_ms < soonest):
                soonest = at_ms
        self.wake_at(soonest)
