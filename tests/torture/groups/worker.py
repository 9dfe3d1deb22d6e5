"""A worker: a process with an instance of a member in each of its groups.

    python -m tests.torture.groups.worker URL STORE JOURNAL SEED LEASE_MS GROUP:MEMBER…

It works until its standard input ends, then closes its members and exits with 0.  Several events
are in its hands at a time, each for a random while, and each is acked in one of the ways there
are; everything it sees goes to its journal before it goes on.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import headrace
from headrace.errors import CatalogUnavailableError, DeliveryError, Fenced
from tests.torture.groups.journal import (
    OUTPUT,
    STREAM,
    Acking,
    Delivered,
    Hold,
    Journal,
    Nacked,
    Outcome,
    Settled,
    Way,
    event_of,
    now_ns,
    subject_of,
)
from tests.torture.writer import stop_with_stdin, until_open

IN_HANDS_MAX = 24
FLUSH_EVERY_S = 0.05
WAYS: tuple[Way | str, ...] = ("ack",) * 6 + ("soon",) * 4 + ("transaction",) * 2 + ("nack",)


class Role:
    """One member of one group in this process."""

    def __init__(
        self, hr: headrace.Headrace, group: str, journal: Journal, rng: random.Random
    ) -> None:
        self._hr = hr
        self._group = group
        self._journal = journal
        self._rng = rng
        self._room = asyncio.Semaphore(IN_HANDS_MAX)
        self._soon: list[Hold] = []
        self._fenced: set[tuple[str, int]] = set()
        """Units and tokens that were reported lost; acks in passing under them are unknown."""

    async def run(self, member: Any, stop: asyncio.Event) -> None:
        """Until told to stop; what is in hand then is finished."""
        async with asyncio.TaskGroup() as tasks:
            flusher = tasks.create_task(self._flush_now_and_then(member))
            hands: set[asyncio.Task[None]] = set()
            ended = asyncio.ensure_future(stop.wait())
            try:
                async for delivery in self._until(member, ended):
                    hold = self._hold(delivery)
                    self._journal.write(Delivered(now_ns(), hold))
                    await self._room.acquire()
                    task = tasks.create_task(self._handle(delivery, hold))
                    hands.add(task)
                    task.add_done_callback(hands.discard)
            finally:
                ended.cancel()
            await asyncio.gather(*hands)
            flusher.cancel()
        await self._flush(member)

    def _hold(self, delivery: Any) -> Hold:
        event = event_of(delivery.value)
        if delivery.subject != subject_of(event.key):
            raise AssertionError(f"{delivery.subject} is not the subject of {event}")
        owned = delivery._run.owned
        return Hold(self._group, owned.unit, owned.token, event, delivery.attempt)

    async def _handle(self, delivery: Any, hold: Hold) -> None:
        try:
            await asyncio.sleep(self._rng.random() ** 4 * 0.1)
            way = self._rng.choice(WAYS)
            if way == "nack":
                await self._nack(delivery, hold)
            elif way == "soon":
                self._ack_soon(delivery, hold)
            elif way == "transaction":
                await self._answer(hold, "transaction", lambda: self._publish(delivery, hold))
            else:
                await self._answer(hold, "ack", delivery.ack)
        finally:
            self._room.release()

    async def _answer(self, hold: Hold, way: Way, ack: Callable[[], Any]) -> None:
        self._journal.write(Acking(now_ns(), hold, way))
        outcome: Outcome = "acked"
        try:
            await ack()
        except Fenced:
            outcome = "fenced"
        except (CatalogUnavailableError, DeliveryError):
            outcome = "unknown"
        self._journal.write(Settled(now_ns(), hold, outcome))

    async def _publish(self, delivery: Any, hold: Hold) -> None:
        async with delivery.transaction() as tx:
            tx.publish(f"{OUTPUT}.{hold.group}.k{hold.event.key}", delivery.value)

    async def _nack(self, delivery: Any, hold: Hold) -> None:
        self._journal.write(Nacked(now_ns(), hold))
        try:
            await delivery.nack(delay_ms=self._rng.choice((0, 20, 100)), reason="not today")
        except (Fenced, CatalogUnavailableError, DeliveryError):
            pass

    def _ack_soon(self, delivery: Any, hold: Hold) -> None:
        self._journal.write(Acking(now_ns(), hold, "soon"))
        try:
            delivery.ack_soon()
        except Fenced:
            self._journal.write(Settled(now_ns(), hold, "fenced"))
        except DeliveryError:
            self._journal.write(Settled(now_ns(), hold, "unknown"))
        else:
            self._soon.append(hold)

    async def _flush_now_and_then(self, member: Any) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            await self._flush(member)

    async def _flush(self, member: Any) -> None:
        """Acks in passing count once a flush has returned; if it fails nobody can say."""
        holds, self._soon = self._soon, []
        failed = False
        try:
            await member.flush()
        except (Fenced, CatalogUnavailableError, DeliveryError) as error:
            self._heard(error)
            failed = True
        settled = []
        for hold in holds:
            lost = failed or (hold.unit, hold.token) in self._fenced
            settled.append(Settled(now_ns(), hold, "unknown" if lost else "acked"))
        if settled:
            self._journal.write(*settled)

    def _heard(self, error: Exception) -> None:
        """A failure of an ack in passing is told once, at a delivery or at a flush."""
        if isinstance(error, Fenced):
            self._fenced.add((error.unit, error.token))

    async def _until(self, member: Any, ended: asyncio.Future[Any]) -> AsyncIterator[Any]:
        """Deliveries until ``ended``."""

        async def following() -> Any:
            while True:
                try:
                    return await anext(deliveries, None)
                except (Fenced, CatalogUnavailableError) as error:
                    self._heard(error)

        deliveries = aiter(member)
        while True:
            coming = asyncio.ensure_future(following())
            done, _ = await asyncio.wait([coming, ended], return_when=asyncio.FIRST_COMPLETED)
            if coming not in done:
                coming.cancel()
                return
            delivery = coming.result()
            if delivery is None:
                return
            yield delivery


def options(lease_ms: int) -> dict[str, int]:
    return {"pin_ttl_ms": lease_ms, "drain_limit_ms": 2 * lease_ms}


async def main(arguments: list[str]) -> None:
    url, store, path, seed, lease_ms, *roles = arguments
    stop = asyncio.Event()
    stop_with_stdin(stop)
    journal = Journal(Path(path))

    async def work() -> None:
        async with headrace.open(url, store=store) as hr, asyncio.TaskGroup() as tasks:
            for number, role in enumerate(roles):
                group, member = role.split(":")
                rng = random.Random(f"{seed} {number}")
                tasks.create_task(consume(hr, group, member, rng))

    async def consume(hr: headrace.Headrace, group: str, name: str, rng: random.Random) -> None:
        async with hr.join(STREAM, group, name, **options(int(lease_ms))) as member:
            await Role(hr, group, journal, rng).run(member, stop)

    await until_open(work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
