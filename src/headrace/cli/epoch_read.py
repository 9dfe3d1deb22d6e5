"""``headrace epoch read``: whole epochs on the screen, or as JSON lines."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.epoch_times import StreamArgument, times_of, typed
from headrace.cli.failures import EXIT_INTERRUPTED, UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, print_json, tell
from headrace.cli.read import RowScreen, show_json
from headrace.epochs.core import ledger
from headrace.epochs.core.antichains import Antichain, Frontier, not_before
from headrace.epochs.core.times import TimeShape
from headrace.epochs.runtime.given import WholeEpoch
from headrace.epochs.runtime.progress_log import load_state
from headrace.epochs.runtime.starting import WORDS, opened

if TYPE_CHECKING:
    from headrace.epochs.runtime.subscription import EpochSubscription
    from headrace.log.log import Log

TOKEN_CHARS = 16

Follow = Annotated[bool, Parameter(negative="", alias="-f", help="Go on as epochs are completed.")]
NameOption = Annotated[
    str | None,
    Parameter(help="Keep in the catalog how far this came, and go on from there next time."),
]


def read(
    stream: StreamArgument,
    /,
    *,
    start: Annotated[
        str,
        Parameter(name="--from", help="earliest, open, now, a time, or a token that was printed."),
    ] = "earliest",
    until: Annotated[str | None, Parameter(help="End before this time.")] = None,
    follow: Follow = False,
    name: NameOption = None,
    limit: Annotated[int | None, Parameter(help="At most this many epochs.")] = None,
    options: Options = NONE,
) -> int:
    """Read whole epochs; of one that is not complete nothing is shown.

    With --json each row is a line as in headrace read, and each epoch ends with a line
    {"complete": 17, "rows": …, "token": …}.  Ctrl-C ends between epochs; a second one at once.

    * `headrace epoch read orders --from earliest --until 18`
    * `headrace epoch read orders --follow --name report --json`
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: read at least one epoch")
    first = None if start in WORDS or _is_token(start) else typed(start, "--from")
    last = None if until is None else typed(until, "--until")

    async def run() -> int:
        stopped = _stopped_by_ctrl_c()
        async with options.open_async() as hr:
            shape, lower = await hr.host.in_thread(_standing, hr.host.log, stream)
            begin = None if first is None else times_of(shape, first, "--from")
            end = None if last is None else times_of(shape, last, "--until")
            if begin and end and not not_before(shape, end, begin):
                raise UsageError(f"--until {until} is before --from {start}")
            if not follow and lower:
                # What is complete now; what lies at or after the frontier is still to come.
                end = Antichain.minimal(shape, (*lower, *(end or ()))).frontier
                if begin and not not_before(shape, end, begin):
                    return _nothing(stream, lower, options)
            found = hr.epochs(stream, start=begin or start, until=end, name=name)
            shown = await _show_all(found, stopped, limit, name is not None, options)
        if stopped.is_set():
            return EXIT_INTERRUPTED
        return 0 if shown else _nothing(stream, lower, options)

    return asyncio.run(run())


async def _show_all(
    found: EpochSubscription,
    stopped: asyncio.Event,
    limit: int | None,
    acks: bool,
    options: Options,
) -> int:
    shown = 0
    async with found as epochs:
        async for epoch in _until(aiter(epochs), stopped):
            await _show(epoch, options)
            if acks:
                await epoch.ack()
            shown += 1
            if shown == limit or stopped.is_set():
                break
    return shown


def _is_token(text: str) -> bool:
    return len(text) >= TOKEN_CHARS and not text.replace(",", "").replace(" ", "").isdecimal()


def _standing(log: Log, stream: str) -> tuple[TimeShape, Frontier]:
    """The shape of a stream's times, and what is to come; nothing after it was ended."""
    (found,), shape = opened(log, [stream])
    state = log.catalog.read(lambda tx: load_state(tx, found))
    return shape, state.lower if state.status == ledger.OPEN else ()


def _nothing(stream: str, lower: Frontier, options: Options) -> int:
    if not options.json:
        tell(
            f"headrace: no complete epoch there; stream {stream!r} is at {ledger.shown(lower)}, "
            f"and what holds it back is told by: headrace epoch explain {stream}"
        )
    return 0


def _stopped_by_ctrl_c() -> asyncio.Event:
    """Is set by the first Ctrl-C (or SIGTERM); a second one ends the command where it is."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every loop or thread
        loop.add_signal_handler(signal.SIGINT, stop)
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
    return stopped


async def _until(
    epochs: AsyncIterator[WholeEpoch], stopped: asyncio.Event
) -> AsyncIterator[WholeEpoch]:
    """Epochs until there are no more, or somebody wants to stop while waiting for one."""
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        while not stopped.is_set():
            following = asyncio.ensure_future(_following(epochs))
            await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
                return
            if (epoch := following.result()) is None:
                return
            yield epoch
    finally:
        stopping.cancel()


async def _following(epochs: AsyncIterator[WholeEpoch]) -> WholeEpoch | None:
    return await anext(epochs, None)


async def _show(epoch: WholeEpoch, options: Options) -> None:
    screen = RowScreen()
    if not options.json:
        print(f"epoch {epoch.time}: {counted(epoch.rows, 'row')}")
    async for batch in epoch:
        if batch.num_rows and options.json:
            show_json(batch)
        elif batch.num_rows:
            screen.show(batch)
    if options.json:
        print_json({"complete": epoch.time, "rows": epoch.rows, "token": epoch.token})
    sys.stdout.flush()
