"""A member in a process of its own: tells what it gets, and holds or acks it as it is told.

    python -m tests.groups.partitioned.worker URL STREAM GROUP MEMBER PIN_TTL_MS [hold]

It prints ``at TIME WORD …`` lines: ``pinned``, ``owns PARTITIONS``, ``got VALUE PARTITION``,
``acked VALUE PARTITION``, ``fenced VALUE``.  With ``hold`` it acks what it holds once it reads a
line, and then goes on as the others do.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import headrace
from headrace.errors import ConsumerClosedError, Fenced


def say(*words: object) -> None:
    sys.stdout.write(f"at {time.monotonic():.6f} {' '.join(map(str, words))}\n")
    sys.stdout.flush()


async def tell_changes(member: Any) -> None:
    def standing() -> tuple[Any, ...]:
        return member.core.phase, member.status.partitions

    while True:
        seen = phase, partitions = standing()
        say(phase.value.replace(" ", "-"), *partitions)
        await member.wait_until(lambda seen=seen: standing() != seen)


async def main(url: str, stream: str, group: str, name: str, ttl_ms: str, *rest: str) -> None:
    loop = asyncio.get_running_loop()
    hold = "hold" in rest
    async with (
        headrace.open(url, create=False, housekeeping=False) as hr,
        hr.join(stream, group, member=name, pin_ttl_ms=int(ttl_ms)) as member,
    ):
        telling = asyncio.create_task(tell_changes(member))
        try:
            async for delivery in member:
                value = delivery.value.decode()
                say("got", value, delivery.segment)
                if hold:
                    hold = False
                    await loop.run_in_executor(None, sys.stdin.readline)
                try:
                    await delivery.ack()
                except (Fenced, ConsumerClosedError) as error:
                    say("fenced", value, type(error).__name__)
                else:
                    say("acked", value, delivery.segment)
        finally:
            telling.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
