"""Publishes epochs until it is killed: ``python -m tests.epochs.live.source PLACE``.

With three more arguments (certificate, key and authority) it does so over TLS.
"""

from __future__ import annotations

import asyncio
import sys

import headrace
from tests.epochs.live.support import rows


async def main(place: str, *files: str) -> None:
    names = ("certificate", "key", "authority")
    tls = headrace.TLS(**dict(zip(names, files, strict=True))) if files else None
    async with headrace.open(place, tls=tls) as hr, hr.live_publisher("days", "eu") as pub:
        day = 0
        while True:
            await pub.append(day, rows(f"a{day}", f"b{day}"))
            await pub.append(day, rows(f"c{day}"), advance_to=day + 1)
            day += 1
            await asyncio.sleep(0.002)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
