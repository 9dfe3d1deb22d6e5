"""A worker as a service manager runs it: start as many as you like, stop and kill them as you like.

    python examples/worker.py ./data worker-1
    python examples/worker.py ./data worker-2
    headrace --catalog ./data publish orders.eu.42 '{"total": 12}' --key 42

Each event goes to one of the workers, and events of one key come in order.  SIGTERM and Ctrl-C end
a worker when it has answered what it has in hand.  A killed one is replaced within its lease; an
event it had not acked comes again, to somebody else.
"""

import asyncio
import signal
import sys

import headrace


async def handle(delivery: headrace.Delivery) -> None:
    """Do the work.  What is raised here brings the event again later, and at last a dead letter."""
    print(delivery.subject, bytes(delivery.value).decode(), flush=True)


async def main(catalog: str, name: str) -> None:
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with headrace.open(catalog) as hr:
        await hr.create_stream("orders", subjects=["orders.>"], segments=4)
        async with hr.session(name) as session:
            await session.subscribe("$share/billing/orders.>")
            print(f"{name} works", flush=True)
            working = asyncio.create_task(session.consume(handle, concurrency=8))
            ended = asyncio.create_task(over.wait())
            await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
            await session.close()
            await working
    print(f"{name} has ended", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
