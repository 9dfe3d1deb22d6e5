"""A member in a process of its own: tells what it gets, and holds or acks it as it is told.

    python -m tests.groups.partitioned.runtime.worker URL STREAM GROUP MEMBER[*N] PIN_TTL_MS [hold]

With ``*N`` there are N instances of the member in the process.  It prints ``at TIME WORD …`` lines:
where an instance stands (``pinned PARTITIONS``), ``got VALUE PARTITION``, ``acked VALUE PARTITION``
and ``fenced VALUE``.  With ``hold`` it acks the first event once it reads a line, and then goes on
as the others do.
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
        return member.running.core.phase, member.status.partitions

    while True:
        seen = phase, partitions = standing()
        say(phase.value.replace(" ", "-"), *partitions)
        await member.wait_until(lambda seen=seen: standing() != seen)


async def consume(
    hr: headrace.Headrace, args: tuple[str, str, str], ttl_ms: int, hold: bool
) -> None:
    async with hr.join(*args, pin_ttl_ms=ttl_ms) as member:
        telling = asyncio.create_task(tell_changes(member))
        try:
            async for delivery in member:
                value = delivery.value.decode()
                say("got", value, delivery.segment)
                if hold:
                    hold = False
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(None, sys.stdin.readline)
                try:
                    await delivery.ack()
                except (Fenced, ConsumerClosedError) as error:
                    say("fenced", value, type(error).__name__)
                else:
                    say("acked", value, delivery.segment)
        finally:
            telling.cancel()


async def main(url: str, stream: str, group: str, name: str, ttl_ms: str, *rest: str) -> None:
    member, _, count = name.partition("*")
    async with headrace.open(url, create=False, housekeeping=False) as hr:
        await asyncio.gather(
            *(
                consume(hr, (stream, group, member), int(ttl_ms), "hold" in rest)
                for _ in range(int(count or 1))
            )
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
