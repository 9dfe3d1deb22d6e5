"""A process of the steering torture.

    python -m tests.torture.steering_worker consume URL KIND MEMBER JOURNAL
    python -m tests.torture.steering_worker put-back URL GROUP

``consume`` acks everything that comes, until its standard input ends; each line of its journal is
written before it goes on.  ``put-back`` puts all dead letters back, in many small transactions.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import headrace
import headrace.sync
from headrace.errors import Fenced
from headrace.groups.operations import dead_letters

SHARED = "$share/g/orders.>"
IN_HANDS_MAX = 64


async def handle(delivery: Any, journal: TextIO, room: asyncio.Semaphore) -> None:
    """Ack after a short while; what was told of it goes to the journal."""
    place = f"{delivery.segment} {delivery.offset} {time.monotonic_ns()}"
    try:
        await asyncio.sleep(random.random() * 0.01)
        asked = time.monotonic_ns()
        journal.write(f"asks {place} {asked} 0\n")
        try:
            await delivery.ack()
            told = "acked"
        except Fenced:
            told = "fenced"
        except headrace.HeadraceError:
            told = "unknown"
        journal.write(f"{told} {place} {asked} {time.monotonic_ns()}\n")
    finally:
        room.release()


async def consume(url: str, kind: str, member: str, journal: TextIO) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    async with headrace.open(url, housekeeping=False) as hr:
        source: Any
        if kind == "shared":
            source = hr.session(member)
        elif kind == "reader":
            group = await hr.reader_groups.get("g")
            source = group.reader(member, lease_ttl_ms=1000)
        else:
            source = hr.join("orders", "g", member, pin_ttl_ms=1000)
        async with source as joined:
            if kind == "shared":
                await joined.subscribe(SHARED)
            print("up", flush=True)
            room = asyncio.Semaphore(IN_HANDS_MAX)
            deliveries = aiter(joined)
            hands: set[asyncio.Task[None]] = set()
            while not ended.done():
                coming = asyncio.ensure_future(anext(deliveries))
                await asyncio.wait([coming, ended], return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    break
                try:
                    delivery = coming.result()
                except Fenced:
                    continue
                await room.acquire()
                task = asyncio.create_task(handle(delivery, journal, room))
                hands.add(task)
                task.add_done_callback(hands.discard)
            await asyncio.gather(*hands)


def main(what: str, url: str, *rest: str) -> None:
    if what == "consume":
        kind, member, path = rest
        with Path(path).open("a", buffering=1) as journal:
            asyncio.run(consume(url, kind, member, journal))
        return
    dead_letters.PART_LETTERS_MAX = 20
    with headrace.sync.open(url, housekeeping=False) as hr:
        print("go", flush=True)
        print(hr.put_back(rest[0]).letters, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
