"""A consumer: a session of the shared group, or an instance of a static member.

It opens and closes again and again; each life ends in a close that is sometimes given up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import headrace
from headrace.errors import HeadraceError
from headrace.groups.consumer import ConsumerOptions
from headrace.groups.delivery import DeliveryConfig
from headrace.groups.shared.core.settings import BorrowerSettings, LeaderSettings
from tests.torture.histories.calls import Calls, GivenUp, told_of
from tests.torture.histories.records import (
    GROUP,
    IN,
    OUT,
    SIDE,
    Acked,
    Acking,
    Delivered,
    Hold,
    Journal,
    Told,
    now_ns,
)

IN_HANDS_MAX = 8
ACK_WAIT_MS = 4000
PIN_TTL_MS = 1000
POLL_S = 0.2

OPTIONS = headrace.SharedOptions(
    borrower=BorrowerSettings(
        find_leader_ms=50,
        ping_ms=200,
        ping_timeout_ms=1000,
        resend_ms=200,
        settle_timeout_ms=8000,
    ),
    leader=LeaderSettings(
        tick_ms=25,
        resend_ms=100,
        renew_segments_ms=100,
        borrower_timeout_ms=1500,
        revoke_timeout_ms=2500,
        lease_ttl_ms=1500,
        heartbeat_ms=300,
        commit_timeout_ms=500,
    ),
)
TEXT = f"$share/{GROUP}/{IN}.>"


class Worker:
    """What one process does with what it is handed out."""

    def __init__(self, hr: headrace.Headrace, name: str, folder: Path, calls: Calls) -> None:
        self._hr = hr
        self._name = name
        self._calls = calls
        self._rng: random.Random = calls.rng
        self._journal = Journal(folder / f"{name}.journal")
        self._outputs = 0

    async def run(self, life: Callable[[], Awaitable[Any]]) -> None:
        """One life after the other; ``life`` opens a session or a member."""
        while not self._calls.over:
            self._journal.note("opening")
            try:
                source = await self._calls.call(life)
            except (GivenUp, HeadraceError) as error:
                self._journal.note(f"not opened: {type(error).__name__}: {error}")
                await asyncio.sleep(0.02)
                continue
            await self._live(source)
        self._journal.note(f"given up: {self._calls.given_up}")

    async def _live(self, source: Any) -> None:
        ends_s = time.monotonic() + self._rng.uniform(0.5, 4.0)
        hands: set[asyncio.Task[None]] = set()
        room = asyncio.Semaphore(IN_HANDS_MAX)
        try:
            while not self._calls.over and (self._calls.calm or time.monotonic() < ends_s):
                await room.acquire()
                delivery = await self._next(source)
                if delivery is None:
                    room.release()
                    continue
                if delivery is source:
                    break
                hands.add(task := asyncio.create_task(self._handle(delivery, room)))
                task.add_done_callback(hands.discard)
            if self._rng.random() < 0.5:
                await asyncio.gather(*hands)
        finally:
            self._journal.note("closing")
            try:
                await self._calls.call(source.close)
            except GivenUp:
                await source.close()
            except HeadraceError as error:
                self._journal.note(f"close: {type(error).__name__}: {error}")
            await asyncio.gather(*hands)

    async def _next(self, source: Any) -> Any:
        """The next delivery; None if there was none for a while, ``source`` at its end."""
        try:
            async with asyncio.timeout(POLL_S):
                delivery = await self._calls.call(lambda: anext(aiter(source), source))
        except (TimeoutError, GivenUp):
            return None
        except HeadraceError as error:
            self._journal.note(f"next: {type(error).__name__}: {error}")
            await asyncio.sleep(0.01)
            return None
        if delivery is not source:
            self._journal.write(Delivered(now_ns(), hold_of(delivery)))
        return delivery

    async def _handle(self, delivery: Any, room: asyncio.Semaphore) -> None:
        try:
            await asyncio.sleep(self._rng.random() ** 3 * 0.05)
            way = self._rng.choices(("ack", "transaction", "nack"), (6, 5, 1))[0]
            if way == "nack":
                with suppress(HeadraceError, GivenUp):
                    await self._calls.call(lambda: delivery.nack(delay_ms=0))
            elif way == "ack":
                await self._answer(hold_of(delivery), "", delivery.ack)
            else:
                await self._transact(delivery)
        finally:
            room.release()

    async def _transact(self, delivery: Any) -> None:
        self._outputs += 1
        hold = hold_of(delivery)
        output = f"{hold.name}|{self._name}|{self._outputs}"

        async def commit() -> None:
            async with delivery.transaction() as tx:
                tx.publish(f"{OUT}.x", output.encode(), key=delivery.key)
                tx.publish(f"{SIDE}.x", output.encode(), key=delivery.key)

        await self._answer(hold, output, commit)

    async def _answer(self, hold: Hold, output: str, ask: Callable[[], Awaitable[None]]) -> None:
        self._journal.write(Acking(now_ns(), hold, output))
        told: Told = "done"
        said = ""
        try:
            await self._calls.call(ask)
        except (GivenUp, HeadraceError) as error:
            told, said = told_of(error), f"{type(error).__name__}: {error}"
        self._journal.write(Acked(now_ns(), hold, told, said))


def hold_of(delivery: Any) -> Hold:
    owned = delivery._run.owned
    return Hold(owned.unit, owned.token, delivery.value.decode(), delivery.attempt)


async def run_shared(url: str, slot: str, name: str, folder: Path, seed: str) -> None:
    calls = Calls(folder, random.Random(seed))
    delivery = DeliveryConfig(ack_wait_ms=ACK_WAIT_MS)

    async with headrace.open(url, shared=OPTIONS, housekeeping=False) as hr:

        async def life() -> headrace.Session:
            session = hr.session(slot, options=ConsumerOptions(delivery=delivery))
            await session.__aenter__()
            try:
                if TEXT not in session.subscriptions:
                    await session.subscribe(TEXT, start="earliest")
            except BaseException:
                await session.close()
                raise
            return session

        await Worker(hr, name, folder, calls).run(life)


async def run_static(url: str, slot: str, name: str, folder: Path, seed: str) -> None:
    calls = Calls(folder, random.Random(seed))
    member = f"m{int(slot[1:]) % 2}"

    async with headrace.open(url, housekeeping=False) as hr:

        async def life() -> Any:
            joined = hr.join(
                IN,
                GROUP,
                member,
                pin_ttl_ms=PIN_TTL_MS,
                drain_limit_ms=1000,
                ack_wait_ms=ACK_WAIT_MS,
            )
            await joined.__aenter__()
            return joined

        await Worker(hr, name, folder, calls).run(life)
