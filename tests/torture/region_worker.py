"""A program of the torture of regions; it is given a catalog, a kind of group and a journal.

It consumes the group as a member, or as a session, acks what it got in an order of its own, and
writes down what it was given and which acks came back.  It never ends by itself.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import headrace
from headrace.errors import HeadraceError

GROUP = "billing"
SHARED = "$share/billing/orders.>"
PENDING_MAX = 16
PIN_TTL_MS = 1500


def note(journal: int, what: str, value: bytes) -> None:
    """One line, whole or not at all: ``moment what value``."""
    os.write(journal, b"%d %s %s\n" % (time.monotonic_ns(), what.encode(), value))


@asynccontextmanager
async def consuming(hr: headrace.Headrace, kind: str) -> AsyncIterator[Any]:
    """The member or session; what it gives is waited for."""
    if kind == "reader":
        group = await hr.reader_groups.get(GROUP)
        async with group.reader(
            "m1", max_pending=PENDING_MAX, lease_ttl_ms=PIN_TTL_MS, join_delay_ms=1
        ) as reader:
            yield reader
    elif kind != "shared":
        options = {"max_pending": PENDING_MAX, "pin_ttl_ms": PIN_TTL_MS, "drain_limit_ms": 2000}
        async with hr.join("orders", GROUP, member="m1", **options) as member:
            yield member
    else:
        async with hr.session() as session:
            await session.subscribe(SHARED)
            yield session


async def work(catalog: str, kind: str, path: str) -> None:
    rng = random.Random(path)
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with headrace.open(catalog) as hr, consuming(hr, kind) as source:
        slots = asyncio.Semaphore(PENDING_MAX)

        async def answer(delivery: Any) -> None:
            try:
                await asyncio.sleep(rng.random() * 0.02)
                await delivery.ack()
                note(journal, "acked", delivery.value)
            except HeadraceError:
                note(journal, "refused", delivery.value)
            finally:
                slots.release()

        tasks: set[asyncio.Task[None]] = set()
        async for delivery in source:
            note(journal, "got", delivery.value)
            await slots.acquire()
            task = asyncio.create_task(answer(delivery))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:4]))
