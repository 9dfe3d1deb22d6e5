"""``headrace group join``: a member at the terminal, that prints or runs a command per event."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.deliveries import shown
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.errors import Fenced
from headrace.groups.consumer import Delivery
from headrace.groups.partitioned.core.messages import Phase
from headrace.groups.partitioned.runtime.member import Member
from headrace.groups.partitioned.runtime.options import PIN_TTL_MS


def join(
    stream: str,
    group: str,
    member: str,
    /,
    *,
    exec: Annotated[
        str | None, Parameter(help="Run this for each event; ack on exit 0, else deliver it again.")
    ] = None,
    limit: int | None = None,
    idle: Annotated[float | None, Parameter(alias="--idle-s")] = None,
    pin_ttl_ms: int = PIN_TTL_MS,
    max_deliveries: int = 0,
    concurrency: int = 1,
    options: Options = NONE,
) -> None:
    """Consume as a member of a static or elastic group until Ctrl-C.

    Each event is printed and acked.  With --exec a command gets its value on stdin, and its place
    in HEADRACE_SUBJECT, HEADRACE_KEY, HEADRACE_POSITION, HEADRACE_TIMESTAMP and
    HEADRACE_ATTEMPT.  Of several who join as the same member one is active, the others stand by.

    * `headrace group join orders billing m1`
    * `headrace group join orders billing m1 --exec ./bill.sh --max-deliveries 5`

    Parameters
    ----------
    limit
        Stop after this many events.
    idle
        Stop when nothing came for this many seconds.
    pin_ttl_ms
        How soon a standby takes over when this process dies.
    max_deliveries
        An event that failed so often becomes a dead letter (0: never).
    concurrency
        Commands that run at a time; events of one key never do.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: take at least one event")
    if idle is not None and idle <= 0:
        raise UsageError(f"--idle {idle}: wait for longer than nothing")
    if concurrency < 1:
        raise UsageError(f"--concurrency {concurrency}: run at least one command")
    words = shlex.split(exec) if exec is not None else []
    if exec is not None and not words:
        raise UsageError("--exec: give a command")
    if words and shutil.which(words[0]) is None:
        raise UsageError(f"--exec: there is no command {words[0]!r}, or it may not be run")
    tell_warnings()

    async def run() -> None:
        stop_on_terminate()
        async with (
            options.open_async() as hr,
            hr.join(
                stream, group, member, pin_ttl_ms=pin_ttl_ms, max_deliveries=max_deliveries
            ) as joined,
        ):
            work = _Work(joined, words, options.json, limit, idle)
            telling = asyncio.create_task(_tell(joined))
            try:
                await asyncio.gather(*(work.go() for _ in range(concurrency if words else 1)))
            finally:
                telling.cancel()

    # What becomes of the member is told here in its own words.
    with quiet("headrace.groups.partitioned.runtime.member"), suppress(asyncio.CancelledError):
        asyncio.run(run())  # cancelled: it was asked to end, and all is handed over


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Leave warnings of a part of the library out for a while."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def tell_warnings() -> None:
    """Have warnings of the library look like everything else that is said on stderr."""
    logger = logging.getLogger("headrace")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("headrace: %(message)s"))
        logger.addHandler(handler)


def stop_on_terminate() -> None:
    """Let SIGTERM end this task as Ctrl-C does, so that a standby need not wait for the pin."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every loop or thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _tell(joined: Member) -> None:
    """Say on stderr where the member stands, whenever that changes."""
    said = ""
    while True:
        status = joined.status
        if status.phase is Phase.PINNED:
            owned = ", ".join(map(str, status.partitions)) or "none yet"
            text = f"active; partitions: {owned}"
        else:
            text = "; ".join(status.explanation[1:]) or status.phase.value
        if text != said:
            print(f"headrace: {joined.member}: {text}", file=sys.stderr, flush=True)
            said = text
        before = (status.phase, status.partitions, status.explanation)
        await joined.wait_until(lambda before=before: _standing(joined) != before)  # type: ignore[misc]


def _standing(joined: Member) -> tuple[object, ...]:
    status = joined.status
    return status.phase, status.partitions, status.explanation


class _Work:
    """Takes events, has something done with each, and answers."""

    def __init__(
        self, joined: Member, words: list[str], as_json: bool, limit: int | None, idle: float | None
    ) -> None:
        self._joined = joined
        self._words = words
        self._as_json = as_json
        self._limit = limit
        self._idle = idle
        self._taken = 0

    async def go(self) -> None:
        deliveries = aiter(self._joined)
        with suppress(TimeoutError, StopAsyncIteration):
            while self._limit is None or self._taken < self._limit:
                self._taken += 1
                try:
                    async with asyncio.timeout(self._idle):
                        delivery = await anext(deliveries)
                    await self._answer(delivery)
                except Fenced as fenced:
                    # Another instance has it now: what was done does not count.
                    print(f"headrace: {fenced}", file=sys.stderr, flush=True)

    async def _answer(self, delivery: Delivery) -> None:
        if not self._words:
            sys.stdout.write(shown(delivery, self._as_json) + "\n")
            sys.stdout.flush()
            await delivery.ack()
            return
        status = await self._run(delivery)
        if status == 0:
            await delivery.ack()
        else:
            await delivery.nack(reason=f"{self._words[0]} exited with {status}")

    async def _run(self, delivery: Delivery) -> int:
        position = delivery.position
        place = {
            "HEADRACE_SUBJECT": delivery.subject,
            "HEADRACE_KEY": delivery.key or "",
            "HEADRACE_POSITION": f"{position.stream}/{position.segment}:{position.offset}",
            "HEADRACE_TIMESTAMP": delivery.timestamp.isoformat(),
            "HEADRACE_ATTEMPT": str(delivery.attempt),
        }
        try:
            command = await asyncio.create_subprocess_exec(
                *self._words, stdin=asyncio.subprocess.PIPE, env=os.environ | place
            )
        except OSError as error:
            await delivery.nack(delay_ms=0, reason=str(error))
            raise UsageError(f"--exec: cannot run {self._words[0]!r}: {error.strerror}") from error
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                await command.communicate(delivery.value)
            return await command.wait()
        finally:
            if command.returncode is None:
                command.kill()  # its event goes to somebody else
