"""``headrace group join``: a member at the terminal, that prints or runs a command per event."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headrace.cli import deliveries
from headrace.cli.deliveries import FOR_EVER, Until
from headrace.cli.executing import EventCommand
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
    command = None if exec is None else EventCommand(exec)
    if not work.wait:
        with options.open() as log:
            _check_there(log, stream, group, member)
    # What becomes of the member is told here in its own words.
    logging.getLogger("headrace.groups.partitioned.runtime.member").setLevel(logging.ERROR)

    async def run() -> None:
        settings = {"pin_ttl_ms": work.pin_ttl_ms, "max_deliveries": work.max_deliveries}
        async with (
            options.open_async(housekeeping=True) as hr,
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
    joined: Member, command: EventCommand | None, until: Until, concurrency: int, as_json: bool
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
