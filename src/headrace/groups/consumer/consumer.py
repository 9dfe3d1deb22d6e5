"""The consumer: hands a member's units to its application, and stores the answers.

Theory of operation
-------------------
An owner (:mod:`headrace.groups.owner`) opens units and closes them; an application takes events and
answers them.  In between stand

    news ─▶ fetch ─▶ run (one per unit, over its dispatcher) ─▶ ready ─▶ application
                      ▲                                                    │ ack, nack, …
                      └──────────── commits ─▶ ack store ◀─────────────────┘

It does not poll for events.  Each arrow is a call on the event loop: news of a segment makes its
run *hungry*, what is fetched makes it *offered*, and an application that finds ``ready`` empty
takes a block from the runs on offer.  So an idle consumer costs nothing, and a busy one does most
of its work once per block of events and not once per event.

*Back-pressure.*  Fetching stops when the bytes held, fetched ahead or in the application's hands,
reach ``prefetch_bytes``; one fetch may go beyond.  Deliveries are bounded by the dispatcher.

This module is the application's side; ``units`` is the owner's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from headrace.groups.consumer.batches import Batch, BatchRun
from headrace.groups.consumer.consume import Handler, consume
from headrace.groups.consumer.delivery import Delivery
from headrace.groups.consumer.events import EventRun
from headrace.groups.consumer.units import Units

BLOCK_EVENTS = 512
SHARE_EVENTS = 64
"""Events taken from all units at a time, and the smallest quota of one unit among them."""
VALID_S, VALID_MAX_S = 0.001, 0.05
"""How often to look whether the owner knows by now if its lease is still its own."""


class Consumer(Units):
    """Events of the units that a member owns; ``async for delivery in consumer``."""

    _at_a_stretch = 0

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return Deliveries(self)

    async def __anext__(self) -> Delivery:
        self._use(EventRun)
        while True:
            await self._valid()
            self._check()
            if not self._at_hand:
                self._fill()
                self._at_a_stretch += len(self._at_hand)
                if self._at_a_stretch > BLOCK_EVENTS:
                    # `async for` over events at hand never yields to the event loop: do it here.
                    self._at_a_stretch = 0
                    await asyncio.sleep(0)
                    self._check()
            if self._at_hand:
                return self._at_hand.popleft()
            await self._wait()

    def batches(self) -> AsyncIterator[Batch]:
        """The events as Arrow record batches, each answered as a whole::

        async for batch in consumer.batches():
            work(batch.data)
            await batch.ack()
        """
        self._use(BatchRun)
        return _Batches(self._next_batch)

    async def _next_batch(self) -> Batch:
        while True:
            await self._valid()
            self._check()
            if not self._ready.batches:
                self._fill_batches()
            if self._ready.batches:
                return self._ready.batches.popleft()
            await self._wait()

    async def _valid(self) -> None:
        """After a pause of the process, let its owner see first whether the units are still ours.

        Others may have acked meanwhile what stands ready here.
        """
        pause_s = VALID_S
        while self._now_s() >= self.valid_until_s and not (self._closed or self._ready.failures):
            await self.host.sleep(pause_s)
            pause_s = min(2 * pause_s, VALID_MAX_S)

    def _check(self) -> None:
        """Raise a failure that was noted, or ``StopAsyncIteration`` if the consumer is closed."""
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
        await self.settled()
        if self._ready.failures:
            raise self._ready.failures.popleft()
        self._ready.restore()

    # -- taking from the runs -----------------------------------------------------------

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
            if run.gone is not None or run.paused:
                continue
            assert isinstance(run, EventRun)
            found = run.take(min(room, share), now)
            if found:
                self._at_hand.extend(found)
                room -= len(found)
                self.wake_at(run.dispatcher.wake_at_ms)
                if run.may_take():
                    self.offer(run)
            self.prefetch.want(run)
            if room <= 0:
                break
        self.prefetch.pump()

    def _fill_batches(self) -> None:
        """Take one batch from the first run that has one."""
        for _ in range(len(self._offered)):
            run = self._offered.popleft()
            run.offered = False
            if run.gone is not None or run.paused:
                continue
            assert isinstance(run, BatchRun)
            found = run.take(self.host.now_ms())
            self.prefetch.want(run)
            if found is not None:
                self._ready.batches.append(found)
                self.wake_at(run.dispatcher.wake_at_ms)
                break
        self.prefetch.pump()


class Deliveries:
    """Events one by one: what stands ready at once, else as the consumer has it.

    It keeps ``owner`` alive, since a member that is dropped is closed.
    """

    __slots__ = ("_at_hand", "_consumer", "_now_s", "_owner")

    def __init__(self, consumer: Consumer, owner: object = None) -> None:
        self._consumer = consumer
        self._owner = owner
        self._at_hand = consumer._at_hand
        self._now_s = consumer._now_s

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        at_hand = self._at_hand
        if at_hand and self._now_s() < self._consumer.valid_until_s:
            return at_hand.popleft()
        return await self._consumer.__anext__()


class _Batches:
    """The iterator of :meth:`Consumer.batches`."""

    def __init__(self, get: Callable[[], Awaitable[Batch]]) -> None:
        self._get = get

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._get()
