"""A program on a machine that is cut off: publishes, consumes in a shared group, and says when."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

import headrace
from headrace.errors import HeadraceError

EVERY_S = 0.1


def say(what: str, text: object = "") -> None:
    print(f"{time.monotonic():.3f} {what} {text}", flush=True)


async def publish(hr: headrace.Headrace, name: str) -> None:
    number = 0
    while True:
        number += 1
        try:
            await hr.publish(f"orders.{number % 16}", f"{name}-{number}".encode(), key=str(number))
            say("published")
        except HeadraceError as error:
            say("refused", str(error).replace("\n", " ")[:120])
        await asyncio.sleep(EVERY_S)


async def consume(hr: headrace.Headrace, name: str, prefix: str) -> None:
    async with hr.session(name) as session:
        await session.subscribe(f"$share/g/{prefix}", start="earliest")
        say("subscribed")
        async for delivery in session:
            say("got", delivery.value.decode())
            with contextlib.suppress(HeadraceError):
                await delivery.ack()
                say("acked", delivery.value.decode())
        say("ended")


async def main(url: str, name: str) -> None:
    async with headrace.open(url, housekeeping=False) as hr:
        await asyncio.gather(publish(hr, name), consume(hr, name, "orders.>"))


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    asyncio.run(main(sys.argv[1], sys.argv[2]))
