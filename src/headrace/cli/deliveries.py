"""Deliveries at the terminal: taken one by one, shown as a line for people or JSON for programs."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headrace.cli import records
from headrace.cli.failures import UsageError
from headrace.cli.output import tell, until_ctrl_c
from headrace.cli.read import printable
from headrace.cli.screens import time_text
from headrace.cli.values import some_seconds
from headrace.errors import Fenced
from headrace.groups.consumer import Delivery
from headrace.log.plain import Row


@Parameter(name="*")
@dataclass(frozen=True)
class Until:
    """When a command that consumes ends by itself."""

    limit: Annotated[int | None, Parameter(help="Stop after this many events.")] = None
    idle: Annotated[
        float | None,
        Parameter(
            alias="--idle-s",
            converter=some_seconds,
            help="Stop after this time without an event: 30s, 2m, or a number of seconds.",
        ),
    ] = None

    def check(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit {self.limit}: take at least one event")
        if self.idle is not None and not self.idle > 0:
            raise UsageError(f"--idle {self.idle}: wait for longer than nothing")


FOR_EVER = Until()


async def consume(
    source: AsyncIterable[Delivery],
    handle: Callable[[Delivery], Awaitable[None]],
    until: Until,
    concurrency: int = 1,
) -> None:
    """Have every delivery handled, ``concurrency`` at a time; a fenced one does not count."""
    left = until.limit

    async def go() -> None:
        nonlocal left
        deliveries = aiter(source)
        with suppress(TimeoutError, StopAsyncIteration):
            while left is None or left > 0:
                left = None if left is None else left - 1
                try:
                    async with asyncio.timeout(until.idle):
                        delivery = await anext(deliveries)
                    await handle(delivery)
                except Fenced as fenced:
                    tell(f"headrace: {fenced}")
                    left = None if left is None else left + 1

    await asyncio.gather(*(go() for _ in range(concurrency)))


async def print_and_ack(delivery: Delivery, as_json: bool) -> None:
    sys.stdout.write(shown(delivery, as_json) + "\n")
    sys.stdout.flush()
    await delivery.ack()


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run until it ends, or SIGTERM ends it as Ctrl-C does: all is handed over then."""

    async def until_terminated() -> None:
        task = asyncio.current_task()
        assert task is not None
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every loop or thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await work()

    until_ctrl_c()
    with suppress(asyncio.CancelledError):
        asyncio.run(until_terminated())


def shown(delivery: Delivery, as_json: bool) -> str:
    """One line."""
    if not as_json:
        text = printable(delivery.value.decode(errors="backslashreplace"))
        place = f"{delivery.stream}/{delivery.segment}:{delivery.offset}"
        when = time_text(delivery.timestamp_us // 1000 * 1000)
        return f"{when}  {printable(delivery.subject)}  {place}  {text}"
    row = Row(
        segment=delivery.segment,
        offset=delivery.offset,
        timestamp_us=delivery.timestamp_us,
        subject=delivery.subject,
        key=delivery.key,
        value=delivery.value,
        headers=tuple(
            (key, value if isinstance(value, bytes) else value.encode())
            for key, value in delivery.headers
        ),
        epoch=None,
        origin=None,
    )
    found = {"stream": delivery.stream, **records.shown(row), "attempt": delivery.attempt}
    return msgspec.json.encode(found).decode()
