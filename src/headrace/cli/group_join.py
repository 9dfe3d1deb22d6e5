"""``headrace group join``: a member at the terminal, that prints or runs a command per event."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headrace.cli import deliveries
from headrace.cli.deliveries import FOR_EVER, Until
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import tell
from headrace.errors import UnknownGroupError
from headrace.groups.consumer import Delivery
from headrace.groups.partitioned import admin
from headrace.groups.partitioned.core.messages import Phase
from headrace.groups.partitioned.runtime.member import Member
from headrace.groups.partitioned.runtime.options import PIN_TTL_MS
from headrace.groups.partitioned.runtime.units import GroupKind
from headrace.groups.shared.admin import Groups
from headrace.log.log import Log


@Parameter(name="*")
@dataclass(frozen=True)
class Working:
    """How a member works."""

    pin_ttl_ms: Annotated[
        int, Parameter(help="How soon a standby takes over when this process dies.")
    ] = PIN_TTL_MS
    max_deliveries: Annotated[
        int,
        Parameter(
            help="After this many failed deliveries an event becomes a dead letter (0: never)."
        ),
    ] = 0
    concurrency: Annotated[
        int, Parameter(help="Commands that run at a time; events of one key never do.")
    ] = 1
    wait: Annotated[
        bool,
        Parameter(negative="", help="Wait for a group, or a member of it, that is not there yet."),
    ] = False


USUAL = Working()


def join(
    stream: str,
    group: str,
    member: str,
    /,
    *,
    exec: Annotated[
        str | None, Parameter(help="Run this for each event; ack on exit 0, else deliver it again.")
    ] = None,
    until: Until = FOR_EVER,
    work: Working = USUAL,
    options: Options = NONE,
) -> None:
    """Consume as a member of a static or elastic group until Ctrl-C.

    Each event is printed and acked.  With --exec a command gets its value on stdin, and its place
    in HEADRACE_SUBJECT, HEADRACE_KEY (not set if the key holds a NUL), HEADRACE_KEY_BASE64,
    HEADRACE_POSITION, HEADRACE_TIMESTAMP and HEADRACE_ATTEMPT.  Of several who join as the same
    member one is active, the others stand by.

    * `headrace group join orders billing m1`
    * `headrace group join orders billing m1 --exec ./bill.sh --max-deliveries 5`
    """
    until.check()
    if work.concurrency < 1:
        raise UsageError(f"--concurrency {work.concurrency}: run at least one command")
    command = None if exec is None else _Command(exec)
    if not work.wait:
        with options.open() as log:
            _check_there(log, stream, group, member)
    # What becomes of the member is told here in its own words.
    logging.getLogger("headrace.groups.partitioned.runtime.member").setLevel(logging.ERROR)

    async def run() -> None:
        settings = {"pin_ttl_ms": work.pin_ttl_ms, "max_deliveries": work.max_deliveries}
        async with (
            options.open_async() as hr,
            hr.join(stream, group, member, **settings) as joined,
        ):
            await _consume(joined, command, until, work.concurrency, options.json)

    deliveries.run(run)


def _check_there(log: Log, stream: str, group: str, member: str) -> None:
    """Refuse what would wait for ever, with the names there are."""
    later = "; to wait until there is, add --wait"
    try:
        found = admin.get(log, stream, group)
    except UnknownGroupError as error:
        shared = [each.properties for each in Groups(log).list() if each.properties.group == group]
        if shared:
            raise UsageError(
                f"{group!r} is a shared group; take part in it with: headrace subscribe "
                f"'$share/{group}/{shared[0].filter}'"
            ) from error
        raise UsageError(f"{error}{later}") from error
    members = found.config.assignment()
    if found.kind is GroupKind.STATIC and member not in members:
        raise UsageError(
            f"static group {group!r} of stream {stream!r} has no member {member!r}, and its "
            f"members never change; they are: {', '.join(list(members)[:10])}{later}"
        )


async def _consume(
    joined: Member, command: _Command | None, until: Until, concurrency: int, as_json: bool
) -> None:
    async def handle(delivery: Delivery) -> None:
        if command is None:
            await deliveries.print_and_ack(delivery, as_json)
        else:
            await command.answer(delivery)

    telling = asyncio.create_task(_tell(joined))
    try:
        await deliveries.consume(joined, handle, until, 1 if command is None else concurrency)
    finally:
        telling.cancel()


async def _tell(joined: Member) -> None:
    """Say on stderr where the member stands, whenever that changes."""

    def standing() -> tuple[object, ...]:
        status = joined.status
        return status.phase, status.partitions, status.explanation

    said = ""
    while True:
        status = joined.status
        if status.phase is Phase.PINNED:
            owned = ", ".join(map(str, status.partitions)) or "none yet"
            text = f"active; partitions: {owned}"
        else:
            text = "; ".join(status.explanation[1:]) or status.phase.value
        if text != said:
            tell(f"headrace: {joined.member}: {text}")
            said = text
        before = (status.phase, status.partitions, status.explanation)
        await joined.wait_until(lambda before=before: standing() != before)  # type: ignore[misc]


class _Command:
    """What --exec runs for each event; the event is answered by its exit status."""

    def __init__(self, text: str) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--exec: {text!r} is no command line: {error}") from None
        if not self._words or "\0" in text:
            raise UsageError("--exec: give a command")
        if shutil.which(self._words[0]) is None:
            raise UsageError(
                f"--exec: there is no command {self._words[0]!r}, or it may not be run"
            )

    async def answer(self, delivery: Delivery) -> None:
        status = await self._run(delivery)
        if status == 0:
            await delivery.ack()
        else:
            await delivery.nack(reason=f"{self._words[0]} exited with {status}")

    async def _run(self, delivery: Delivery) -> int:
        position = delivery.position
        key = delivery.key or ""
        place = {
            "HEADRACE_SUBJECT": delivery.subject,
            "HEADRACE_KEY_BASE64": base64.b64encode(key.encode()).decode(),
            "HEADRACE_POSITION": f"{position.stream}/{position.segment}:{position.offset}",
            "HEADRACE_TIMESTAMP": delivery.timestamp.isoformat(),
            "HEADRACE_ATTEMPT": str(delivery.attempt),
        }
        if "\0" not in key:  # which an environment cannot hold
            place["HEADRACE_KEY"] = key
        inherited = {name: text for name, text in os.environ.items() if name != "HEADRACE_KEY"}
        try:
            command = await asyncio.create_subprocess_exec(
                *self._words, stdin=asyncio.subprocess.PIPE, env=inherited | place
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
