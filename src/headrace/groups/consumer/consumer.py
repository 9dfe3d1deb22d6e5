"""The consumer: hands a member's units to its application, and stores the answers.

Theory of operation
-------------------
An owner (a member of a partitioned group, a session of a shared one) opens units and closes them;
an application takes events and answers them.  In between stand

    news ─▶ fetch ─▶ run (one per unit, over its dispatcher) ─▶ ready ─▶ application
                      ▲                                                    │ ack, nack, …
                      └──────────── commits ─▶ ack store ◀─────────────────┘

It does not poll for events.  Each arrow is a call on the event loop: news of a segment makes its
run *hungry*, what is fetched makes it *offered*, and an application that finds ``ready`` empty
takes a block from the runs on offer.  So an idle consumer costs nothing, and a busy one does most
of its work once per block of events and not once per event.

*Bounds.*  Fetching stops when the bytes held, fetched ahead or in the application's hands, reach
``prefetch_bytes``; one fetch may go beyond.  Deliveries are bounded by the dispatcher.

*Unseen.*  Events that stand in ``ready`` are in flight for the dispatcher and unknown to the
application.  Their time is renewed while they wait, and when a unit is drained they go back.

*The end of a unit.*  ``drain``: nothing more is handed out; when the last answer is stored the
owner is told.  ``abandon`` and a refused commit: every answer raises from then on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Self

from headrace.catalog import forks
from headrace.errors import (
    ConsumerClosedError,
    ConsumerModeError,
    Fenced,
    ForkedError,
    HeadraceError,
    UnknownUnitError,
)
from headrace.groups.consumer.batches import Batch, BatchRun
from headrace.groups.consumer.commits import Commits
from headrace.groups.consumer.consume import Handler, consume
from headrace.groups.consumer.dead_letters import Burials
from headrace.groups.consumer.delivery import Delivery
from headrace.groups.consumer.events import EventRun
from headrace.groups.consumer.news import Reach
from headrace.groups.consumer.opening import connect
from headrace.groups.consumer.prefetch import Prefetch
from headrace.groups.consumer.ready import Ready
from headrace.groups.consumer.run import Run
from headrace.groups.consumer.types import AckStore, ConsumerOptions, OwnedUnit, UnitEvents
from headrace.host import Host

BLOCK_EVENTS = 512
SHARE_EVENTS = 64
"""Events taken at a time, and what each unit may give of them at least."""
RETRY_S = 0.5
LOOK_MS = 1000
"""How often time is looked at while something is due that nobody takes."""


class Consumer:
    """Events of the units that a member owns; ``async for delivery in consumer``."""

    def __init__(
        self, host: Host, options: ConsumerOptions, acks: AckStore, events: UnitEvents
    ) -> None:
        self.host = host
        self.options = options
        self.acks = acks
        self._events = events
        self._loop = host.loop
        self._commits = Commits(
            host,
            acks,
            sync=options.durable_acks,
            settle=self._settle,
            stored=self._stored,
            failed=self._surface,
        )
        self._make: Callable[[Consumer, OwnedUnit], Run] | None = None
        self._waiting: dict[str, OwnedUnit] = {}  # opened before it is known how they are used
        self._runs: dict[str, Run] = {}
        self._offered: deque[Run] = deque()
        self._prefetch = Prefetch(host, options, self._fetched, self._surface)
        self._soon: dict[Run, None] = {}
        self._burials = Burials(self, self._surface)
        self._openings = host.tasks("opening units")
        self._ready = Ready()
        self._at_hand = self._ready.events
        self._at_a_stretch = 0
        self._wake = asyncio.Event()
        self._timer = host.timer(self._tick)
        limits = options.delivery
        self._look_ms = min(LOOK_MS, limits.ack_wait_ms, limits.stall_after_ms or LOOK_MS)
        self._closed: ConsumerClosedError | None = None
        forks.watch(self)

    def forked(self) -> None:
        """In a forked child: what is at hand is the parent's to hand out."""
        self._ready.clear()
        for run in self._runs.values():
            run.gone = ForkedError()

    # -- for the owner of the units -----------------------------------------------------

    def open(self, unit: OwnedUnit) -> None:
        """Begin to consume a unit; one of the same name has to be gone."""
        if self._closed is not None:
            raise ConsumerClosedError("the consumer is closed: it takes no more units")
        if unit.unit in self._runs or unit.unit in self._waiting:
            raise UnknownUnitError(f"unit {unit.unit!r} is open already; drain or abandon it first")
        if self._make is None:
            self._waiting[unit.unit] = unit
        else:
            self._begin(self._make(self, unit))

    def drain(self, unit: str, token: int) -> None:
        """Hand out nothing more of a unit; ``drained`` is told when its last answer is stored."""
        waiting = self._waiting.get(unit)
        if waiting is not None and waiting.token == token:
            del self._waiting[unit]
            self._loop.call_soon(self._events.drained, unit, token, waiting.progress)
            return
        run = self._find(unit, token)
        if run.draining:
            return
        self._settle()
        run.drain(self._ready.take_back(run))
        run.drop_ahead()
        self._loop.call_soon(self.check_end, run)

    def abandon(self, unit: str, token: int, why: Fenced) -> None:
        """The unit belongs to somebody else: from now on every answer raises ``why``."""
        waiting = self._waiting.get(unit)
        if waiting is not None and waiting.token == token:
            del self._waiting[unit]
            return
        self._give_up(self._find(unit, token), why)

    def fail(self, error: HeadraceError) -> None:
        """The application hears of this at its next delivery, or when it flushes."""
        self._surface(error)

    @property
    def units(self) -> dict[str, int]:
        """The units that are open, with their tokens."""
        waiting = {name: unit.token for name, unit in self._waiting.items()}
        return waiting | {name: run.owned.token for name, run in self._runs.items()}

    @property
    def held_bytes(self) -> int:
        """Bytes of events that are fetched ahead or in the application's hands."""
        return int(self._prefetch.held_bytes)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed is not None

    async def close(self) -> None:
        """Store every answer that was given, and let go of all units.

        What is not answered will be delivered again, by whoever owns the units next.
        """
        if self._closed is not None or self.host.is_forked:
            return
        self._closed = ConsumerClosedError("the consumer is closed: the answer does not count")
        self._prefetch.stop()
        try:
            await self._burials.close(RETRY_S)
            await self._commits.flush()
        finally:
            self._commits.stop()
            self._ready.clear()
            for run in list(self._runs.values()):
                self._drop(run, self._closed)
            self._waiting.clear()
            self._timer.clear()
            await self._prefetch.close()
            await self._openings.rest()
            self._wake.set()

    # -- for the application ------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        at_hand = self._at_hand
        if at_hand:
            return at_hand.popleft()
        return await self._next()

    async def _next(self) -> Delivery:
        self._use(EventRun)
        while True:
            self._check()
            if not self._at_hand:
                self._fill()
                self._at_a_stretch += len(self._at_hand)
                if self._at_a_stretch > BLOCK_EVENTS:
                    # A loop that finds events at hand never waits: others get their turn here.
                    self._at_a_stretch = 0
                    await asyncio.sleep(0)
                    self._check()
            if self._at_hand:
                return self._at_hand.popleft()
            await self._wait()

    def batches(self) -> AsyncIterator[Batch]:
        """The same events as Arrow record batches, answered as a whole::

        async for batch in consumer.batches():
            work(batch.data)
            await batch.ack()
        """
        self._use(BatchRun)
        return _Batches(self._next_batch)

    async def _next_batch(self) -> Batch:
        while True:
            self._check()
            if not self._ready.batches:
                self._fill_batches()
            if self._ready.batches:
                return self._ready.batches.popleft()
            await self._wait()

    def _check(self) -> None:
        """Raise what has gone wrong, or that this is the end."""
        self.host.check_fork()
        if self._ready.failures:
            raise self._ready.failures.popleft()
        if self._closed is not None:
            raise StopAsyncIteration
        self._ready.restore()

    async def _wait(self) -> None:
        """Wait for something to hand out."""
        self._wake.clear()
        if not self._offered and not self._ready.failures:
            self._at_a_stretch = 0
            await self._wake.wait()

    async def consume(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call ``handler(delivery)`` for every event, up to ``concurrency`` at a time.

        It is acked when the handler returns, unless it has been answered; a handler that raises
        nacks it with the reason.  Order per key holds whatever the concurrency.  Returns when the
        consumer is closed.
        """
        await consume(self, handler, concurrency)

    async def flush(self) -> None:
        """Wait until every answer so far is stored; raises what went wrong with one."""
        self.host.check_fork()
        await self._commits.flush()
        if self._ready.failures:
            raise self._ready.failures.popleft()
        self._ready.restore()

    # -- taking from the runs -----------------------------------------------------------

    def _use(self, kind: type[EventRun] | type[BatchRun]) -> None:
        if self._make is kind:
            return
        if self._make is not None:
            raise ConsumerModeError(
                "this consumer is in use already, event by event or in batches: it cannot be both"
            )
        self._make = kind
        waiting, self._waiting = self._waiting, {}
        for unit in waiting.values():
            self._begin(kind(self, unit))

    def _fill(self) -> None:
        """Take a block of events from the runs that are on offer."""
        self._settle()
        now = self.host.now_ms()
        room = BLOCK_EVENTS
        turns = len(self._offered)
        share = max(SHARE_EVENTS, room // max(1, turns))
        for _ in range(turns):
            run = self._offered.popleft()
            run.offered = False
            if run.gone is not None or run.draining:
                continue
            assert isinstance(run, EventRun)
            found = run.take(min(room, share), now)
            if found:
                self._at_hand.extend(found)
                room -= len(found)
                self.wake_at(run.wake_at_ms)
                if run.may_take():
                    self.offer(run)
            self._prefetch.want(run)
            if room <= 0:
                break
        self._prefetch.pump()

    def _fill_batches(self) -> None:
        """Take one batch from the first run that has one."""
        for _ in range(len(self._offered)):
            run = self._offered.popleft()
            run.offered = False
            if run.gone is not None or run.draining:
                continue
            assert isinstance(run, BatchRun)
            found = run.take(self.host.now_ms())
            self._prefetch.want(run)
            if found is not None:
                self._ready.batches.append(found)
                self.wake_at(run.wake_at_ms)
                break
        self._prefetch.pump()

    # -- units come and go --------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        self._runs[run.owned.unit] = run
        opening = connect(
            self.host,
            run,
            partial(self._reach, run),
            self._surface,
            with_keys=isinstance(run, EventRun),
        )
        self._openings.spawn(opening)

    def _reach(self, run: Run, reach: Reach | HeadraceError) -> None:
        if isinstance(reach, HeadraceError):
            self._surface(reach)
            return
        run.head, run.sealed = reach.head, reach.sealed
        self._prefetch.want(run)
        self._prefetch.pump()
        self.check_end(run)

    def _find(self, unit: str, token: int) -> Run:
        run = self._runs.get(unit)
        if run is None or run.owned.token != token:
            raise UnknownUnitError(f"the consumer does not hold unit {unit!r} with token {token}")
        return run

    def _drop(self, run: Run, why: HeadraceError) -> None:
        self._ready.take_back(run)
        self._soon.pop(run, None)
        self._prefetch.forget(run)
        if self._runs.get(run.owned.unit) is run:
            del self._runs[run.owned.unit]
        run.end(why)
        self._commits.forget(run, why)

    def _give_up(self, run: Run, why: Fenced) -> None:
        if run.gone is not None:
            return
        if run.soon_unstored or run in self._soon:
            self._surface(why)
        run.fence(why)
        self._drop(run, why)

    def lost(self, run: Run, fenced: Fenced) -> None:
        """A commit was refused: the unit is somebody else's."""
        if run.gone is None:
            self._give_up(run, fenced)
            self._events.fenced(run.owned.unit, run.owned.token)

    def check_end(self, run: Run) -> None:
        """Tell the owner when a drain, or the segment, has come to its end."""
        if run.gone is not None:
            return
        owned = run.owned
        if run.draining and run.idle:
            if run.storing:
                return
            if run.dirty:
                self._commits.now(run)
                return
            progress = run.progress()
            self._drop(
                run,
                ConsumerClosedError(
                    f"unit {owned.unit!r} was given back: the answer does not count"
                ),
            )
            self._events.drained(owned.unit, owned.token, progress)
        elif run.through and not (run.dirty or run.storing or run.finished_told):
            run.finished_told = True
            self._events.finished(owned.unit, owned.token)

    # -- what runs ask for --------------------------------------------------------------

    def ack_soon(self, run: Run) -> None:
        self._soon[run] = None
        self._commits.later(run, self.options.ack_delay_ms)

    def changed(self, run: Run, *, delay_ms: int) -> None:
        self._commits.later(run, delay_ms)

    def stored(self, run: Run) -> Awaitable[None]:
        return self._commits.now(run)

    def offer(self, run: Run) -> None:
        if not run.offered:
            run.offered = True
            self._offered.append(run)
            self._wake.set()

    def _fetched(self, run: Run) -> None:
        if run.may_take():
            self.offer(run)
        self.check_end(run)

    def account(self, size_bytes: float) -> None:
        self._prefetch.account(size_bytes)

    def bury(self, run: Run) -> None:
        self._burials.begin(run)

    def buried(self, run: Run) -> Awaitable[None]:
        return self._burials.wait(run)

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
            if run.draining:
                self.check_end(run)

    def _stored(self, run: Run, fenced: Fenced | None) -> None:
        if fenced is not None:
            self.lost(run, fenced)
            return
        if not run.dirty:
            run.soon_unstored = False
        self.check_end(run)

    def _surface(self, error: Exception) -> None:
        """The application hears of it at its next delivery, or when it flushes."""
        self._ready.fail(error)
        self._wake.set()

    # -- time ---------------------------------------------------------------------------

    def wake_at(self, at_ms: int | None) -> None:
        if at_ms is not None and self._closed is None:
            self._timer.bring_forward_ms(at_ms)

    def _tick(self) -> None:
        self._settle()
        now = self.host.now_ms()
        unseen = self._ready.unseen()
        soonest: int | None = None
        for run in list(self._runs.values()):
            at_ms = run.wake_at_ms
            if at_ms is not None and at_ms <= now:
                for stall in run.tick(now, unseen.get(run, [])):
                    self._events.stalled(run.owned.unit, run.owned.token, stall)
                if run.draining:
                    self.check_end(run)
                at_ms = run.wake_at_ms
                if at_ms is not None and at_ms <= now:
                    # What is due is on offer; other deadlines run on until somebody takes it.
                    at_ms = now + self._look_ms
            if at_ms is not None and (soonest is None or at_ms < soonest):
                soonest = at_ms
        self.wake_at(soonest)


class _Batches:
    """The iterator of :meth:`Consumer.batches`."""

    def __init__(self, get: Callable[[], Awaitable[Batch]]) -> None:
        self._get = get

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._get()
