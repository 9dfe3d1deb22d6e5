"""The filler: a process that fills the elastic group's work queue until its input ends.

    python -m tests.torture.groups.filler URL STORE STREAM GROUP

Several may run at the same time, and each may be killed at any moment: a round counts once.
"""

from __future__ import annotations

import asyncio
import sys

import headrace
from headrace.errors import CatalogUnavailableError, UnknownGroupError
from headrace.groups.partitioned.names import GroupName
from tests.groups.partitioned.runtime.feeder import fill
from tests.torture.writer import stop_with_stdin, until_open

ROUND_EVENTS = 500
PAUSE_S = 0.02


async def main(arguments: list[str]) -> None:
    url, store, stream, group = arguments
    stop = asyncio.Event()
    stop_with_stdin(stop)

    async def work() -> None:
        async with headrace.open(url, store=store) as hr:
            while not stop.is_set():
                try:
                    await hr.in_thread(fill, hr.log, GroupName(stream, group), ROUND_EVENTS)
                except (UnknownGroupError, CatalogUnavailableError):
                    pass
                await asyncio.sleep(PAUSE_S)

    await until_open(work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
