"""A member of shared groups in a process of its own; what it acked goes to a file.

``python -m tests.groups.shared.runtime.member CATALOG SESSION OUTPUT TEXT…`` says ``ready``, and
then answers lines: ``leads`` (the groups it leads), ``units``, ``cut`` (its connections) and
``close``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from headrace import Session
from headrace.errors import CatalogUnavailableError, Fenced, HeadraceError
from tests.groups.shared.runtime.support import open_log


async def consume(session: Session, output: Path) -> None:
    deliveries = aiter(session)
    with output.open("ab", buffering=0) as file:
        while True:
            try:
                delivery = await anext(deliveries)
                file.write(b"+ %d %s\n" % (time.monotonic_ns(), delivery.value))
                await delivery.ack()
                file.write(b"! %d %s\n" % (time.monotonic_ns(), delivery.value))
            except Fenced:
                continue
            except StopAsyncIteration:
                return
            except CatalogUnavailableError as error:
                # Somebody was frozen with the lock in hand: it passes, and so does this.
                file.write(b"~ %d %s\n" % (time.monotonic_ns(), str(error).encode()))
            except HeadraceError as error:
                file.write(b"? %d %s\n" % (time.monotonic_ns(), str(error).encode()))
                return


async def main(url: str, name: str, output: str, *texts: str) -> None:
    loop = asyncio.get_running_loop()
    async with open_log(url) as hr, hr.session(name) as session:
        for text in texts:
            if text not in session.subscriptions:
                await session.subscribe(text, start="earliest")
        task = asyncio.create_task(consume(session, Path(output)))
        print("ready", flush=True)
        peer = await hr._shared.peer()
        while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            match line:
                case "leads":
                    print(" ".join(peer.leaders), flush=True)
                case "units":
                    print(" ".join(session.units), flush=True)
                case "cut":
                    for connection in (
                        *peer.listener.connections,
                        *peer.peers.connections.values(),
                    ):
                        connection.abort()
                    print("cut", flush=True)
                case "close":
                    break
        await session.close(grace_s=2)
        await asyncio.gather(task, return_exceptions=True)
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
