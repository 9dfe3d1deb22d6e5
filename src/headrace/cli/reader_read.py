"""``headrace reader read``: a reader at the terminal, that prints or runs a command per event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from headrace.cli import deliveries
from headrace.cli.deliveries import FOR_EVER, Until
from headrace.cli.executing import EventCommand
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import tell
from headrace.cli.reader_common import GroupArgument
from headrace.groups.consumer import Delivery


@Parameter(name="*")
@dataclass(frozen=True)
class Reading:
    """How a reader reads."""

    concurrency: Annotated[
        int, Parameter(help="Commands that run at a time; events of one key never do.")
    ] = 1
    max_deliveries: Annotated[
        int, Parameter(help="Failed deliveries after which an event is a dead letter (0: never).")
    ] = 0
    lease_ttl_ms: Annotated[
        int, Parameter(help="How soon others take over when this process dies.")
    ] = 10_000


USUAL = Reading()


def read(
    group: GroupArgument,
    reader: Annotated[str, Parameter(help="The name of this reader.")],
    /,
    *,
    exec: Annotated[
        str | None, Parameter(help="Run this for each event; ack on exit 0, else deliver it again.")
    ] = None,
    until: Until = FOR_EVER,
    how: Reading = USUAL,
    options: Options = NONE,
) -> None:
    """Read as a reader of a group until Ctrl-C, or until the group has come to its end.

    Each event is printed and acked.  With --exec a command gets its value on stdin, and its place
    in the environment, as in `headrace group join`.

    * `headrace reader read report r1`
    * `headrace reader read report r1 --exec ./work.sh --limit 100`
    """
    until.check()
    if how.concurrency < 1:
        raise UsageError(f"--concurrency {how.concurrency}: run at least one command")
    command = None if exec is None else EventCommand(exec)

    async def handle(delivery: Delivery) -> None:
        if command is None:
            await deliveries.print_and_ack(delivery, options.json)
        else:
            await command.answer(delivery)

    async def run() -> None:
        async with options.open_async(housekeeping=True) as hr:
            found = await hr.reader_groups.get(group)
            joined = found.reader(
                reader,
                max_deliveries=how.max_deliveries,
                lease_ttl_ms=how.lease_ttl_ms,
                on_assigned=lambda segments: _tell(reader, "reads", segments),
                on_revoked=lambda segments: _tell(reader, "reads no longer", segments),
            )
            async with joined:
                workers = 1 if command is None else how.concurrency
                await deliveries.consume(aiter(joined), handle, until, workers)

    deliveries.run(run)


def _tell(reader: str, what: str, segments: tuple[str, ...]) -> None:
    tell(f"headrace: {reader}: {what} {', '.join(segments)}")
