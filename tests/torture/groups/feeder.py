"""The feeder: a process that publishes numbered events, key by key.

    python -m tests.torture.groups.feeder URL STORE JOURNAL SEED EVENTS_PER_S

It publishes until its standard input ends, then says how many events there are.  It is not
killed itself: what happens to writers is the matter of the torture of the log.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

import headrace
from tests.torture.groups.admin import unacked
from tests.torture.groups.journal import (
    STREAM,
    Event,
    Journal,
    Published,
    now_ns,
    subject_of,
    value_of,
)
from tests.torture.writer import stop_with_stdin, until_open

KEYS = 60
PAUSE_S = 0.1
BURST_MAX = 40
UNACKED_MAX = 1_500
"""It waits while a group has more than this to do, so that the end is never far away."""


async def feed(
    hr: headrace.Headrace, journal: Journal, rng: random.Random, rate: float, stop: asyncio.Event
) -> int:
    numbers: Counter[int] = Counter()
    while not stop.is_set():
        left = await hr.in_thread(unacked, hr.log)
        if max(left.values(), default=0) > UNACKED_MAX:
            await asyncio.sleep(PAUSE_S)
            continue
        events = []
        for _ in range(rng.randint(1, BURST_MAX)):
            key = rng.randrange(KEYS)
            numbers[key] += 1
            events.append(Event(key, numbers[key]))
        await hr.append(
            STREAM,
            [
                headrace.Event(
                    subject=subject_of(event.key), value=value_of(event), key=f"k{event.key}"
                )
                for event in events
            ],
        )
        journal.write(Published(now_ns(), events))
        await asyncio.sleep(len(events) / rate)
    return sum(numbers.values())


async def main(arguments: list[str]) -> None:
    url, store, journal, seed, rate = arguments
    stop = asyncio.Event()
    stop_with_stdin(stop)

    async def work() -> None:
        async with headrace.open(url, store=store) as hr:
            print(await feed(hr, Journal(Path(journal)), random.Random(seed), float(rate), stop))

    await until_open(work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
