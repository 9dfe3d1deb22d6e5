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
from tests.torture.groups.journal import Event, Journal, Published, now_ns
from tests.torture.writer import stop_with_stdin, until_open

STREAM = "work"
OUTPUT = "done"
KEYS = 60
BURST_MAX = 40
IDENTITY_BYTES = 8


def value_of(event: Event) -> bytes:
    return event.key.to_bytes(4, "little") + event.number.to_bytes(4, "little")


def event_of(value: bytes) -> Event:
    return Event(int.from_bytes(value[:4], "little"), int.from_bytes(value[4:8], "little"))


def subject_of(key: int) -> str:
    return f"{STREAM}.{'eu' if key % 3 else 'us'}.k{key}"


async def feed(
    hr: headrace.Headrace, journal: Journal, rng: random.Random, rate: float, stop: asyncio.Event
) -> int:
    numbers: Counter[int] = Counter()
    while not stop.is_set():
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
