"""A scaler: a process that splits, merges and retiles segments while others append.

    python -m tests.torture.scaler URL STORE SEED [PASSES]

Runs until its standard input ends, or until it kills itself at the ``PASSES``-th sealing.
"""

from __future__ import annotations

import asyncio
import random
import sys

import headrace
from headrace.catalog.streams import Stream
from headrace.errors import CatalogUnavailableError, SegmentSealedError
from tests.torture.writer import create_streams, stop_with_stdin, until_open

SCALED = ("alpha", "beta")
OPEN_SEGMENTS_MAX = 6
PAUSE_S = (0.02, 0.3)


async def scale_once(hr: headrace.Headrace, stream: Stream, rng: random.Random) -> None:
    """One random change of the stream's tiling."""
    found = stream.open_segments
    roll = rng.random()
    if len(found) >= OPEN_SEGMENTS_MAX or (len(found) > 1 and roll < 0.35):
        at = rng.randrange(len(found) - 1)
        count = rng.randint(2, min(3, len(found) - at))
        await hr.merge(stream.name, [segment.number for segment in found[at : at + count]])
    elif len(found) > 1 and roll < 0.6:
        at = rng.randrange(len(found) - 1)
        low, high = found[at], found[at + 1]
        cut = rng.randrange(low.range_lo + 1, high.range_hi)
        ranges = [(low.range_lo, cut), (cut, high.range_hi)]
        await hr.retile(stream.name, [low.number, high.number], ranges)
    else:
        segment = rng.choice(found)
        if segment.range_hi - segment.range_lo > 4:
            await hr.split(stream.name, segment.number, rng.randint(2, 3))


async def main(arguments: list[str]) -> None:
    url, store, seed, *death = arguments
    stop = asyncio.Event()
    stop_with_stdin(stop)
    rng = random.Random(seed)

    async def work() -> None:
        async with headrace.open(url, store=store) as hr:
            await create_streams(hr)
            if death:
                from tests.torture import dying

                dying.arm("in-scale", int(death[0]), 0.0)
            while not stop.is_set():
                try:
                    stream = await hr.stream(rng.choice(SCALED))
                    await scale_once(hr, stream, rng)
                except (SegmentSealedError, CatalogUnavailableError):
                    # Another scaler was first, or the connection was cut.
                    pass
                await asyncio.sleep(rng.uniform(*PAUSE_S))

    await until_open(work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
