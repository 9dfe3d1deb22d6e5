"""A log, a group and consumers of its units, on a real catalog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import headrace
from headrace import testing
from headrace.catalog import Tx
from headrace.errors import HeadraceError
from headrace.groups.consumer import (
    CatalogAcks,
    Consumer,
    ConsumerOptions,
    Delivery,
    OwnedUnit,
    UnitEvents,
)
from headrace.groups.delivery import DeliveryConfig, Stalled
from headrace.groups.progress import Progress
from headrace.groups.progress.store import load
from headrace.log.events import Event

PATIENCE_S = 30


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test by a clock that jumps to whatever is next, so that nobody waits for time."""
    testing.run(asyncio.wait_for(work, PATIENCE_S), autojump=True)


def run_with_threads(work: Coroutine[Any, Any, None]) -> None:
    """Run a test by the clock of the system, and with threads: it is about these."""
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


class Heard:
    """Keeps what a consumer tells the owner of its units."""

    def __init__(self) -> None:
        self.drained_units: list[tuple[str, int, Progress]] = []
        self.fenced_units: list[tuple[str, int]] = []
        self.stalls: list[tuple[str, int, Stalled]] = []
        self.finished_units: list[tuple[str, int]] = []
        self.rested_units: list[tuple[str, int, Progress]] = []
        self.gone: list[tuple[str, int, HeadraceError]] = []
        self._news = asyncio.Event()

    def drained(self, unit: OwnedUnit, progress: Progress) -> None:
        self.drained_units.append((unit.unit, unit.token, progress))
        self._news.set()

    def fenced(self, unit: OwnedUnit) -> None:
        self.fenced_units.append((unit.unit, unit.token))
        self._news.set()

    def stalled(self, unit: OwnedUnit, stall: Stalled) -> None:
        self.stalls.append((unit.unit, unit.token, stall))
        self._news.set()

    def finished(self, unit: OwnedUnit) -> None:
        self.finished_units.append((unit.unit, unit.token))
        self._news.set()

    def rested(self, unit: OwnedUnit, progress: Progress) -> None:
        self.rested_units.append((unit.unit, unit.token, progress))
        self._news.set()

    def stream_gone(self, unit: OwnedUnit, error: HeadraceError) -> None:
        self.gone.append((unit.unit, unit.token, error))
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()


class RigConsumer(Consumer):
    """A consumer whose units all have the same owner."""

    heard: Heard

    def open(self, unit: OwnedUnit, owner: UnitEvents | None = None) -> None:
        super().open(unit, owner or self.heard)


class Rig:
    """One stream ``orders``, and a group on it."""

    def __init__(self, hr: headrace.Headrace, group: str = "orders.billing") -> None:
        self.hr = hr
        self.group = group
        self.heard = Heard()
        self.consumers: list[Consumer] = []

    def consumer(self, *, heard: Heard | None = None, **options: Any) -> RigConsumer:
        limits = {name: options.pop(name) for name in list(options) if name in LIMITS}
        chosen = ConsumerOptions(delivery=DeliveryConfig(**limits), **options)
        made = RigConsumer(self.hr.host, chosen, CatalogAcks(self.hr.host))
        made.heard = heard or self.heard
        self.consumers.append(made)
        return made

    async def claim(self, segment: int = 0, owner: str = "m1", **about: Any) -> OwnedUnit:
        """Take a segment over, as a new owner does: with the progress that is stored."""
        unit = str(segment)
        claims = self.hr.log.catalog.claims
        claim = await self.hr.in_thread(claims.take, self.group, unit, owner)
        stream = await self.hr.stream("orders")
        found = stream.segment(segment)
        assert found is not None
        stored = await self.stored(segment)
        return OwnedUnit(
            group=self.group,
            unit=unit,
            token=claim.token,
            stream="orders",
            segment=segment,
            segment_id=found.id,
            progress=stored or Progress(),
            **about,
        )

    async def stored(self, segment: int = 0) -> Progress | None:
        """The progress that the catalog holds."""
        found = (await self.hr.stream("orders")).segment(segment)
        assert found is not None
        segment_id = found.id

        def look(tx: Tx) -> Progress | None:
            return load(tx, self.group, segment_id)

        return await self.hr.in_thread(self.hr.log.catalog.read, look)

    async def fill(self, keys: str, start: int = 0) -> None:
        """One event for each letter, which is its key; values count up from ``start``."""
        events = [
            Event(subject=f"orders.{key}", value=str(n).encode(), key=key)
            for n, key in enumerate(keys, start)
        ]
        await self.hr.append("orders", events)

    async def dead(self) -> list[dict[str, Any]]:
        """The events of the dead-letter stream."""
        reading = self.hr.read(f"{self.group}.dead")
        return [row async for batch in reading for row in batch.to_pylist()]


LIMITS = set(DeliveryConfig.__struct_fields__)


@asynccontextmanager
async def rig(url: str, *, segments: int = 1) -> AsyncIterator[Rig]:
    async with headrace.open(url, housekeeping=False) as hr:
        await hr.create_stream("orders", subjects=["orders.>"], segments=segments)
        made = Rig(hr)
        try:
            yield made
        finally:
            for consumer in made.consumers:
                await consumer.close()


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    return [await anext(consumer) for _ in range(count)]


def values(deliveries: list[Delivery]) -> list[str]:
    return [delivery.value.decode() for delivery in deliveries]


async def nothing_comes(r: Rig, consumer: Consumer) -> bool:
    """Whether the consumer has nothing to hand out but the event of a unit that is opened now.

    That one goes all the way from the opening to the application, so whatever could be handed out
    before it had every chance to be.
    """
    await r.hr.create_stream("bell", subjects=["bell"])
    await r.hr.publish("bell", b"")
    (segment,) = (await r.hr.stream("bell")).segments
    claim = await r.hr.in_thread(r.hr.log.catalog.claims.take, r.group, "bell", "m1")
    consumer.open(
        OwnedUnit(
            group=r.group,
            unit="bell",
            token=claim.token,
            stream="bell",
            segment=0,
            segment_id=segment.id,
            progress=Progress(),
        ),
        r.heard,
    )
    heard = await anext(consumer)
    await heard.ack()
    return heard.subject == "bell"
