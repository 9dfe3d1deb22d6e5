"""What is measured on every system, and how a piece of it is described."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from enum import Enum

import msgspec

VALUE_BYTES = 100
BATCH_EVENTS = 1000
IN_FLIGHT = 4
"""Batches that are sent at the same time, where a system gains from it."""
WARM_UP_BATCHES = 3
PUBLISH_S = 0.7
"""How long batches are sent; a system is measured by what it gets done."""
EVENTS = 60_000
"""How many there are to consume."""
STRICT_EVENTS = 2_000

VALUES = [os.urandom(VALUE_BYTES) for _ in range(BATCH_EVENTS)]
SUBJECTS = [f"bench.eu.{row}" for row in range(BATCH_EVENTS)]


class Work(Enum):
    """One kind of work; events a second."""

    PUBLISH = "publish, 1000 x 100 B at a time"
    CONSUME = "consume + ack, event by event"
    STRICT = "consume + ack, strictly one at a time"


class Way(msgspec.Struct, frozen=True):
    """A way to do a kind of work on a system; ``run`` gives events a second."""

    work: Work
    system: str
    how: str
    survives: str
    """What a confirmed publish or ack outlives."""
    run: Callable[[], float]

    @property
    def name(self) -> str:
        return f"{self.system}: {self.how}"


async def rate_of_batches(send: Callable[[], Awaitable[object]], in_flight: int) -> float:
    """Events a second, when so many batches are always on their way."""
    for _ in range(WARM_UP_BATCHES):
        await send()
    began = time.perf_counter()

    async def lane() -> int:
        sent = 0
        while time.perf_counter() - began < PUBLISH_S:
            await send()
            sent += 1
        return sent

    sent = sum(await asyncio.gather(*(lane() for _ in range(in_flight))))
    return sent * BATCH_EVENTS / (time.perf_counter() - began)
