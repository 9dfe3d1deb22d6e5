"""A reader under torture: each event becomes one of the stream ``out``, in one transaction.

``python -m tests.torture.reader_worker CATALOG NAME``.  What it writes is the event's number, the
token under which it was read, and its place.  It leaves at the line ``close``; what it cannot go on
from goes to stderr.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import headrace
from headrace.errors import AlreadyAckedError, CatalogUnavailableError, Fenced, HeadraceError

LEASE_MS = 2500
AT_A_TIME = 6


async def work(delivery: headrace.Delivery) -> None:
    token = delivery._run.owned.token
    place = f"{delivery.stream} {delivery.segment} {delivery.offset}"
    with suppress(Fenced, AlreadyAckedError, CatalogUnavailableError):
        async with delivery.transaction() as tx:
            tx.publish("out.x", f"{int(delivery.value)} {token} {place}".encode())


async def main(url: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    closing = loop.run_in_executor(None, sys.stdin.readline)
    async with headrace.open(url, housekeeping=False) as hr:
        group = await hr.reader_groups.get("report")
        async with group.reader(name, lease_ttl_ms=LEASE_MS) as reader:
            room = asyncio.Semaphore(AT_A_TIME)

            async def one(delivery: headrace.Delivery) -> None:
                try:
                    await work(delivery)
                except HeadraceError as error:
                    print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                finally:
                    room.release()

            async def read() -> None:
                async with asyncio.TaskGroup() as tasks:
                    while True:
                        await room.acquire()
                        try:
                            delivery = await anext(aiter(reader))
                        except (Fenced, CatalogUnavailableError):
                            room.release()
                        except StopAsyncIteration:
                            return
                        else:
                            tasks.create_task(one(delivery))

            reading = asyncio.create_task(read())
            await asyncio.wait([reading, closing], return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
